"""The example service, over HTTP, with a model server that speaks OpenAI's wire format, on both databases."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
import uvicorn

from examples.chat_service import create_app
from tests import fake_provider as fake
from tests.fake_provider import Provider
from turnfold import SqlRepository, check

pytestmark = pytest.mark.filterwarnings("ignore")  # of the servers' own

GOOD = "They decided on plan 7."


@contextmanager
def served() -> Iterator[httpx.Client]:
    """The service on a port of its own, stopped like a real one: what was begun is finished."""
    server = uvicorn.Server(uvicorn.Config(create_app(), port=0, log_level="error", lifespan="on"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the service did not start"
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        yield client
    server.should_exit = True
    thread.join()


@pytest.fixture
def provider(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    with fake.running() as provider:
        provider.script = [fake.says(GOOD)]
        monkeypatch.setenv("TURNFOLD_DATABASE_URL", url)
        monkeypatch.setenv("CHAT_MODEL", "fake")
        monkeypatch.setenv("OPENAI_BASE_URL", f"{provider.url}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "key")
        monkeypatch.setenv("CHAT_CONTEXT_TOKENS", "2000")
        yield provider


@pytest.fixture
def client(provider: Provider) -> Iterator[httpx.Client]:
    with served() as client:
        yield client


def send(client: httpx.Client, content: str, session: str = "s", **more: Any) -> httpx.Response:
    return client.post(f"/sessions/{session}/messages", json={"content": content, **more})


def test_a_message_is_answered_and_both_are_kept(client: httpx.Client, provider: Provider) -> None:
    reply = send(client, "What did we decide?").raise_for_status().json()
    assert reply["content"] == GOOD
    asked, answered = client.get("/sessions/s/messages").json()
    assert (asked["role"], asked["content"]) == ("user", "What did we decide?")
    assert (answered["role"], answered["content"], answered["id"]) == ("assistant", GOOD, reply["turn_id"])
    (body,) = provider.bodies
    assert [message["role"] for message in body["messages"]] == ["system", "user"]


def test_a_long_chat_is_compacted_behind_its_back_and_nothing_is_lost(
    client: httpx.Client, store: SqlRepository
) -> None:
    said = [f"Message {number}: we weigh plan {number} against the one before it. " * 4 for number in range(60)]
    sizes = [send(client, content).raise_for_status().json()["context_tokens"] for content in said]
    assert max(sizes) <= 2_000
    assert client.get("/sessions/s/tree").json()
    kept = client.get("/sessions/s/messages", params={"limit": 500}).json()
    assert [message["content"] for message in kept if message["role"] == "user"] == said
    assert [message["position"] for message in kept] == list(range(1, 121))
    page = client.get("/sessions/s/messages", params={"after": 100, "limit": 5}).json()
    assert [message["position"] for message in page] == [101, 102, 103, 104, 105]
    client.close()
    assert check(store) == []


def test_a_message_that_is_sent_again_is_answered_once(client: httpx.Client, provider: Provider) -> None:
    first = send(client, "Hello", id="m-1").json()
    again = send(client, "Hello", id="m-1").json()
    assert (again["content"], again["turn_id"]) == (first["content"], first["turn_id"])
    assert len(client.get("/sessions/s/messages").json()) == 2
    assert len(provider.bodies) == 1
    assert send(client, "Something else", id="m-1").status_code == 409


def test_a_model_that_is_down_loses_no_message(client: httpx.Client, provider: Provider) -> None:
    provider.script = [fake.fails(401, "authentication_error"), fake.says(GOOD)]
    failed = send(client, "Hello", id="m-1")
    assert failed.status_code == 503
    assert "send the message again" in failed.json()["detail"]
    assert send(client, "Hello", id="m-1").json()["content"] == GOOD
    assert len(client.get("/sessions/s/messages").json()) == 2


def test_many_chats_at_once_keep_to_themselves(client: httpx.Client, store: SqlRepository) -> None:
    def chat(session: str) -> None:
        for number in range(20):
            send(
                client, f"{session} says {number}, at some length, for the sake of it. " * 3, session
            ).raise_for_status()

    sessions = [f"chat-{number}" for number in range(8)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(chat, sessions))
    for session in sessions:
        kept = client.get(f"/sessions/{session}/messages", params={"limit": 500}).json()
        assert len(kept) == 40
        assert all(message["content"].startswith(session) for message in kept if message["role"] == "user")
    assert check(store) == []


@pytest.mark.parametrize("body", [{}, {"content": ""}, {"content": "x", "id": "i" * 241}])
def test_a_message_that_cannot_be_kept_is_refused(client: httpx.Client, body: dict[str, Any]) -> None:
    assert client.post("/sessions/s/messages", json=body).status_code == 422
    assert client.get("/sessions/s/messages").json() == []
