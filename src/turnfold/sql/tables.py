"""The tables, and the column types that give both databases the same values back.

The database itself enforces what it can of the invariants: a turn has at most one leaf (the primary key of
`turnfold_summary_sources`), a summary is smaller than its sources, no two summaries of a depth begin at one turn.

Tables without mapped classes: rows become the records of turnfold, which need no identity map. What the partial
indexes are limited to stands in the migrations alone: to name it here would import both dialects (40 ms).
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    ARRAY,
    REAL,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Dialect,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
)
from sqlalchemy.types import TypeDecorator, TypeEngine

from turnfold.records import MAX_ID_CHARACTERS, Content

__all__ = ["metadata", "sessions", "summaries", "summary_sources", "turns", "vectors"]


# U+0010 ("data link escape") opens an escape; the character itself is doubled, so that nothing is ambiguous.
_ESCAPED = re.compile("[\0\x10\ud800-\udfff]")
_ESCAPE = re.compile("\x10(\x10|0|u[0-9a-f]{4})")
_PARTS = "\x10P"


def escape(value: str) -> str:
    """`value` in characters that both databases can hold; `unescape` undoes it exactly."""
    if value.isascii() and "\0" not in value and "\x10" not in value:
        return value
    return _ESCAPED.sub(_escaped, value)


def unescape(value: str) -> str:
    return _ESCAPE.sub(_unescaped, value) if "\x10" in value else value


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    if character == "\0":
        return "\x100"
    return "\x10\x10" if character == "\x10" else f"\x10u{ord(character):04x}"


def _unescaped(match: re.Match[str]) -> str:
    code = match[1]
    if code == "0":
        return "\0"
    return code if code == "\x10" else chr(int(code[1:], 16))


class EscapedText(TypeDecorator[str]):
    """Any text, NUL and lone surrogates included."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else escape(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else unescape(value)


