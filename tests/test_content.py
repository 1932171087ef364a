"""What a turn says, in the forms of both providers, and in forms nobody knows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnfold import Turn
from turnfold.content import answered_ids, call_ids, counted_texts, media_tokens, readable_calls, readable_text

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["type", "id", "text", "content", "source", "input"]) | st.text(), inner, max_size=4
        )
    ),
    max_leaves=12,
)


def test_calls_and_answers_in_the_form_of_openai() -> None:
    turn = Turn("assistant", None, tool_calls=[{"id": "a"}, {"id": "b"}, {}])
    assert call_ids(turn) == ["a", "b"]
    assert answered_ids(Turn("tool", "ok", tool_call_id="a")) == ["a"]


def test_calls_and_answers_in_the_form_of_anthropic() -> None:
    use = [{"type": "text", "text": "Let me see."}, {"type": "tool_use", "id": "a", "name": "f", "input": {}}]
    results = [{"type": "tool_result", "tool_use_id": id, "content": "ok"} for id in "ab"]
    assert call_ids(Turn("assistant", use)) == ["a"]
    assert answered_ids(Turn("user", results)) == ["a", "b"]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, ""),
        ("", ""),
        ("as it is", "as it is"),
        ([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}], "one\ntwo"),
        ([{"type": "thinking", "thinking": "hm", "signature": "x"}], "hm"),
        ([{"type": "refusal", "refusal": "no"}], "no"),
        ([{"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}}], '[calls f {"a":1}]'),
        ([{"type": "tool_result", "tool_use_id": "1", "content": "ok"}], "ok"),
        ([{"type": "tool_result", "tool_use_id": "1", "content": "no", "is_error": True}], "[error] no"),
        ([{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "in"}]}], "in"),
        (["bare", 5], "bare\n5"),
        ([{"type": "new", "x": [1, 2]}], '{"type":"new","x":[1,2]}'),
    ],
)
def test_the_words_of_a_message(content: Any, text: str) -> None:
    assert readable_text(content) == text


def test_base64_in_a_part_of_an_unknown_form_is_left_out() -> None:
    text = readable_text([{"type": "hologram", "data": "QUJD" * 10_000, "note": "short"}])
    assert text == '{"type":"hologram","data":"[40,000 characters]","note":"short"}'


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ({"function": {"name": "f", "arguments": '{"a": 1}'}}, ("f", '{"a": 1}')),
        ({"name": "f", "arguments": {"a": 1}}, ("f", '{"a":1}')),
        ({"name": "f", "input": {"a": 1}}, ("f", '{"a":1}')),
        ({"function": None}, ("", "")),
        ({}, ("", "")),
    ],
)
def test_the_name_and_arguments_of_a_call(call: dict[str, Any], expected: tuple[str, str]) -> None:
    assert list(readable_calls(Turn("assistant", None, tool_calls=[call]))) == [expected]


@given(st.lists(JSON, max_size=4), st.none() | st.lists(st.dictionaries(st.text(), JSON, max_size=3), max_size=3))
def test_no_form_of_parts_or_calls_makes_it_fail(content: list[Any], calls: list[dict[str, Any]] | None) -> None:
    turn = Turn("assistant", content, tool_calls=calls)
    assert isinstance(readable_text(content), str)
    assert all(isinstance(text, str) for text in counted_texts(turn))
    assert all(isinstance(id, str) for id in [*call_ids(turn), *answered_ids(turn)])
    assert sum(map(media_tokens, content)) >= 0
