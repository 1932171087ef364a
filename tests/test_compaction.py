"""The three functions on both databases: what they fold, when they call the model, and that they always go on."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Engine, text

from tests.worlds import world_of
from turnfold import (
    CompactionInProgress,
    InvalidArgument,
    InvalidSummary,
    LeaseLost,
    Progress,
    SqlRepository,
    Summarizer,
    SummaryRecord,
    TokenBudget,
    Turn,
    assemble_context,
    compact_if_needed,
    compact_session,
    create_engine,
    extractive,
    migrate,
    should_compact,
)
from turnfold.content import answered_ids, call_ids
from turnfold.testing import leaf_of, some_turns

NO_STATS = {"leaf_summaries_created": 0, "condensed_summaries_created": 0, "turns_compacted": 0, "tiers_used": []}


class Counting:
    """A model that answers shortly, and counts its calls and what it is sent."""

    def __init__(self, store: SqlRepository | None = None) -> None:
        self.calls = 0
        self.tokens = 0
        self.store = store

    def __call__(self, prompt: str) -> str:
        self.calls += 1
        if self.store:
            self.tokens += self.store.token_counter.count(prompt)
        return f"Summary {self.calls}."


class Stopped(BaseException):
    pass


@pytest.fixture(autouse=True, params=["sync", "async"])
def world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Every test of behaviour runs with the synchronous functions and with their async twins."""
    with world_of(request.param, monkeypatch, globals(), "compact_session", "compact_if_needed", "should_compact"):
        yield request.param


def summarizer() -> Summarizer:
    return Summarizer(Counting())


def check_invariants(store: SqlRepository, session_id: str, before: list[Turn]) -> None:
    """What the design promises of a session at rest."""
    session = store.get_session(session_id)
    assert session is not None
    turns = store.get_session_turns(session_id)
    assert turns[: len(before)] == before
    leaves = store.get_summaries(session_id, depth=0)
    covered = [id for leaf in leaves for id in leaf.source_turn_ids]
    evictable = [turn for turn in turns if not turn.pinned]
    assert covered == [turn.id for turn in evictable[: len(covered)]], "the covered turns are no prefix"
    summaries = store.get_summaries(session_id)
    for summary in summaries:
        assert summary.token_count < summary.source_token_count
        assert summary.content.strip()
        check_children(store, summary)
    uncompacted = store.get_uncompacted_summaries(session_id)
    assert [s.first_position for s in uncompacted] == sorted(s.first_position for s in uncompacted)
    uncovered = [turn for turn in turns if turn.pinned or turn.id not in set(covered)]
    active = sum(s.token_count for s in uncompacted) + sum(turn.token_count for turn in uncovered)
    assert session.active_tokens == active
    assert session.total_tokens == sum(turn.token_count for turn in turns)
    assert session.lease_owner is None


def check_children(store: SqlRepository, summary: SummaryRecord) -> None:
    children = store.get_child_summaries(summary.id)
    if summary.depth == 0:
        assert [turn.id for turn in store.get_source_turns(summary.id)] == list(summary.source_turn_ids)
        return
    assert tuple(child.id for child in children) == summary.child_ids
    assert {child.depth for child in children} == {summary.depth - 1}
    assert {child.parent_id for child in children} == {summary.id}
    assert children[0].first_position == summary.first_position
    assert children[-1].last_position == summary.last_position
    assert sum(child.descendant_count for child in children) == summary.descendant_count
    for one, other in itertools.pairwise(children):
        assert one.last_position < other.first_position


