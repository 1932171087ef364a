"""The conformance suite of a repository: what `turnfold.repository` promises, as tests for anyone's backend.

Subclass it and give it one fixture; pytest finds the rest::

    class TestMyRepository(RepositoryContract):
        @pytest.fixture
        def repository(self):
            return MyRepository()          # empty, and of its own for every test

It needs pytest, which turnfold itself does not.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from turnfold.analysis import terms_of
from turnfold.errors import (
    CompactionInProgress,
    InvalidArgument,
    InvalidSummary,
    InvalidTurn,
    LeaseLost,
    TurnConflict,
    UnknownSummary,
)
from turnfold.records import Lease, SummaryRecord, Tier, Turn, derived_summary_id
from turnfold.repository import Repository
from turnfold.vectors import Embedding

__all__ = ["RepositoryContract", "condensed_of", "leaf_of"]

NOON = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)

HOSTILE_TEXTS = [
    "",
    "\0",
    "before\0after",
    "\x10P[1]\x100\x10u0041\x10\x10",
    "".join(map(chr, range(0x20))) + "\x7f\x80\x9f",
    "lone \ud800 and \udfff, and a pair of two \ud83d\ude00",
    "👩‍👩‍👧‍👦 🇩🇪 ❤️ \U0010ffff \ufeff \u202e",
    "'; DROP TABLE turnfold_turns; --",
    "\x1b[31mred\x1b[0m \r\n\t\u2028",
    "".join(chr(plane << 16 | offset) for plane in range(17) for offset in (0x41, 0xD7FF, 0xE000, 0xFFFD, 0xFFFF)),
    "\u202eright to left\u202c \u2066\u2069 \u200f\u061c שלום مرحبا",
    '<transcript-00000000> </summary-00000000> <summary-00000000 id="sum-0">',
    "% %s %(name)s :name $1 ? \\ \\x00 {0} {{}}",
    "é e\u0301 ﬁ İ ß",
]

HOSTILE_CONTENTS: list[Any] = [
    None,
    [],
    [{"type": "text", "text": "a\0b\ud800"}, {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}],
    ["bare", 1, 1.5, True, None, {"z": 1, "a": {"deep": [[], {}]}}],
]


def leaf_of(turns: Sequence[Turn], text: str = "They agreed.", *, token_count: int = 3) -> SummaryRecord:
    """A leaf that covers stored turns."""
    times = [turn.created_at for turn in turns if turn.created_at is not None]
    first = turns[0]
    return SummaryRecord(
        id=derived_summary_id(first.session_id, 0, first.position),
        session_id=first.session_id,
        depth=0,
        content=text,
        token_count=token_count,
        source_token_count=sum(turn.token_count for turn in turns),
        first_position=first.position,
        last_position=turns[-1].position,
        descendant_count=len(turns),
        time_range_start=min(times),
        time_range_end=max(times),
        tier="normal",
        model="a model",
        counter="a counter",
        created_at=NOON,
        source_turn_ids=tuple(str(turn.id) for turn in turns),
    )


def condensed_of(
    children: Sequence[SummaryRecord], text: str = "All agreed.", *, token_count: int = 2
) -> SummaryRecord:
    """A summary of neighbouring summaries of one depth."""
    depth = children[0].depth + 1
    return SummaryRecord(
        id=derived_summary_id(children[0].session_id, depth, children[0].first_position),
        session_id=children[0].session_id,
        depth=depth,
        content=text,
        token_count=token_count,
        source_token_count=sum(child.token_count for child in children),
        first_position=children[0].first_position,
        last_position=children[-1].last_position,
        descendant_count=sum(child.descendant_count for child in children),
        time_range_start=min(child.time_range_start for child in children),
        time_range_end=max(child.time_range_end for child in children),
        tier="aggressive",
        model="a model",
        counter="a counter",
        created_at=NOON,
        child_ids=tuple(child.id for child in children),
    )


def some_turns(count: int, start: int = 0) -> list[Turn]:
    return [
        Turn("user" if number % 2 == 0 else "assistant", f"Turn number {number} says something of some length.")
        for number in range(start, start + count)
    ]


class RepositoryContract:
    """Every test is a promise of `Repository`; `repository` is the one fixture to give."""

    @pytest.fixture
    def repository(self) -> Repository:
        raise NotImplementedError("give the suite a fixture named repository")

    # Appending

    def test_positions_go_on_from_one_without_a_gap(self, repository: Repository) -> None:
        first = repository.append_turns("s", some_turns(3))
        second = repository.append_turns("s", some_turns(2, start=3))
        assert [turn.position for turn in first + second] == [1, 2, 3, 4, 5]

    def test_what_was_appended_is_read_back_equal(self, repository: Repository) -> None:
        written = repository.append_turns("s", [Turn("user", "one", name="Anna"), Turn("assistant", "two")])
        assert repository.get_session_turns("s") == written
        assert [turn.session_id for turn in written] == ["s", "s"]

    @pytest.mark.parametrize("text", HOSTILE_TEXTS, ids=ascii)
    def test_any_text_is_kept_character_by_character(self, repository: Repository, text: str) -> None:
        call = {"id": text, "type": "function", "function": {"name": text, "arguments": text}}
        turn = Turn(
            "assistant",
            text,
            name=text,
            tool_calls=[call],
            tool_call_id=text,
            payload={"role": "assistant", text: text},
            attributes={text: [text]},
        )
        repository.append_turns("s", [turn])
        (read,) = repository.get_session_turns("s")
        for field in ("content", "name", "tool_calls", "tool_call_id", "payload", "attributes"):
            assert getattr(read, field) == getattr(turn, field)

    @pytest.mark.parametrize("content", HOSTILE_CONTENTS, ids=ascii)
    def test_any_content_is_kept_with_its_types(self, repository: Repository, content: Any) -> None:
        repository.append_turns("s", [Turn("user", content)])
        (read,) = repository.get_session_turns("s")
        assert repr(read.content) == repr(content)

    def test_five_megabytes_of_text_are_kept(self, repository: Repository) -> None:
        text = "0123456789 äöü 漢字 \0 " * 250_000
        repository.append_turns("s", [Turn("tool", text)])
        assert repository.get_session_turns("s")[0].content == text

    def test_times_are_kept_to_the_microsecond_in_utc(self, repository: Repository) -> None:
        here = NOON.astimezone(timezone(timedelta(hours=5, minutes=30)))
        (turn,) = repository.append_turns("s", [Turn("user", "now", created_at=here)])
        (read,) = repository.get_session_turns("s")
        assert turn.created_at == read.created_at == NOON
        assert read.created_at is not None
        assert read.created_at.utcoffset() == timedelta(0)

    def test_turns_of_one_instant_keep_their_order(self, repository: Repository) -> None:
        repository.append_turns("s", [Turn("user", str(number), created_at=NOON) for number in range(20)])
        assert [turn.content for turn in repository.get_session_turns("s")] == [str(number) for number in range(20)]

    def test_system_and_developer_turns_are_pinned_unless_said_otherwise(self, repository: Repository) -> None:
        turns = [
            Turn("system", "a"),
            Turn("developer", "b"),
            Turn("user", "c"),
            Turn("system", "d", pinned=False),
            Turn("user", "e", pinned=True),
        ]
        repository.append_turns("s", turns)
        assert [turn.content for turn in repository.get_pinned_turns("s")] == ["a", "b", "e"]
        assert [turn.content for turn in repository.get_pinned_turns("s", up_to_position=2)] == ["a", "b"]

    def test_an_empty_batch_makes_no_session(self, repository: Repository) -> None:
        assert repository.append_turns("s", []) == []
        assert repository.get_session("s") is None

    def test_sessions_do_not_mix(self, repository: Repository) -> None:
        repository.append_turns("a", [Turn("user", "of a", id="same")])
        repository.append_turns("b", [Turn("user", "of b", id="same")])
        assert [turn.content for turn in repository.get_session_turns("a")] == ["of a"]

    # The same turn again

    def test_the_same_call_twice_gives_the_same_answer(self, repository: Repository) -> None:
        turns = [Turn("user", "one", id="1"), Turn("assistant", None, id="2", tool_calls=[{"id": "c"}])]
        first = repository.append_turns("s", turns)
        assert repository.append_turns("s", turns) == first
        assert repository.get_session_turns("s") == first

    def test_a_batch_of_old_and_new_turns_adds_the_new_ones(self, repository: Repository) -> None:
        repository.append_turns("s", [Turn("user", "one", id="1")])
        both = repository.append_turns("s", [Turn("user", "one", id="1"), Turn("user", "two", id="2")])
        assert [turn.position for turn in both] == [1, 2]

    def test_a_turn_twice_in_one_batch_is_written_once(self, repository: Repository) -> None:
        both = repository.append_turns("s", [Turn("user", "one", id="1"), Turn("user", "one", id="1")])
        assert both[0] == both[1]
        assert len(repository.get_session_turns("s")) == 1

    @pytest.mark.parametrize(
        "other",
        [
            Turn("user", "other", id="1"),
            Turn("assistant", "one", id="1"),
            Turn("user", "one", id="1", name="Bob"),
            Turn("user", "one", id="1", pinned=True),
            Turn("user", "one", id="1", attributes={"a": 1}),
            Turn("user", "one", id="1", created_at=NOON),
        ],
        ids=lambda turn: f"{turn.role}-{turn.content}-{turn.name}-{turn.pinned}",
    )
    def test_the_same_id_with_other_content_is_refused(self, repository: Repository, other: Turn) -> None:
        repository.append_turns("s", [Turn("user", "one", id="1")])
        with pytest.raises(TurnConflict, match="'1'"):
            repository.append_turns("s", [Turn("user", "new", id="2"), other])
        assert [turn.content for turn in repository.get_session_turns("s")] == ["one"]

    def test_concurrent_writers_leave_no_gap_and_lose_nothing(self, repository: Repository) -> None:
        written: list[int] = []

        def write(writer: int) -> None:
            for number in range(10):
                stored = repository.append_turns("s", [Turn("user", f"{writer}-{number}-{part}") for part in range(3)])
                written.extend(turn.position for turn in stored)

        _in_threads(write, 6)
        assert sorted(written) == list(range(1, 181))
        assert len({turn.content for turn in repository.get_session_turns("s")}) == 180

    # Refused turns

    @pytest.mark.parametrize(
        "turn",
        [
            Turn("robot", "unknown role"),
            Turn("user", 5),  # type: ignore[arg-type]
            Turn("user", [float("nan")]),
            Turn("user", [(1, 2)]),
            Turn("user", [{1: "number as key"}]),
            Turn("user", "x", attributes={"score": float("inf")}),
            Turn("user", "x", attributes=[]),  # type: ignore[arg-type]
            Turn("user", "x", payload={"at": NOON}),
            Turn("user", "x", created_at=NOON.replace(tzinfo=None)),
            Turn("user", "x", id=""),
            Turn("user", "x", id="i" * 256),
            Turn("user", "x", id="nul\0"),
            Turn("assistant", None, tool_calls=["no object"]),  # type: ignore[list-item]
        ],
        ids=lambda turn: ascii(turn.content)[:20],
    )
    def test_a_turn_that_would_not_come_back_equal_is_refused(self, repository: Repository, turn: Turn) -> None:
        with pytest.raises(InvalidTurn, match="turn 1 for session 's'"):
            repository.append_turns("s", [Turn("user", "good"), turn])
        assert repository.get_session("s") is None

    @pytest.mark.parametrize("session_id", ["", "s" * 10_000, "nul\0", "\ud800"], ids=lambda value: ascii(value)[:9])
    def test_a_session_id_that_cannot_be_kept_is_refused(self, repository: Repository, session_id: str) -> None:
        with pytest.raises(InvalidArgument, match="session_id"):
            repository.append_turns(session_id, some_turns(1))

    # Pinned calls

    def test_an_answer_to_a_pinned_call_is_pinned(self, repository: Repository) -> None:
        call = Turn("assistant", None, tool_calls=[{"id": "c"}], pinned=True)
        repository.append_turns("s", [call, Turn("user", "wait")])
        (answer,) = repository.append_turns("s", [Turn("tool", "done", tool_call_id="c")])
        assert answer.pinned
        (again,) = repository.append_turns("t", [call, Turn("tool", "done", tool_call_id="c")])[1:]
        assert again.pinned

    def test_the_nearest_call_decides_whether_its_answer_is_pinned(self, repository: Repository) -> None:
        pinned = Turn("assistant", None, tool_calls=[{"id": "c"}], pinned=True)
        repository.append_turns("s", [pinned, Turn("assistant", None, tool_calls=[{"id": "c"}])])
        (answer,) = repository.append_turns("s", [Turn("tool", "done", tool_call_id="c")])
        assert not answer.pinned

    def test_a_pinned_answer_to_a_call_that_is_not_pinned_is_refused(self, repository: Repository) -> None:
        repository.append_turns("s", [Turn("assistant", None, tool_calls=[{"id": "c"}])])
        with pytest.raises(InvalidTurn, match="pin the call"):
            repository.append_turns("s", [Turn("tool", "done", tool_call_id="c", pinned=True)])

    # Reading

    def test_a_session_without_turns_is_empty_and_no_error(self, repository: Repository) -> None:
        assert repository.get_session("none") is None
        assert repository.get_session_turns("none") == []
        assert repository.get_uncovered_turns("none") == []
        assert repository.get_pinned_turns("none") == []
        assert repository.get_summaries("none") == []
        assert repository.get_uncompacted_summaries("none") == []
        assert repository.get_newest_leaf("none") is None
        assert repository.get_session_token_count("none") == 0

    def test_turns_can_be_read_in_pages(self, repository: Repository) -> None:
        repository.append_turns("s", some_turns(7))
        pages = [repository.get_session_turns("s", after_position=after, limit=3) for after in (0, 3, 6, 7)]
        assert [[turn.position for turn in page] for page in pages] == [[1, 2, 3], [4, 5, 6], [7], []]

    def test_sessions_are_listed_by_id_in_code_point_order(self, repository: Repository) -> None:
        for session_id in ("b", "B", "a", "é", "_", "a2", "漢"):
            repository.append_turns(session_id, some_turns(1))
        assert [session.id for session in repository.get_sessions()] == ["B", "_", "a", "a2", "b", "é", "漢"]
        assert [session.id for session in repository.get_sessions(after_id="_", limit=2)] == ["a", "a2"]

    def test_the_session_counts_turns_and_tokens(self, repository: Repository) -> None:
        turns = repository.append_turns("s", some_turns(4))
        session = repository.get_session("s")
        assert session is not None
        assert (session.last_position, session.covered_position) == (4, 0)
        tokens = sum(turn.token_count for turn in turns)
        assert session.total_tokens == session.active_tokens == repository.get_session_token_count("s") == tokens

    def test_each_turn_tells_which_counter_counted_it(self, repository: Repository) -> None:
        (turn,) = repository.append_turns("s", some_turns(1))
        assert turn.counter == repository.token_counter.name
        assert turn.token_count > repository.token_counter.count(str(turn.content))

    # Leaves

    def test_a_leaf_is_read_back_equal_and_covers_its_turns(self, repository: Repository) -> None:
        turns = repository.append_turns("s", some_turns(5))
        leaf = leaf_of(turns[:3], "nul \0 and \ud800")
        repository.add_summary(leaf)
        assert repository.get_summary(leaf.id) == leaf
        assert repository.get_summaries("s") == repository.get_uncompacted_summaries("s") == [leaf]
        assert repository.get_newest_leaf("s") == leaf
        assert repository.get_source_turns(leaf.id) == turns[:3]
        assert repository.get_uncovered_turns("s") == turns[3:]

    def test_a_leaf_takes_the_place_of_its_turns_in_the_token_count(self, repository: Repository) -> None:
        turns = repository.append_turns("s", some_turns(5))
        repository.add_summary(leaf_of(turns[:3]))
        session = repository.get_session("s")
        assert session is not None
        assert session.covered_position == 3
        assert session.active_tokens == 3 + sum(turn.token_count for turn in turns[3:])
        assert session.total_tokens == sum(turn.token_count for turn in turns)

    def test_a_leaf_passes_over_pinned_turns(self, repository: Repository) -> None:
        turns = repository.append_turns(
            "s", [Turn("system", "rules"), *some_turns(2), Turn("system", "more"), *some_turns(2)]
        )
        sources = [turn for turn in turns if not turn.pinned]
        repository.add_summary(leaf_of(sources[:3]))
        assert repository.get_uncovered_turns("s") == sources[3:]
        assert [turn.position for turn in repository.get_pinned_turns("s")] == [1, 4]

    def test_turns_are_never_changed_by_a_summary(self, repository: Repository) -> None:
        turns = repository.append_turns("s", some_turns(6))
        leaves = [leaf_of(turns[:2]), leaf_of(turns[2:4])]
        for leaf in leaves:
            repository.add_summary(leaf)
        repository.add_summary(condensed_of(leaves))
        assert repository.get_session_turns("s") == turns

    def test_sources_can_be_read_in_pages(self, repository: Repository) -> None:
        turns = repository.append_turns("s", some_turns(5))
        repository.add_summary(leaf_of(turns))
        assert repository.get_source_turns(leaf_of(turns).id, after_position=2, limit=2) == turns[2:4]

    @pytest.mark.parametrize(
        ("first", "last"), [(1, 3), (2, 4), (0, 5)], ids=["a gap", "a gap and more", "more than there is"]
    )
    def test_a_leaf_that_is_not_next_to_what_is_covered_is_refused(
        self, repository: Repository, first: int, last: int
    ) -> None:
        turns = repository.append_turns("s", some_turns(4))
        leaf = replace(leaf_of([*turns, replace(turns[-1], id="more", position=5)][first:last]), depth=0)
        with pytest.raises(InvalidSummary, match="next uncovered turns"):
            repository.add_summary(leaf)
        assert repository.get_summaries("s") == []
        assert repository.get_uncovered_turns("s") == turns

    def test_a_turn_is_never_covered_twice(self, repository: Repository) -> None:
        turns = repository.append_turns("s", some_turns(4))
        repository.add_summary(leaf_of(turns[:2]))
        for again in (turns[:2], turns[1:3], turns[:3]):
            with pytest.raises(InvalidSummary):
                repository.add_summary(replace(leaf_of(again), id="another"))
        assert len(repository.get_summaries("s")) == 1

    @pytest.mark.parametrize(
        "changes",
        [
            {"token_count": 10_000},
            {"content": "  \n"},
            {"source_token_count": 1_000},
            {"descendant_count": 7},
            {"time_range_end": NOON - timedelta(days=400)},
            {"parent_id": "sum-none"},
        ],
        ids=lambda changes: next(iter(changes)),
    )
    def test_a_summary_that_tells_an_untruth_is_refused(self, repository: Repository, changes: dict[str, Any]) -> None:
        turns = repository.append_turns("s", some_turns(2))
        with pytest.raises(InvalidSummary):
            repository.add_summary(replace(leaf_of(turns), **changes))
        assert repository.get_summaries("s") == []
        assert repository.get_session_token_count("s") == sum(turn.token_count for turn in turns)

    def test_a_summary_of_a_session_without_turns_is_refused(self, repository: Repository) -> None:
        turns = repository.append_turns("s", some_turns(2))
        with pytest.raises(InvalidSummary):
            repository.add_summary(replace(leaf_of(turns), session_id="none"))

    # Condensed summaries

    def test_condensing_writes_the_parent_and_marks_its_children_at_once(self, repository: Repository) -> None:
        leaves = self.written_leaves(repository, 3)
        parent = condensed_of(leaves)
        repository.add_summary(parent)
        assert repository.get_uncompacted_summaries("s") == [parent]
        assert repository.get_child_summaries(parent.id) == [replace(leaf, parent_id=parent.id) for leaf in leaves]
        assert repository.get_summaries("s", depth=1) == [parent]
        assert [turn.position for turn in repository.get_source_turns(parent.id)] == [1, 2, 3, 4, 5, 6]
        assert repository.get_session_token_count("s") == parent.token_count

    def test_a_leaf_has_no_children(self, repository: Repository) -> None:
        (leaf,) = self.written_leaves(repository, 1)
        assert repository.get_child_summaries(leaf.id) == []

    def test_uncompacted_summaries_can_be_read_by_depth(self, repository: Repository) -> None:
        leaves = self.written_leaves(repository, 3)
        parent = condensed_of(leaves[:2])
        repository.add_summary(parent)
        assert repository.get_uncompacted_summaries("s", depth=0) == [leaves[2]]
        assert repository.get_uncompacted_summaries("s", depth=1) == [parent]
        assert repository.get_uncompacted_summaries("s") == [parent, leaves[2]]

    def test_a_summary_never_gets_a_second_parent(self, repository: Repository) -> None:
        leaves = self.written_leaves(repository, 3)
        repository.add_summary(condensed_of(leaves[:2]))
        with pytest.raises(InvalidSummary):
            repository.add_summary(replace(condensed_of(leaves[1:]), id="another"))
        assert [leaf.parent_id for leaf in repository.get_summaries("s", depth=0)][2] is None
        assert len(repository.get_summaries("s", depth=1)) == 1

    def test_a_parent_names_all_summaries_that_it_spans(self, repository: Repository) -> None:
        leaves = self.written_leaves(repository, 3)
        with pytest.raises(InvalidSummary, match="children"):
            repository.add_summary(condensed_of([leaves[0], leaves[2]]))
        assert repository.get_uncompacted_summaries("s") == leaves

    def test_saying_again_that_a_summary_is_compacted_changes_nothing(self, repository: Repository) -> None:
        leaves = self.written_leaves(repository, 2)
        parent = condensed_of(leaves)
        repository.add_summary(parent)
        repository.mark_summary_compacted(leaves[0].id, parent.id)
        assert repository.get_child_summaries(parent.id) == [replace(leaf, parent_id=parent.id) for leaf in leaves]

    def test_a_summary_cannot_be_marked_as_the_child_of_another(self, repository: Repository) -> None:
        leaves = self.written_leaves(repository, 3)
        parent = condensed_of(leaves[:2])
        repository.add_summary(parent)
        with pytest.raises(InvalidSummary):
            repository.mark_summary_compacted(leaves[2].id, parent.id)
        assert repository.get_uncompacted_summaries("s", depth=0) == [leaves[2]]

    def test_how_a_summary_was_made_is_read_back_equal(self, repository: Repository) -> None:
        turns = repository.append_turns("s", some_turns(2))
        leaf = replace(leaf_of(turns), prompt_version="v\0-\u00e9", input_tokens=1 << 40, output_tokens=0)
        repository.add_summary(leaf)
        assert repository.get_summary(leaf.id) == leaf

    def test_a_summary_made_again_keeps_its_place_and_the_context_counts_it(self, repository: Repository) -> None:
        leaf, other = self.written_leaves(repository, 2)
        before = repository.get_session_token_count("s")
        new = replace(leaf, content="They agreed on plan 7.", token_count=7, tier="aggressive", model="another")
        repository.replace_summaries([new])
        assert repository.get_summaries("s") == [new, other]
        assert repository.get_session_token_count("s") == before + 4
        assert repository.get_source_turns(leaf.id)[0].position == 1

    def test_the_parent_of_a_summary_made_again_is_marked_outdated(self, repository: Repository) -> None:
        leaves = self.written_leaves(repository, 2)
        parent = condensed_of(leaves)
        repository.add_summary(parent)
        before = repository.get_session_token_count("s")
        new = replace(leaves[0], content="They agreed again.", token_count=5, parent_id=parent.id)
        repository.replace_summaries([new])
        marked = replace(parent, source_token_count=8, is_outdated=True)
        assert repository.get_summary(parent.id) == marked
        assert repository.get_session_token_count("s") == before
        repository.replace_summaries([replace(marked, content="Once more.", token_count=4, is_outdated=False)])
        assert repository.get_session_token_count("s") == before + 2

    def test_an_attempt_without_a_new_text_is_counted_and_marks_nothing(self, repository: Repository) -> None:
        leaves = self.written_leaves(repository, 2)
        parent = condensed_of(leaves)
        repository.add_summary(parent)
        tried = replace(leaves[0], refold_attempts=1, parent_id=parent.id)
        repository.replace_summaries([tried])
        assert repository.get_summary(tried.id) == tried
        assert repository.get_summary(parent.id) == parent

    def test_a_summary_and_its_parent_can_only_shrink_together(self, repository: Repository) -> None:
        leaves = self.written_leaves(repository, 2)
        parent = condensed_of(leaves, token_count=5)
        repository.add_summary(parent)
        short = replace(leaves[0], content="Yes.", token_count=1, parent_id=parent.id)
        with pytest.raises(InvalidSummary):
            repository.replace_summaries([short])
        assert repository.get_summary(short.id) == replace(leaves[0], parent_id=parent.id)
        above = replace(parent, content="All yes.", token_count=2, source_token_count=4)
        repository.replace_summaries([short, above])
        assert [repository.get_summary(short.id), repository.get_summary(parent.id)] == [short, above]

    @pytest.mark.parametrize(
        "changes",
        [
            {"last_position": 4},
            {"descendant_count": 1},
            {"source_turn_ids": ()},
            {"parent_id": "sum-none"},
            {"source_token_count": 1_000},
            {"token_count": 500},
            {"content": " "},
            {"depth": 1},
        ],
        ids=str,
    )
    def test_a_summary_made_again_changes_nothing_but_what_is_made(
        self, repository: Repository, changes: dict[str, Any]
    ) -> None:
        leaf = self.written_leaves(repository, 2)[0]
        with pytest.raises(InvalidSummary):
            repository.replace_summaries([replace(leaf, **changes)])
        assert repository.get_summary(leaf.id) == leaf

    def test_summaries_made_again_together_are_a_chain_upwards(self, repository: Repository) -> None:
        leaves = self.written_leaves(repository, 2)
        with pytest.raises(InvalidSummary):
            repository.replace_summaries([replace(leaf, content="They agreed again.") for leaf in leaves])
        assert repository.get_summaries("s") == leaves
        with pytest.raises(UnknownSummary):
            repository.replace_summaries([replace(leaves[0], id="sum-none")])

    def test_who_lost_the_lease_replaces_nothing(self, repository: Repository) -> None:
        leaf = self.written_leaves(repository, 1)[0]
        lost = self.acquired(repository, "one", 0.0)
        self.acquired(repository, "two", 60)
        with pytest.raises(LeaseLost):
            repository.replace_summaries([replace(leaf, content="They agreed again.")], lease=lost)
        assert repository.get_summary(leaf.id) == leaf

    def test_stale_summaries_are_found_newest_first(self, repository: Repository) -> None:
        turns = repository.append_turns("s", some_turns(8))
        tiers: tuple[Tier, ...] = ("fallback", "normal", "fallback", "fallback")
        leaves = [replace(leaf_of(turns[2 * n : 2 * n + 2]), tier=tier) for n, tier in enumerate(tiers)]
        for leaf in leaves:
            repository.add_summary(leaf)
        repository.replace_summaries([tried := replace(leaves[2], refold_attempts=2)])
        assert repository.get_stale_summaries("s") == [leaves[3], tried, leaves[0]]
        assert repository.get_stale_summaries("s", max_attempts=2) == [leaves[3], leaves[0]]
        assert repository.get_stale_summaries("s", limit=1) == [leaves[3]]
        repository.add_summary(parent := condensed_of(leaves))
        repository.replace_summaries([replace(tried, content="They agreed again.", tier="normal", parent_id=parent.id)])
        assert [s.id for s in repository.get_stale_summaries("s")] == [leaves[3].id, parent.id, leaves[0].id]
        assert repository.get_stale_summaries("unknown") == []

    def test_the_leaf_before_a_position_is_found(self, repository: Repository) -> None:
        leaves = self.written_leaves(repository, 3)
        assert repository.get_newest_leaf("s") == leaves[2]
        assert repository.get_newest_leaf("s", before_position=leaves[2].first_position) == leaves[1]
        assert repository.get_newest_leaf("s", before_position=1) is None

    def test_the_active_context_is_what_stands_for_the_session(self, repository: Repository) -> None:
        turns = repository.append_turns("s", [Turn("system", "rules"), *some_turns(6)])
        assert repository.get_active_context("s") == ([], turns)
        leaves = [leaf_of(turns[1:3]), leaf_of(turns[3:5])]
        for leaf in leaves:
            repository.add_summary(leaf)
        bare = [replace(leaf, source_turn_ids=()) for leaf in leaves]
        assert repository.get_active_context("s") == (bare, [turns[0], *turns[5:]])
        repository.add_summary(parent := condensed_of(leaves))
        assert repository.get_active_context("s") == ([replace(parent, child_ids=())], [turns[0], *turns[5:]])
        assert repository.get_active_context("unknown") == ([], [])

    def test_turns_are_read_by_their_positions(self, repository: Repository) -> None:
        turns = repository.append_turns("s", some_turns(5))
        assert repository.get_turns_at("s", [4, 2, 9]) == [turns[1], turns[3]]
        assert repository.get_turns_at("unknown", [1]) == []

    def test_documents_are_found_by_their_terms(self, repository: Repository) -> None:
        said = ["The build fails.", "Why?", "The disk is full.", "Nothing else.", "Really nothing."]
        turns = repository.append_turns("s", [Turn("user", text) for text in said])
        repository.append_turns("other", [Turn("user", "Their build fails, too.")])
        found = repository.find_documents("s", terms_of("building failed"), of="turns", limit=9)
        assert [one.position for one in found] == [1, 2, 3]
        assert found[0].score > found[1].score > found[2].score > 0
        assert {one.session_id for one in found} == {"s"}
        everywhere = repository.find_documents(None, terms_of("build"), of="turns", limit=9)
        assert {one.session_id for one in everywhere} == {"s", "other"}
        prefixed = repository.find_documents(None, terms_of("build"), of="turns", limit=9, session_prefix="oth")
        assert {one.session_id for one in prefixed} == {"other"}
        assert repository.find_documents("s", terms_of("unheard of"), of="turns", limit=9) == []
        repository.add_summary(leaf := leaf_of(turns[:3], "The disk was full."))
        (summary,) = repository.find_documents("s", terms_of("disks"), of="summaries", limit=9)
        assert (summary.ref, summary.position) == (leaf.id, 1)
        repository.replace_summaries([replace(leaf, content="The cache was stale.")])
        assert repository.find_documents("s", terms_of("disk"), of="summaries", limit=9) == []
        assert repository.find_documents("s", terms_of("cache"), of="summaries", limit=9)[0].ref == leaf.id

    def test_the_nearest_vectors_are_found(self, repository: Repository) -> None:
        turns = repository.append_turns("s", some_turns(5))
        repository.append_turns("other", some_turns(1))
        repository.add_summary(leaf := leaf_of(turns[:3], "They agreed."))
        directions = [(1.0, 0.0), (0.8, 0.6), (0.0, 1.0), (-1.0, 0.0)]
        repository.add_embeddings("s", [Embedding(n, "", "said", v) for n, v in enumerate(directions, start=1)])
        repository.add_embeddings("s", [Embedding(1, leaf.id, leaf.content, (0.6, 0.8))])
        repository.add_embeddings("other", [Embedding(1, "", "said", (0.6, 0.8))])
        found = repository.find_nearest("s", (1.0, 0.0), of="turns", limit=3)
        assert found == [("s", 1, "", 1.0), ("s", 2, "", 0.8), ("s", 3, "", 0.0)]
        assert repository.find_nearest("s", (1.0, 0.0), of="summaries", limit=3) == [("s", 1, leaf.id, 0.6)]
        everywhere = repository.find_nearest(None, (0.6, 0.8), of="turns", limit=2)
        assert [one.session_id for one in everywhere] == ["other", "s"]
        prefixed = repository.find_nearest(None, (1.0, 0.0), of="turns", limit=2, session_prefix="oth")
        assert prefixed == [("other", 1, "", 0.6)]
        assert repository.find_nearest("s", (1.0, 0.0, 0.0), of="turns", limit=3) == []
        assert repository.find_nearest("unknown", (1.0, 0.0), of="turns", limit=3) == []

    def test_what_has_no_vector_yet_is_told(self, repository: Repository) -> None:
        turns = repository.append_turns("s", some_turns(5))
        repository.add_summary(leaf := leaf_of(turns[:3], "They agreed."))
        told = replace(leaf, source_turn_ids=())
        assert repository.get_unembedded_turns("s", limit=2) == turns[:2]
        assert repository.get_unembedded_summaries("s") == [told]
        repository.add_embeddings("s", [Embedding(n, "", "said", (1.0, 0.0)) for n in (1, 2, 3)])
        repository.add_embeddings("s", [Embedding(1, leaf.id, leaf.content, (1.0, 0.0))])
        assert repository.get_unembedded_turns("s") == turns[3:]
        assert repository.get_unembedded_turns("s", after_position=4) == turns[4:]
        assert repository.get_unembedded_summaries("s") == []
        repository.replace_summaries([replace(leaf, content="They parted.")])
        assert repository.get_unembedded_summaries("s") == [replace(told, content="They parted.")]
        assert repository.get_unembedded_turns("unknown") == []
        assert repository.get_unembedded_summaries("unknown") == []

    def test_a_vector_is_kept_once_and_only_for_the_text_that_is_there(self, repository: Repository) -> None:
        turns = repository.append_turns("s", some_turns(3))
        repository.add_summary(leaf := leaf_of(turns, "They agreed."))
        repository.add_embeddings("s", [Embedding(1, "", "said", (1.0, 0.0))])
        repository.add_embeddings("s", [Embedding(1, "", "said", (0.0, 1.0)), Embedding(2, "", "said", (0.0, 1.0))])
        repository.add_embeddings("s", [Embedding(1, leaf.id, "Another text.", (1.0, 0.0))])
        assert repository.find_nearest("s", (1.0, 0.0), of="turns", limit=3) == [("s", 1, "", 1.0), ("s", 2, "", 0.0)]
        assert repository.find_nearest("s", (1.0, 0.0), of="summaries", limit=3) == []
        repository.add_embeddings("unknown", [Embedding(1, "", "said", (1.0, 0.0))])
        assert repository.get_session("unknown") is None
        with pytest.raises(InvalidArgument):
            repository.add_embeddings("s", [Embedding(3, "", "said", (1.0, 0.0, 0.0))])

    def test_an_unknown_summary_is_an_error(self, repository: Repository) -> None:
        for ask in (repository.get_summary, repository.get_source_turns, repository.get_child_summaries):
            with pytest.raises(UnknownSummary, match="'sum-none'"):
                ask("sum-none")

    # Leases

    def test_one_worker_holds_the_lease_at_a_time(self, repository: Repository) -> None:
        repository.append_turns("s", some_turns(1))
        lease = repository.acquire_lease("s", owner="one", seconds=60)
        assert lease is not None
        assert repository.acquire_lease("s", owner="two", seconds=60) is None
        repository.release_lease(lease)
        assert repository.acquire_lease("s", owner="two", seconds=60) is not None

    def test_a_session_without_turns_has_no_lease(self, repository: Repository) -> None:
        assert repository.acquire_lease("none", owner="one", seconds=60) is None

    def test_the_session_tells_who_holds_its_lease(self, repository: Repository) -> None:
        repository.append_turns("s", some_turns(1))
        lease = self.acquired(repository, "one", 60)
        session = repository.get_session("s")
        assert session is not None
        assert (session.lease_owner, session.lease_expires_at) == ("one", lease.expires_at)
        repository.release_lease(lease)
        session = repository.get_session("s")
        assert session is not None
        assert (session.lease_owner, session.lease_expires_at) == (None, None)

    def test_a_lease_that_ran_out_can_be_taken_and_its_holder_writes_nothing_more(self, repository: Repository) -> None:
        turns = repository.append_turns("s", some_turns(4))
        old = self.acquired(repository, "one", 0)
        new = self.acquired(repository, "two", 60)
        assert new.token > old.token
        with pytest.raises(LeaseLost):
            repository.add_summary(leaf_of(turns[:2]), lease=old)
        with pytest.raises(LeaseLost):
            repository.renew_lease(old, seconds=60)
        repository.release_lease(old)
        repository.add_summary(leaf_of(turns[:2]), lease=new)
        assert len(repository.get_summaries("s")) == 1

    def test_a_renewed_lease_lasts_longer(self, repository: Repository) -> None:
        repository.append_turns("s", some_turns(1))
        lease = self.acquired(repository, "one", 0)
        renewed = repository.renew_lease(lease, seconds=60)
        assert renewed.token == lease.token
        assert renewed.expires_at > lease.expires_at
        assert repository.acquire_lease("s", owner="two", seconds=60) is None

    def test_a_released_lease_writes_nothing(self, repository: Repository) -> None:
        turns = repository.append_turns("s", some_turns(2))
        lease = self.acquired(repository, "one", 60)
        repository.release_lease(lease)
        with pytest.raises(LeaseLost):
            repository.add_summary(leaf_of(turns), lease=lease)

    def test_of_many_workers_one_gets_the_lease(self, repository: Repository) -> None:
        repository.append_turns("s", some_turns(1))
        got: list[Lease | None] = []
        _in_threads(lambda worker: got.append(repository.acquire_lease("s", owner=str(worker), seconds=60)), 8)
        assert len([lease for lease in got if lease is not None]) == 1

    def test_appending_goes_on_while_a_worker_holds_the_lease(self, repository: Repository) -> None:
        repository.append_turns("s", some_turns(1))
        self.acquired(repository, "one", 60)
        assert repository.append_turns("s", some_turns(1))[0].position == 2

    # Looking after

    def test_the_coverage_is_told_as_it_was_written(self, repository: Repository) -> None:
        leaves = self.written_leaves(repository, 2)
        first, second = (leaf.id for leaf in leaves)
        assert repository.get_coverage("s") == [(1, first), (2, first), (3, second), (4, second)]
        assert repository.get_coverage("s", after_position=1, limit=2) == [(2, first), (3, second)]
        assert repository.get_orphans() == []

    def test_recounting_a_healthy_session_changes_nothing(self, repository: Repository) -> None:
        leaves = self.written_leaves(repository, 3)
        repository.add_summary(condensed_of(leaves[:2]))
        repository.append_turns("s", [Turn("system", "rules"), *some_turns(2)])
        before = repository.get_session("s")
        repository.recount_session("s")
        after = repository.get_session("s")
        assert before is not None
        assert after is not None
        assert replace(after, updated_at=before.updated_at) == before

    def test_every_turn_and_summary_can_be_found_before_and_after_indexing_again(self, repository: Repository) -> None:
        leaves = self.written_leaves(repository, 3)
        repository.add_summary(condensed_of(leaves[:2]))
        repository.append_turns("t", some_turns(2))
        found = repository.find_documents(None, ["wturn"], of="turns", limit=99)
        for _ in range(2):
            assert repository.get_index_size("s") == (6, 4)
            assert repository.get_index_size("t") == (2, 0)
            assert repository.get_index_size("none") == (0, 0)
            again = repository.find_documents(None, ["wturn"], of="turns", limit=99)
            assert sorted((one.session_id, one.position) for one in again) == sorted(
                (one.session_id, one.position) for one in found
            )
            repository.reindex_session("s")
            repository.reindex_session("none")

    def test_erasing_takes_the_whole_session_and_no_other(self, repository: Repository) -> None:
        leaves = self.written_leaves(repository, 2)
        repository.add_summary(condensed_of(leaves))
        kept = repository.append_turns("t", some_turns(2))
        assert repository.erase_session("s") is True
        assert repository.erase_session("s") is False
        assert repository.get_session("s") is None
        assert repository.get_session_turns("s") == []
        assert repository.get_summaries("s") == []
        assert repository.get_coverage("s") == []
        assert {one.session_id for one in repository.find_documents(None, ["wturn"], of="turns", limit=9)} == {"t"}
        assert repository.get_session_turns("t") == kept
        assert repository.append_turns("s", some_turns(1))[0].position == 1

    def test_a_session_whose_lease_is_held_is_not_erased(self, repository: Repository) -> None:
        repository.append_turns("s", some_turns(2))
        self.acquired(repository, "one", 60)
        with pytest.raises(CompactionInProgress, match="one"):
            repository.erase_session("s")
        assert len(repository.get_session_turns("s")) == 2

    def written_leaves(self, repository: Repository, count: int) -> list[SummaryRecord]:
        turns = repository.append_turns("s", some_turns(2 * count))
        leaves = [leaf_of(turns[2 * number : 2 * number + 2]) for number in range(count)]
        for leaf in leaves:
            repository.add_summary(leaf)
        return leaves

    def acquired(self, repository: Repository, owner: str, seconds: float) -> Lease:
        lease = repository.acquire_lease("s", owner=owner, seconds=seconds)
        assert lease is not None
        return lease


def _in_threads(work: Any, count: int) -> None:
    errors: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
