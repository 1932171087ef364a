"""The planner, without a database: groups, chunks, the fresh tail, and batches to condense."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnfold import InvalidArgument, Turn
from turnfold.content import answered_ids, call_ids
from turnfold.planning import Chunk, Limits, batches_to_condense, cuts, next_chunk, smallest_chunk_worth_a_call
from turnfold.testing import NOON, condensed_of, leaf_of


def said(*tokens: int) -> list[Turn]:
    return [Turn("user", "…", position=number, token_count=count) for number, count in enumerate(tokens, start=1)]


def call(*ids: str) -> Turn:
    return Turn("assistant", None, tool_calls=[{"id": id} for id in ids], token_count=10)


def answer(id: str) -> Turn:
    return Turn("tool", "ok", tool_call_id=id, token_count=10)


def session(*turns: Turn) -> list[Turn]:
    return [
        replace(turn, position=number, token_count=turn.token_count or 10) for number, turn in enumerate(turns, start=1)
    ]


def hello() -> Turn:
    return Turn("user", "hello")


def chunk(turns: list[Turn], *, complete: bool = True, **limits: int) -> Chunk:
    given = Limits(**{"fresh_tail_count": 0, "leaf_chunk_tokens": 1_000, **limits})
    return next_chunk(turns, given, last_position=turns[-1].position if turns else 0, is_complete=complete)


class TestChunks:
    def test_a_chunk_takes_turns_up_to_its_tokens(self) -> None:
        assert chunk(said(40, 40, 40, 40), leaf_chunk_tokens=100) == Chunk(2, 80, is_full=True, is_settled=True)

    def test_the_last_chunk_is_not_full(self) -> None:
        assert chunk(said(40, 40), leaf_chunk_tokens=100) == Chunk(2, 80, is_full=False, is_settled=True)

    def test_a_larger_turn_is_a_chunk_of_its_own(self) -> None:
        assert chunk(said(500, 10), leaf_chunk_tokens=100).length == 1
        assert chunk(said(10, 500, 10), leaf_chunk_tokens=100).length == 1

    def test_the_fresh_tail_is_left_alone(self) -> None:
        assert chunk(said(10, 10, 10, 10), fresh_tail_count=3).length == 1
        assert chunk(said(10, 10), fresh_tail_count=16).length == 0

    def test_with_a_tail_of_zero_everything_is_evictable(self) -> None:
        assert chunk(said(10, 10, 10)).length == 3

    def test_of_nothing_nothing_is_folded(self) -> None:
        assert chunk([]) == Chunk(0, 0, is_full=False, is_settled=True)


class TestGroups:
    def test_a_call_stays_with_all_its_answers(self) -> None:
        turns = session(hello(), call("a", "b"), answer("b"), answer("a"), hello())
        assert cuts(turns, Limits()) == [1, 4, 5]

    def test_groups_that_overlap_are_cut_nowhere_inside(self) -> None:
        turns = session(call("a"), call("b"), answer("a"), answer("b"), hello())
        assert cuts(turns, Limits()) == [4, 5]

    def test_what_was_said_between_a_call_and_its_answer_stays_between_them(self) -> None:
        assert cuts(session(call("a"), hello(), answer("a")), Limits()) == [3]

    def test_an_id_used_twice_belongs_to_the_nearest_call(self) -> None:
        assert cuts(session(call("a"), answer("a"), call("a"), answer("a")), Limits()) == [2, 4]

    def test_an_answer_without_a_call_is_a_group_by_itself(self) -> None:
        assert cuts(session(answer("gone"), hello()), Limits()) == [1, 2]

    def test_calls_and_results_in_parts_make_groups_too(self) -> None:
        use = Turn("assistant", [{"type": "tool_use", "id": "a", "name": "f", "input": {}}])
        result = Turn("user", [{"type": "tool_result", "tool_use_id": "a", "content": "ok"}])
        assert cuts(session(use, result, hello()), Limits()) == [2, 3]

    def test_the_tail_grows_back_to_the_start_of_its_first_group(self) -> None:
        turns = session(hello(), call("a", "b"), answer("a"), answer("b"), hello())
        assert chunk(turns, fresh_tail_count=2).length == 1

    def test_a_chunk_takes_a_whole_group_even_where_that_is_larger(self) -> None:
        turns = session(call("a"), answer("a"), hello())
        assert chunk(turns, leaf_chunk_tokens=15).length == 2


class TestPendingCalls:
    def test_a_pending_call_holds_back_folding_from_its_position_on(self) -> None:
        turns = session(*[hello()] * 3, call("a"), *[hello()] * 5)
        assert chunk(turns, fresh_tail_count=2).length == 3

    def test_of_parallel_calls_one_without_an_answer_is_enough(self) -> None:
        turns = session(hello(), call("a", "b"), answer("a"), *[hello()] * 3)
        assert chunk(turns, fresh_tail_count=2).length == 1

    def test_a_call_older_than_four_tails_counts_as_abandoned(self) -> None:
        turns = session(hello(), call("a"), *[hello()] * 7)
        assert chunk(turns, fresh_tail_count=2).length == 1
        assert chunk([*turns, replace(hello(), position=10, token_count=10)], fresh_tail_count=2).length == 8

    def test_an_answer_that_comes_too_late_does_not_bind_what_lies_between(self) -> None:
        turns = session(call("a"), *[hello()] * 70, answer("a"))
        assert cuts(turns, Limits()) == list(range(1, 73))

    def test_an_id_used_again_leaves_the_first_call_pending(self) -> None:
        turns = session(hello(), call("a"), call("a"), answer("a"), *[hello()] * 3)
        assert chunk(turns, fresh_tail_count=2).length == 1


class TestReadingInPages:
    def test_a_chunk_is_settled_once_no_unread_turn_can_change_it(self) -> None:
        assert not chunk(said(*[40] * 10), complete=False, leaf_chunk_tokens=100).is_settled
        assert chunk(said(*[40] * 70), complete=False, leaf_chunk_tokens=100).is_settled

    def test_nothing_read_yet_is_not_settled(self) -> None:
        assert not next_chunk([], Limits(), last_position=5, is_complete=False).is_settled


IDS = st.sampled_from("abc")
TURNS = st.lists(
    st.one_of(
        st.builds(hello),
        st.builds(answer, IDS),
        st.lists(IDS, min_size=1, max_size=3, unique=True).map(lambda ids: call(*ids)),
    ),
    min_size=1,
    max_size=40,
)


@given(TURNS, st.integers(0, 6), st.integers(1, 120), st.integers(1, 60))
def test_no_chunk_ever_splits_a_group_and_none_touches_the_tail(
    turns: list[Turn], tail: int, chunk_tokens: int, first_page: int
) -> None:
    turns = session(*turns)
    limits = Limits(fresh_tail_count=tail, leaf_chunk_tokens=chunk_tokens)
    last_position = turns[-1].position
    left = list(turns)
    while True:
        found = next_chunk(left, limits, last_position=last_position, is_complete=True)
        early = next_chunk(left[:first_page], limits, last_position=last_position, is_complete=False)
        assert not early.is_settled or early[:3] == found[:3]
        if not found.length:
            break
        folded, left = left[: found.length], left[found.length :]
        assert all(turn.position <= last_position - tail for turn in folded)
        assert found.tokens == sum(turn.token_count for turn in folded)
        assert found.tokens <= chunk_tokens or len(cuts(folded, limits)) == 1
        asked = {id for turn in folded for id in call_ids(turn)}
        for position, turn in enumerate(left):
            earlier = {id for other in left[:position] for id in call_ids(other)}
            assert not asked.intersection(answered_ids(turn)) - earlier, "a call was parted from its answer"


class TestWorth:
    def test_a_partial_chunk_waits_while_a_summary_would_be_as_large(self) -> None:
        assert smallest_chunk_worth_a_call(Limits(), 30_000) == 1_200
        assert smallest_chunk_worth_a_call(Limits(leaf_chunk_tokens=1_000), 30_000) == 250
        assert smallest_chunk_worth_a_call(Limits(), 1_000) == 100


class TestBatches:
    @pytest.mark.parametrize(
        ("count", "max_tokens", "sizes"),
        [
            (3, 1_000, []),
            (4, 1_000, [4]),
            (9, 1_000, [9]),
            (9, 40, [4, 5]),
            (8, 40, [4, 4]),
            (13, 60, [6, 7]),
            (7, 10, [7]),
            (20, 50, [5, 5, 5, 5]),
        ],
    )
    def test_as_few_as_fit_but_of_at_least_the_fanout(self, count: int, max_tokens: int, sizes: list[int]) -> None:
        turns = session(*[hello()] * count)
        turns = [replace(turn, created_at=NOON) for turn in turns]
        leaves = [replace(leaf_of([turn]), token_count=10) for turn in turns]
        batches = list(batches_to_condense(leaves, min_fanout=4, max_tokens=max_tokens))
        assert [len(batch) for batch in batches] == sizes
        assert not sizes or [leaf for batch in batches for leaf in batch] == leaves
        for batch in batches:
            assert condensed_of(batch).descendant_count == len(batch)


class TestLimits:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("fresh_tail_count", -1),
            ("fresh_tail_count", 1.5),
            ("fresh_tail_count", True),
            ("leaf_chunk_tokens", 0),
            ("condensed_min_fanout", 1),
            ("condensed_min_fanout", "4"),
            ("max_condense_depth", -2),
        ],
    )
    def test_a_value_out_of_range_is_refused_by_name(self, name: str, value: object) -> None:
        with pytest.raises(InvalidArgument, match=name):
            Limits(**{name: value})  # type: ignore[arg-type]

    @pytest.mark.parametrize(("bound", "allowed"), [(None, 9), (-1, 9), (0, 0), (2, 2)])
    def test_depths_up_to_the_bound_may_be_condensed(self, bound: int | None, allowed: int) -> None:
        limits = Limits(max_condense_depth=bound)
        assert limits.may_condense_from(allowed)
        assert bound in (None, -1) or not limits.may_condense_from(allowed + 1)