class TestCompactSession:
    def test_old_turns_are_folded_and_the_tail_stays(self, store: SqlRepository) -> None:
        turns = store.append_turns("s", some_turns(40))
        stats = compact_session("s", store, summarizer())
        assert stats == {**NO_STATS, "leaf_summaries_created": 1, "turns_compacted": 24, "tiers_used": ["normal"]}
        assert store.get_uncovered_turns("s") == turns[24:]
        check_invariants(store, "s", turns)

    def test_a_tree_grows_from_small_limits(self, store: SqlRepository) -> None:
        turns = store.append_turns("s", some_turns(200))
        stats = compact_session(
            "s", store, summarizer(), fresh_tail_count=8, leaf_chunk_tokens=100, condensed_min_fanout=3
        )
        assert stats["turns_compacted"] == 192
        assert stats["leaf_summaries_created"] == len(store.get_summaries("s", depth=0)) > 10
        assert stats["condensed_summaries_created"] == len(store.get_summaries("s", depth=1)) == 1
        assert len(stats["tiers_used"]) == stats["leaf_summaries_created"] + stats["condensed_summaries_created"]
        check_invariants(store, "s", turns)

    def test_the_tree_gets_deeper_as_the_conversation_goes_on(self, store: SqlRepository) -> None:
        for start in range(0, 400, 8):
            store.append_turns("s", some_turns(8, start=start))
            compact_session("s", store, summarizer(), fresh_tail_count=4, condensed_min_fanout=2)
        assert max(summary.depth for summary in store.get_summaries("s")) >= 4
        check_invariants(store, "s", store.get_session_turns("s"))

    def test_the_record_keeps_tier_model_counts_and_times(self, store: SqlRepository) -> None:
        turns = store.append_turns("s", some_turns(20))
        compact_session("s", store, Summarizer(extractive), fresh_tail_count=4)
        (leaf,) = store.get_summaries("s")
        assert (leaf.tier, leaf.model, leaf.counter) == ("normal", "extractive", store.token_counter.name)
        assert leaf.token_count == store.token_counter.count(leaf.content)
        assert leaf.source_token_count == sum(turn.token_count for turn in turns[:16])
        assert (leaf.time_range_start, leaf.time_range_end) == (turns[0].created_at, turns[15].created_at)

    def test_a_summary_made_without_the_model_says_so(self, store: SqlRepository) -> None:
        store.append_turns("s", some_turns(30))
        stats = compact_session("s", store, Summarizer(lambda prompt: ""))
        (leaf,) = store.get_summaries("s")
        assert stats["tiers_used"] == ["fallback"]
        assert (leaf.tier, leaf.model) == ("fallback", "extractive")

    def test_a_second_run_finds_nothing_to_do(self, store: SqlRepository) -> None:
        store.append_turns("s", some_turns(40))
        compact_session("s", store, summarizer())
        model = Counting()
        assert compact_session("s", store, Summarizer(model)) == NO_STATS
        assert model.calls == 0

    def test_a_session_without_turns_gives_empty_stats(self, store: SqlRepository) -> None:
        assert compact_session("none", store, summarizer()) == NO_STATS
        assert store.get_session("none") is None

    def test_pinned_turns_are_never_folded(self, store: SqlRepository) -> None:
        turns = store.append_turns(
            "s", [Turn("system", "Rules."), *some_turns(10), Turn("user", "!", pinned=True), *some_turns(10)]
        )
        compact_session("s", store, summarizer(), fresh_tail_count=0)
        (leaf,) = store.get_summaries("s")
        assert leaf.descendant_count == 20
        assert (leaf.first_position, leaf.last_position) == (2, 22)
        check_invariants(store, "s", turns)

    def test_the_prior_summary_is_that_of_the_newest_leaf(self, store: SqlRepository) -> None:
        prompts: list[str] = []

        def model(prompt: str) -> str:
            prompts.append(prompt)
            return f"Part {len(prompts)} is told."

        store.append_turns("s", some_turns(30))
        compact_session(
            "s", store, Summarizer(model), fresh_tail_count=0, leaf_chunk_tokens=200, condensed_min_fanout=99
        )
        store.append_turns("s", some_turns(10, start=30))
        compact_session(
            "s", store, Summarizer(model), fresh_tail_count=0, leaf_chunk_tokens=200, condensed_min_fanout=99
        )
        assert "is told" not in prompts[0]
        for number, prompt in enumerate(prompts[1:], start=1):
            assert f"Part {number} is told." in prompt

    @pytest.mark.parametrize(
        ("bound", "depths"), [(0, {0, 1}), (1, {0, 1, 2}), (-1, {0, 1, 2, 3}), (None, {0, 1, 2, 3})]
    )
    def test_condensing_stops_at_its_bound(self, store: SqlRepository, bound: int | None, depths: set[int]) -> None:
        for start in range(0, 64, 8):
            store.append_turns("s", some_turns(8, start=start))
            compact_session(
                "s", store, summarizer(), fresh_tail_count=0, condensed_min_fanout=2, max_condense_depth=bound
            )
        assert {summary.depth for summary in store.get_summaries("s")} == depths

    def test_more_summaries_than_the_model_can_read_get_several_parents(self, store: SqlRepository) -> None:
        store.append_turns("s", some_turns(600))
        long = Summarizer(lambda prompt: "word " * 300, max_input_tokens=2_000)
        compact_session("s", store, long, fresh_tail_count=0, leaf_chunk_tokens=1_000, condensed_min_fanout=99)
        leaves = len(store.get_summaries("s"))
        compact_session(
            "s", store, Summarizer(Counting(), max_input_tokens=1_000), fresh_tail_count=0, condensed_min_fanout=2
        )
        parents = store.get_summaries("s", depth=1)
        assert len(parents) > 1
        assert sum(len(parent.child_ids) for parent in parents) == leaves
        assert all(len(parent.child_ids) >= 2 for parent in parents)

    def test_progress_is_reported_after_each_summary(self, store: SqlRepository) -> None:
        store.append_turns("s", some_turns(60))
        seen: list[Progress] = []
        stats = compact_session("s", store, summarizer(), leaf_chunk_tokens=100, on_progress=seen.append)
        assert len(seen) == len(stats["tiers_used"])
        assert [step.turns_compacted for step in seen] == sorted(step.turns_compacted for step in seen)
        assert {step.turns_to_compact for step in seen} == {44}
        assert (seen[-1].turns_compacted, seen[-1].depth) == (44, 1)

    def test_it_works_inside_a_running_event_loop(self, store: SqlRepository) -> None:
        store.append_turns("s", some_turns(40))

        async def handler() -> int:
            return compact_session("s", store, summarizer())["turns_compacted"]

        assert asyncio.run(handler()) == 24

    def test_a_huge_turn_is_folded_like_any_other(self, store: SqlRepository) -> None:
        turns = store.append_turns("s", [Turn("tool", "line of a log file, 5 errors\n" * 50_000), *some_turns(3)])
        compact_session("s", store, Summarizer(extractive), fresh_tail_count=2)
        check_invariants(store, "s", turns)
        assert store.get_session_token_count("s") < 5_000

    def test_turns_that_say_nothing_are_folded_too(self, store: SqlRepository) -> None:
        turns = store.append_turns("s", [Turn("assistant", content) for content in (None, "", [], " ")])
        compact_session("s", store, Summarizer(extractive), fresh_tail_count=0, leaf_chunk_tokens=5)
        check_invariants(store, "s", turns)


