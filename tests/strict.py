"""What OpenAI's chat completions and Anthropic's messages refuse, as their references state it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any


def openai_faults(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Every rule that is broken; calls may stay without an answer only at the very end, where it is still to come."""
    faults: list[str] = []
    waiting: list[str] = []
    for index, message in enumerate(messages):
        role = message.get("role")
        if role not in ("system", "developer", "user", "assistant", "tool"):
            faults.append(f"{index}: unknown role {role!r}")
        if role == "tool":
            if message.get("tool_call_id") not in waiting:
                faults.append(f"{index}: a result without its call right before it")
            else:
                waiting.remove(message["tool_call_id"])
            continue
        if waiting:
            faults.append(f"{index}: calls {waiting} are not answered before the next message")
        calls = message.get("tool_calls") or []
        waiting = [call["id"] for call in calls]
        if role == "assistant" and not calls and message.get("content") is None:
            faults.append(f"{index}: an assistant message with neither content nor calls")
        if role == "user" and message.get("content") is None:
            faults.append(f"{index}: a user message without content")
    return faults


def anthropic_faults(body: Mapping[str, Any]) -> list[str]:
    """Every rule that is broken: roles in turn, the user first, results first in the message after their calls."""
    faults: list[str] = []
    messages = body["messages"]
    called: set[str] = set()
    for index, message in enumerate(messages):
        if message["role"] != ("user" if index % 2 == 0 else "assistant"):
            faults.append(f"{index}: {message['role']} out of turn")
        blocks = message["content"]
        if not blocks:
            faults.append(f"{index}: no content")
        results = [block for block in blocks if block["type"] == "tool_result"]
        if [block["type"] for block in blocks[: len(results)]] != ["tool_result"] * len(results):
            faults.append(f"{index}: results stand behind other content")
        answered = [block["tool_use_id"] for block in results]
        if set(answered) != called or len(set(answered)) != len(answered):
            faults.append(f"{index}: calls {sorted(called)}, results {answered}")
        calls = [block for block in blocks if block["type"] == "tool_use"]
        if calls and message["role"] != "assistant":
            faults.append(f"{index}: a call of the user")
        called = {block["id"] for block in calls}
        faults += [f"{index}: {fault}" for block in blocks for fault in block_faults(block)]
    return faults


def block_faults(block: Mapping[str, Any]) -> list[str]:
    if block["type"] == "text" and not block["text"].strip():
        return ["an empty text"]
    if block["type"] == "tool_use" and (
        not isinstance(block["input"], dict) or not re.fullmatch(r"[a-zA-Z0-9_-]+", block["id"])
    ):
        return ["a call with no object as its input, or an id of other characters"]
    return []
