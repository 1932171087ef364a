"""Reading conversations from files: every form, every session id, and every way a file can be broken."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from turnfold import SqlRepository, TurnConflict, UnreadableConversation
from turnfold.integrations.openai_messages import Conversation, Imported, import_conversations, read_conversations

HELLO = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
BYE = [{"role": "user", "content": "bye"}]


def read(data: str | bytes, name: str = "chats.json", **options: Any) -> list[Conversation]:
    raw = data.encode() if isinstance(data, str) else data
    return list(read_conversations(io.BytesIO(raw), name, **options))


def sessions(data: str | bytes, name: str = "chats.json", **options: Any) -> list[str]:
    return [conversation.session_id for conversation in read(data, name, **options)]


def lines(*documents: Any) -> str:
    return "\n".join(map(json.dumps, documents)) + "\n"


class TestForms:
    @pytest.mark.parametrize(
        "data",
        [
            json.dumps(HELLO),
            json.dumps(HELLO, indent=2),
            json.dumps({"messages": HELLO, "model": "m"}),
            "\ufeff" + json.dumps(HELLO),
            "\n\n" + json.dumps({"messages": HELLO}, indent=4) + "\n",
        ],
    )
    def test_one_conversation(self, data: str) -> None:
        (conversation,) = read(data)
        assert conversation.session_id == "chats"
        assert [turn.to_message() for turn in conversation.turns] == HELLO
        assert [turn.id for turn in conversation.turns] == ["message-1", "message-2"]

    def test_jsonl_holds_one_conversation_a_line(self) -> None:
        found = read(lines(HELLO, {"messages": BYE}) + "\n\n" + json.dumps(BYE), "a.jsonl")
        assert [(c.session_id, c.line, len(c.turns)) for c in found] == [("a-1", 1, 2), ("a-2", 2, 1), ("a-3", 5, 1)]

    def test_jsonl_is_known_by_its_lines_where_the_name_does_not_tell(self) -> None:
        assert sessions(lines(HELLO, BYE), "export.txt") == ["export-1", "export-2"]

    def test_a_list_of_conversations_is_read_too(self) -> None:
        assert sessions(json.dumps([{"messages": HELLO}, BYE])) == ["chats-1", "chats-2"]

    def test_a_growing_jsonl_file_keeps_its_ids(self) -> None:
        assert sessions(lines(HELLO), "a.jsonl") == sessions(lines(HELLO, BYE), "a.jsonl")[:1]


class TestSessionIds:
    def test_a_given_id_is_numbered_where_there_are_several(self) -> None:
        assert sessions(json.dumps(HELLO), session_id="mine") == ["mine"]
        assert sessions(lines(HELLO, BYE), "a.jsonl", session_id="mine") == ["mine-1", "mine-2"]

    def test_a_conversation_may_name_itself(self) -> None:
        named = [
            {"session_id": "x", "messages": BYE},
            {"conversation_id": "y", "messages": BYE},
            {"id": "z", "messages": BYE},
        ]
        assert sessions(lines(*named), "a.jsonl") == ["x", "y", "z"]

    def test_standard_input_is_named_by_what_it_says(self) -> None:
        (one,), (other,) = sessions(json.dumps(HELLO), "-"), sessions(json.dumps(BYE), "-")
        assert one.startswith("chat-")
        assert one != other
        assert sessions(json.dumps(HELLO, indent=3), "-") == [one]

    def test_an_id_that_is_too_long_is_refused_with_its_line(self) -> None:
        with pytest.raises(UnreadableConversation, match=r"a\.jsonl, line 2.*--session"):
            read(lines(BYE, {"id": "x" * 10_000, "messages": BYE}), "a.jsonl")


class TestBrokenFiles:
    @pytest.mark.parametrize(
        ("data", "message"),
        [
            ("", "is empty"),
            ("\n \n", "is empty"),
            ("[", "line 1, column 2"),
            ('{"messages": [\n{"role": "user",\n"content": "x"', "line 3"),
            ("[]", "no messages"),
            ("{}", "no messages"),
            ('{"messages": "x"}', "no messages"),
            ("5", "no messages"),
            ('"text"', "no messages"),
            ("null", "no messages"),
            (json.dumps(HELLO[0]), "a single message"),
            (json.dumps([HELLO[0], "x"]), "message 2: a message needs a role"),
            (json.dumps([{"role": "robot", "content": "x"}]), "message 1: unknown role 'robot'"),
            (json.dumps([{"role": "user", "content": 7}]), "message 1: content is 7"),
            ('[{"role": "user", "content": [NaN]}]', "NaN is no JSON"),
            (b'[{"role": "user", "content": "\xff"}]', "not UTF-8"),
            ("[" * 100_000, "nested too deeply|no JSON"),
        ],
    )
    def test_the_error_tells_what_is_wrong_and_where(self, data: str | bytes, message: str) -> None:
        with pytest.raises(UnreadableConversation, match=message):
            read(data)

    def test_the_line_of_a_broken_conversation_is_named(self) -> None:
        with pytest.raises(
            UnreadableConversation, match=r"a\.jsonl, line 3, column \d+: no JSON .*is the file complete"
        ):
            read(lines(HELLO, BYE) + '{"messages": [{"role": "us', "a.jsonl")


class TestImporting:
    def run(self, store: SqlRepository, data: str, name: str = "a.jsonl") -> list[Imported]:
        return list(import_conversations(io.BytesIO(data.encode()), name, store))

    def test_importing_again_adds_nothing(self, store: SqlRepository) -> None:
        data = lines(HELLO, BYE)
        assert self.run(store, data) == [Imported("a-1", 2, 2), Imported("a-2", 1, 1)]
        assert self.run(store, data) == [Imported("a-1", 2, 0), Imported("a-2", 1, 0)]
        assert [turn.to_message() for turn in store.get_session_turns("a-1")] == HELLO

    def test_importing_a_conversation_that_went_on_adds_the_rest(self, store: SqlRepository) -> None:
        self.run(store, lines(HELLO))
        assert self.run(store, lines(HELLO + BYE)) == [Imported("a-1", 3, 1)]

    def test_a_conversation_that_was_changed_is_refused(self, store: SqlRepository) -> None:
        self.run(store, lines(HELLO))
        with pytest.raises(TurnConflict, match="message-1"):
            self.run(store, lines(BYE + HELLO))
        assert [turn.to_message() for turn in store.get_session_turns("a-1")] == HELLO

    def test_nothing_is_written_where_any_line_is_broken(self, store: SqlRepository) -> None:
        with pytest.raises(UnreadableConversation, match="line 2"):
            self.run(store, lines(HELLO) + "{broken")
        assert store.get_sessions() == []

    def test_hostile_text_is_kept(self, store: SqlRepository) -> None:
        message = {"role": "user", "content": "a\0b\ud800c\x1b[31m", "extra": {"x": ["\udfff"]}}
        self.run(store, json.dumps([message]))
        (turn,) = store.get_session_turns("a-1")
        assert turn.to_message() == message
