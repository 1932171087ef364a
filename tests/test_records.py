"""Turns and messages: what goes in comes out, and what cannot be kept is refused where it is made."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnfold import InvalidArgument, InvalidTurn, Turn
from turnfold.records import check_session_id, derived_summary_id, derived_turn_id

MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f"}}]},
    {"role": "assistant", "tool_calls": [{"id": "1"}]},
    {"role": "tool", "tool_call_id": "1", "name": "f", "content": "ok"},
    {"role": "user", "content": [{"type": "text", "text": "x"}], "name": "Anna"},
    {"role": "assistant", "content": "x", "refusal": None, "annotations": [], "audio": None},
    {"role": "assistant", "content": "x", "name": None},
]


@pytest.mark.parametrize("message", MESSAGES, ids=json.dumps)
def test_a_message_comes_out_exactly_as_it_came_in(message: dict[str, Any]) -> None:
    assert Turn.from_message(message).to_message() == message


def test_the_original_is_kept_only_where_it_holds_more_than_the_fields() -> None:
    kept = [Turn.from_message(message).payload is not None for message in MESSAGES]
    assert kept == [False, False, True, False, False, True, True]


@given(st.dictionaries(st.text(), st.text() | st.none() | st.lists(st.integers()), max_size=5))
def test_whatever_else_a_message_holds_comes_out_again(extra: dict[str, Any]) -> None:
    message = {**extra, "role": "user", "content": "x"}
    assert Turn.from_message(message).to_message() == message


@pytest.mark.parametrize("message", [{}, {"content": "x"}, {"role": 5}, [], "text", None])
def test_what_is_no_message_is_refused(message: Any) -> None:
    with pytest.raises(InvalidTurn, match="needs a role"):
        Turn.from_message(message)


def test_a_turn_can_be_told_more_than_the_message_holds() -> None:
    at = datetime(2026, 3, 1, tzinfo=UTC)
    turn = Turn.from_message(MESSAGES[0], id="1", pinned=True, created_at=at, attributes={"a": 1})
    assert (turn.id, turn.pinned, turn.created_at, turn.attributes) == ("1", True, at, {"a": 1})
    assert turn.to_message() == MESSAGES[0]


def test_a_value_nested_too_deeply_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidTurn, match="nested too deeply"):
        Turn("user", deep).check()


def test_an_error_shows_what_was_wrong_but_not_all_of_it() -> None:
    with pytest.raises(InvalidTurn) as caught:
        Turn("user", {"x": "y" * 10_000}).check()  # type: ignore[arg-type]
    assert "content" in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("session_id", ["a", "ä" * 255, "with blank", "🙂", "x" * 255])
def test_session_ids_of_one_to_255_characters_are_fine(session_id: str) -> None:
    assert check_session_id(session_id) == session_id


@pytest.mark.parametrize("session_id", ["", "x" * 256, "\0", "\udfff", None, 5])
def test_other_session_ids_are_refused(session_id: Any) -> None:
    with pytest.raises(InvalidArgument, match="session_id"):
        check_session_id(session_id)


def test_derived_ids_differ_wherever_what_they_name_differs() -> None:
    ids = {
        derived_turn_id("s", 1),
        derived_turn_id("s", 11),
        derived_turn_id("1:s", 1),
        derived_summary_id("s", 1, 1),
        derived_summary_id("s", 0, 1),
        derived_summary_id("1:s", 1, 1),
    }
    assert len(ids) == 6
