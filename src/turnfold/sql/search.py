"""The SQL statements of the search index, FTS5 or tsvector: which documents have which terms, and nothing of ranking.

A document is a turn or a summary. Beside the terms of its text it has terms of its own kind, so that the index itself
finds the documents of one session, or the one of a summary. Those begin with other letters than any term of a text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    MetaData,
    Select,
    Table,
    Text,
    bindparam,
    cast,
    delete,
    func,
    insert,
    literal,
    literal_column,
    select,
    text,
    true,
    union_all,
    update,
)

from turnfold.analysis import terms_of, turn_terms
from turnfold.ranking import Kind, Posting
from turnfold.records import SummaryRecord, Turn, digest
from turnfold.sql.tables import sessions, summaries, turns

# Beside the metadata of the tables: on SQLite it is no table that Alembic could compare.
documents = Table(
    "turnfold_search",
    MetaData(),
    Column("rowid", BigInteger, primary_key=True),
    Column("terms", Text),
    Column("session_id", Text),
    Column("position", BigInteger),
    Column("ref", Text),
    Column("length", BigInteger),
)

KINDS: tuple[Kind, Kind] = ("turns", "summaries")

_ROWS = 500


def index_turns(connection: Connection, new: Iterable[Turn]) -> None:
    _insert(connection, [_of_turn(turn) for turn in new])


def index_summary(connection: Connection, summary: SummaryRecord) -> None:
    _insert(connection, [_of_summary(summary)])


def reindex_summary(connection: Connection, summary: SummaryRecord) -> None:
    row = _of_summary(summary)
    dialect = connection.dialect.name
    new = {"terms": _vector(dialect, literal(row["terms"])), "length": row["length"]}
    connection.execute(update(documents).where(_is_document_of(dialect, _own_term(summary.id))).values(new))


def reindex_session(connection: Connection, session_id: str) -> None:
    forget_session(connection, session_id)
    _index(connection, turns.c.session_id == session_id, summaries.c.session_id == session_id)


def index_size(connection: Connection, session_id: str) -> tuple[int, int]:
    """How many documents there are of turns of the session, and of its summaries."""
    dialect = connection.dialect.name
    of_turns, of_summaries = (
        select(func.count()).select_from(documents).where(_matches(dialect, _scope(session_id, kind))).scalar_subquery()
        for kind in KINDS
    )
    row = connection.execute(select(of_turns, of_summaries)).one()
    return int(row[0]), int(row[1])


def forget_session(connection: Connection, session_id: str) -> None:
    dialect = connection.dialect.name
    for kind in KINDS:
        connection.execute(delete(documents).where(_is_document_of(dialect, _scope(session_id, kind))))
    if dialect == "sqlite":  # deleted terms stand in the index until its parts are merged
        connection.execute(text("INSERT INTO turnfold_search (turnfold_search) VALUES ('optimize')"))


class Where(NamedTuple):
    """What is searched: turns or summaries, of one session or of all whose id begins with a prefix."""

    connection: Connection
    session_id: str | None
    prefix: str
    kind: Kind

    def having(self, term: str, others: Sequence[str] = ()) -> list[ColumnElement[bool]]:
        """The conditions for documents that have a term, and one of the others."""
        scope = _scope(self.session_id, self.kind)
        conditions = [_matches(self.connection.dialect.name, scope, term, any_of=others)]
        if self.prefix:
            conditions.append(documents.c.session_id.startswith(self.prefix, autoescape=True))
        return conditions


def size(where: Where) -> tuple[int, int]:
    """How many documents there are, and their tokens."""
    if where.kind == "turns":
        statement = select(func.sum(sessions.c.last_position), func.sum(sessions.c.total_tokens))
        name = sessions.c.id
    else:
        statement = select(func.count(), func.sum(summaries.c.token_count))
        name = summaries.c.session_id
    if where.session_id is not None:
        statement = statement.where(name == where.session_id)
    if where.prefix:
        statement = statement.where(name.startswith(where.prefix, autoescape=True))
    documents, tokens = where.connection.execute(statement).one()
    return int(documents or 0), int(tokens or 0)


def postings(where: Where, terms: Iterable[str]) -> list[Posting]:
    """The documents that have each of the terms."""
    return _read(where.connection, [_select_postings(term).where(*where.having(term)) for term in terms])


def newest_postings(where: Where, term: str, limit: int) -> list[Posting]:
    newest_first = _select_postings(term).where(*where.having(term)).order_by(documents.c.rowid.desc())
    return _read(where.connection, [newest_first.limit(limit)])


def counts(where: Where, terms: Iterable[str]) -> dict[str, int]:
    statements = [
        select(literal(term), func.count()).select_from(documents).where(*where.having(term)) for term in terms
    ]
    return {term: int(count) for term, count in _all(where.connection, statements)}


def pairs(where: Where, terms: Iterable[str], others: Sequence[str]) -> list[tuple[str, int]]:
    """Each of the terms with every document that has it and one of the others."""
    statements = [select(literal(term), documents.c.rowid).where(*where.having(term, others)) for term in terms]
    return [(term, document) for term, document in _all(where.connection, statements)]


def index_everything(connection: Connection) -> None:
    """Index the turns and summaries that are there, a page at a time."""
    _index(connection, true(), true())


def _index(connection: Connection, of_turns: ColumnElement[bool], of_summaries: ColumnElement[bool]) -> None:
    last = ("", 0)
    while True:
        columns = [turns.c[name] for name in ("session_id", "position", "role", "content", "name", "tool_calls")]
        after = (turns.c.session_id > last[0]) | ((turns.c.session_id == last[0]) & (turns.c.position > last[1]))
        page = connection.execute(
            select(*columns, turns.c.token_count)
            .where(of_turns, after)
            .order_by(turns.c.session_id, turns.c.position)
            .limit(_ROWS)
        ).all()
        if not page:
            break
        _insert(connection, [_of_turn(Turn(**row._asdict())) for row in page])
        last = (page[-1].session_id, page[-1].position)
    columns = [summaries.c[name] for name in ("id", "session_id", "content", "first_position", "token_count")]
    for row in connection.execute(select(*columns).where(of_summaries)).all():
        _insert(connection, [_of_summary(row)])


def _of_turn(turn: Turn) -> dict[str, Any]:
    terms = ["kt", _scope(turn.session_id, "turns"), *turn_terms(turn)]
    return _row(terms, turn.session_id, turn.position, "", turn.token_count)


def _of_summary(summary: Any) -> dict[str, Any]:
    own = ["ks", _scope(summary.session_id, "summaries"), _own_term(summary.id)]
    terms = [*own, *terms_of(summary.content)]
    return _row(terms, summary.session_id, summary.first_position, summary.id, summary.token_count)


def _row(terms: list[str], session_id: str, position: int, ref: str, length: int) -> dict[str, Any]:
    return {"terms": " ".join(terms), "session_id": session_id, "position": position, "ref": ref, "length": length}


def _insert(connection: Connection, rows: list[dict[str, Any]]) -> None:
    if len(rows) == 1:  # drivers take two more round trips for a list, even of one
        connection.execute(_insert_of(connection.dialect.name), rows[0])
        return
    for start in range(0, len(rows), _ROWS):
        connection.execute(_insert_of(connection.dialect.name), rows[start : start + _ROWS])


@cache
def _insert_of(dialect: str) -> Any:
    return insert(documents).values(
        terms=_vector(dialect, bindparam("terms", type_=Text())),
        **{name: bindparam(name) for name in ("session_id", "position", "ref", "length")},
    )


def _vector(dialect: str, terms: ColumnElement[str]) -> ColumnElement[Any]:
    if dialect == "sqlite":
        return terms
    from sqlalchemy.dialects.postgresql import TSVECTOR

    return cast(terms, TSVECTOR)


def _matches(dialect: str, *terms: str, any_of: Sequence[str] = ()) -> ColumnElement[bool]:
    """Whether a document has all the terms, and any of the others."""
    both, either = (" AND ", " OR ") if dialect == "sqlite" else (" & ", " | ")
    expression = both.join([*terms, f"({either.join(any_of)})"] if any_of else terms)
    if dialect == "sqlite":
        return literal_column("turnfold_search").bool_op("MATCH")(expression)
    from sqlalchemy.dialects.postgresql import TSQUERY

    return documents.c.terms.bool_op("@@")(cast(literal(expression, Text()), TSQUERY))


def _is_document_of(dialect: str, own_term: str) -> ColumnElement[bool]:
    return documents.c.rowid.in_(select(documents.c.rowid).where(_matches(dialect, own_term)))


def _select_postings(term: str) -> Select[Any]:
    c = documents.c
    return select(literal(term).label("term"), c.rowid, c.session_id, c.position, c.ref, c.length)


def _read(connection: Connection, statements: Sequence[Any]) -> list[Posting]:
    return [Posting(*row) for row in _all(connection, statements)]


def _all(connection: Connection, statements: Sequence[Any]) -> Sequence[Any]:
    """The rows of all the statements, read in one."""
    if len(statements) < 2:
        return connection.execute(statements[0]).all() if statements else []
    return connection.execute(union_all(*statements)).all()


def _scope(session_id: str | None, kind: Kind) -> str:
    """The term that all documents of a kind have, of one session or of all."""
    letter = kind[0]
    return f"k{letter}" if session_id is None else f"{letter}{digest(session_id)}"


def _own_term(summary_id: str) -> str:
    return f"d{digest(summary_id)}"
