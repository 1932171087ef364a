"""The SQL statements of looking after the store: what `check` and `repair` ask, and the one that deletes."""

from __future__ import annotations

from sqlalchemy import Connection, and_, delete, func, select

from turnfold.sql.search import documents
from turnfold.sql.tables import sessions, summaries, turns, vectors
from turnfold.sql.tables import summary_sources as sources


def coverage(connection: Connection, session_id: str, position: int, limit: int | None) -> list[tuple[int, str]]:
    statement = select(sources.c.position, sources.c.summary_id).where(
        sources.c.session_id == session_id, sources.c.position > position
    )
    rows = connection.execute(statement.order_by(sources.c.position).limit(limit))
    return [(row.position, row.summary_id) for row in rows]


def recounted(connection: Connection, session_id: str) -> dict[str, int]:
    """What the row of a session must count."""
    mine = turns.c.session_id == session_id
    same_turn = and_(sources.c.session_id == turns.c.session_id, sources.c.position == turns.c.position)
    is_covered = select(sources.c.position).where(same_turn).exists()
    uncompacted = and_(summaries.c.session_id == session_id, summaries.c.parent_id.is_(None))
    found = {
        "last_position": select(func.max(turns.c.position)).where(mine),
        "covered_position": select(func.max(sources.c.position)).where(sources.c.session_id == session_id),
        "total_tokens": select(func.sum(turns.c.token_count)).where(mine),
        "uncovered_tokens": select(func.sum(turns.c.token_count)).where(mine, ~is_covered),
        "summary_tokens": select(func.sum(summaries.c.token_count)).where(uncompacted),
    }
    counts = {name: int(connection.scalar(statement) or 0) for name, statement in found.items()}
    counts["active_tokens"] = counts.pop("uncovered_tokens") + counts.pop("summary_tokens")
    return counts


def orphans(connection: Connection) -> list[str]:
    """What rows name but is not there; foreign keys allow none where they are enforced."""
    parents = summaries.alias()
    same_turn = and_(sources.c.session_id == turns.c.session_id, sources.c.position == turns.c.position)
    of_session = {table: table.c.session_id == sessions.c.id for table in (turns, summaries, vectors, documents)}
    lonely = {
        "turns of session {!r}, which has no row": select(turns.c.session_id)
        .outerjoin(sessions, of_session[turns])
        .where(sessions.c.id.is_(None)),
        "summaries of session {!r}, which has no row": select(summaries.c.session_id)
        .outerjoin(sessions, of_session[summaries])
        .where(sessions.c.id.is_(None)),
        "vectors of session {!r}, which has no row": select(vectors.c.session_id)
        .outerjoin(sessions, of_session[vectors])
        .where(sessions.c.id.is_(None)),
        "what search knows of session {!r}, which has no row": select(documents.c.session_id)
        .outerjoin(sessions, of_session[documents])
        .where(sessions.c.id.is_(None)),
        "a vector of summary {}, which is missing": select(vectors.c.ref)
        .outerjoin(summaries, summaries.c.id == vectors.c.ref)
        .where(vectors.c.ref != "", summaries.c.id.is_(None)),
        "summary {}, whose parent {} is missing": select(summaries.c.id, summaries.c.parent_id)
        .outerjoin(parents, parents.c.id == summaries.c.parent_id)
        .where(summaries.c.parent_id.is_not(None), parents.c.id.is_(None)),
        "sources of session {!r} that name summary {}, which is missing": select(
            sources.c.session_id, sources.c.summary_id
        )
        .outerjoin(summaries, summaries.c.id == sources.c.summary_id)
        .where(summaries.c.id.is_(None)),
        "sources of session {!r} that name turns which are missing": select(sources.c.session_id)
        .outerjoin(turns, same_turn)
        .where(turns.c.id.is_(None)),
    }
    return [line.format(*row) for line, statement in lonely.items() for row in connection.execute(statement.distinct())]


def delete_session(connection: Connection, session_id: str) -> None:
    for table in (vectors, sources, summaries, turns):
        connection.execute(delete(table).where(table.c.session_id == session_id))
    connection.execute(delete(sessions).where(sessions.c.id == session_id))
