"""The statements that run for each turn or summary, built once: building one takes as long as running it.

The names of the parameters end in `_`, so that none is taken for a column.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import BindParameter, bindparam, func, insert, literal, select, type_coerce, update

from turnfold.sql.tables import sessions, summaries, summary_sources, turns

_of_session: BindParameter[str] = bindparam("session_id_")
_tokens = bindparam("tokens_", type_=sessions.c.active_tokens.type)

TOUCH_SESSION = (
    update(sessions)
    .where(sessions.c.id == _of_session)
    .values(updated_at=bindparam("now_"))
    .returning(sessions.c.id, sessions.c.lease_owner, sessions.c.lease_token, sessions.c.lease_expires_at)
)

COUNT_APPENDED = (
    update(sessions)
    .where(sessions.c.id == _of_session)
    .values(
        last_position=bindparam("position_"),
        active_tokens=sessions.c.active_tokens + _tokens,
        total_tokens=sessions.c.total_tokens + _tokens,
    )
)

COUNT_REPLACED = (
    update(sessions).where(sessions.c.id == _of_session).values(active_tokens=sessions.c.active_tokens + _tokens)
)

COUNT_CONDENSED = TOUCH_SESSION.where((sessions.c.active_tokens + _tokens).between(0, sessions.c.total_tokens)).values(
    active_tokens=sessions.c.active_tokens + _tokens
)

COUNT_LEAF = COUNT_CONDENSED.where(
    sessions.c.covered_position < bindparam("first_"), sessions.c.last_position >= bindparam("last_")
).values(covered_position=bindparam("last_"))

UNCOVERED_TURNS = (
    select(*turns.c)
    .where(
        turns.c.session_id == _of_session,
        turns.c.position > bindparam("after_"),
        turns.c.position > select(sessions.c.covered_position).where(sessions.c.id == _of_session).scalar_subquery(),
        ~turns.c.pinned,
    )
    .order_by(turns.c.position)
)

# By the leaves themselves: the row of the session counts the new leaf before it is checked.
_end_of_newest_leaf = (
    select(func.max(summaries.c.last_position))
    .where(summaries.c.session_id == _of_session, summaries.c.depth == 0)
    .scalar_subquery()
)

OUTLINES = (
    select(turns.c.position, turns.c.id, turns.c.token_count, turns.c.created_at)
    .where(
        turns.c.session_id == _of_session,
        turns.c.position > func.coalesce(_end_of_newest_leaf, 0),
        turns.c.position <= bindparam("up_to_"),
        ~turns.c.pinned,
    )
    .order_by(turns.c.position)
)

INSERT_SUMMARY = insert(summaries)

INSERT_SOURCES = insert(summary_sources).from_select(
    ["session_id", "position", "summary_id"],
    select(
        turns.c.session_id, turns.c.position, type_coerce(bindparam("summary_id_"), summary_sources.c.summary_id.type)
    ).where(
        turns.c.session_id == _of_session,
        turns.c.position.between(bindparam("first_"), bindparam("last_")),
        ~turns.c.pinned,
    ),
)


@cache
def lock_session(dialect: str) -> Any:
    """Makes the row of a session where there is none, and locks it until the transaction ends."""
    new = _insert_of(dialect)(sessions).values(
        id=_of_session,
        last_position=0,
        covered_position=0,
        active_tokens=0,
        total_tokens=0,
        lease_token=0,
        created_at=bindparam("now_"),
        updated_at=bindparam("now_"),
        attributes=literal({}, sessions.c.attributes.type),
    )
    statement = new.on_conflict_do_update(index_elements=[sessions.c.id], set_={"updated_at": bindparam("now_")})
    return statement.returning(sessions.c.last_position)


def _insert_of(dialect: str) -> Any:
    """The INSERT that knows ON CONFLICT. The engine has imported its own dialect; both would take 40 ms."""
    if dialect == "sqlite":
        from sqlalchemy.dialects.sqlite import insert as dialect_insert
    else:
        from sqlalchemy.dialects.postgresql import insert as dialect_insert  # type: ignore[assignment]
    return dialect_insert
