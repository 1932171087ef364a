"""Recall as tools for an agent: function definitions, and one dispatcher that answers with text.

The definitions are JSON schema in OpenAI's form (`openai_tools`) or Anthropic's (`anthropic_tools`). A `Scope` says
what the agent may read, one session or those whose id begins with a prefix, whatever the model asks for; a mistake of
the model comes back as a text that says how to do better, not as an exception.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from turnfold.content import readable_calls, readable_text
from turnfold.drive import drive, immediately
from turnfold.errors import InvalidArgument, UnknownSession, UnknownSummary
from turnfold.recall import described, expanded, find, surrounding
from turnfold.records import SummaryRecord, Turn, check_session_id
from turnfold.repository import AsyncRepository, Repository

__all__ = ["Scope", "anthropic_tools", "call_tool", "openai_tools"]

MAX_TOKENS = 2_000
"""What one answer to `expand` may take of the agent's context, unless it asks for less."""

MOST_HITS = 50


@dataclass(frozen=True, slots=True)
class Scope:
    """What an agent may read: the session `session_id`, or, where that is None, all whose id begins with
    `session_prefix`. Raises `InvalidArgument` where neither is given."""

    session_id: str | None = None
    session_prefix: str = ""

    def __post_init__(self) -> None:
        if self.session_id is None and not self.session_prefix:
            raise InvalidArgument("a scope needs a session_id or a session_prefix; an agent never reads everything")
        if self.session_id is not None:
            check_session_id(self.session_id)

    def admits(self, session_id: str) -> bool:
        return (
            session_id == self.session_id if self.session_id is not None else session_id.startswith(self.session_prefix)
        )


_QUERY = {"type": "string", "description": "A question or some words, in plain language."}
_SUMMARY_ID = {"type": "string", "description": "The id of a summary, such as sum-0f4cfa58b7a558ec."}
_SESSION_ID = {"type": "string", "description": "The session; left out where there is only one."}

_TOOLS: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "search": (
        "Search everything that was ever said in this conversation, also what is no longer in the context.",
        {
            "query": _QUERY,
            "limit": {"type": "integer", "minimum": 1, "maximum": MOST_HITS, "default": 10},
            "in": {"type": "string", "enum": ["turns", "summaries", "both"], "default": "turns"},
        },
        ["query"],
    ),
    "describe": (
        "Tell what a summary of the conversation stands for: its text, turns, times, and what is above and below it.",
        {"summary_id": _SUMMARY_ID},
        ["summary_id"],
    ),
    "expand": (
        "Read the very turns that a summary stands for, word for word, from its first on.",
        {
            "summary_id": _SUMMARY_ID,
            "max_tokens": {"type": "integer", "minimum": 1, "default": MAX_TOKENS},
            "after_position": {"type": "integer", "minimum": 0, "default": 0, "description": "To read on."},
        },
        ["summary_id"],
    ),
    "around": (
        "Read the turns around a position, word for word.",
        {
            "position": {"type": "integer", "minimum": 1},
            "n": {"type": "integer", "minimum": 0, "maximum": 20, "default": 3, "description": "Before and after it."},
            "session_id": _SESSION_ID,
        },
        ["position"],
    ),
}


def openai_tools() -> list[dict[str, Any]]:
    """The tools as OpenAI's chat completions take them."""
    return [
        {"type": "function", "function": {"name": name, "description": description, "parameters": _schema(name)}}
        for name, (description, _, _) in _TOOLS.items()
    ]


def anthropic_tools() -> list[dict[str, Any]]:
    """The tools as Anthropic's messages take them."""
    return [
        {"name": name, "description": description, "input_schema": _schema(name)}
        for name, (description, _, _) in _TOOLS.items()
    ]


def call_tool(name: str, arguments: Mapping[str, Any], memory_store: Repository, scope: Scope) -> str:
    """What a tool answers, as a text for the model. Only a store that cannot be reached raises."""
    return drive(answer(name, arguments, immediately(memory_store), scope))


