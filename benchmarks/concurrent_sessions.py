"""200 sessions of 500 turns compacted by one async process, 100 ms a model call, at most 50 calls at once.

Run: python -m benchmarks.concurrent_sessions
"""

from __future__ import annotations

import asyncio
import time

from sqlalchemy.ext.asyncio import create_async_engine

from benchmarks.databases import spoken
from tests.databases import postgres_server
from turnfold.aio import AsyncSqlRepository, Summarizer, compact_session, migrate

SESSIONS, TURNS, CALLS_AT_ONCE, SECONDS_A_CALL, CONNECTIONS = 200, 500, 50, 0.1, 20


async def measure(url: str) -> None:
    engine = create_async_engine(url, pool_size=CONNECTIONS, max_overflow=0)
    await migrate(engine)
    store = AsyncSqlRepository(engine)
    for number in range(SESSIONS):
        await store.append_turns(f"s{number}", spoken(0, TURNS))
    slots, calls = asyncio.Semaphore(CALLS_AT_ONCE), 0

    async def model(prompt: str) -> str:
        nonlocal calls
        calls += 1
        async with slots:
            await asyncio.sleep(SECONDS_A_CALL)
        return "They changed the cache key to hold the compiler version. " * 40

    longest, watching = 0.0, True

    async def watch() -> None:
        nonlocal longest
        while watching:
            before = time.perf_counter()
            await asyncio.sleep(0.001)
            longest = max(longest, time.perf_counter() - before)

    watcher = asyncio.create_task(watch())
    started = time.perf_counter()
    summarizer = Summarizer(model)
    await asyncio.gather(
        *(compact_session(f"s{n}", store, summarizer, leaf_chunk_tokens=3_000) for n in range(SESSIONS))
    )
    seconds = time.perf_counter() - started
    watching = False
    await watcher
    await engine.dispose()
    one_after_another = calls * SECONDS_A_CALL
    print(
        f"{SESSIONS} sessions, {calls:,} model calls in {seconds:.1f} s: {one_after_another / seconds:.1f} times "
        f"faster than the calls alone one after another; {CONNECTIONS} connections; the event loop was "
        f"blocked for at most {longest * 1000:.0f} ms"
    )


def main() -> None:
    with postgres_server() as server, server.database() as url:
        asyncio.run(measure(url.replace("postgresql://", "postgresql+psycopg://")))


if __name__ == "__main__":
    main()