class TestLimits:
    @pytest.mark.parametrize(
        ("name", "value"),
        [("fresh_tail_count", -1), ("leaf_chunk_tokens", 0), ("condensed_min_fanout", 1), ("max_condense_depth", -5)],
    )
    def test_a_limit_out_of_range_is_refused_by_name(self, store: SqlRepository, name: str, value: int) -> None:
        with pytest.raises(InvalidArgument, match=name):
            compact_session("s", store, summarizer(), **{name: value})  # type: ignore[arg-type]

    @pytest.mark.parametrize("threshold", [0, -0.5, 1.5, float("nan"), "0.5", True])
    def test_a_nonsense_threshold_is_refused(self, store: SqlRepository, threshold: Any) -> None:
        with pytest.raises(InvalidArgument, match="threshold"):
            should_compact("s", store, 1_000, threshold)

    @pytest.mark.parametrize("budget", [0, -1, 0.5])
    def test_a_budget_below_one_is_refused(self, store: SqlRepository, budget: Any) -> None:
        with pytest.raises(InvalidArgument, match="token_budget"):
            should_compact("s", store, budget)

    def test_a_session_id_that_is_too_long_is_refused(self, store: SqlRepository) -> None:
        with pytest.raises(InvalidArgument, match="10,000 characters"):
            compact_session("s" * 10_000, store, summarizer())
        with pytest.raises(InvalidArgument, match="10,000 characters"):
            should_compact("s" * 10_000, store, 1_000)


