"""Real processes on one database: workers that meet, writers that go on, and workers that are killed.

`HYPOTHESIS_PROFILE=long` (make test-long) runs the numbers of rounds that the README tells of.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from tests import workers
from turnfold import SqlRepository, check, compact_session, create_engine
from turnfold.summarizer import Summarizer

LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"
ROUNDS = 20 if LONG else 2
KILLS = 200 if LONG else 25
TURNS = 2_000

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["tests.workers", "psycopg"])


def run_together(*work: tuple[Any, ...]) -> None:
    processes = [context.Process(target=target, args=arguments) for target, *arguments in work]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * len(processes)


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def calls_of_one_worker() -> int:
    """How often one worker alone calls the model for this session."""
    from tests.memory_repository import MemoryRepository

    calls: list[str] = []
    store = MemoryRepository()
    store.append_turns("s", workers.some_turns(TURNS))
    summarizer = Summarizer(lambda prompt: calls.append("") or f"A summary of {len(prompt.source)} characters.")  # type: ignore[func-returns-value]
    compact_session("s", store, summarizer, **workers.LIMITS)  # type: ignore[arg-type]
    return len(calls)


@pytest.fixture
def logs(tmp_path: Path) -> tuple[Path, Path]:
    """Where model calls and errors are noted."""
    return tmp_path / "calls", tmp_path / "errors"


@pytest.fixture(scope="module")
def expected_calls() -> int:
    return calls_of_one_worker()


class TestWorkersThatMeet:
    def test_eight_workers_fold_every_turn_once_and_pay_as_one(
        self, url: str, store: SqlRepository, logs: tuple[Path, Path], expected_calls: int
    ) -> None:
        calls, errors = logs
        for number in range(ROUNDS):
            session_id = f"s{number}"
            store.append_turns(session_id, workers.some_turns(TURNS))
            barrier = context.Barrier(8)
            before = len(lines(calls))
            run_together(*[(workers.compact, url, session_id, calls, errors, barrier)] * 8)
            assert lines(errors) == []
            assert check(store, session_id) == []
            assert len(store.get_coverage(session_id)) == TURNS - 16
            assert len(lines(calls)) - before == expected_calls

    def test_the_same_while_four_others_append(
        self, url: str, store: SqlRepository, logs: tuple[Path, Path], expected_calls: int
    ) -> None:
        calls, errors = logs
        for number in range(ROUNDS):
            session_id = f"s{number}"
            turns = store.append_turns(session_id, workers.some_turns(TURNS))
            barrier = context.Barrier(12)
            run_together(
                *[(workers.compact, url, session_id, calls, errors, barrier)] * 8,
                *[(workers.append, url, session_id, 25, errors, barrier)] * 4,
            )
            assert lines(errors) == []
            assert check(store, session_id) == []
            stored = store.get_session_turns(session_id)
            assert stored[:TURNS] == turns
            assert [turn.position for turn in stored] == list(range(1, TURNS + 101))
            assert len({turn.content for turn in stored}) == TURNS + 100
            assert len(store.get_coverage(session_id)) >= TURNS - 16


class TestFirstUse:
    def test_sixteen_processes_migrate_and_write_the_first_turns_at_once(
        self, empty_url: str, logs: tuple[Path, Path]
    ) -> None:
        _, errors = logs
        barrier = context.Barrier(16)
        run_together(*[(workers.migrate_and_append, empty_url, number, errors, barrier) for number in range(16)])
        assert lines(errors) == []
        engine = create_engine(empty_url)
        store = SqlRepository(engine)
        turns = store.get_session_turns("new")
        assert [turn.position for turn in turns] == list(range(1, 49))
        assert len({turn.content for turn in turns}) == 48
        assert check(store) == []
        engine.dispose()

    def test_a_new_sqlite_file_opened_by_many_processes_at_once_opens_for_each(
        self, tmp_path: Path, logs: tuple[Path, Path]
    ) -> None:
        _, errors = logs
        urls = [f"sqlite:///{tmp_path / str(number)}.db" for number in range(20)]
        run_together(*[(workers.open_each, urls, errors, context.Barrier(6))] * 6)
        assert lines(errors) == []


class TestKills:
    def test_a_worker_killed_at_any_moment_leaves_a_store_to_go_on_from(
        self, url: str, store: SqlRepository, logs: tuple[Path, Path]
    ) -> None:
        calls, _ = logs
        chance = random.Random(7)
        paid_twice = 0
        for number in range(KILLS):
            session_id = f"s{number}"
            store.append_turns(session_id, workers.some_turns(300))
            before = len(lines(calls))
            self.kill_one(url, session_id, calls, chance)
            assert check(store, session_id) == []
            written, called = len(store.get_summaries(session_id)), len(lines(calls)) - before
            assert called - written in (0, 1), "at most the call that was under way when it was killed is lost"
            self.let_the_lease_run_out(store, session_id)
            stats = compact_session(session_id, store, Summarizer(workers.model_that_counts(calls)), **workers.LIMITS)  # type: ignore[arg-type]
            assert check(store, session_id) == []
            assert len(store.get_coverage(session_id)) == 284
            again = len(lines(calls)) - before - called
            assert again == len(stats["tiers_used"]), "a summary that was committed was paid for again"
            paid_twice += written + again - len(store.get_summaries(session_id))
        assert paid_twice == 0

    def kill_one(self, url: str, session_id: str, calls: Path, chance: random.Random) -> None:
        process = context.Process(
            target=workers.compact_slowly, args=(url, session_id, calls, chance.randrange(10**9)), daemon=True
        )
        before = len(lines(calls))
        process.start()
        deadline = time.monotonic() + 30
        while len(lines(calls)) == before and process.is_alive() and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 0.12))
        if process.is_alive() and process.pid is not None:
            with suppress(ProcessLookupError):  # it ended just now
                os.kill(process.pid, signal.SIGKILL)
        process.join(30)

    def let_the_lease_run_out(self, store: SqlRepository, session_id: str) -> None:
        with store._engine.begin() as connection:
            connection.execute(
                text(
                    "UPDATE turnfold_sessions SET lease_expires_at = '2000-01-01 00:00:00.000000+00:00' WHERE id = :id"
                ),
                {"id": session_id},
            )
