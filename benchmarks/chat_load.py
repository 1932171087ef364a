"""20 concurrent chats of 300 messages each against the example service, with compaction and then without it.

The model is a local server that answers after 100 ms; nobody pauses between messages, so the service is never idle.
Each request is compared with the same one of the other run, as long as all chats go on in both: once the first of them
has ended, the service has less to do.

Run: python -m benchmarks.chat_load
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from benchmarks.databases import WORDS
from tests import fake_provider as fake
from tests.databases import postgres_server
from turnfold import SqlRepository, check, create_engine

CHATS, MESSAGES, MODEL_SECONDS = 20, 300, 0.1
CONTEXT_TOKENS = 8_000
REPLY = "We change the cache key first, then look at the timing of the slow tests. " * 3


@contextmanager
def service(database_url: str, model_url: str, compaction: str) -> Iterator[str]:
    """The address of the example service in a process of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "TURNFOLD_DATABASE_URL": database_url,
        "OPENAI_BASE_URL": f"{model_url}/v1",
        "OPENAI_API_KEY": "key",
        "CHAT_CONTEXT_TOKENS": str(CONTEXT_TOKENS),
        "CHAT_COMPACTION": compaction,
    }
    command = [sys.executable, "-W", "ignore", "-m", "uvicorn", "--factory", "examples.chat_service:create_app"]
    process = subprocess.Popen([*command, "--port", str(port), "--log-level", "error"], env=environment)
    url = f"http://127.0.0.1:{port}"
    try:
        while True:
            try:
                httpx.get(f"{url}/sessions/none/tree").raise_for_status()
                break
            except httpx.TransportError:
                assert process.poll() is None, "the service did not start"
                time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait()


async def talk(url: str) -> dict[tuple[int, int], float]:
    """The seconds that every request took that was answered while all chats went on, by chat and message."""
    times: dict[tuple[int, int], float] = {}
    has_one_ended = False

    async def chat(number: int) -> None:
        nonlocal has_one_ended
        async with httpx.AsyncClient(timeout=60) as client:
            for index in range(MESSAGES):
                content = f"{number}.{index} {WORDS}"
                started = time.perf_counter()
                answer = await client.post(f"{url}/sessions/chat-{number}/messages", json={"content": content})
                answer.raise_for_status()
                if not has_one_ended:
                    times[number, index] = time.perf_counter() - started
        has_one_ended = True

    await asyncio.gather(*map(chat, range(CHATS)))
    return times


def lost(database_url: str) -> int:
    """How many of the messages that were sent are not in the store, as they were sent; broken promises count, too."""
    engine = create_engine(database_url)
    store = SqlRepository(engine)
    missing = len(check(store))
    for number in range(CHATS):
        said = [turn.content for turn in store.get_session_turns(f"chat-{number}") if turn.role == "user"]
        missing += sum(f"{number}.{index} {WORDS}" not in said for index in range(MESSAGES))
    folded = sum(session.covered_position for session in store.get_sessions())
    print(f"  {folded:,} of {2 * CHATS * MESSAGES:,} turns folded; {missing} lost")
    engine.dispose()
    return missing


def main() -> None:
    with (
        fake.running() as provider,
        postgres_server() as server,
        server.database() as with_it,
        server.database() as without,
    ):
        provider.script = [fake.says(REPLY, seconds=MODEL_SECONDS)]
        with service(with_it, provider.url, "on") as url:
            on = asyncio.run(talk(url))
        with service(without, provider.url, "off") as url:
            off = asyncio.run(talk(url))
        ratios = sorted(on[request] / off[request] for request in on if request in off)
        slower = sum(ratio > 3 for ratio in ratios)
        print(
            f"{CHATS} chats of {MESSAGES} messages, {len(ratios):,} of them while all went on: "
            f"the same request took {ratios[len(ratios) // 2]:.2f} times as long "
            f"with compaction as without (median), {ratios[len(ratios) * 99 // 100]:.2f} at the 99th percentile, "
            f"{ratios[-1]:.2f} at most; {slower} took more than 3 times as long; the slowest "
            f"requests took {max(on.values()):.2f} s with compaction, {max(off.values()):.2f} s without"
        )
        assert lost(with_it) == lost(without) == 0


if __name__ == "__main__":
    main()