class TestDeciding:
    def test_the_active_context_is_compared_with_the_share_of_the_budget(self, store: SqlRepository) -> None:
        tokens = sum(turn.token_count for turn in store.append_turns("s", some_turns(10)))
        assert not should_compact("s", store, tokens, threshold=1.0)
        assert should_compact("s", store, tokens - 1, threshold=1.0)
        assert should_compact("s", store, tokens)
        assert not should_compact("s", store, tokens * 2)

    def test_what_was_folded_no_longer_counts(self, store: SqlRepository) -> None:
        store.append_turns("s", some_turns(100))
        assert should_compact("s", store, 1_000)
        compact_session("s", store, summarizer())
        assert not should_compact("s", store, 1_000)

    def test_a_session_without_turns_needs_nothing(self, store: SqlRepository) -> None:
        assert not should_compact("none", store, 1)
        assert compact_if_needed("none", store, summarizer(), TokenBudget(total=1)) is None

    def test_below_the_threshold_nothing_happens(self, store: SqlRepository) -> None:
        store.append_turns("s", some_turns(40))
        model = Counting()
        assert compact_if_needed("s", store, Summarizer(model), TokenBudget(total=1_000_000)) is None
        assert model.calls == 0

    def test_above_the_threshold_the_session_is_compacted(self, store: SqlRepository) -> None:
        store.append_turns("s", some_turns(40))
        stats = compact_if_needed("s", store, summarizer(), TokenBudget(total=500))
        assert stats == {**NO_STATS, "leaf_summaries_created": 1, "turns_compacted": 24, "tiers_used": ["normal"]}

    def test_any_object_with_a_total_is_a_budget(self, store: SqlRepository) -> None:
        @dataclass
        class Mine:
            total: int = 500
            fresh_tail_count: int = 4

        store.append_turns("s", some_turns(40))
        stats = compact_if_needed("s", store, summarizer(), Mine())
        assert stats is not None
        assert stats["turns_compacted"] == 36

    @pytest.mark.parametrize(
        ("budget", "name"),
        [
            (object(), "total"),
            (SimpleNamespace(total=0), "total"),
            (SimpleNamespace(total=500, context_threshold=2), "context_threshold"),
            (SimpleNamespace(total=500, fresh_tail_count=-1), "fresh_tail_count"),
            (SimpleNamespace(total=500, fresh_tail_tokens=0), "fresh_tail_tokens"),
        ],
    )
    def test_a_budget_that_makes_no_sense_is_refused_by_name(
        self, store: SqlRepository, budget: Any, name: str
    ) -> None:
        with pytest.raises(InvalidArgument, match=name):
            compact_if_needed("s", store, summarizer(), budget)

    def test_a_tail_of_large_turns_is_folded_down_to_its_cap(self, store: SqlRepository) -> None:
        turns = store.append_turns("s", [Turn("user", f"{number} " + "word " * 400) for number in range(12)])
        each = turns[0].token_count
        assert compact_if_needed("s", store, summarizer(), TokenBudget(total=4 * each)) is None
        budget = TokenBudget(total=4 * each, fresh_tail_tokens=2 * each + 9)
        compact_if_needed("s", store, summarizer(), budget)
        assert store.get_uncovered_turns("s") == turns[10:]
        assert assemble_context("s", store, budget).turns == turns[10:]
        tiny = TokenBudget(total=4 * each, context_threshold=0.1, fresh_tail_tokens=1, leaf_chunk_tokens=each)
        compact_if_needed("s", store, summarizer(), tiny)
        assert store.get_uncovered_turns("s") == turns[11:]

    def test_a_capped_tail_parts_no_call_from_its_answer(self, store: SqlRepository) -> None:
        call = Turn("assistant", None, tool_calls=[{"id": "c", "function": {"name": "f", "arguments": "{}"}}])
        answer = Turn("tool", "word " * 400, tool_call_id="c")
        turns = store.append_turns("s", [*some_turns(20), call, answer])
        budget = TokenBudget(total=600, fresh_tail_tokens=answer.token_count or 1, leaf_chunk_tokens=300)
        compact_if_needed("s", store, summarizer(), budget)
        assert store.get_uncovered_turns("s")[-2:] == turns[-2:]
        assert store.get_session("s").covered_position > 4  # type: ignore[union-attr]

    def test_with_nothing_worth_folding_the_answer_is_none(self, store: SqlRepository) -> None:
        store.append_turns("s", some_turns(16))
        model = Counting()
        assert compact_if_needed("s", store, Summarizer(model), TokenBudget(total=50)) is None
        assert model.calls == 0

    def test_a_partial_chunk_waits_while_it_is_no_larger_than_its_summary_would_be(self, store: SqlRepository) -> None:
        budget = TokenBudget(total=2_000, fresh_tail_count=4)
        store.append_turns("s", [Turn("system", "rule " * 2_000)])
        model = Counting()
        folded = [
            bool(store.append_turns("s", some_turns(1, start=number)))
            and compact_if_needed("s", store, Summarizer(model), budget) is not None
            for number in range(100)
        ]
        assert 2 <= sum(folded) <= 10
        check_invariants(store, "s", store.get_session_turns("s"))

    def test_a_live_conversation_calls_the_model_rarely(self, store: SqlRepository) -> None:
        model = Counting(store)
        made = Summarizer(model)
        words = "The cache key lacks the compiler version, so the build on the second machine took the wrong object. "
        for number in range(600):
            store.append_turns("s", [Turn("user" if number % 2 else "assistant", words * 3 + str(number))])
            compact_if_needed("s", store, made, TokenBudget(total=10_000, leaf_chunk_tokens=6_000))
        session = store.get_session("s")
        assert session is not None
        assert session.active_tokens <= 7_500
        assert model.calls <= 12
        assert model.tokens <= 1.3 * session.total_tokens


