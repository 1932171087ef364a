"""Making summaries again from their sources: what changes, what never does, and that it ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.worlds import world_of
from turnfold import (
    InvalidArgument,
    ModelFailed,
    Outcome,
    Prompts,
    RefoldProgress,
    SqlRepository,
    Summarizer,
    SummaryRecord,
    check,
    compact_session,
    refold_session,
)
from turnfold.testing import some_turns

TREE: dict[str, Any] = {"fresh_tail_count": 2, "leaf_chunk_tokens": 300, "condensed_min_fanout": 2}


class Scripted:
    """A model that is down, refuses, or answers; it counts its calls."""

    def __init__(self, state: str = "well") -> None:
        self.state = state
        self.calls = 0

    def __call__(self, prompt: str) -> str:
        self.calls += 1
        if self.state == "down":
            raise ModelFailed("out of reach")
        return "" if self.state == "refuses" else f"Made in call {self.calls}."


@pytest.fixture(autouse=True, params=["sync", "async"])
def world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test runs with the synchronous functions and with their async twins."""
    with world_of(request.param, monkeypatch, globals(), "compact_session", "refold_session"):
        yield


@pytest.fixture
def folded(store: SqlRepository) -> SqlRepository:
    """A session of several depths, all of it folded while the model was down."""
    for start in range(0, 120, 30):
        store.append_turns("s", some_turns(30, start=start))
        compact_session("s", store, Summarizer(Scripted("down"), fallback_on_failure=True), **TREE)
    assert {summary.tier for summary in store.get_summaries("s")} == {"fallback"}
    assert max(summary.depth for summary in store.get_summaries("s")) >= 2
    return store


def links(summaries: list[SummaryRecord]) -> list[tuple[Any, ...]]:
    return [
        (s.id, s.parent_id, s.child_ids, s.source_turn_ids, s.first_position, s.last_position, s.time_range_start)
        for s in summaries
    ]


class TestRefoldSession:
    def test_every_fallback_is_made_again_and_no_link_moves(self, folded: SqlRepository) -> None:
        before, turns = folded.get_summaries("s"), folded.get_session_turns("s")
        stats = refold_session("s", folded, Summarizer(Scripted()))
        after = folded.get_summaries("s")
        assert links(after) == links(before)
        assert {s.tier for s in after} == {"normal"}
        assert all(s.content.startswith("Made in call") for s in after)
        assert stats["summaries_refolded"] >= len(after)
        assert folded.get_session_turns("s") == turns
        assert check(folded) == []

    def test_what_is_well_is_left_alone(self, store: SqlRepository) -> None:
        store.append_turns("s", some_turns(60))
        compact_session("s", store, Summarizer(Scripted()), **TREE)
        before = store.get_summaries("s")
        model = Scripted()
        told: list[Outcome] = []
        stats = refold_session("s", store, Summarizer(model), on_outcome=told.append)
        assert stats == {"summaries_refolded": 0, "summaries_kept": 0, "tiers_used": []}
        assert store.get_summaries("s") == before
        assert (model.calls, told) == (0, [Outcome.NOTHING_TO_FOLD])

    def test_ancestors_follow_a_leaf_that_was_made_again(self, store: SqlRepository) -> None:
        store.append_turns("s", some_turns(20))
        compact_session("s", store, Summarizer(Scripted("down"), fallback_on_failure=True), **TREE)
        first = store.get_summaries("s", depth=0)[0]
        store.append_turns("s", some_turns(60, start=20))
        compact_session("s", store, Summarizer(Scripted("refuses")), **TREE, max_model_calls=6)
        refold_session("s", store, Summarizer(Scripted()))
        above = store.get_summary(first.id)
        while above.parent_id is not None:
            above = store.get_summary(above.parent_id)
            assert above.content.startswith("Made in call")
            assert not above.is_outdated

    def test_a_bounded_run_is_finished_by_the_next(self, folded: SqlRepository) -> None:
        told: list[Outcome] = []
        for _ in range(100):
            refold_session("s", folded, Summarizer(Scripted()), max_model_calls=1, on_outcome=told.append)
            assert check(folded) == []
            if told[-1] is not Outcome.MAX_MODEL_CALLS:
                break
        assert told[-1] in (Outcome.REFOLDED, Outcome.NOTHING_TO_FOLD)
        assert all(s.tier == "normal" and not s.is_outdated for s in folded.get_summaries("s"))

    def test_a_model_that_is_still_down_changes_nothing(self, folded: SqlRepository) -> None:
        before = folded.get_summaries("s")
        with pytest.raises(ModelFailed):
            refold_session("s", folded, Summarizer(Scripted("down")))
        told: list[Outcome] = []
        refold_session("s", folded, Summarizer(Scripted("down"), fallback_on_failure=True), on_outcome=told.append)
        assert told == [Outcome.MODEL_FAILED]
        assert folded.get_summaries("s") == before

    def test_a_model_without_a_usable_answer_leaves_the_texts_and_is_counted(self, folded: SqlRepository) -> None:
        before = folded.get_summaries("s")
        stats = refold_session("s", folded, Summarizer(Scripted("refuses")))
        after = folded.get_summaries("s")
        assert stats["summaries_refolded"] == 0
        assert stats["summaries_kept"] == len(before)
        assert [s.content for s in after] == [s.content for s in before]
        assert {s.refold_attempts for s in after} == {1}

    def test_old_prompts_and_other_models_are_found_where_asked_for(self, store: SqlRepository) -> None:
        store.append_turns("s", some_turns(60))
        compact_session("s", store, Summarizer(Scripted(), prompts=Prompts(version="old")), **TREE)
        assert {s.prompt_version for s in store.get_summaries("s")} == {"old"}
        assert refold_session("s", store, Summarizer(Scripted()), stale=["model"])["summaries_refolded"] == 0
        assert refold_session("s", store, Summarizer(Scripted()), stale=["prompt_version"])["summaries_refolded"] > 0
        assert {s.prompt_version for s in store.get_summaries("s")} == {"turnfold-1"}

        def other(prompt: str) -> str:
            return "Made by another."

        refold_session("s", store, Summarizer(other), stale=["model"])
        assert {s.content for s in store.get_summaries("s")} == {"Made by another."}
        assert check(store) == []

    def test_progress_is_reported_to_the_end(self, folded: SqlRepository) -> None:
        steps: list[RefoldProgress] = []
        refold_session("s", folded, Summarizer(Scripted()), on_progress=steps.append)
        done = [step.summaries_done for step in steps]
        assert done == sorted(set(done))
        assert steps[-1].summaries_done == steps[-1].summaries_to_do

    @pytest.mark.parametrize("stale", ["fallback", [], ["tier"], None])
    def test_another_reason_is_refused_by_name(self, store: SqlRepository, stale: Any) -> None:
        with pytest.raises(InvalidArgument, match="stale must be one or more of fallback, model, prompt_version"):
            refold_session("s", store, Summarizer(Scripted()), stale=stale)


