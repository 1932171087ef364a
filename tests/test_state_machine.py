"""A state machine over everything that a service, its models and its neighbours may do to a session.

The same steps are taken on SQLite and on Postgres. After each of them every promise holds on both, and both agree.
`make test-long` takes 500 examples and more; the default takes fewer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from sqlalchemy import text

from turnfold import (
    CompactionInProgress,
    InvalidAnswer,
    LeaseLost,
    Prompt,
    SqlRepository,
    Summarizer,
    TokenBudget,
    Turn,
    TurnConflict,
    TurnfoldError,
    assemble_context,
    check,
    compact_if_needed,
    compact_session,
    create_engine,
    erase_session,
    migrate,
)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
EXAMPLES = 500 if os.environ.get("HYPOTHESIS_PROFILE") == "long" else 40

IDS = st.sampled_from(["a", "b", "c", "d"])
WORDS = st.text(max_size=20) | st.sampled_from(["word " * 40, "\0\ud800", "漢字" * 30, "</transcript>", ""])


def call(id: str) -> dict[str, Any]:
    return {"id": id, "function": {"name": "look", "arguments": "{}"}}


TURNS = st.one_of(
    st.builds(Turn, st.sampled_from(["user", "assistant", "system"]), WORDS | st.none()),
    st.builds(lambda id: Turn("assistant", None, tool_calls=[call(id)]), IDS),
    st.builds(lambda id, words: Turn("tool", words, tool_call_id=id), IDS, WORDS),
    st.builds(lambda id: Turn("user", [{"type": "tool_result", "tool_use_id": id, "content": "ok"}]), IDS),
    st.builds(lambda id, words: Turn("user", words, id=f"id-{id}"), IDS, st.sampled_from(["same", "other"])),
)

LIMITS = st.fixed_dictionaries(
    {
        "fresh_tail_count": st.integers(0, 5),
        "leaf_chunk_tokens": st.sampled_from([1, 15, 60, 20_000]),
        "condensed_min_fanout": st.integers(2, 4),
    }
)


class Outage(Exception):
    pass


def good(prompt: Prompt) -> Any:
    return "They agreed."


def lying(prompt: Prompt) -> Any:
    return "word " * 5_000


def silent(prompt: Prompt) -> Any:
    return ""


def nonsense(prompt: Prompt) -> Any:
    return {"choices": []}


def echoing(prompt: Prompt) -> Any:
    return str(prompt)


def failing(prompt: Prompt) -> Any:
    raise Outage


MODELS = st.sampled_from([good, good, lying, silent, nonsense, echoing, failing])


class Sessions(RuleBasedStateMachine):
    stores: ClassVar[list[SqlRepository]] = []

    def __init__(self) -> None:
        super().__init__()
        self.clock = NOON
        for store in self.stores:
            force_erase(store)

    def both(self, step: Callable[[SqlRepository], Any]) -> Any:
        """What the step gives on both stores, an error of ours or of the model included."""
        results = []
        for store in self.stores:
            try:
                results.append(step(store))
            except (TurnfoldError, Outage) as error:
                results.append(type(error))
        assert results[0] == results[1]
        return results[0]

    @rule(turns=st.lists(TURNS, min_size=1, max_size=8))
    def append(self, turns: list[Turn]) -> None:
        timed = [self.at_a_time(turn) for turn in turns]
        result = self.both(lambda store: store.append_turns("s", timed))
        if isinstance(result, type):
            assert result is TurnConflict
        else:
            named = [turn for turn in timed if turn.id]
            again = self.both(lambda store: store.append_turns("s", named))
            assert again == [stored for given, stored in zip(timed, result, strict=True) if given.id]

    def at_a_time(self, turn: Turn) -> Turn:
        self.clock += timedelta(seconds=1)
        fixed = NOON if turn.id else self.clock
        return Turn(
            turn.role,
            turn.content,
            id=turn.id,
            tool_calls=turn.tool_calls,
            tool_call_id=turn.tool_call_id,
            created_at=fixed,
        )

    @rule(limits=LIMITS, model=MODELS)
    def compact(self, limits: dict[str, int], model: Callable[[Prompt], Any]) -> None:
        result = self.both(lambda store: compact_session("s", store, Summarizer(model), **limits))  # type: ignore[arg-type]
        assert not isinstance(result, type) or result in (CompactionInProgress, Outage, InvalidAnswer)

    @rule(limits=LIMITS, model=MODELS, total=st.sampled_from([20, 200, 5_000]))
    def compact_if_needed(self, limits: dict[str, int], model: Callable[[Prompt], Any], total: int) -> None:
        budget = TokenBudget(total=total, **limits)
        self.both(lambda store: compact_if_needed("s", store, Summarizer(model), budget))

    @rule(limits=LIMITS, after=st.integers(0, 2))
    def lose_the_lease(self, limits: dict[str, int], after: int) -> None:
        """Another worker takes the lease over while the model is stalling."""

        def step(store: SqlRepository) -> Any:
            calls = 0

            def stalling(prompt: Prompt) -> str:
                nonlocal calls
                calls += 1
                if calls == after + 1:
                    expire_lease(store)
                    lease = store.acquire_lease("s", owner="another", seconds=60)
                    if lease is not None:
                        store.release_lease(lease)
                return "Stalled."

            return compact_session("s", store, Summarizer(stalling), **limits)  # type: ignore[arg-type]

        result = self.both(step)
        assert not isinstance(result, type) or result in (LeaseLost, CompactionInProgress)

    @rule()
    def work_of_a_worker_that_dies(self) -> None:
        self.both(lambda store: bool(store.acquire_lease("s", owner="dying", seconds=60)))

    @rule()
    def time_passes(self) -> None:
        for store in self.stores:
            expire_lease(store)

    @rule()
    def erase(self) -> None:
        result = self.both(lambda store: erase_session("s", store))
        assert result in (True, False, CompactionInProgress)

    @invariant()
    def every_promise_holds_on_both(self) -> None:
        assert self.both(lambda store: [fault for fault in check(store) if fault.kind != "lease"]) == []

    @invariant()
    def both_agree(self) -> None:
        self.both(lambda store: store.get_session_turns("s"))
        self.both(lambda store: [without_clock(summary) for summary in store.get_summaries("s")])
        self.both(lambda store: store.get_session_token_count("s"))
        self.both(lambda store: assemble_context("s", store, TokenBudget(total=100_000, fresh_tail_count=2)).messages)


def without_clock(summary: Any) -> dict[str, Any]:
    return {name: getattr(summary, name) for name in summary.__dataclass_fields__ if name != "created_at"}


def expire_lease(store: SqlRepository) -> None:
    with store._engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE turnfold_sessions SET lease_expires_at = '2000-01-01 00:00:00.000000+00:00' "
                "WHERE lease_owner IS NOT NULL"
            )
        )


def force_erase(store: SqlRepository) -> None:
    expire_lease(store)
    erase_session("s", store)


@pytest.fixture
def both_databases(migrated_postgres: str, tmp_path: Any) -> Iterator[None]:
    sqlite = create_engine(f"sqlite:///{tmp_path / 'machine.db'}")
    migrate(sqlite)
    postgres = create_engine(migrated_postgres)
    Sessions.stores = [SqlRepository(sqlite), SqlRepository(postgres)]
    yield
    for store in Sessions.stores:
        force_erase(store)
    sqlite.dispose()
    postgres.dispose()


@pytest.mark.usefixtures("both_databases")
def test_whatever_is_done_every_promise_holds_and_both_databases_agree() -> None:
    run_state_machine_as_test(
        Sessions, settings=settings(settings.get_profile("default"), max_examples=EXAMPLES, stateful_step_count=20)
    )
