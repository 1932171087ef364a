"""What only the async side promises: cancellation, concurrency, and clear words for a store of the wrong side."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

import turnfold
from tests.worlds import Portal
from turnfold import InvalidArgument, Prompt, SqlRepository, TokenBudget, aio, check, extractive
from turnfold.testing import some_turns


@pytest.fixture(scope="module")
def portal() -> Iterator[Portal]:
    portal = Portal()
    yield portal
    portal.close()


class Slow:
    """An asynchronous model that takes a moment, and tells how many of its calls ran at once."""

    def __init__(self, seconds: float = 0.05) -> None:
        self.seconds = seconds
        self.running = self.most = self.calls = 0

    async def __call__(self, prompt: Prompt) -> str:
        self.calls += 1
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.running -= 1
        return f"Summary {self.calls}."


def test_sessions_are_compacted_concurrently(store: SqlRepository, portal: Portal) -> None:
    model = Slow()
    for number in range(10):
        store.append_turns(f"s{number}", some_turns(40))
    twin = portal.twin(store)

    async def all_of_them() -> None:
        await asyncio.gather(*(aio.compact_session(f"s{n}", twin, aio.Summarizer(model)) for n in range(10)))

    portal.run(all_of_them())
    assert model.most >= 2
    assert check(store) == []
    assert all(len(store.get_coverage(f"s{number}")) == 24 for number in range(10))


@pytest.mark.parametrize("after", [0.0, 0.002, 0.01, 0.03, 0.06, 0.12, 0.2])
def test_a_task_cancelled_at_any_await_leaves_a_good_store_and_frees_the_lease(
    store: SqlRepository, portal: Portal, after: float
) -> None:
    turns = store.append_turns("s", some_turns(60))
    twin = portal.twin(store)

    async def cancelled() -> None:
        task = asyncio.create_task(
            aio.compact_session("s", twin, aio.Summarizer(Slow(0.01)), leaf_chunk_tokens=100, fresh_tail_count=4)
        )
        await asyncio.sleep(after)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.sleep(0.05)  # what was shielded ends by itself

    portal.run(cancelled())
    assert check(store) == []
    session = store.get_session("s")
    assert session is not None
    assert session.lease_owner is None
    turnfold.compact_session("s", store, turnfold.Summarizer(extractive), fresh_tail_count=4)
    assert len(store.get_coverage("s")) == 56
    assert store.get_session_turns("s") == turns


def test_the_event_loop_goes_on_while_the_model_answers(store: SqlRepository, portal: Portal) -> None:
    store.append_turns("s", some_turns(40))
    twin = portal.twin(store)

    async def both() -> float:
        longest, last = 0.0, time.monotonic()
        task = asyncio.create_task(aio.compact_session("s", twin, aio.Summarizer(Slow(0.3))))
        while not task.done():
            await asyncio.sleep(0.005)
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
        await task
        return longest

    assert portal.run(both()) < 0.25


@pytest.mark.parametrize("made", ["sync summarizer", "sync duck", "async duck"])
def test_any_summarizer_will_do(store: SqlRepository, portal: Portal, made: str) -> None:
    class SyncDuck:
        def summarize_turns(self, turns: Any, prior_summary: str = "") -> tuple[str, str]:
            return "Quack.", "normal"

        def summarize_summaries(self, summaries: Any) -> tuple[str, str]:
            return "Quack.", "normal"

    class AsyncDuck:
        async def summarize_turns(self, turns: Any, prior_summary: str = "") -> tuple[str, str]:
            await asyncio.sleep(0)
            return "Quack.", "normal"

        async def summarize_summaries(self, summaries: Any) -> tuple[str, str]:
            return "Quack.", "normal"

    summarizers = {
        "sync summarizer": turnfold.Summarizer(lambda prompt: "Quack."),
        "sync duck": SyncDuck(),
        "async duck": AsyncDuck(),
    }
    store.append_turns("s", some_turns(40))
    stats = portal.run(aio.compact_session("s", portal.twin(store), summarizers[made]))  # type: ignore[arg-type]
    assert stats["turns_compacted"] == 24
    assert store.get_summaries("s")[0].content == "Quack."


def test_a_synchronous_store_is_refused_with_the_cure(store: SqlRepository, portal: Portal) -> None:
    with pytest.raises(InvalidArgument, match="AsyncSqlRepository"):
        portal.run(aio.should_compact("s", store, 100))  # type: ignore[arg-type]


def test_every_function_has_its_twin(store: SqlRepository, portal: Portal) -> None:
    store.append_turns("s", some_turns(60))
    twin = portal.twin(store)

    async def day() -> None:
        budget = TokenBudget(total=400)
        assert await aio.should_compact("s", twin, 400)
        assert await aio.compact_if_needed("s", twin, turnfold.Summarizer(extractive), budget)
        assert (await aio.assemble_context("s", twin, budget)).token_count <= 400
        assert await aio.check(twin) == []
        assert await aio.repair(twin) == []
        assert await aio.erase_session("s", twin)

    portal.run(day())
    assert store.get_session("s") is None
    functions = {"compact_session", "should_compact", "compact_if_needed", "assemble_context"}
    functions |= {"check", "repair", "erase_session", "migrate"}
    assert functions <= set(aio.__all__) & set(turnfold.__all__)


def test_without_greenlet_the_import_names_what_to_install() -> None:
    script = "import sys; sys.modules['greenlet'] = None; import turnfold; import turnfold.aio"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "pip install 'turnfold[async]'" in done.stderr.splitlines()[-1]
