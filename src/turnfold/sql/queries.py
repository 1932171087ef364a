"""The SQL statements of turnfold, each a function of a SQLAlchemy connection, named after its question or its effect.

Statements only: what an operation of the repository makes of them stands in `operations.py`. Those that run all the
time are built in `prepared.py`, those of the lease stand in `leases.py`, those of looking after the store in
`upkeep.py`. The first statement of every writing operation is a write, so that SQLite takes its write lock at once and
never has to upgrade a read lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from datetime import datetime
from operator import attrgetter
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    and_,
    func,
    insert,
    select,
    text,
    union_all,
    update,
)

from turnfold.records import REPLACEABLE_FIELDS, SessionRecord, SummaryRecord, Turn
from turnfold.sql import prepared
from turnfold.sql.rows import driver_rows, turns_of
from turnfold.sql.tables import sessions, summaries, turns
from turnfold.sql.tables import summary_sources as sources

_SESSION_FIELDS = [sessions.c[field.name] for field in fields(SessionRecord)]
_IDS_PER_STATEMENT = 500
_ROWS_PER_STATEMENT = 500
_TURNS_PER_PAGE = 100

_PINNED = text("pinned")
"""The condition of the partial index, in its words: SQLite uses it for no other, such as `pinned = 1`."""


# Sessions


def lock_session(connection: Connection, session_id: str, now: datetime) -> Row[Any]:
    """Lock the row of a session until the transaction ends; the row is made where there is none."""
    statement = prepared.lock_session(connection.dialect.name)
    return connection.execute(statement, {"session_id_": session_id, "now_": now}).one()


def touch_session(connection: Connection, session_id: str, now: datetime) -> Row[Any] | None:
    """Lock the row of a session until the transaction ends, and read it; None where there is none."""
    return connection.execute(prepared.TOUCH_SESSION, {"session_id_": session_id, "now_": now}).one_or_none()


def set_session(connection: Connection, session_id: str, **values: Any) -> None:
    connection.execute(update(sessions).where(sessions.c.id == session_id).values(**values))


def count_appended(connection: Connection, session_id: str, last_position: int, tokens: int) -> None:
    parameters = {"session_id_": session_id, "position_": last_position, "tokens_": tokens}
    connection.execute(prepared.COUNT_APPENDED, parameters)


def count_replaced(connection: Connection, session_id: str, tokens: int) -> None:
    """The active context holds a summary with so many tokens more."""
    connection.execute(prepared.COUNT_REPLACED, {"session_id_": session_id, "tokens_": tokens})


def count_folded(connection: Connection, summary: SummaryRecord, now: datetime) -> Row[Any] | None:
    """Lock the row of the session as `touch_session` does, and let the active context hold the summary in place of its
    sources; what a leaf stands for is covered. None where there is no row, or the summary cannot be the next one."""
    tokens = summary.token_count - summary.source_token_count
    parameters: dict[str, Any] = {"session_id_": summary.session_id, "now_": now, "tokens_": tokens}
    if summary.depth > 0:
        return connection.execute(prepared.COUNT_CONDENSED, parameters).one_or_none()
    span = {"first_": summary.first_position, "last_": summary.last_position}
    return connection.execute(prepared.COUNT_LEAF, {**parameters, **span}).one_or_none()


def session_record(connection: Connection, session_id: str) -> SessionRecord | None:
    row = connection.execute(select(*_SESSION_FIELDS).where(sessions.c.id == session_id)).one_or_none()
    return None if row is None else SessionRecord(**row._asdict())


def session_records(connection: Connection, after_id: str, limit: int | None) -> list[SessionRecord]:
    statement = select(*_SESSION_FIELDS).where(sessions.c.id > after_id).order_by(sessions.c.id).limit(limit)
    return [SessionRecord(**row._asdict()) for row in connection.execute(statement)]


def last_positions(connection: Connection, session_ids: Iterable[str]) -> dict[str, int]:
    statement = select(sessions.c.id, sessions.c.last_position).where(sessions.c.id.in_(sorted(session_ids)))
    return {row.id: row.last_position for row in connection.execute(statement)}


def active_tokens(connection: Connection, session_id: str) -> int:
    return connection.scalar(select(sessions.c.active_tokens).where(sessions.c.id == session_id)) or 0


# Turns


def insert_turns(connection: Connection, new: Sequence[Turn]) -> None:
    """Through the driver itself, with the same types: SQLAlchemy's way of many rows takes more than twice the time."""
    schemas = connection.get_execution_options().get("schema_translate_map")
    options: dict[str, Any] = {"schema_translate_map": schemas, "render_schema_translate": True}
    compiled = insert(turns).compile(dialect=connection.dialect, **(options if schemas else {}))
    for start in range(0, len(new), _ROWS_PER_STATEMENT):
        rows: list[Any] = list(driver_rows(new[start : start + _ROWS_PER_STATEMENT], connection.dialect))
        if not connection.dialect.positional:
            rows = [dict(zip(turns.columns.keys(), row, strict=True)) for row in rows]
        connection.exec_driver_sql(str(compiled), rows)


