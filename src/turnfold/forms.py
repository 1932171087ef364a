"""Messages from OpenAI's chat form to Anthropic's and back. What is in the wanted form already stays as it is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = ["to_anthropic", "to_openai"]

Message = dict[str, Any]


def to_anthropic(messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """`system` (a text, left out where there is none) and `messages`: user and assistant in turn, the user first."""
    system: list[str] = []
    merged: list[Message] = []
    for message in messages:
        if message["role"] in ("system", "developer"):
            system.append(_text(message.get("content")))
            continue
        role = "assistant" if message["role"] == "assistant" else "user"
        blocks = list(_blocks(message))
        if merged and merged[-1]["role"] == role:
            merged[-1]["content"] += blocks
        elif blocks:
            merged.append({"role": role, "content": blocks})
    if merged and merged[0]["role"] == "assistant":
        merged.insert(0, {"role": "user", "content": [{"type": "text", "text": "[the conversation begins]"}]})
    found: dict[str, Any] = {"messages": merged}
    if any(system):
        found["system"] = "\n\n".join(filter(None, system))
    return found


def to_openai(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Messages with `tool_calls` and of role `tool` in place of parts that call and answer."""
    return [converted for message in messages for converted in _openai(message)]


def _blocks(message: Mapping[str, Any]) -> Iterator[Message]:
    content = message.get("content")
    if message["role"] == "tool":
        yield {"type": "tool_result", "tool_use_id": message.get("tool_call_id"), "content": _text(content)}
        return
    if isinstance(content, str) and content.strip():
        yield {"type": "text", "text": content}
    elif isinstance(content, list):
        yield from (_block(part) for part in content if not _is_empty(part))
    for call in message.get("tool_calls") or ():
        function = call.get("function", {})
        arguments = _object(function.get("arguments"))
        yield {"type": "tool_use", "id": call.get("id"), "name": function.get("name"), "input": arguments}


def _block(part: Any) -> Message:
    if not isinstance(part, dict):
        return {"type": "text", "text": str(part)}
    if part.get("type") != "image_url":
        return part
    url = str(part.get("image_url", {}).get("url", ""))
    if url.startswith("data:") and ";base64," in url:
        kind, _, data = url.removeprefix("data:").partition(";base64,")
        return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}}
    return {"type": "image", "source": {"type": "url", "url": url}}


def _is_empty(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and not str(part.get("text", "")).strip()


def _openai(message: Mapping[str, Any]) -> Iterator[Message]:
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    results = [part for part in parts if _is_of(part, "tool_result")]
    calls = [part for part in parts if _is_of(part, "tool_use")]
    if not results and not calls:
        yield dict(message)
        return
    for part in results:
        yield {"role": "tool", "tool_call_id": part.get("tool_use_id"), "content": _text(part.get("content"))}
    rest = [part for part in parts if not _is_of(part, "tool_result") and not _is_of(part, "tool_use")]
    text = _text(rest) or None
    if calls:
        yield {"role": message["role"], "content": text, "tool_calls": [_call(part) for part in calls]}
    elif text:
        yield {"role": message["role"], "content": text}


def _is_of(part: Any, kind: str) -> bool:
    return isinstance(part, dict) and part.get("type") == kind


def _call(part: Mapping[str, Any]) -> Message:
    arguments = json.dumps(part.get("input", {}), ensure_ascii=False)
    return {"id": part.get("id"), "type": "function", "function": {"name": part.get("name"), "arguments": arguments}}


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(
            filter(None, (_text(part.get("text") if isinstance(part, dict) else part) for part in content))
        )
    return content if isinstance(content, str) else "" if content is None else json.dumps(content, ensure_ascii=False)


def _object(arguments: Any) -> dict[str, Any]:
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError:
            return {"arguments": arguments}
    return arguments if isinstance(arguments, dict) else {"arguments": arguments}
