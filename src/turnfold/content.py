"""What a turn says: its words, its calls and its answers, in OpenAI's chat form and in Anthropic's messages form.

Pure and tolerant: a part of an unknown form is shown as JSON, with long unbroken strings (base64) left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from turnfold import media
from turnfold.records import Content, Turn

__all__ = ["answered_ids", "call_ids", "counted_texts", "media_tokens", "readable_calls", "readable_text"]


def call_ids(turn: Turn) -> list[str]:
    """The ids of the tool calls that the turn makes."""
    if not turn.tool_calls and not isinstance(turn.content, list):
        return []
    ids = [call.get("id") for call in turn.tool_calls or ()]
    ids += [part.get("id") for part in _parts(turn.content) if part.get("type") == "tool_use"]
    return [id for id in ids if isinstance(id, str)]


def answered_ids(turn: Turn) -> list[str]:
    """The ids of the tool calls that the turn answers."""
    if not isinstance(turn.content, list):
        return [] if turn.tool_call_id is None else [turn.tool_call_id]
    ids = [turn.tool_call_id]
    ids += [part.get("tool_use_id") for part in _parts(turn.content) if part.get("type") == "tool_result"]
    return [id for id in ids if isinstance(id, str)]


def readable_text(content: Content) -> str:
    """The words of a message, media as a short description, never as base64; empty where it says nothing."""
    if isinstance(content, str):
        return content
    return "\n".join(filter(None, (_readable_part(part) for part in content or ())))


def readable_calls(turn: Turn) -> Iterator[tuple[str, str]]:
    """The name and all arguments, as text, of each call in `tool_calls` (calls in parts are in `readable_text`)."""
    for call in turn.tool_calls or ():
        function = call.get("function", call)
        if not isinstance(function, Mapping):
            function = call
        arguments = function.get("arguments", function.get("input", ""))
        yield str(function.get("name", "")), arguments if isinstance(arguments, str) else _json(arguments)


def counted_texts(turn: Turn) -> Iterator[str]:
    """Every text of the turn that a model is sent, media aside."""
    if isinstance(turn.content, str):
        yield turn.content
    else:
        for part in turn.content or ():
            if not isinstance(part, Mapping):
                yield _readable_part(part)
            elif media.tokens(part) is None:
                yield from _counted_part(part)
    if turn.name:
        yield turn.name
    for name, arguments in readable_calls(turn):
        yield name
        yield arguments


def media_tokens(part: Any) -> int:
    """The tokens of the pictures, sounds and documents in a part, those inside a tool result included."""
    if not isinstance(part, Mapping):
        return 0
    if isinstance(part.get("content"), list):
        return sum(map(media_tokens, part["content"]))
    return media.tokens(part) or 0


def _counted_part(part: Mapping[str, Any]) -> Iterator[str]:
    inner = part.get("content")
    if isinstance(inner, list):
        for piece in inner:
            if not isinstance(piece, Mapping):
                yield _readable_part(piece)
            elif media.tokens(piece) is None:
                yield from _counted_part(piece)
    else:
        yield _readable_part(part)


def _parts(content: Content) -> Iterator[Mapping[str, Any]]:
    if isinstance(content, list):
        yield from (part for part in content if isinstance(part, Mapping))


def _readable_part(part: Any) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        return _json(part)
    described = media.describe(part)
    if described is not None:
        return described
    for key in ("text", "thinking", "refusal"):
        if isinstance(part.get(key), str):
            return str(part[key])
    if part.get("type") == "tool_use":
        return f"[calls {part.get('name', '')} {_json(part.get('input', {}))}]"
    if part.get("type") == "tool_result":
        inner = part.get("content")
        words = readable_text(inner) if isinstance(inner, str | list | None) else _json(inner)
        return f"[error] {words}" if part.get("is_error") else words
    return _json(part)


_LONGEST_UNBROKEN_STRING = 2_000


def _json(value: Any) -> str:
    return json.dumps(_without_blobs(value), ensure_ascii=False, separators=(",", ":"))


def _without_blobs(value: Any) -> Any:
    if isinstance(value, str) and len(value) > _LONGEST_UNBROKEN_STRING and not any(map(str.isspace, value)):
        return f"[{len(value):,} characters]"
    if isinstance(value, Mapping):
        return {key: _without_blobs(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_blobs(inner) for inner in value]
    return value
