"""Why a run ended: told to the caller, and to the log."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from tests.worlds import world_of
from turnfold import (
    ModelFailed,
    ModelUnavailable,
    Outcome,
    SqlRepository,
    Summarizer,
    TokenBudget,
    Turn,
    TurnfoldError,
    compact_if_needed,
    compact_session,
)
from turnfold.testing import some_turns


@pytest.fixture(autouse=True, params=["sync", "async"])
def world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with world_of(request.param, monkeypatch, globals(), "compact_session", "compact_if_needed"):
        yield


def well(prompt: str) -> str:
    return "They agreed."


def session_outcome(store: SqlRepository, model: Any = well, **options: Any) -> Outcome:
    told: list[Outcome] = []
    with suppress(TurnfoldError):
        compact_session("s", store, Summarizer(model), on_outcome=told.append, **options)
    (outcome,) = told
    return outcome


class TestCompactSession:
    def test_what_was_folded_whole_is_compacted(self, store: SqlRepository) -> None:
        store.append_turns("s", some_turns(40))
        assert session_outcome(store) is Outcome.COMPACTED
        assert session_outcome(store) is Outcome.NOTHING_TO_FOLD

    def test_a_session_without_turns_has_nothing_to_fold(self, store: SqlRepository) -> None:
        assert session_outcome(store) is Outcome.NOTHING_TO_FOLD

    def test_a_call_that_waits_is_named(self, store: SqlRepository) -> None:
        call = {"id": "c", "type": "function", "function": {"name": "ask", "arguments": "{}"}}
        store.append_turns("s", [Turn("assistant", None, tool_calls=[call]), *some_turns(20)])
        assert session_outcome(store) is Outcome.PENDING_CALL

    @pytest.mark.parametrize(
        ("bound", "outcome"),
        [({"max_model_calls": 1}, Outcome.MAX_MODEL_CALLS), ({"deadline": 1e-9}, Outcome.DEADLINE)],
    )
    def test_a_bound_is_named(self, store: SqlRepository, bound: dict[str, Any], outcome: Outcome) -> None:
        store.append_turns("s", some_turns(100))
        assert session_outcome(store, leaf_chunk_tokens=200, **bound) is outcome

    def test_another_worker_is_named(self, store: SqlRepository) -> None:
        store.append_turns("s", some_turns(40))
        store.acquire_lease("s", owner="other", seconds=60)
        assert session_outcome(store) is Outcome.IN_PROGRESS

    @pytest.mark.parametrize(
        ("error", "outcome"),
        [
            (ModelFailed("slow"), Outcome.MODEL_FAILED),
            (ModelUnavailable("wrong key"), Outcome.MODEL_UNAVAILABLE),
            (TurnfoldError("other"), Outcome.FAILED),
        ],
        ids=str,
    )
    def test_an_error_is_named_logged_and_raised(
        self, store: SqlRepository, caplog: pytest.LogCaptureFixture, error: Exception, outcome: Outcome
    ) -> None:
        def model(prompt: str) -> str:
            raise error

        store.append_turns("s", some_turns(40))
        with caplog.at_level(logging.INFO, logger="turnfold"):
            assert session_outcome(store, model) is outcome
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert record.getMessage() == f"session 's': {outcome}: {error}"

    def test_a_worker_that_lost_its_lease_is_named(self, store: SqlRepository) -> None:
        def model(prompt: str) -> str:
            with store._engine.begin() as connection:
                connection.exec_driver_sql("UPDATE turnfold_sessions SET lease_token = lease_token + 1")
            return "They agreed."

        store.append_turns("s", some_turns(40))
        assert session_outcome(store, model) is Outcome.LEASE_LOST

    def test_a_summary_without_a_model_is_logged(self, store: SqlRepository, caplog: pytest.LogCaptureFixture) -> None:
        store.append_turns("s", some_turns(40))
        with caplog.at_level(logging.INFO, logger="turnfold"):
            assert session_outcome(store, lambda prompt: "") is Outcome.COMPACTED
        assert "no answer of the model could become summary sum-" in caplog.text


class TestCompactIfNeeded:
    @pytest.mark.parametrize(
        ("turns", "total", "outcome"),
        [
            (40, 100_000, Outcome.BELOW_THRESHOLD),
            (12, 100, Outcome.NOTHING_TO_FOLD),
            (17, 300, Outcome.TOO_LITTLE_TO_FOLD),
            (80, 600, Outcome.COMPACTED),
        ],
    )
    def test_each_way_to_end_has_its_name(self, store: SqlRepository, turns: int, total: int, outcome: Outcome) -> None:
        told: list[Outcome] = []
        store.append_turns("s", some_turns(turns))
        compact_if_needed("s", store, Summarizer(well), TokenBudget(total=total), on_outcome=told.append)
        assert told == [outcome]

    def test_another_worker_is_named_and_no_error(self, store: SqlRepository) -> None:
        told: list[Outcome] = []
        store.append_turns("s", some_turns(80))
        store.acquire_lease("s", owner="other", seconds=60)
        budget = TokenBudget(total=600)
        assert compact_if_needed("s", store, Summarizer(well), budget, on_outcome=told.append) is None
        assert told == [Outcome.IN_PROGRESS]

    def test_what_happens_after_every_turn_is_not_logged_aloud(
        self, store: SqlRepository, caplog: pytest.LogCaptureFixture
    ) -> None:
        store.append_turns("s", some_turns(20))
        with caplog.at_level(logging.INFO, logger="turnfold"):
            compact_if_needed("s", store, Summarizer(well), TokenBudget(total=100_000))
        assert caplog.records == []
