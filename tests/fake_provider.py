"""A local HTTP server that speaks the wire formats of OpenAI and Anthropic, and answers as a script tells it."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = Callable[["Provider", BaseHTTPRequestHandler, str], None]

NO_SAMPLING_SINCE = "2026-10-21"
"""The version of Anthropic's API that refuses sampling settings first:
https://platform.claude.com/docs/en/api/migration-2026-10-21"""


class Provider:
    """What the server was asked, and what it still has to answer; the last answer is given for ever."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.script: list[Reply] = [says("They decided on plan 7.")]
        self.prompts: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.at: list[float] = []
        self.running = self.most = 0
        self.lock = threading.Lock()

    def next(self) -> Reply:
        with self.lock:
            return self.script.pop(0) if len(self.script) > 1 else self.script[0]


def says(text: str, *, finish: str = "stop", seconds: float = 0.0, reasoning: str = "") -> Reply:
    """An answer, in either wire format."""

    def reply(provider: Provider, request: BaseHTTPRequestHandler, path: str) -> None:
        time.sleep(seconds)
        send(
            request, 200, anthropic(text, finish, reasoning) if "messages" in path else openai(text, finish, reasoning)
        )

    return reply


def refuses(provider: Provider, request: BaseHTTPRequestHandler, path: str) -> None:
    if "messages" in path:
        send(request, 200, anthropic("", "refusal", ""))
    else:
        body = openai("", "stop", "")
        body["choices"][0]["message"] = {"role": "assistant", "content": None, "refusal": "I will not."}
        send(request, 200, body)


def fails(status: int, code: str = "", **headers: str) -> Reply:
    """An error as the providers word it."""

    def reply(provider: Provider, request: BaseHTTPRequestHandler, path: str) -> None:
        error = {"type": code or "error", "code": code or None, "message": f"failed: {code}", "param": None}
        send(request, status, {"type": "error", "error": error}, **headers)

    return reply


def too_long(provider: Provider, request: BaseHTTPRequestHandler, path: str) -> None:
    message = "prompt is too long: 250000 tokens > 200000 maximum"
    error = {
        "type": "invalid_request_error",
        "code": "context_length_exceeded",
        "message": message,
        "param": "messages",
    }
    send(request, 400, {"type": "error", "error": error})


def refuses_sampling(provider: Provider, request: BaseHTTPRequestHandler, path: str) -> None:
    fails(400, "invalid_request_error")(provider, request, path)


def garbage(provider: Provider, request: BaseHTTPRequestHandler, path: str) -> None:
    raw(request, 200, b"<html>502 Bad Gateway</html>", "text/html")


def drops(provider: Provider, request: BaseHTTPRequestHandler, path: str) -> None:
    request.connection.shutdown(socket.SHUT_RDWR)


def openai(text: str, finish: str, reasoning: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text, **({"reasoning_content": reasoning} if reasoning else {})}
    return {
        "id": "c-1",
        "object": "chat.completion",
        "created": 1,
        "model": "fake",
        "choices": [{"index": 0, "message": message, "finish_reason": finish, "logprobs": None}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
    }


def anthropic(text: str, finish: str, reasoning: str) -> dict[str, Any]:
    stop = {"stop": "end_turn", "length": "max_tokens", "content_filter": "refusal"}.get(finish, finish)
    content = [{"type": "thinking", "thinking": reasoning, "signature": "s"}] if reasoning else []
    content += [{"type": "text", "text": text}] if text else []
    return {
        "id": "m-1",
        "type": "message",
        "role": "assistant",
        "model": "fake",
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {"input_tokens": 100, "output_tokens": 10},
    }


def send(request: BaseHTTPRequestHandler, status: int, body: dict[str, Any], **headers: str) -> None:
    raw(request, status, json.dumps(body).encode(), "application/json", **headers)


def raw(request: BaseHTTPRequestHandler, status: int, body: bytes, kind: str, **headers: str) -> None:
    request.send_response(status)
    for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **headers}.items():
        request.send_header(name.replace("_", "-"), value)
    request.end_headers()
    request.wfile.write(body)


@contextmanager
def running() -> Iterator[Provider]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with provider.lock:
                provider.at.append(time.monotonic())
                provider.bodies.append(body)
                provider.prompts.append(text_of(body["messages"][-1]["content"]))
                provider.running += 1
                provider.most = max(provider.most, provider.running)
            answer = refuses_sampling if self._refuses_sampling(body) else provider.next()
            try:
                answer(provider, self, self.path)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True
            finally:
                with provider.lock:
                    provider.running -= 1

        def _refuses_sampling(self, body: dict[str, Any]) -> bool:
            newest = self.headers.get("anthropic-version", "") >= NO_SAMPLING_SINCE
            return newest and not body.keys().isdisjoint({"temperature", "top_p", "top_k"})

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    provider = Provider(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield provider
    server.shutdown()
    server.server_close()
    thread.join()


def text_of(content: str | list[dict[str, Any]]) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
