"""The tables, and the column types that give both databases the same values back.

The database itself enforces what it can of the invariants: a turn has at most one leaf (the primary key of
`turnfold_summary_sources`), a summary is smaller than its sources, no two summaries of a depth begin at one turn.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    DateTime,
    Dialect,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    String,
    Text,
    UniqueConstraint,
    false,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator, TypeEngine

from turnfold.records import MAX_ID_CHARACTERS, Content

__all__ = ["Base", "SessionRow", "SummaryRow", "SummarySourceRow", "TurnRow"]


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
        time: datetime = datetime.fromisoformat(value) if dialect.name == "sqlite" else value.astimezone(UTC)
        return time


def _dump(value: Any) -> str:
    return "{}" if value == {} else json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


# Code point order on both databases, whatever the locale of the server.
_Identifier = String(MAX_ID_CHARACTERS).with_variant(String(MAX_ID_CHARACTERS, collation="C"), "postgresql")


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class SessionRow(Base):
    """One row a session, updated in the same transaction as what it counts."""

    __tablename__ = "turnfold_sessions"

    id: Mapped[str] = mapped_column(_Identifier, primary_key=True)
    last_position: Mapped[int] = mapped_column(BigInteger)
    covered_position: Mapped[int] = mapped_column(BigInteger)
    active_tokens: Mapped[int] = mapped_column(BigInteger)
    total_tokens: Mapped[int] = mapped_column(BigInteger)
    lease_owner: Mapped[str | None] = mapped_column(Text)
    lease_token: Mapped[int] = mapped_column(BigInteger)
    lease_expires_at: Mapped[datetime | None] = mapped_column(UTCDateTime)
    created_at: Mapped[datetime] = mapped_column(UTCDateTime)
    updated_at: Mapped[datetime] = mapped_column(UTCDateTime)
    attributes: Mapped[dict[str, Any]] = mapped_column(JSONText)

    __table_args__ = (
        CheckConstraint("covered_position BETWEEN 0 AND last_position", name="covered_position"),
        CheckConstraint("active_tokens BETWEEN 0 AND total_tokens", name="active_tokens"),
    )


class TurnRow(Base):
    """One row a turn; inserted, never updated."""

    __tablename__ = "turnfold_turns"

    session_id: Mapped[str] = mapped_column(_Identifier, ForeignKey("turnfold_sessions.id"), primary_key=True)
    position: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    id: Mapped[str] = mapped_column(_Identifier)
    role: Mapped[str] = mapped_column(String(32))
    content: Mapped[Content] = mapped_column(ContentText)
    name: Mapped[str | None] = mapped_column(EscapedText)
    tool_calls: Mapped[list[dict[str, Any]] | None] = mapped_column(JSONText)
    tool_call_id: Mapped[str | None] = mapped_column(EscapedText)
    pinned: Mapped[bool] = mapped_column(Boolean)
    payload: Mapped[dict[str, Any] | None] = mapped_column(JSONText)
    token_count: Mapped[int] = mapped_column(BigInteger)
    counter: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[datetime] = mapped_column(UTCDateTime)
    attributes: Mapped[dict[str, Any]] = mapped_column(JSONText)

    __table_args__ = (
        UniqueConstraint("session_id", "id"),
        CheckConstraint("position >= 1", name="position"),
        CheckConstraint("token_count >= 0", name="token_count"),
        Index(
            "ix_turnfold_turns_pinned",
            "session_id",
            "position",
            sqlite_where=text("pinned"),
            postgresql_where=text("pinned"),
        ),
    )


class SummaryRow(Base):
    """One row a summary; its parent is set once, and a new text where it is made again."""

    __tablename__ = "turnfold_summaries"

    id: Mapped[str] = mapped_column(_Identifier, primary_key=True)
    session_id: Mapped[str] = mapped_column(_Identifier, ForeignKey("turnfold_sessions.id"))
    depth: Mapped[int] = mapped_column(Integer)
    content: Mapped[str] = mapped_column(EscapedText)
    token_count: Mapped[int] = mapped_column(BigInteger)
    source_token_count: Mapped[int] = mapped_column(BigInteger)
    parent_id: Mapped[str | None] = mapped_column(_Identifier, ForeignKey("turnfold_summaries.id"), index=True)
    first_position: Mapped[int] = mapped_column(BigInteger)
    last_position: Mapped[int] = mapped_column(BigInteger)
    descendant_count: Mapped[int] = mapped_column(BigInteger)
    time_range_start: Mapped[datetime] = mapped_column(UTCDateTime)
    time_range_end: Mapped[datetime] = mapped_column(UTCDateTime)
    tier: Mapped[str] = mapped_column(String(16))
    model: Mapped[str] = mapped_column(EscapedText)
    counter: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[datetime] = mapped_column(UTCDateTime)
    # With defaults of the database: an older process that still writes beside this one knows nothing of these.
    prompt_version: Mapped[str] = mapped_column(EscapedText, server_default=text("''"))
    input_tokens: Mapped[int | None] = mapped_column(BigInteger)
    output_tokens: Mapped[int | None] = mapped_column(BigInteger)
    is_outdated: Mapped[bool] = mapped_column(Boolean, server_default=false())
    refold_attempts: Mapped[int] = mapped_column(Integer, server_default=text("0"))

    __table_args__ = (
        UniqueConstraint("session_id", "depth", "first_position"),
        CheckConstraint("depth >= 0", name="depth"),
        CheckConstraint("first_position BETWEEN 1 AND last_position", name="positions"),
        CheckConstraint("token_count < source_token_count", name="shrinks"),
        CheckConstraint("tier IN ('normal', 'aggressive', 'fallback')", name="tier"),
        Index(
            "ix_turnfold_summaries_uncompacted",
            "session_id",
            "first_position",
            sqlite_where=text("parent_id IS NULL"),
            postgresql_where=text("parent_id IS NULL"),
        ),
        Index(
            "ix_turnfold_summaries_stale",
            "session_id",
            "last_position",
            sqlite_where=text("tier = 'fallback' OR is_outdated"),
            postgresql_where=text("tier = 'fallback' OR is_outdated"),
        ),
    )


class SummarySourceRow(Base):
    """Which leaf covers a turn; the primary key allows one."""

    __tablename__ = "turnfold_summary_sources"

    session_id: Mapped[str] = mapped_column(_Identifier, primary_key=True)
    position: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    summary_id: Mapped[str] = mapped_column(_Identifier, ForeignKey("turnfold_summaries.id"), index=True)

    __table_args__ = (
        ForeignKeyConstraint(["session_id", "position"], ["turnfold_turns.session_id", "turnfold_turns.position"]),
    )
