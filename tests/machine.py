"""How fast this machine is: a test of what takes long compares with it, as seconds differ by machine."""

import time


def counting_seconds() -> float:
    """Return the seconds of this thread to count the odd numbers below a million, the least of three."""
    taken = []
    for _ in range(3):  # another program may interrupt one
        begun = time.thread_time()
        sum(number & 1 for number in range(1_000_000))
        taken.append(time.thread_time() - begun)
    return min(taken)