class TestBoundedRuns:
    """For compaction on the path of a request."""

    def test_after_so_many_calls_no_summary_is_begun_and_the_next_run_goes_on(self, store: SqlRepository) -> None:
        turns = store.append_turns("s", some_turns(200))
        model = Counting()
        written = []
        for _ in range(100):
            stats = compact_session("s", store, Summarizer(model), leaf_chunk_tokens=300, max_model_calls=2)
            check_invariants(store, "s", turns)
            if not stats["tiers_used"]:
                break
            written.append(len(stats["tiers_used"]))
        assert set(written[:-1]) == {2}
        assert len(store.get_uncovered_turns("s")) == 16
        assert model.calls == sum(written)

    def test_a_summary_that_was_begun_is_finished(self, store: SqlRepository) -> None:
        store.append_turns("s", some_turns(60))
        model = Counting()
        stats = compact_session("s", store, Summarizer(lambda prompt: model(prompt) and ""), max_model_calls=1)
        assert (stats["tiers_used"], model.calls) == (["fallback"], 2)

    def test_after_the_deadline_no_summary_is_begun(self, store: SqlRepository) -> None:
        turns = store.append_turns("s", some_turns(200))

        def slow(prompt: str) -> str:
            time.sleep(0.06)
            return "Summary."

        stats = compact_session("s", store, Summarizer(slow), leaf_chunk_tokens=300, deadline=0.1)
        assert 1 <= len(stats["tiers_used"]) <= 2
        check_invariants(store, "s", turns)

    def test_compact_if_needed_takes_the_bounds_and_tells_its_progress(self, store: SqlRepository) -> None:
        store.append_turns("s", some_turns(200))
        seen: list[Progress] = []
        budget = TokenBudget(total=500, leaf_chunk_tokens=300)
        stats = compact_if_needed("s", store, summarizer(), budget, max_model_calls=1, on_progress=seen.append)
        assert stats is not None
        assert len(stats["tiers_used"]) == len(seen) == 1

    @pytest.mark.parametrize(("name", "value"), [("max_model_calls", 0), ("deadline", 0), ("deadline", float("nan"))])
    def test_a_bound_that_makes_no_sense_is_refused_by_name(self, store: SqlRepository, name: str, value: Any) -> None:
        with pytest.raises(InvalidArgument, match=name):
            compact_session("s", store, summarizer(), **{name: value})