def turns_by_id(connection: Connection, session_id: str, ids: Sequence[str]) -> dict[str, Turn]:
    found = {}
    for start in range(0, len(ids), _IDS_PER_STATEMENT):
        some = ids[start : start + _IDS_PER_STATEMENT]
        statement = select(*turns.c).where(turns.c.session_id == session_id, turns.c.id.in_(some))
        found.update({turn.id: turn for turn in _read_turns(connection, statement)})
    return {str(id): turn for id, turn in found.items()}


def turns_after(connection: Connection, session_id: str, position: int, limit: int | None) -> list[Turn]:
    statement = select(*turns.c).where(turns.c.session_id == session_id, turns.c.position > position)
    return _read_turns(connection, statement.order_by(turns.c.position).limit(limit))


def turns_at(connection: Connection, session_id: str, positions: Sequence[int]) -> list[Turn]:
    found: list[Turn] = []
    for start in range(0, len(positions), _IDS_PER_STATEMENT):
        some = positions[start : start + _IDS_PER_STATEMENT]
        statement = select(*turns.c).where(turns.c.session_id == session_id, turns.c.position.in_(some))
        found += _read_turns(connection, statement)
    return sorted(found, key=attrgetter("position"))


def pinned_turns(connection: Connection, session_id: str, up_to_position: int | None) -> list[Turn]:
    statement = select(*turns.c).where(turns.c.session_id == session_id, _PINNED)
    if up_to_position is not None:
        statement = statement.where(turns.c.position <= up_to_position)
    return _read_turns(connection, statement.order_by(turns.c.position))


def turns_beside(connection: Connection, session_id: str, covered_position: int) -> list[Turn]:
    """The turns after a position, and the pinned ones up to it. Two statements in one: each has an index of its own."""
    after = select(*turns.c).where(turns.c.session_id == session_id, turns.c.position > covered_position)
    pinned = select(*turns.c).where(turns.c.session_id == session_id, _PINNED, turns.c.position <= covered_position)
    return _read_turns(connection, union_all(pinned, after).order_by("position"))


def uncovered_turns(connection: Connection, session_id: str, position: int, limit: int | None) -> list[Turn]:
    statement = prepared.UNCOVERED_TURNS.limit(limit)
    return _read_turns(connection, statement, {"session_id_": session_id, "after_": position})


def uncovered_outlines(connection: Connection, session_id: str, up_to: int) -> Sequence[Any]:
    """Position, id, tokens and time of the turns behind the newest leaf that are not pinned, up to a position."""
    return connection.execute(prepared.OUTLINES, {"session_id_": session_id, "up_to_": up_to}).all()


def assistant_turns_backwards(connection: Connection, session_id: str) -> Iterator[Turn]:
    """The turns that may make tool calls, newest first, read page by page."""
    statement = select(*turns.c).where(turns.c.session_id == session_id, turns.c.role == "assistant")
    statement = statement.order_by(turns.c.position.desc()).limit(_TURNS_PER_PAGE)
    page = _read_turns(connection, statement)
    while page:
        yield from page
        page = _read_turns(connection, statement.where(turns.c.position < page[-1].position))


