"""The SQL statements of the vectors: which documents have none, and which are nearest to one.

PostgreSQL finds the nearest itself, with pgvector; on SQLite all vectors of the searched sessions are read and compared
here. The scores are computed here on both, so that they are equal.
"""

from __future__ import annotations

import heapq
import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sqlalchemy import (
    ARRAY,
    REAL,
    ColumnElement,
    Connection,
    LargeBinary,
    Select,
    Text,
    and_,
    bindparam,
    cast,
    delete,
    func,
    insert,
    select,
    type_coerce,
)

from turnfold.errors import MissingExtra
from turnfold.ranking import Found, Kind
from turnfold.records import SummaryRecord, Turn
from turnfold.sql.rows import turns_of
from turnfold.sql.tables import summaries, turns, vectors
from turnfold.vectors import Embedding

_ROWS = 1_000
_BYTES_OF_A_NUMBER = 4


def unembedded_turns(
    connection: Connection, session_id: str, embedder: str, after_position: int, limit: int | None
) -> list[Turn]:
    mine = vectors.c.session_id == session_id, vectors.c.embedder == embedder, vectors.c.ref == ""
    last = connection.scalar(select(func.max(vectors.c.position)).where(*mine)) or 0
    statement = select(*turns.c).where(turns.c.session_id == session_id, turns.c.position > max(last, after_position))
    return turns_of(connection.execute(statement.order_by(turns.c.position).limit(limit)).all())


def unembedded_summaries(
    connection: Connection, session_id: str, embedder: str, limit: int | None
) -> list[SummaryRecord]:
    is_its_vector = and_(
        vectors.c.session_id == session_id, vectors.c.embedder == embedder, vectors.c.ref == summaries.c.id
    )
    statement = select(*summaries.c).where(
        summaries.c.session_id == session_id, ~select(vectors.c.ref).where(is_its_vector).exists()
    )
    rows = connection.execute(statement.order_by(summaries.c.first_position, summaries.c.depth).limit(limit))
    return [SummaryRecord(**row._asdict()) for row in rows]


def length_of_vectors(connection: Connection, session_id: str, embedder: str) -> int | None:
    """How many numbers the vectors of an embedder have in a session; None where there is none."""
    length = select(_length(connection)).where(vectors.c.session_id == session_id, vectors.c.embedder == embedder)
    return connection.scalar(length.limit(1))


def embedded(connection: Connection, session_id: str, embedder: str, new: Sequence[Embedding]) -> set[tuple[int, str]]:
    """Which of these have a vector already."""
    statement = select(vectors.c.position, vectors.c.ref).where(
        vectors.c.session_id == session_id, vectors.c.embedder == embedder, _spans(vectors.c.position, new)
    )
    return {(row.position, row.ref) for row in connection.execute(statement)}


def texts_of_summaries(connection: Connection, session_id: str, new: Sequence[Embedding]) -> dict[str, str]:
    """The texts of the summaries among these, and of others of their span."""
    statement = select(summaries.c.id, summaries.c.content).where(
        summaries.c.session_id == session_id, _spans(summaries.c.first_position, new)
    )
    return {row.id: row.content for row in connection.execute(statement)}


def insert_vectors(connection: Connection, session_id: str, embedder: str, new: Iterable[Embedding]) -> None:
    is_sqlite = connection.dialect.name == "sqlite"
    rows = [
        {
            "session_id": session_id,
            "embedder": embedder,
            "ref": one.ref,
            "position": one.position,
            "numbers": _as_bytes(one.vector) if is_sqlite else _as_array(one.vector),
        }
        for one in new
    ]
    given: ColumnElement[Any] = bindparam("numbers", type_=LargeBinary() if is_sqlite else Text())
    if rows:
        connection.execute(insert(vectors).values(embedding=given if is_sqlite else cast(given, ARRAY(REAL))), rows)


def forget_summary(connection: Connection, summary: SummaryRecord) -> None:
    """Its text is another one now."""
    connection.execute(delete(vectors).where(vectors.c.session_id == summary.session_id, vectors.c.ref == summary.id))


def nearest(
    connection: Connection,
    session_id: str | None,
    embedder: str,
    vector: Sequence[float],
    of: Kind,
    limit: int,
    session_prefix: str,
) -> list[Found]:
    conditions = [
        vectors.c.embedder == embedder,
        vectors.c.ref == "" if of == "turns" else vectors.c.ref != "",
        _length(connection) == len(vector),
    ]
    if session_id is not None:
        conditions.append(vectors.c.session_id == session_id)
    if session_prefix:
        conditions.append(vectors.c.session_id.startswith(session_prefix, autoescape=True))
    columns = vectors.c.session_id, vectors.c.position, vectors.c.ref
    if connection.dialect.name == "sqlite":
        statement = select(*columns, type_coerce(vectors.c.embedding, LargeBinary)).where(*conditions)
    else:
        nearest = select(*columns, vectors.c.embedding).where(*conditions).order_by(_farness(vector)).limit(limit)
        # Around it, so that the vectors of the others are not written out.
        found_there = nearest.subquery()
        statement = select(*(cast(c, Text) if c.name == "embedding" else c for c in found_there.c))
    found = _best_of_each_page(connection, statement, vector, limit)
    return heapq.nsmallest(limit, found, key=lambda one: (-one.score, one.session_id, -one.position, one.ref))


def _farness(vector: Sequence[float]) -> ColumnElement[Any]:
    """pgvector's negative inner product."""
    try:
        from pgvector.sqlalchemy import VECTOR
    except ImportError as error:
        raise MissingExtra(f"vectors on PostgreSQL need {error.name}", extra="vectors") from None
    distance = cast(vectors.c.embedding, VECTOR(len(vector))).max_inner_product
    farness: ColumnElement[Any] = distance(list(array("f", vector)))
    return farness


def _best_of_each_page(
    connection: Connection, statement: Select[Any], vector: Sequence[float], limit: int
) -> Iterator[Found]:
    try:
        import numpy
    except ImportError as error:
        raise MissingExtra(f"comparing vectors needs {error.name}", extra="vectors") from None
    asked = numpy.asarray(vector, dtype="f8")
    for rows in connection.execute(statement).partitions(_ROWS):
        if connection.dialect.name == "sqlite":
            numbers = numpy.frombuffer(b"".join(row[3] for row in rows), dtype="<f4")
        else:
            numbers = numpy.fromstring(",".join(row[3][1:-1] for row in rows), dtype="f4", sep=",")
        scores = numbers.reshape(len(rows), len(vector)).astype("f8") @ asked
        for index in numpy.argsort(-scores, kind="stable")[:limit]:
            session_id, position, ref, _ = rows[index]
            yield Found(session_id, position, ref, round(float(scores[index]), 6))


def _as_bytes(vector: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(vector)}f", *vector)


def _as_array(vector: Sequence[float]) -> str:
    """PostgreSQL's own way to write an array; its drivers take twice as long for a list. In 32 bits, since a number too
    small for these is an error there."""
    return f"{{{','.join(map(repr, array('f', vector)))}}}"


def _spans(position: ColumnElement[int], new: Sequence[Embedding]) -> ColumnElement[bool]:
    return position.between(min(one.position for one in new), max(one.position for one in new))


def _length(connection: Connection) -> ColumnElement[int]:
    if connection.dialect.name == "sqlite":
        return func.length(vectors.c.embedding) // _BYTES_OF_A_NUMBER
    return func.cardinality(vectors.c.embedding)
