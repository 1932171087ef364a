"""Contexts that providers accept, at every turn of any conversation with tools, and that change only at their end."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strict import anthropic_faults, openai_faults
from turnfold import (
    InvalidArgument,
    SqlRepository,
    Summarizer,
    TokenBudget,
    Turn,
    assemble_context,
    compact_if_needed,
    compact_session,
    extractive,
)
from turnfold.forms import to_anthropic, to_openai
from turnfold.testing import some_turns
from turnfold.tokens import count_turn


def call(*ids: str) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": id, "type": "function", "function": {"name": "look", "arguments": "{}"}} for id in ids],
    }


def answer(id: str, text: str = "found") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": text}


def said(role: str, text: str = "They talk about the plan, and about what it costs.") -> dict[str, Any]:
    return {"role": role, "content": text}


def append(store: SqlRepository, *messages: dict[str, Any]) -> None:
    store.append_turns("s", [Turn.from_message(message) for message in messages])


exchange = st.sampled_from(
    [
        [said("user")],
        [said("assistant")],
        [said("user", "word " * 300)],
        [call("a"), answer("a")],
        [call("a", "b"), answer("b"), answer("a")],
        [call("a"), said("user"), answer("a")],
        [call("x")],
        [answer("x", "late")],
        [said("system", "Be kind.")],
        [call("a"), answer("a", "line of a log\n" * 400)],
    ]
)


@given(
    exchanges=st.lists(exchange, min_size=1, max_size=25),
    total=st.integers(300, 3_000),
    tail=st.integers(1, 8),
    cap=st.none() | st.integers(50, 500),
    folds=st.integers(0, 10**6),
)
def test_any_conversation_gives_contexts_that_fit_and_are_accepted(
    store: SqlRepository,
    exchanges: list[list[dict[str, Any]]],
    total: int,
    tail: int,
    cap: int | None,
    folds: int,
) -> None:
    store.erase_session("s")
    budget = TokenBudget(total=total, fresh_tail_count=tail, leaf_chunk_tokens=300, fresh_tail_tokens=cap)
    chance = random.Random(folds)
    for messages in exchanges:
        append(store, *messages)
        if chance.random() < 0.4:
            compact_if_needed("s", store, Summarizer(extractive), budget)
        try:
            context = assemble_context("s", store, budget)
        except InvalidArgument:
            continue
        assert openai_faults(context.messages) == []
        assert openai_faults(context.openai()) == []
        body = context.anthropic()
        trailing = bool(body["messages"]) and body["messages"][-1]["content"][-1]["type"] == "tool_use"
        assert [fault for fault in anthropic_faults(body) if not trailing] == []
        counted = sum(count_turn(store.token_counter, Turn.from_message(message)) for message in context.messages)
        assert counted <= total


def test_the_context_changes_only_at_its_end_while_nothing_is_folded(store: SqlRepository) -> None:
    store.append_turns("s", some_turns(60))
    compact_session("s", store, Summarizer(extractive), fresh_tail_count=4)
    budget = TokenBudget(total=2_000, fresh_tail_count=4)
    before = assemble_context("s", store, budget).messages
    changes = 0
    for number in range(200):
        store.append_turns("s", some_turns(1, start=60 + number))
        after = assemble_context("s", store, budget).messages
        changes += after[: len(before)] != before
        before = after
    assert changes <= 6  # the budget holds about 130 turns; what gives way goes a quarter of it at a time


class TestWhatTheContextHolds:
    def test_an_answer_stands_right_behind_its_call(self, store: SqlRepository) -> None:
        append(store, said("user"), call("a"), said("user", "Still there?"), answer("a"))
        roles = [message["role"] for message in assemble_context("s", store, TokenBudget(total=1_000)).messages]
        assert roles == ["user", "assistant", "tool", "user"]

    def test_a_call_that_waits_while_the_talk_goes_on_has_a_stand_in(self, store: SqlRepository) -> None:
        append(store, said("user"), call("a"), said("user", "Still there?"))
        messages = assemble_context("s", store, TokenBudget(total=1_000)).messages
        assert messages[1:3] == [call("a"), answer("a", "[no answer yet]")]
        append(store, answer("a"))
        assert assemble_context("s", store, TokenBudget(total=1_000)).messages[2] == answer("a")

    def test_a_call_that_waits_at_the_end_stays_as_it_is(self, store: SqlRepository) -> None:
        append(store, said("user"), call("a"))
        assert assemble_context("s", store, TokenBudget(total=1_000)).messages[-1] == call("a")

    def test_the_system_prompt_comes_first_and_is_counted(self, store: SqlRepository) -> None:
        append(store, said("user"))
        budget = TokenBudget(total=1_000, reserve_system=10)
        without = assemble_context("s", store, budget)
        context = assemble_context("s", store, budget, system="Be brief. " * 20)
        assert context.messages[0] == said("system", "Be brief. " * 20)
        assert context.token_count > without.token_count + 40
        assert context.anthropic()["system"] == "Be brief. " * 20
        with pytest.raises(InvalidArgument, match="system takes"):
            assemble_context("s", store, TokenBudget(total=50), system="word " * 100)

    def test_reserves_are_kept_free(self, store: SqlRepository) -> None:
        store.append_turns("s", some_turns(100))
        budget = TokenBudget(total=2_000, fresh_tail_count=4, reserve_tools=700, reserve_answer=500)
        assert assemble_context("s", store, budget).token_count <= 800
        with pytest.raises(InvalidArgument, match="reserve_system, reserve_tools and reserve_answer take 2,000"):
            TokenBudget(total=2_000, reserve_answer=2_000)

    def test_a_query_fetches_back_what_was_folded(self, store: SqlRepository) -> None:
        append(store, said("user", "The password of the staging server is kept in the blue vault."))
        store.append_turns("s", some_turns(80))
        compact_session("s", store, Summarizer(lambda prompt: "They talked."), fresh_tail_count=2)
        budget = TokenBudget(total=2_000, fresh_tail_count=2)
        plain = assemble_context("s", store, budget)
        context = assemble_context("s", store, budget, query="Where is the staging password?")
        assert "blue vault" not in str(plain.messages)
        assert "blue vault" in context.messages[-2]["content"]
        assert context.recalled[0].position == 1
        assert context.token_count <= 2_000

    def test_a_cap_on_the_fresh_tail_lets_its_oldest_groups_give_way(self, store: SqlRepository) -> None:
        store.append_turns("s", [Turn("user", "word " * 200) for _ in range(10)])
        with pytest.raises(InvalidArgument, match="set fresh_tail_tokens"):
            assemble_context("s", store, TokenBudget(total=500, fresh_tail_count=10))
        context = assemble_context("s", store, TokenBudget(total=500, fresh_tail_count=10, fresh_tail_tokens=450))
        assert [turn.position for turn in context.turns] == [9, 10]
        assert len(context.left_out) == 8


class TestForms:
    def test_a_conversation_comes_through_both_forms_unharmed(self) -> None:
        messages = [said("user"), call("a", "b"), answer("a"), answer("b"), said("assistant", "Done.")]
        body = to_anthropic(messages)
        assert anthropic_faults(body) == []
        assert to_openai(body["messages"])[1:4] == messages[1:4]

    def test_what_is_in_the_form_already_stays_as_it_is(self) -> None:
        messages = [said("user"), call("a"), answer("a")]
        assert to_openai(messages) == messages
        body = to_anthropic(messages)
        assert to_anthropic(body["messages"]) == body

    def test_pictures_find_their_place(self) -> None:
        urls = ["data:image/png;base64,AAAA", "https://example.org/a.png"]
        content = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
        (message,) = to_anthropic([{"role": "user", "content": content}])["messages"]
        assert [block["source"]["type"] for block in message["content"]] == ["base64", "url"]

    def test_arguments_that_are_no_object_are_kept(self) -> None:
        broken = call("a")
        broken["tool_calls"][0]["function"]["arguments"] = "{not json"
        block = to_anthropic([said("user"), broken])["messages"][1]["content"][0]
        assert block["input"] == {"arguments": "{not json"}
