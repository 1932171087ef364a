"""What crosses the borders between the store, the planner and the caller. Free of SQL and of I/O.

Every record is an immutable value: two of them are equal where all their fields are, whichever database they
came from.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from datetime import datetime
from hashlib import blake2b
from operator import attrgetter
from types import NoneType
from typing import Any, Literal, TypedDict

from turnfold.errors import InvalidArgument, InvalidTurn

__all__ = [
    "CompactionStats",
    "Content",
    "Lease",
    "Progress",
    "RefoldProgress",
    "RefoldStats",
    "SessionRecord",
    "SummaryRecord",
    "Tier",
    "Turn",
    "check_session_id",
    "check_turns",
    "derived_summary_id",
    "derived_turn_id",
    "digest",
]

Content = str | list[Any] | None
"""What a message says: a text, a list of parts as a provider defines them, or nothing (next to tool calls)."""

Tier = Literal["normal", "aggressive", "fallback"]

ROLES = ("system", "developer", "user", "assistant", "tool")
PINNED_ROLES = frozenset({"system", "developer"})
MAX_ID_CHARACTERS = 255
"""Two ids of this length fit into one index entry of PostgreSQL, whose limit is 2,704 bytes."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a session.

    `pinned` is decided by the role where it is None: `system` and `developer` turns are pinned. `payload` is the
    original message where it holds more than the other fields; `Turn.from_message` fills it. `created_at` needs a
    time zone; None means the time of writing.

    The store gives `session_id`, `position` (1, 2, …), `token_count` and `counter` (the name of the counter that
    counted), and `id` where it is None. What a caller puts into the first four is ignored.
    """

    role: str
    content: Content = None
    _: KW_ONLY
    id: str | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    pinned: bool | None = None
    payload: dict[str, Any] | None = None
    created_at: datetime | None = None
    attributes: dict[str, Any] = field(default_factory=dict)
    session_id: str = ""
    position: int = 0
    token_count: int = 0
    counter: str = ""

    @classmethod
    def from_message(
        cls,
        message: Mapping[str, Any],
        *,
        id: str | None = None,
        pinned: bool | None = None,
        created_at: datetime | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> Turn:
        """The turn of one message in OpenAI's chat form or Anthropic's messages form.

        Raises `InvalidTurn` where the message is no object with a role.
        """
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InvalidTurn(f"a message needs a role, one of {', '.join(ROLES)}: {_shown(message)}")
        turn = cls(
            role=message["role"],
            content=message.get("content"),
            id=id,
            name=message.get("name"),
            tool_calls=message.get("tool_calls"),
            tool_call_id=message.get("tool_call_id"),
            pinned=pinned,
            created_at=created_at,
            attributes=dict(attributes or {}),
        )
        return turn if turn.to_message() == dict(message) else replace(turn, payload=dict(message))

    def to_message(self) -> dict[str, Any]:
        """The message exactly as it came in."""
        if self.payload is not None:
            return dict(self.payload)
        message: dict[str, Any] = {"role": self.role, "content": self.content}
        for key in ("name", "tool_calls", "tool_call_id"):
            value = getattr(self, key)
            if value is not None:
                message[key] = value
        return message

    @property
    def is_pinned(self) -> bool:
        """`pinned`, or what the role decides."""
        return self.role in PINNED_ROLES if self.pinned is None else self.pinned

    def check(self) -> None:
        """Raises `InvalidTurn` for what the store could not give back exactly."""
        self._check_types()
        if self.tool_calls or self.payload or self.attributes or isinstance(self.content, list):
            for key in ("content", "tool_calls", "payload", "attributes"):
                value = getattr(self, key)
                if value and not isinstance(value, str):
                    _check_json(value, key)

    def stored(
        self,
        *,
        id: str,
        session_id: str,
        position: int,
        pinned: bool,
        created_at: datetime,
        token_count: int,
        counter: str,
    ) -> Turn:
        """This turn with what the store decides."""
        return Turn(
            self.role,
            self.content,
            id=id,
            name=self.name,
            tool_calls=self.tool_calls,
            tool_call_id=self.tool_call_id,
            pinned=pinned,
            payload=self.payload,
            created_at=created_at,
            attributes=self.attributes,
            session_id=session_id,
            position=position,
            token_count=token_count,
            counter=counter,
        )

    def _check_types(self) -> None:
        if self.role not in ROLES:
            raise InvalidTurn(f"unknown role {_shown(self.role)}; use one of {', '.join(ROLES)}")
        if not all(map(isinstance, _values(self), _KINDS)):
            raise next(self._mistakes())
        if self.id is not None:
            _check_id(self.id, "id", InvalidTurn)
        if self.tool_calls and not all(isinstance(call, dict) for call in self.tool_calls):
            raise InvalidTurn(f"tool_calls is {_shown(self.tool_calls)}; use a list of objects")
        if self.created_at is not None and self.created_at.utcoffset() is None:
            raise InvalidTurn(f"created_at is {_shown(self.created_at)}; use a datetime with a time zone")

    def _mistakes(self) -> Iterator[InvalidTurn]:
        for name, kinds, wanted in _FIELDS:
            value = getattr(self, name)
            if not isinstance(value, kinds):
                yield InvalidTurn(f"{name} is {_shown(value)}; use {wanted}")


_FIELDS = (
    ("content", (str, list, NoneType), "a text, a list of parts or None"),
    ("name", (str, NoneType), "a text or None"),
    ("tool_calls", (list, NoneType), "a list of objects or None"),
    ("tool_call_id", (str, NoneType), "a text or None"),
    ("pinned", (bool, NoneType), "True, False or None"),
    ("payload", (dict, NoneType), "an object or None"),
    ("created_at", (datetime, NoneType), "a datetime with a time zone or None"),
    ("attributes", dict, "an object"),
)
_values = attrgetter(*(name for name, _, _ in _FIELDS))
_KINDS = tuple(kinds for _, kinds, _ in _FIELDS)

GIVEN_BY_CALLER = tuple(
    f.name for f in fields(Turn) if f.name not in ("session_id", "position", "token_count", "counter")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryRecord:
    """A text that stands for turns (depth 0, a leaf) or for summaries of the depth below (its children).

    `first_position` and `last_position` bound the turns it stands for, `descendant_count` counts them and the time
    range spans their `created_at`. `token_count` counts its own text, `source_token_count` its direct sources, both
    by `counter`. `parent_id` is None while it is uncompacted.

    `prompt_version` names the instructions that it was made with, `input_tokens` and `output_tokens` are what the
    provider counted for it (None: not told). `is_outdated` while a child has been made again and it has not;
    `refold_attempts` counts how often making it again gave nothing better.
    """

    id: str
    session_id: str
    depth: int
    content: str
    token_count: int
    source_token_count: int
    first_position: int
    last_position: int
    descendant_count: int
    time_range_start: datetime
    time_range_end: datetime
    tier: Tier
    model: str
    counter: str
    created_at: datetime
    prompt_version: str = ""
    input_tokens: int | None = None
    output_tokens: int | None = None
    is_outdated: bool = False
    refold_attempts: int = 0
    parent_id: str | None = None
    source_turn_ids: tuple[str, ...] = ()
    child_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRecord:
    """What the store knows of a session without reading its turns.

    `covered_position` is the position up to which all turns that are not pinned are covered; `active_tokens` counts
    the active context, `total_tokens` all turns.
    """

    id: str
    last_position: int
    covered_position: int
    active_tokens: int
    total_tokens: int
    lease_owner: str | None
    lease_expires_at: datetime | None
    created_at: datetime
    updated_at: datetime
    attributes: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to compact one session until `expires_at`, by the database's clock. Every write of a summary checks
    `token`, which grows with each holder."""

    session_id: str
    owner: str
    token: int
    expires_at: datetime