class TestReportedTokens:
    """The provider also counts what the store cannot see: the system prompt and the definitions of tools."""

    def test_the_larger_count_decides(self, store: SqlRepository) -> None:
        tokens = sum(turn.token_count for turn in store.append_turns("s", some_turns(40)))
        assert not should_compact("s", store, tokens * 2)
        assert should_compact("s", store, tokens * 2, reported_tokens=tokens * 2)
        assert should_compact("s", store, tokens, reported_tokens=1)
        budget = TokenBudget(total=tokens * 2)
        assert compact_if_needed("s", store, summarizer(), budget) is None
        assert compact_if_needed("s", store, summarizer(), budget, reported_tokens=tokens * 2) is not None

    def test_less_than_nothing_is_refused(self, store: SqlRepository) -> None:
        with pytest.raises(InvalidArgument, match="reported_tokens"):
            should_compact("s", store, 100, reported_tokens=-1)


class TestOneWorker:
    def test_another_worker_at_it_is_an_error_or_none(self, store: SqlRepository) -> None:
        store.append_turns("s", some_turns(100))
        assert store.acquire_lease("s", owner="somebody else", seconds=60)
        with pytest.raises(CompactionInProgress, match="somebody else"):
            compact_session("s", store, summarizer())
        assert compact_if_needed("s", store, summarizer(), TokenBudget(total=100)) is None

    def test_a_caller_may_wait_for_the_other_worker(self, store: SqlRepository) -> None:
        store.append_turns("s", some_turns(100))
        lease = store.acquire_lease("s", owner="somebody else", seconds=60)
        assert lease is not None
        threading.Timer(0.2, store.release_lease, [lease]).start()
        assert compact_session("s", store, summarizer(), wait_seconds=30)["turns_compacted"] == 84

    def test_a_caller_who_waited_long_enough_is_told_who_is_at_it(self, store: SqlRepository) -> None:
        store.append_turns("s", some_turns(100))
        assert store.acquire_lease("s", owner="somebody else", seconds=60)
        with pytest.raises(CompactionInProgress, match="somebody else"):
            compact_session("s", store, summarizer(), wait_seconds=0.1)

    def test_the_lease_is_renewed_before_a_call_of_the_model_once_a_share_of_it_has_passed(
        self, store: SqlRepository, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("turnfold.running.SHARE_BEFORE_RENEWAL", 0.0)
        turns = store.append_turns("s", [Turn("tool", "a line of a log, 5 errors\n" * 1_000), *some_turns(16)])
        seen: list[Any] = []

        def model(prompt: str) -> str:
            session = store.get_session("s")
            assert session is not None
            seen.append(session.lease_expires_at)
            time.sleep(0.003)  # SQLite's clock tells milliseconds
            return "" if len(seen) % 2 else f"Piece {len(seen)}."

        compact_session("s", store, Summarizer(model, max_input_tokens=1_000))
        assert len(seen) > 10
        assert seen == sorted(set(seen)), "two calls of the model without a renewal between them"
        check_invariants(store, "s", turns)

    def test_calls_that_follow_quickly_share_a_renewal(self, store: SqlRepository) -> None:
        store.append_turns("s", some_turns(100))
        ends: set[Any] = set()

        def model(prompt: str) -> str:
            session = store.get_session("s")
            assert session is not None
            ends.add(session.lease_expires_at)
            return "They agreed."

        compact_session("s", store, Summarizer(model), leaf_chunk_tokens=200)
        assert len(ends) == 1

    def test_the_lease_is_free_again_afterwards(self, store: SqlRepository) -> None:
        store.append_turns("s", some_turns(100))
        compact_session("s", store, summarizer())
        assert store.acquire_lease("s", owner="next", seconds=60)

    @pytest.mark.parametrize("error", [RuntimeError, Stopped])
    def test_a_model_that_fails_leaves_what_was_done_and_frees_the_lease(
        self, store: SqlRepository, error: type[BaseException]
    ) -> None:
        turns = store.append_turns("s", some_turns(100))
        model = Counting()

        def failing(prompt: str) -> str:
            if model.calls == 3:
                raise error
            return model(prompt)

        with pytest.raises(error):
            compact_session("s", store, Summarizer(failing), leaf_chunk_tokens=100)
        assert len(store.get_summaries("s")) == 3
        check_invariants(store, "s", turns)
        compact_session("s", store, Summarizer(model), leaf_chunk_tokens=100)
        leaves = store.get_summaries("s", depth=0)
        assert sum(leaf.descendant_count for leaf in leaves) == 84
        assert model.calls == len(store.get_summaries("s"))

    def test_a_worker_that_lost_its_lease_writes_nothing_more(self, store: SqlRepository, engine: Engine) -> None:
        turns = store.append_turns("s", some_turns(100))

        def slow(prompt: str) -> str:
            with engine.begin() as connection:
                connection.execute(
                    text("UPDATE turnfold_sessions SET lease_expires_at = '2000-01-01 00:00:00.000000+00:00'")
                )
            assert store.acquire_lease("s", owner="another", seconds=60)
            return "Too late."

        with pytest.raises(LeaseLost):
            compact_session("s", store, Summarizer(slow))
        assert store.get_summaries("s") == []
        assert store.get_uncovered_turns("s") == turns

    def test_turns_appended_while_the_model_answers_are_left_for_the_next_run(self, store: SqlRepository) -> None:
        store.append_turns("s", some_turns(40))

        def model(prompt: str) -> str:
            store.append_turns("s", some_turns(5, start=100))
            return "Summary."

        stats = compact_session("s", store, Summarizer(model))
        assert stats["turns_compacted"] == 24
        check_invariants(store, "s", store.get_session_turns("s"))

    def test_no_connection_is_held_while_the_model_answers(self, store: SqlRepository, engine: Engine) -> None:
        held: list[int] = []

        def model(prompt: str) -> str:
            held.append(engine.pool.checkedout())  # type: ignore[attr-defined]
            return "Summary."

        store.append_turns("s", some_turns(100))
        compact_session("s", store, Summarizer(model), leaf_chunk_tokens=100)
        assert len(held) > 5
        assert set(held) == {0}


def test_a_summarizer_counts_as_the_store_does(engine: Engine) -> None:
    class Words:
        name = "words"

        def count(self, text: str) -> int:
            return len(text.split()) or bool(text)

    store = SqlRepository(engine, token_counter=Words())
    turns = store.append_turns("s", [Turn("user", "x" * 5_000), *some_turns(20)])
    compact_session("s", store, Summarizer(lambda prompt: ""), leaf_chunk_tokens=5, fresh_tail_count=0)
    assert {leaf.counter for leaf in store.get_summaries("s")} == {"words"}
    check_invariants(store, "s", turns)
    own = Summarizer(Counting(), token_counter=Words())
    assert own.counting_with(store.token_counter) is own


class TestSummarizersOfOthers:
    """Anything with the two methods is a summarizer; the store still accepts only summaries that hold."""

    @staticmethod
    def returning(answer: str) -> Any:
        class Mine:
            def summarize_turns(self, turns: Any, prior_summary: str = "") -> tuple[str, str]:
                return answer, "normal"

            def summarize_summaries(self, summaries: Any) -> tuple[str, str]:
                return answer, "normal"

        return Mine()

    def test_two_methods_are_enough(self, store: SqlRepository) -> None:
        store.append_turns("s", some_turns(40))
        assert compact_session("s", store, self.returning("Short."))["turns_compacted"] == 24

    @pytest.mark.parametrize("answer", ["", " \n", "word " * 10_000])
    def test_what_is_empty_or_too_long_never_becomes_memory(self, store: SqlRepository, answer: str) -> None:
        turns = store.append_turns("s", some_turns(40))
        with pytest.raises(InvalidSummary):
            compact_session("s", store, self.returning(answer))
        assert store.get_summaries("s") == []
        check_invariants(store, "s", turns)


class TestToolCalls:
    def test_a_call_and_its_answers_share_a_leaf(self, store: SqlRepository) -> None:
        turns: list[Turn] = []
        for number in range(40):
            turns.append(Turn("user", f"Please look at {number}."))
            calls = [{"id": f"{number}-{part}", "function": {"name": "f", "arguments": "{}"}} for part in range(2)]
            turns.append(Turn("assistant", None, tool_calls=calls))
            turns += [Turn("tool", "ok " * 20, tool_call_id=call["id"]) for call in calls]  # type: ignore[arg-type]
        store.append_turns("s", turns)
        compact_session("s", store, summarizer(), fresh_tail_count=5, leaf_chunk_tokens=150)
        for leaf in store.get_summaries("s", depth=0):
            sources = store.get_source_turns(leaf.id)
            asked = [id for turn in sources for id in call_ids(turn)]
            answered = [id for turn in sources for id in answered_ids(turn)]
            assert sorted(asked) == sorted(answered)

    def test_a_call_that_waits_for_a_human_is_not_folded_away(self, store: SqlRepository) -> None:
        waiting = Turn(
            "assistant", None, tool_calls=[{"id": "confirm", "function": {"name": "pay", "arguments": "{}"}}]
        )
        turns = store.append_turns("s", [*some_turns(10), waiting, *some_turns(30)])
        compact_session("s", store, summarizer(), fresh_tail_count=8)
        assert store.get_uncovered_turns("s")[0] == turns[10]
        store.append_turns("s", [Turn("tool", "yes", tool_call_id="confirm"), *some_turns(20)])
        compact_session("s", store, summarizer(), fresh_tail_count=8)
        leaf = store.get_summaries("s", depth=0)[-1]
        assert {"confirm"} == {id for turn in store.get_source_turns(leaf.id) for id in answered_ids(turn)}


STEPS = st.lists(
    st.tuples(st.sampled_from(["append", "compact", "need"]), st.integers(1, 30), st.integers(0, 2**32)),
    min_size=1,
    max_size=12,
)


@pytest.fixture(scope="module")
def new_session() -> Callable[[], str]:
    numbers = iter(range(10**9))
    return lambda: f"session-{next(numbers)}"


@pytest.fixture(scope="module")
def stores(migrated_postgres: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Both databases at once."""
    sqlite = create_engine(f"sqlite:///{tmp_path_factory.mktemp('properties') / 'a.db'}")
    migrate(sqlite)
    postgres = create_engine(migrated_postgres)
    yield SqlRepository(sqlite), SqlRepository(postgres)
    sqlite.dispose()
    postgres.dispose()


class TestProperties:
    @given(STEPS)
    def test_whatever_happens_the_invariants_hold_and_both_databases_agree(
        self, stores: tuple[SqlRepository, SqlRepository], new_session: Callable[[], str], steps: Any
    ) -> None:
        session_id = new_session()
        for kind, size, seed in steps:
            results = [self.step(store, session_id, kind, size, random.Random(seed)) for store in stores]
            assert results[0] == results[1]
        trees = []
        for store in stores:
            if store.get_session(session_id):
                check_invariants(store, session_id, store.get_session_turns(session_id))
            trees.append([(s.id, s.content, s.parent_id, s.source_turn_ids) for s in store.get_summaries(session_id)])
        assert trees[0] == trees[1]

    def step(self, store: SqlRepository, session_id: str, kind: str, size: int, chance: random.Random) -> Any:
        before = store.get_session_token_count(session_id)
        if kind == "append":
            return [turn.id for turn in store.append_turns(session_id, random_turns(chance, size))]
        made = Summarizer(lambda prompt: chance.choice(["", "Short.", "long " * 50]))
        limits = {"fresh_tail_count": chance.randrange(6), "leaf_chunk_tokens": chance.choice([1, 20, 100, 20_000])}
        if kind == "compact":
            result: Any = compact_session(session_id, store, made, condensed_min_fanout=2 + size % 3, **limits)
        else:
            result = compact_if_needed(session_id, store, made, TokenBudget(total=10 * size, **limits))
        assert store.get_session_token_count(session_id) <= before
        return result


def random_turns(chance: random.Random, count: int) -> list[Turn]:
    turns = []
    for _ in range(count):
        kind = chance.choice(["say", "say", "call", "answer", "pin"])
        id = chance.choice("abc")
        if kind == "call":
            turns.append(Turn("assistant", None, tool_calls=[{"id": id, "function": {"name": "f", "arguments": "{}"}}]))
        elif kind == "answer":
            turns.append(Turn("tool", chance.choice(["ok", None, "n" * 99]), tool_call_id=id))
        else:
            words = "word " * chance.randrange(30)
            turns.append(Turn("system" if kind == "pin" else "user", words))
    return turns


def test_a_leaf_written_by_another_worker_is_gone_on_from(store: SqlRepository) -> None:
    turns = store.append_turns("s", some_turns(40))
    store.add_summary(leaf_of(turns[:10]))
    assert compact_session("s", store, summarizer())["turns_compacted"] == 14
    check_invariants(store, "s", turns)