class TestNormalRuns:
    def test_the_newest_fallbacks_are_made_again_before_anything_new_is_folded(self, folded: SqlRepository) -> None:
        newest = [s.id for s in folded.get_stale_summaries("s", limit=3)]
        model = Scripted()
        compact_session("s", folded, Summarizer(model), **TREE)
        assert model.calls >= 3
        assert {folded.get_summary(id).tier for id in newest} == {"normal"}
        assert check(folded) == []

    def test_one_run_after_the_other_mends_everything(self, folded: SqlRepository) -> None:
        for _ in range(20):
            compact_session("s", folded, Summarizer(Scripted()), **TREE)
        assert not folded.get_stale_summaries("s")
        assert check(folded) == []

    def test_a_model_that_never_has_a_usable_answer_is_asked_twice_and_no_more(self, folded: SqlRepository) -> None:
        model = Scripted("refuses")
        for _ in range(60):
            compact_session("s", folded, Summarizer(model), **TREE)
        calls = model.calls
        compact_session("s", folded, Summarizer(model), **TREE)
        assert model.calls == calls == 2 * 2 * len(folded.get_summaries("s"))

    def test_an_outage_is_no_attempt(self, folded: SqlRepository) -> None:
        for _ in range(5):
            compact_session("s", folded, Summarizer(Scripted("down"), fallback_on_failure=True), **TREE)
        assert {s.refold_attempts for s in folded.get_summaries("s")} == {0}

    def test_the_active_context_does_not_grow(self, store: SqlRepository) -> None:
        store.append_turns("s", some_turns(40))
        compact_session("s", store, Summarizer(Scripted("down"), fallback_on_failure=True), **TREE)

        def long(prompt: str) -> str:
            return "They agreed on yet another plan, at great length. " * 12

        before = store.get_session_token_count("s")
        compact_session("s", store, Summarizer(long), **TREE)
        assert store.get_session_token_count("s") <= before
        assert check(store) == []

    def test_the_bound_of_a_run_holds_for_what_is_made_again_too(self, folded: SqlRepository) -> None:
        model = Scripted()
        compact_session("s", folded, Summarizer(model), **TREE, max_model_calls=1)
        assert model.calls <= 3  # a chain that is begun is finished: the child, and what must shrink with it
