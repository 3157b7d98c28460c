"""Work in another process that may be killed, and what it tells before it dies."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import traceback
from collections.abc import Callable
from typing import Any, TextIO

import pytest

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
WRITES = ("BEGIN IMMEDIATE", "INSERT", "UPDATE", "DELETE", "COMMIT")


def in_child(work: Callable[[Callable[[Any], None]], object]) -> tuple[int, TextIO]:
    """Run `work(tell)` in another process; return its id, and the end of the pipe with the lines it tells."""
    read, write = os.pipe()
    if pid := os.fork():
        os.close(write)
        return pid, os.fdopen(read, "r")
    signal.alarm(300)  # a child that waits for ever dies of it
    try:
        os.close(read)
        work(lambda line: os.write(write, (json.dumps(line) + "\n").encode()) and None)
        os._exit(0)
    except BaseException:
        os.write(write, json.dumps({"error": traceback.format_exc()}).encode() + b"\n")
    os._exit(1)


def ended(pid: int, pipe: TextIO) -> tuple[int, list[Any]]:
    """Wait for the end; return the exit status, or minus the signal that killed it, and what was told."""
    with pipe:
        told = [json.loads(line) for line in pipe if line.endswith("\n")]
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), told


def die() -> None:
    """Kill this process, as a crash does."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_before_statement(n: int, db: sqlite3.Connection, statements: tuple[str, ...] = WRITES) -> None:
    """Let this process die before the `n`-th statement that begins with one of these words."""
    left = n

    def count(sql: str) -> None:
        nonlocal left
        if sql.startswith(statements):
            if not left:
                die()
            left -= 1

    db.set_trace_callback(count)
