"""A real HTTP server on loopback with the OpenAI chat protocol and chosen faults.

    with Server(status(500), ok("hello")) as server:        # first request: 500, from then on: "hello"
        LLM("m", base_url=server.url)...
    server.requests                                         # the JSON bodies of the requests

A behaviour is a function of (handler, body). The last one of the script is repeated for all further requests.
`answering(f)` makes a behaviour that depends on the body.
"""

from __future__ import annotations

import gzip
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Callable

Behaviour = Callable[["Handler", dict[str, Any]], None]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or every reply waits 40 ms for an acknowledgement
    server: Server  # type: ignore[assignment]

    def log_message(self, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        behaviour = self.server.arrived(self.path, {k.lower(): v for k, v in self.headers.items()}, body)
        try:
            behaviour(self, body)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the client has closed the connection
        finally:
            self.server.left()

    def reply(self, code: int, payload: Any, headers: dict[str, str] | None = None) -> None:
        raw = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        self.send_response(code)
        usual = {"Content-Type": "application/json", "Content-Length": str(len(raw))}
        for k, v in {**usual, **(headers or {})}.items():
            self.send_header(k, v)
        self.end_headers()
        self.wfile.write(raw)

    def hang_up(self) -> None:
        self.close_connection = True
        self.wfile.flush()
        self.connection.close()


class Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, *script: Behaviour) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script, self.requests, self.headers, self.paths = list(script), [], [], []
        self.released, self._lock, self._open, self.most_at_once = threading.Event(), threading.Lock(), 0, 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def arrived(self, path: str, headers: dict[str, str], body: dict[str, Any]) -> Behaviour:
        with self._lock:
            self.requests.append(body)
            self.headers.append(headers)
            self.paths.append(path)
            self._open += 1
            self.most_at_once = max(self.most_at_once, self._open)
            return self.script.pop(0) if len(self.script) > 1 else self.script[0]

    def left(self) -> None:
        with self._lock:
            self._open -= 1

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a test's client may close the connection early

    def __enter__(self) -> Server:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.released.set()  # ends the behaviours that hang
        self.shutdown()
        self.server_close()


def completion(
    text: Any, finish: str = "stop", prompt: int = 10, done: int = 5, **message: Any
) -> dict[str, Any]:
    said = {"role": "assistant", "content": text, **message}
    return {
        **{"id": "c1", "object": "chat.completion", "created": 1, "model": "m"},
        "choices": [{"index": 0, "finish_reason": finish, "message": said}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": done, "total_tokens": prompt + done},
    }


def no_model_server(monkeypatch: Any) -> None:
    """Take away what the environment says of a model's server and of proxies."""
    proxies = [p for name in ("http_proxy", "https_proxy", "all_proxy") for p in (name, name.upper())]
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", *proxies):
        monkeypatch.delenv(name, raising=False)


def raw(code: int, payload: Any, headers: dict[str, str] | None = None) -> Behaviour:
    return lambda h, body: h.reply(code, payload, headers)


def ok(text: Any, finish: str = "stop", **kw: Any) -> Behaviour:
    return raw(200, completion(text, finish, **kw))


def ok_json(value: Any, **kw: Any) -> Behaviour:
    return ok(json.dumps(value, ensure_ascii=False), **kw)


def status(
    number: int, message: str = "no", headers: dict[str, str] | None = None, **error: Any
) -> Behaviour:
    return raw(number, {"error": {"message": message, "type": "test", **error}}, headers)


def answering(decide: Callable[[dict[str, Any]], Behaviour]) -> Behaviour:
    return lambda h, body: decide(body)(h, body)


def hang(h: Handler, body: dict[str, Any]) -> None:
    h.server.released.wait(20)
    h.close_connection = True


def waits_for(n: int, then: Behaviour) -> Behaviour:
    """Answer when `n` requests are open at once, or after 0.3 s: shows how many a client sends at once."""
    full = threading.Event()

    def behave(h: Handler, body: dict[str, Any]) -> None:
        if h.server.most_at_once >= n:
            full.set()
        full.wait(0.3)
        then(h, body)

    return behave


def cut_body(h: Handler, body: dict[str, Any]) -> None:
    """Announce a whole body, send half of it, close the connection."""
    raw_ = json.dumps(completion("half")).encode()
    h.send_response(200)
    h.send_header("Content-Type", "application/json")
    h.send_header("Content-Length", str(len(raw_)))
    h.end_headers()
    h.wfile.write(raw_[: len(raw_) // 2])
    h.hang_up()


def half_json(h: Handler, body: dict[str, Any]) -> None:
    """Send a body that is complete for HTTP and half a JSON document."""
    raw_ = json.dumps(completion("half")).encode()
    h.reply(200, raw_[: len(raw_) // 2])


def chunked(h: Handler, pieces: Any, pause: float = 0.0) -> None:
    """Send a body of unknown length piece by piece, with `pause` seconds between two pieces.

    Stops when the client hangs up or the test ends.
    """
    h.send_response(200)
    h.send_header("Content-Type", "application/json")
    h.send_header("Connection", "close")
    h.end_headers()
    for piece in pieces:
        h.wfile.write(piece)
        if h.server.released.wait(pause):
            break
    h.hang_up()


def dripping_body(h: Handler, body: dict[str, Any]) -> None:
    """Send a good reply, two bytes every 50 ms."""
    raw_ = json.dumps(completion("slow " * 2000)).encode()
    chunked(h, (raw_[i : i + 2] for i in range(0, len(raw_), 2)), 0.05)


def dripping_headers(h: Handler, body: dict[str, Any]) -> None:
    """Send headers without end, one every 50 ms."""
    h.wfile.write(b"HTTP/1.1 200 OK\r\n")
    for i in range(400):
        h.wfile.write(f"X-{i}: y\r\n".encode())
        if h.server.released.wait(0.05):
            break
    h.hang_up()


def bomb(megabytes: int, code: int = 200) -> Behaviour:
    """Send a good reply of so many megabytes, compressed to a thousandth of that."""
    packed = gzip.compress(json.dumps(completion("0" * megabytes * 10**6)).encode())
    return raw(code, packed, {"Content-Encoding": "gzip"})


def minimal_instance(schema: dict[str, Any]) -> Any:
    """Return the smallest value that fits a task's JSON schema: first choices, empty lists, lower bounds."""
    if "enum" in schema:
        return schema["enum"][0]
    if schema.get("type") == "object":
        return {name: minimal_instance(part) for name, part in schema.get("properties", {}).items()}
    if schema.get("type") == "array":
        return [minimal_instance(schema["items"])] * schema.get("minItems", 0)
    least = schema.get("minimum", 0)
    return {"string": "none", "boolean": True, "integer": least, "number": least}.get(schema.get("type", ""))


def minimal(seconds: float = 0.0) -> Behaviour:
    """Reply after some seconds with the smallest value that fits the request's schema."""

    def behave(h: Handler, body: dict[str, Any]) -> None:
        time.sleep(seconds)
        schema = body.get("response_format", {}).get("json_schema", {}).get("schema", {"type": "string"})
        ok(json.dumps(minimal_instance(schema)))(h, body)

    return behave