def source_turns(connection: Connection, summary: SummaryRecord, position: int, limit: int | None) -> list[Turn]:
    same_turn = and_(sources.c.session_id == turns.c.session_id, sources.c.position == turns.c.position)
    statement = (
        select(*turns.c)
        .join(sources, same_turn)
        .where(
            turns.c.session_id == summary.session_id,
            turns.c.position > position,
            turns.c.position.between(summary.first_position, summary.last_position),
        )
    )
    return _read_turns(connection, statement.order_by(turns.c.position).limit(limit))


# Summaries


def insert_summary(connection: Connection, summary: SummaryRecord) -> None:
    connection.execute(prepared.INSERT_SUMMARY, {name: getattr(summary, name) for name in summaries.columns.keys()})  # noqa: SIM118


def insert_sources(connection: Connection, summary: SummaryRecord) -> None:
    """Let a leaf cover the turns of its span that are not pinned."""
    parameters = {"summary_id_": summary.id, "session_id_": summary.session_id}
    span = {"first_": summary.first_position, "last_": summary.last_position}
    connection.execute(prepared.INSERT_SOURCES, {**parameters, **span})


def set_parent(connection: Connection, summary: SummaryRecord) -> int:
    """Make `summary` the parent of its children, those that have none; how many these were."""
    statement = (
        update(summaries)
        .where(
            summaries.c.session_id == summary.session_id,
            summaries.c.depth == summary.depth - 1,
            summaries.c.first_position.between(summary.first_position, summary.last_position),
            summaries.c.parent_id.is_(None),
        )
        .values(parent_id=summary.id)
    )
    return len(connection.execute(statement.returning(summaries.c.id)).all())


def summary_by_id(connection: Connection, summary_id: str) -> SummaryRecord | None:
    found = _read_summaries(connection, select(*summaries.c).where(summaries.c.id == summary_id))
    return found[0] if found else None


def summaries_of(connection: Connection, session_id: str, depth: int | None) -> list[SummaryRecord]:
    statement = select(*summaries.c).where(summaries.c.session_id == session_id)
    if depth is not None:
        statement = statement.where(summaries.c.depth == depth)
    return _read_summaries(connection, statement.order_by(summaries.c.depth, summaries.c.first_position))


def uncompacted_summaries(connection: Connection, session_id: str, depth: int | None) -> list[SummaryRecord]:
    statement = select(*summaries.c).where(summaries.c.session_id == session_id, summaries.c.parent_id.is_(None))
    if depth is not None:
        statement = statement.where(summaries.c.depth == depth)
    return _read_summaries(connection, statement.order_by(summaries.c.first_position))


def child_summaries(connection: Connection, summary: SummaryRecord) -> list[SummaryRecord]:
    return _read_summaries(connection, _within(summary, *summaries.c))


def child_outlines(connection: Connection, summary: SummaryRecord) -> Sequence[Any]:
    """Id, span, time range and counts of the summaries of the depth below that begin within the span of `summary`."""
    names = ("id", "first_position", "last_position", "time_range_start", "time_range_end")
    columns = (*names, "descendant_count", "token_count")
    return connection.execute(_within(summary, *(summaries.c[name] for name in columns))).all()


def _within(summary: SummaryRecord, *columns: ColumnElement[Any]) -> Select[Any]:
    return (
        select(*columns)
        .where(
            summaries.c.session_id == summary.session_id,
            summaries.c.depth == summary.depth - 1,
            summaries.c.first_position.between(summary.first_position, summary.last_position),
        )
        .order_by(summaries.c.first_position)
    )


def uncompacted_outlines(connection: Connection, session_id: str) -> list[SummaryRecord]:
    """The summaries without a parent, without the ids of their sources."""
    statement = select(*summaries.c).where(summaries.c.session_id == session_id, summaries.c.parent_id.is_(None))
    rows = connection.execute(statement.order_by(summaries.c.first_position))
    return [SummaryRecord(**row._asdict()) for row in rows]


