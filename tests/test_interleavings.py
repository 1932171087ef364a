"""Every schedule of two workers over the core, in one thread: nothing doubled, and every stop resumable.

The store and the summarizer are handed to the core through an adapter that suspends before every call, so that a
scheduler decides at each call which worker goes on.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import suppress
from typing import Any

import pytest

from tests.memory_repository import MemoryRepository
from turnfold import (
    CompactionInProgress,
    LeaseLost,
    Repository,
    SqlRepository,
    Turn,
    check,
    compact_session,
    create_engine,
    migrate,
)
from turnfold.core import compact
from turnfold.errors import InvalidSummary
from turnfold.folding import Always
from turnfold.planning import Limits
from turnfold.running import Worker
from turnfold.testing import RepositoryContract, some_turns


class TestMemoryRepository(RepositoryContract):
    @pytest.fixture
    def repository(self) -> MemoryRepository:
        return MemoryRepository()


class Suspending:
    """`target`, each of whose methods suspends once before it does its work."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if not callable(value) or name == "token_counter":
            return value

        async def call(*args: Any, **kwargs: Any) -> Any:
            await switch()
            return value(*args, **kwargs)

        return call


@types.coroutine
def switch() -> Generator[None, None, None]:
    yield


class Plain:
    """A summarizer of another make, without a hook: one call a summary."""

    def __init__(self) -> None:
        self.calls = 0

    def summarize_turns(self, turns: Any, prior_summary: str = "") -> tuple[str, str]:
        self.calls += 1
        return "A leaf.", "normal"

    def summarize_summaries(self, summaries: Any) -> tuple[str, str]:
        self.calls += 1
        return "Up.", "normal"


def worker(store: Repository, limits: Limits, lease_seconds: float) -> Coroutine[Any, Any, Any]:
    async def sleep(seconds: float) -> None:
        await switch()

    made = Worker(Suspending(store), Suspending(Plain()), sleep=sleep, lease_seconds=lease_seconds)
    return compact("s", made, limits, Always())


def schedules(run: Callable[[Callable[[int], int]], None], most: int) -> Iterator[list[int]]:
    """Run every schedule once, depth first. `run` asks at each step which of n workers goes on."""
    prefix: list[int] = []
    for _ in range(most):
        choices: list[tuple[int, int]] = []

        def choose(count: int, choices: list[tuple[int, int]] = choices, prefix: list[int] = prefix) -> int:
            taken = prefix[len(choices)] if len(choices) < len(prefix) else 0
            choices.append((taken, count))
            return taken

        run(choose)
        yield [taken for taken, _ in choices]
        while choices and choices[-1][0] + 1 == choices[-1][1]:
            choices.pop()
        if not choices:
            return
        prefix = [taken for taken, _ in choices[:-1]] + [choices[-1][0] + 1]


EXPECTED = (CompactionInProgress, LeaseLost, InvalidSummary)


def run_two(store: Repository, limits: Limits, lease_seconds: float, choose: Callable[[int], int]) -> list[Any]:
    """Two workers to their ends, step by step; what became of each."""
    running = {number: worker(store, limits, lease_seconds) for number in range(2)}
    outcomes: list[Any] = [None, None]
    while running:
        number = list(running)[choose(len(running))]
        try:
            running[number].send(None)
        except StopIteration as finished:
            outcomes[number] = finished.value
            del running[number]
        except EXPECTED as error:
            outcomes[number] = error
            del running[number]
    return outcomes


def settled(store: Repository, turns: list[Turn], limits: Limits) -> None:
    """After whatever happened: nothing doubled or lost, and one more run finishes the work."""
    faults = [fault for fault in check(store, "s") if fault.kind != "lease"]
    assert faults == []
    compact_session(
        "s",
        store,
        Plain(),  # type: ignore[arg-type]
        fresh_tail_count=limits.fresh_tail_count,
        leaf_chunk_tokens=limits.leaf_chunk_tokens,
        condensed_min_fanout=limits.condensed_min_fanout,
    )
    assert check(store, "s") == []
    assert store.get_session_turns("s") == turns
    assert len(store.get_coverage("s")) == len(turns) - limits.fresh_tail_count


def memory_store(count: int) -> tuple[MemoryRepository, list[Turn]]:
    store = MemoryRepository()
    return store, store.append_turns("s", some_turns(count))


ONE_LEAF = Limits(fresh_tail_count=0, leaf_chunk_tokens=1_000, condensed_min_fanout=2)
TREE = Limits(fresh_tail_count=1, leaf_chunk_tokens=30, condensed_min_fanout=2)


@pytest.mark.parametrize(
    ("turns", "limits", "lease_seconds", "most", "at_least"),
    [
        (1, ONE_LEAF, 0.0, 40_000, 3_700),
        (5, TREE, 60.0, 5_000, 50),
        (5, TREE, 0.0, 4_000, 4_000),
    ],
    ids=["leases that run out at once", "a lease that lasts", "a tree, and leases that run out at once"],
)
def test_no_schedule_of_two_workers_doubles_or_loses_anything(
    turns: int, limits: Limits, lease_seconds: float, most: int, at_least: int
) -> None:
    state: dict[str, Any] = {}

    def run(choose: Callable[[int], int]) -> None:
        state["store"], state["turns"] = memory_store(turns)
        state["outcomes"] = run_two(state["store"], limits, lease_seconds, choose)

    count = 0
    for _ in schedules(run, most):
        count += 1
        settled(state["store"], state["turns"], limits)
        if lease_seconds:
            assert sorted(isinstance(outcome, CompactionInProgress) for outcome in state["outcomes"]) in (
                [False, True],
                [False, False],
            )
    print(f"{count:,} schedules")
    assert count >= at_least


def test_the_same_holds_on_sqlite(tmp_path: Any) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'a.db'}")
    migrate(engine)
    store = SqlRepository(engine)
    turns: list[Turn] = []

    def run(choose: Callable[[int], int]) -> None:
        store.recount_session("s")
        store.erase_session("s")
        turns[:] = store.append_turns("s", some_turns(5))
        run_two(store, TREE, 0.0, choose)

    for _ in schedules(run, 150):
        settled(store, turns, TREE)
    engine.dispose()


class Stopped(BaseException):
    pass


def steps(running: Coroutine[Any, Any, Any], most: int = 10**6) -> int:
    """Let a worker take at most so many steps; how many it took."""
    for step in range(most):
        try:
            running.send(None)
        except StopIteration:
            return step
    return most


def interrupt(running: Coroutine[Any, Any, Any]) -> None:
    """Raise at the step where the worker is, and let it end."""
    with suppress(Stopped):
        running.throw(Stopped)
        steps(running)


ALL_STEPS = steps(worker(memory_store(7)[0], TREE, 60.0))


@pytest.mark.parametrize("step", range(1, ALL_STEPS + 1))
def test_a_worker_killed_at_any_step_is_gone_on_from(step: int) -> None:
    store, turns = memory_store(7)
    running = worker(store, TREE, 0.0)
    assert steps(running, step) == step
    settled(store, turns, TREE)
    interrupt(running)
    assert check(store, "s") == []


@pytest.mark.parametrize("step", range(1, ALL_STEPS))
def test_a_worker_interrupted_at_any_step_gives_its_lease_back(step: int) -> None:
    store, turns = memory_store(7)
    running = worker(store, TREE, 60.0)
    assert steps(running, step) == step
    interrupt(running)
    session = store.get_session("s")
    assert session is not None
    assert session.lease_owner is None
    settled(store, turns, TREE)
