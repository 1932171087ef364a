"""Reads conversations in OpenAI's chat form from a file: a JSON list of messages, an object with `messages`, a JSON
list of either, or JSONL of either, one conversation a line.

A file is read twice: first checked whole, so that nothing is written where anything is broken, then written. Turns get
the ids `message-1`, `message-2`, …, so that importing a file again adds only what it has got since.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import PurePath
from typing import Any, BinaryIO

from turnfold.errors import InvalidArgument, InvalidTurn, UnreadableConversation
from turnfold.records import Turn, check_session_id
from turnfold.repository import Repository

__all__ = ["Conversation", "Imported", "import_conversations", "read_conversations"]

STANDARD_INPUT = "-"
ONE_A_LINE = (".jsonl", ".ndjson")


@dataclass(frozen=True, slots=True)
class Conversation:
    """A session read from a file, and where in the file it begins."""

    session_id: str
    line: int
    turns: list[Turn]


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import did with one conversation: `turns` it has, `added` of them were new."""

    session_id: str
    turns: int
    added: int


def import_conversations(
    file: BinaryIO, name: str, memory_store: Repository, *, session_id: str | None = None
) -> Iterator[Imported]:
    """Write every conversation of a seekable binary file, each in one transaction, and tell of each.

    `name` is the file's, `-` for standard input; `session_id` as for `read_conversations`.

    Raises `UnreadableConversation`, naming the line, before anything is written; `TurnConflict` where a session holds
    another conversation already.
    """
    for _ in read_conversations(file, name, session_id=session_id):
        pass
    file.seek(0)
    for conversation in read_conversations(file, name, session_id=session_id):
        before = memory_store.get_session(conversation.session_id)
        stored = memory_store.append_turns(conversation.session_id, conversation.turns)
        start = before.last_position if before else 0
        added = sum(turn.position > start for turn in stored)
        yield Imported(conversation.session_id, len(stored), added)


def read_conversations(file: BinaryIO, name: str, *, session_id: str | None = None) -> Iterator[Conversation]:
    """The conversations of a file, one at a time.

    The session is `session_id` (with `-1`, `-2`, … where the file holds several), else what the conversation calls
    itself (`session_id`, `conversation_id` or `id`), else the file's name without its ending, numbered where it is
    JSONL or holds several; for standard input a digest of the conversation.
    """
    found = 0
    for line, document, is_numbered in _documents(file, name):
        for conversation in _conversations(document, f"{name}, line {line}"):
            found += 1
            number = f"-{found}" if is_numbered or _holds_several(document) else ""
            where = f"{name}, line {line}" + (f", conversation {found}" if _holds_several(document) else "")
            yield Conversation(
                _session_id(conversation, name, session_id, number, where), line, _turns(conversation, where)
            )
    if not found:
        raise UnreadableConversation(f"{name} is empty; it should hold a conversation as JSON or JSONL")


def _documents(file: BinaryIO, name: str) -> Iterator[tuple[int, Any, bool]]:
    """Each JSON document of the file with its line, and whether documents are numbered."""
    if not _is_one_a_line(file, name):
        raw = file.read()
        if raw.strip():
            yield 1, _parsed(raw, name, 1), False
        return
    for number, line in enumerate(file, start=1):
        if line.strip():
            yield number, _parsed(line, name, number), True


def _is_one_a_line(file: BinaryIO, name: str) -> bool:
    """By the name, else by whether the first line is a document and another follows; leaves the file at its start."""
    if PurePath(name).suffix.lower() in ONE_A_LINE:
        return True
    lines = (raw for raw in file if raw.strip())
    first, second = next(lines, b""), next(lines, b"")
    file.seek(0)
    if not second:
        return False
    try:
        json.loads(first.decode("utf-8-sig"))
    except ValueError:
        return False
    return True


def _parsed(raw: bytes, name: str, line: int) -> Any:
    try:
        return json.loads(raw.decode("utf-8-sig"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        at = line + raw.count(b"\n", 0, error.start)
        raise UnreadableConversation(f"{name}, line {at}: not UTF-8 ({error.reason}); nothing was written") from None
    except json.JSONDecodeError as error:
        at = line + error.lineno - 1
        raise UnreadableConversation(
            f"{name}, line {at}, column {error.colno}: no JSON ({error.msg}); is the file complete? Nothing was written"
        ) from None
    except ValueError as error:
        raise UnreadableConversation(f"{name}, line {line}: {error}; nothing was written") from None
    except RecursionError:
        raise UnreadableConversation(f"{name}, line {line}: nested too deeply; nothing was written") from None


def _refuse_constant(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def _holds_several(document: Any) -> bool:
    return isinstance(document, list) and bool(document) and not _is_message(document[0])


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and "role" in value


def _conversations(document: Any, where: str) -> list[Any]:
    found = document if _holds_several(document) else [document]
    for conversation in found:
        if _is_message(conversation):
            raise UnreadableConversation(
                f"{where}: a single message; a conversation is a list of messages, or an object with `messages`"
            )
        if not isinstance(_messages(conversation), list) or not _messages(conversation):
            raise UnreadableConversation(
                f"{where}: no messages; a conversation is a list of messages, or an object with `messages`"
            )
    return found


def _messages(conversation: Any) -> Any:
    return conversation.get("messages") if isinstance(conversation, dict) else conversation


def _turns(conversation: Any, where: str) -> list[Turn]:
    turns = []
    for number, message in enumerate(_messages(conversation), start=1):
        try:
            turn = Turn.from_message(message, id=f"message-{number}")
            turn.check()
        except InvalidTurn as error:
            raise UnreadableConversation(f"{where}, message {number}: {error}; nothing was written") from None
        turns.append(turn)
    return turns


def _session_id(conversation: Any, name: str, given: str | None, number: str, where: str) -> str:
    session_id = given + number if given is not None else _derived_id(conversation, name, number)
    try:
        return check_session_id(session_id)
    except InvalidArgument as error:
        raise UnreadableConversation(f"{where}: {error}; give one with --session") from None


def _derived_id(conversation: Any, name: str, number: str) -> str:
    if isinstance(conversation, dict):
        for key in ("session_id", "conversation_id", "id"):
            if isinstance(conversation.get(key), str) and conversation[key]:
                return str(conversation[key])
    if name != STANDARD_INPUT:
        return PurePath(name).stem + number
    text = json.dumps(_messages(conversation), sort_keys=True)
    return f"chat-{blake2b(text.encode(), digest_size=6).hexdigest()}"