def newest_leaf(connection: Connection, session_id: str, before_position: int | None) -> SummaryRecord | None:
    statement = select(*summaries.c).where(summaries.c.session_id == session_id, summaries.c.depth == 0)
    if before_position is not None:
        statement = statement.where(summaries.c.first_position < before_position)
    found = _read_summaries(connection, statement.order_by(summaries.c.first_position.desc()).limit(1))
    return found[0] if found else None


def stale_summaries(
    connection: Connection, session_id: str, max_attempts: int | None, limit: int | None
) -> list[SummaryRecord]:
    # The condition of the partial index, in its words: neither database uses it for others.
    statement = select(*summaries.c).where(
        summaries.c.session_id == session_id, text("(tier = 'fallback' OR is_outdated)")
    )
    if max_attempts is not None:
        statement = statement.where(summaries.c.refold_attempts < max_attempts)
    newest_first = (summaries.c.last_position.desc(), summaries.c.depth)
    return _read_summaries(connection, statement.order_by(*newest_first).limit(limit))


def replace_summary(connection: Connection, summary: SummaryRecord) -> None:
    values = {name: getattr(summary, name) for name in REPLACEABLE_FIELDS}
    connection.execute(update(summaries).where(summaries.c.id == summary.id).values(**values))


def count_replaced_child(connection: Connection, parent_id: str, tokens: int) -> bool:
    """Let a parent count `tokens` more for its children, and mark it outdated; whether it stays smaller than them."""
    statement = (
        update(summaries)
        .where(summaries.c.id == parent_id, summaries.c.token_count < summaries.c.source_token_count + tokens)
        .values(source_token_count=summaries.c.source_token_count + tokens, is_outdated=True)
    )
    return len(connection.execute(statement.returning(summaries.c.id)).all()) == 1


def child_tokens(connection: Connection, parent_id: str) -> int:
    return connection.scalar(select(func.sum(summaries.c.token_count)).where(summaries.c.parent_id == parent_id)) or 0


# Rows


def _read_turns(connection: Connection, statement: Any, parameters: dict[str, Any] | None = None) -> list[Turn]:
    return turns_of(connection.execute(statement, parameters).all())


def _read_summaries(connection: Connection, statement: Select[Any]) -> list[SummaryRecord]:
    rows = connection.execute(statement).all()
    turn_ids = _source_turn_ids(connection, [row for row in rows if row.depth == 0])
    child_ids = _child_ids(connection, [row.id for row in rows if row.depth > 0])
    return [
        SummaryRecord(
            **row._asdict(),
            source_turn_ids=tuple(turn_ids.get(row.id, ())),
            child_ids=tuple(child_ids.get(row.id, ())),
        )
        for row in rows
    ]


def _source_turn_ids(connection: Connection, leaves: Sequence[Row[Any]]) -> dict[str, list[str]]:
    """The ids of the turns of each leaf; the leaves are of one session, and their spans are read as one."""
    if not leaves:
        return {}
    same_turn = and_(sources.c.session_id == turns.c.session_id, sources.c.position == turns.c.position)
    statement = (
        select(sources.c.summary_id, turns.c.id)
        .join(turns, same_turn)
        .where(
            sources.c.session_id == leaves[0].session_id,
            sources.c.position.between(
                min(leaf.first_position for leaf in leaves), max(leaf.last_position for leaf in leaves)
            ),
        )
        .order_by(sources.c.position)
    )
    return _grouped(connection.execute(statement))


def _child_ids(connection: Connection, parent_ids: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for start in range(0, len(parent_ids), _IDS_PER_STATEMENT):
        some = parent_ids[start : start + _IDS_PER_STATEMENT]
        statement = select(summaries.c.parent_id, summaries.c.id).where(summaries.c.parent_id.in_(some))
        found.update(_grouped(connection.execute(statement.order_by(summaries.c.first_position))))
    return found


def _grouped(rows: Iterable[Any]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for key, value in rows:
        groups.setdefault(key, []).append(value)
    return groups