class JSONText(TypeDecorator[Any]):
    """JSON as text: JSONB would refuse NUL, round numbers and sort keys."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        return None if value is None else escape(_dump(value))

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        if value == "{}":
            return {}
        return None if value is None else json.loads(unescape(value))


class ContentText(TypeDecorator[Content]):
    """The content of a turn: a text as it is, a list of parts as JSON behind a mark that no text can begin with."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Content, dialect: Dialect) -> str | None:
        if isinstance(value, list):
            return _PARTS + escape(_dump(value))
        return None if value is None else escape(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Content:
        if value is not None and value.startswith(_PARTS):
            parts: list[Any] = json.loads(unescape(value[len(_PARTS) :]))
            return parts
        return None if value is None else unescape(value)


class UTCDateTime(TypeDecorator[datetime]):
    """Aware times, given back in UTC to the microsecond; on SQLite they are ISO 8601 text in UTC, which sorts."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(String(32) if dialect.name == "sqlite" else DateTime(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        if value is None:
            return None
        if value.tzinfo is not UTC:
            value = value.astimezone(UTC)
        return value.isoformat(" ", "microseconds") if dialect.name == "sqlite" else value

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        time: datetime = datetime.fromisoformat(value) if dialect.name == "sqlite" else value
        return time if time.tzinfo is UTC else time.astimezone(UTC)


class Vector(TypeDecorator[Any]):
    """Numbers of 32 bits: an array on PostgreSQL, which pgvector compares; on SQLite their bytes, little end first.

    `turnfold.sql.vectors` writes and reads them as each database takes them fastest."""

    impl = LargeBinary
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(LargeBinary() if dialect.name == "sqlite" else ARRAY(REAL))


def _dump(value: Any) -> str:
    return "{}" if value == {} else json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


# Code point order on both databases, whatever the locale of the server.
_Identifier = String(MAX_ID_CHARACTERS).with_variant(String(MAX_ID_CHARACTERS, collation="C"), "postgresql")


metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# One row a session, updated in the same transaction as what it counts.
sessions = Table(
    "turnfold_sessions",
    metadata,
    Column("id", _Identifier, primary_key=True),
    Column("last_position", BigInteger, nullable=False),
    Column("covered_position", BigInteger, nullable=False),
    Column("active_tokens", BigInteger, nullable=False),
    Column("total_tokens", BigInteger, nullable=False),
    Column("lease_owner", Text),
    Column("lease_token", BigInteger, nullable=False),
    Column("lease_expires_at", UTCDateTime),
    Column("created_at", UTCDateTime, nullable=False),
    Column("updated_at", UTCDateTime, nullable=False),
    Column("attributes", JSONText, nullable=False),
    CheckConstraint("covered_position BETWEEN 0 AND last_position", name="covered_position"),
    CheckConstraint("active_tokens BETWEEN 0 AND total_tokens", name="active_tokens"),
)

# One row a turn; inserted, never updated.
turns = Table(
    "turnfold_turns",
    metadata,
    Column("session_id", _Identifier, ForeignKey("turnfold_sessions.id"), primary_key=True),
    Column("position", BigInteger, primary_key=True, autoincrement=False),
    Column("id", _Identifier, nullable=False),
    Column("role", String(32), nullable=False),
    Column("content", ContentText),
    Column("name", EscapedText),
    Column("tool_calls", JSONText),
    Column("tool_call_id", EscapedText),
    Column("pinned", Boolean, nullable=False),
    Column("payload", JSONText),
    Column("token_count", BigInteger, nullable=False),
    Column("counter", String(64), nullable=False),
    Column("created_at", UTCDateTime, nullable=False),
    Column("attributes", JSONText, nullable=False),
    UniqueConstraint("session_id", "id"),
    CheckConstraint("position >= 1", name="position"),
    CheckConstraint("token_count >= 0", name="token_count"),
    Index("ix_turnfold_turns_pinned", "session_id", "position"),  # partial: pinned
)

# One row a summary; its parent is set once, and a new text where it is made again.
summaries = Table(
    "turnfold_summaries",
    metadata,
    Column("id", _Identifier, primary_key=True),
    Column("session_id", _Identifier, ForeignKey("turnfold_sessions.id"), nullable=False),
    Column("depth", Integer, nullable=False),
    Column("content", EscapedText, nullable=False),
    Column("token_count", BigInteger, nullable=False),
    Column("source_token_count", BigInteger, nullable=False),
    Column("parent_id", _Identifier, ForeignKey("turnfold_summaries.id"), index=True),
    Column("first_position", BigInteger, nullable=False),
    Column("last_position", BigInteger, nullable=False),
    Column("descendant_count", BigInteger, nullable=False),
    Column("time_range_start", UTCDateTime, nullable=False),
    Column("time_range_end", UTCDateTime, nullable=False),
    Column("tier", String(16), nullable=False),
    Column("model", EscapedText, nullable=False),
    Column("counter", String(64), nullable=False),
    Column("created_at", UTCDateTime, nullable=False),
    # With defaults of the database: an older process that still writes beside this one knows nothing of these.
    Column("prompt_version", EscapedText, server_default=text("''"), nullable=False),
    Column("input_tokens", BigInteger),
    Column("output_tokens", BigInteger),
    Column("is_outdated", Boolean, server_default=false(), nullable=False),
    Column("refold_attempts", Integer, server_default=text("0"), nullable=False),
    UniqueConstraint("session_id", "depth", "first_position"),
    CheckConstraint("depth >= 0", name="depth"),
    CheckConstraint("first_position BETWEEN 1 AND last_position", name="positions"),
    CheckConstraint("token_count < source_token_count", name="shrinks"),
    CheckConstraint("tier IN ('normal', 'aggressive', 'fallback')", name="tier"),
    Index("ix_turnfold_summaries_uncompacted", "session_id", "first_position"),  # partial: parent_id IS NULL
    Index("ix_turnfold_summaries_stale", "session_id", "last_position"),  # partial: tier = 'fallback' OR is_outdated
)

# Which leaf covers a turn; the primary key allows one.
summary_sources = Table(
    "turnfold_summary_sources",
    metadata,
    Column("session_id", _Identifier, primary_key=True),
    Column("position", BigInteger, primary_key=True, autoincrement=False),
    Column("summary_id", _Identifier, ForeignKey("turnfold_summaries.id"), nullable=False, index=True),
    ForeignKeyConstraint(["session_id", "position"], ["turnfold_turns.session_id", "turnfold_turns.position"]),
)

# The vector of a turn (ref is "") or summary, for each embedder; it can be made again at any time.
vectors = Table(
    "turnfold_vectors",
    metadata,
    Column("session_id", _Identifier, ForeignKey("turnfold_sessions.id", ondelete="CASCADE"), primary_key=True),
    Column("embedder", EscapedText, primary_key=True),
    Column("ref", _Identifier, primary_key=True),
    Column("position", BigInteger, primary_key=True, autoincrement=False),
    Column("embedding", Vector, nullable=False),
)