MADE_FIELDS = (
    "content",
    "token_count",
    "counter",
    "tier",
    "model",
    "prompt_version",
    "input_tokens",
    "output_tokens",
)
"""What a summarizer decides of a summary."""

REPLACEABLE_FIELDS = (*MADE_FIELDS, "source_token_count", "created_at", "is_outdated", "refold_attempts")
"""What of a summary may change once it is written, and only by making it again; its links never do."""


class RefoldStats(TypedDict):
    """What a refolding did: summaries that have a new text, those that kept theirs because the model had none better,
    and one tier per new text, in order."""

    summaries_refolded: int
    summaries_kept: int
    tiers_used: list[Tier]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefoldProgress:
    """How far a refolding is: `summaries_done` of at least `summaries_to_do`, for ancestors follow. `depth` is that of
    the summary just written."""

    summaries_done: int
    summaries_to_do: int
    depth: int


class CompactionStats(TypedDict):
    """What a compaction did; `tiers_used` has one entry per summary written, in order."""

    leaf_summaries_created: int
    condensed_summaries_created: int
    turns_compacted: int
    tiers_used: list[Tier]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a compaction is, after each summary: `turns_compacted` of about `turns_to_compact`, then one condensed
    summary after the other. `depth` is that of the summary just written."""

    turns_compacted: int
    turns_to_compact: int
    depth: int


def check_session_id(session_id: str) -> str:
    """`session_id` itself. Raises `InvalidArgument` unless it is a text of 1 to 255 characters that both databases
    can hold and index."""
    _check_id(session_id, "session_id", InvalidArgument)
    return session_id


def check_turns(session_id: str, turns: Sequence[Turn]) -> None:
    """Raises `InvalidTurn` or `InvalidArgument`, before anything is read or written, for what cannot be kept."""
    check_session_id(session_id)
    for index, turn in enumerate(turns):
        try:
            turn.check()
        except InvalidTurn as error:
            raise InvalidTurn(f"turn {index} for session {session_id!r}: {error}") from None


def derived_turn_id(session_id: str, position: int) -> str:
    """The id of a turn that came without one: the same on every database."""
    return f"turn-{digest(f'{position}:{session_id}')}"


def derived_summary_id(session_id: str, depth: int, first_position: int) -> str:
    """The id of the one summary of a depth that begins at a position: the same on every database."""
    return f"sum-{digest(f'{depth}:{first_position}:{session_id}')}"


def digest(key: str) -> str:
    """Sixteen hexadecimal digits for a key, the same everywhere: what derived ids are made of."""
    return blake2b(key.encode(), digest_size=8).hexdigest()


def _check_id(value: object, where: str, error: type[InvalidArgument]) -> None:
    if not isinstance(value, str):
        raise error(f"{where} is {_shown(value)}; use a text of 1 to {MAX_ID_CHARACTERS} characters")
    if not 1 <= len(value) <= MAX_ID_CHARACTERS:
        raise error(f"{where} has {len(value):,} characters ({_shown(value)}); use 1 to {MAX_ID_CHARACTERS}")
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise error(f"{where} holds NUL or a lone surrogate ({_shown(value)}); remove it")


def _check_json(value: object, where: str) -> None:
    try:
        same = json.loads(json.dumps(value, ensure_ascii=False, allow_nan=False))
    except RecursionError:
        raise InvalidTurn(f"{where} is nested too deeply for JSON; flatten it") from None
    except (TypeError, ValueError) as error:
        raise InvalidTurn(f"{where} is no JSON ({error}): {_shown(value)}; use what JSON can hold") from None
    if not _identical(value, same):
        raise InvalidTurn(f"{where} would come back changed from JSON: {_shown(value)}; use lists and text keys")


def _identical(value: object, other: object) -> bool:
    """Equal with equal types: 1 is not True here, and a key 1 is not "1"."""
    if isinstance(value, dict) and isinstance(other, dict):
        return value.keys() == other.keys() and all(_identical(value[key], other[key]) for key in value)
    if isinstance(value, list) and isinstance(other, list):
        return len(value) == len(other) and all(map(_identical, value, other))
    return type(value) is type(other) and value == other


def _shown(value: object) -> str:
    try:
        text = ascii(value)
    except RecursionError:
        text = f"a {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "…"