async def answer(name: str, arguments: Mapping[str, Any], store: AsyncRepository, scope: Scope) -> str:
    if name not in _TOOLS:
        return f"There is no tool {name!r}; there are {', '.join(_TOOLS)}."
    known, required = _TOOLS[name][1], _TOOLS[name][2]
    missing = [argument for argument in required if argument not in arguments]
    unknown = [argument for argument in arguments if argument not in known]
    if missing or unknown:
        return f"{name} takes {', '.join(known)} and needs {', '.join(required)}; given were {sorted(arguments)}."
    try:
        return await _ANSWERS[name](store, scope, dict(arguments))
    except (InvalidArgument, UnknownSummary, UnknownSession) as error:
        return f"{name} failed: {error}"


async def _search(store: AsyncRepository, scope: Scope, arguments: dict[str, Any]) -> str:
    limit = arguments.get("limit", 10)
    prefix = "" if scope.session_id is not None else scope.session_prefix
    hits = await find(
        scope.session_id,
        store,
        arguments["query"],
        min(limit, MOST_HITS) if isinstance(limit, int) else limit,
        arguments.get("in", "turns"),
        prefix,
    )
    if not hits:
        return "Nothing was found; try other words."
    return "\n\n".join(
        f"{_place(hit.session_id, scope)}{hit.kind} {hit.id}, position {hit.position}, {hit.role}, "
        f"{_minute(hit.created_at)}:\n{hit.excerpt}"
        for hit in hits
    )


async def _describe(store: AsyncRepository, scope: Scope, arguments: dict[str, Any]) -> str:
    await _admitted(store, scope, arguments["summary_id"])
    found = await described(arguments["summary_id"], store)
    summary = found.summary
    lines = [
        f"{_label(summary)}, {_minute(summary.time_range_start)} to {_minute(summary.time_range_end)}",
        *(f"part of {_label(above)}" for above in found.ancestors),
        *(f"made from {_label(below)}" for below in found.children),
    ]
    return "\n".join(lines) + f"\n\n{summary.content}"


async def _expand(store: AsyncRepository, scope: Scope, arguments: dict[str, Any]) -> str:
    await _admitted(store, scope, arguments["summary_id"])
    found = await expanded(
        arguments["summary_id"], store, arguments.get("max_tokens", MAX_TOKENS), arguments.get("after_position", 0)
    )
    more = f"\n\n[more follows: expand with after_position {found.next_position}]" if found.next_position else ""
    return _said(found.turns) + more


async def _around(store: AsyncRepository, scope: Scope, arguments: dict[str, Any]) -> str:
    session_id = arguments.get("session_id", scope.session_id)
    if not isinstance(session_id, str) or not scope.admits(session_id):
        raise UnknownSession(f"there is no session {session_id!r} here; give the session_id that search told")
    found = await surrounding(session_id, store, arguments["position"], arguments.get("n", 3))
    return _said(found) or f"There is no turn at position {arguments['position']}."


_ANSWERS: dict[str, Callable[[AsyncRepository, Scope, dict[str, Any]], Coroutine[Any, Any, str]]] = {
    "search": _search,
    "describe": _describe,
    "expand": _expand,
    "around": _around,
}


async def _admitted(store: AsyncRepository, scope: Scope, summary_id: Any) -> None:
    """Raises `UnknownSummary` for one that the agent may not read, as if it were not there."""
    summary = await store.get_summary(str(summary_id))
    if not scope.admits(summary.session_id):
        raise UnknownSummary(f"no summary has the id {summary_id!r}; get_summaries lists those of a session")


def _schema(name: str) -> dict[str, Any]:
    _, properties, required = _TOOLS[name]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _said(turns: Any) -> str:
    return "\n\n".join(_words(turn) for turn in turns)


def _words(turn: Turn) -> str:
    calls = [f"[calls {name} {arguments}]" for name, arguments in readable_calls(turn)]
    speaker = " ".join(filter(None, (turn.role, turn.name)))
    text = "\n".join(filter(None, (readable_text(turn.content), *calls)))
    return f"[{turn.position}] {speaker}, {_minute(turn.created_at)}:\n{text}"


def _label(summary: SummaryRecord) -> str:
    return f"{summary.id}, depth {summary.depth}, turns {summary.first_position} to {summary.last_position}"


def _place(session_id: str, scope: Scope) -> str:
    return "" if scope.session_id is not None else f"session {session_id}, "


def _minute(time: datetime | None) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M} UTC" if time else "-"
