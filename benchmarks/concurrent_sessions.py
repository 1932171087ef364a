"""200 sessions of 500 turns compacted by one async process, 100 ms a model call, at most 50 calls at once.

The same work one session after the other is measured on 10 of them. The objects that live since the start are taken out
of the garbage collector's sight, as services do: it would stop the loop for 50 ms and more to look at them in vain.

Run: python -m benchmarks.concurrent_sessions
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable

from benchmarks.databases import spoken
from tests.conftest import empty
from tests.databases import postgres_server
from tests.worlds import async_engine
from turnfold.aio import AsyncSqlRepository, Summarizer, compact_session, migrate

SESSIONS, ONE_BY_ONE, TURNS, CALLS_AT_ONCE, SECONDS_A_CALL, CONNECTIONS = 200, 10, 500, 50, 0.1, 20


class SlowModel:
    """Waits in place of thinking, like a provider far away that allows so many calls at once."""

    def __init__(self) -> None:
        self.calls = 0
        self._slots = asyncio.Semaphore(CALLS_AT_ONCE)

    async def __call__(self, prompt: str) -> str:
        self.calls += 1
        async with self._slots:
            await asyncio.sleep(SECONDS_A_CALL)
        return "They changed the cache key to hold the compiler version. " * 40


async def measure(url: str, driver: str) -> None:
    engine = async_engine(url, driver, pool_size=CONNECTIONS, max_overflow=0)
    await migrate(engine)
    store = AsyncSqlRepository(engine)
    for number in range(SESSIONS + ONE_BY_ONE):
        await store.append_turns(f"s{number}", spoken(0, TURNS))
    model = SlowModel()

    async def compacted(number: int) -> None:
        await compact_session(f"s{number}", store, Summarizer(model), leaf_chunk_tokens=3_000)

    async def one_by_one() -> None:
        for number in range(SESSIONS, SESSIONS + ONE_BY_ONE):
            await compacted(number)

    async def all_at_once() -> None:
        await asyncio.gather(*map(compacted, range(SESSIONS)))

    await asyncio.gather(*(store.get_session("s0") for _ in range(CONNECTIONS)))  # a service's connections are open
    gc.collect()
    gc.freeze()
    slow, _ = await watched(one_by_one)
    before = model.calls
    fast, blocked = await watched(all_at_once)
    gc.unfreeze()
    await engine.dispose()
    print(
        f"{driver}: {SESSIONS} sessions, {model.calls - before:,} model calls in {fast:.1f} s, "
        f"{slow / ONE_BY_ONE * SESSIONS / fast:.1f} times faster than one by one ({slow:.1f} s for {ONE_BY_ONE}); "
        f"{CONNECTIONS} connections; the event loop was blocked for at most {blocked * 1000:.0f} ms"
    )


async def watched(work: Callable[[], Awaitable[None]]) -> tuple[float, float]:
    """The seconds that work took, and the longest that the event loop came to nothing else meanwhile: up to 5 ms less
    than what is told, since so long is slept between two looks at the clock, which looking more often would disturb."""
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.005)
            longest = max(longest, time.perf_counter() - before)

    watcher = asyncio.create_task(watch())
    started = time.perf_counter()
    await work()
    watcher.cancel()
    return time.perf_counter() - started, longest


def main() -> None:
    with postgres_server() as server, server.database() as url:
        for driver in ("psycopg", "asyncpg"):
            asyncio.run(measure(url, driver))
            empty(url)


if __name__ == "__main__":
    main()
