"""`SqlRepository`: the store on an engine of the service, or inside a transaction of the service.

A shell: it opens a transaction, calls one of `operations.py` or `queries.py`, and closes it. It holds no connection
between calls.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection, Engine

from turnfold.errors import DatabaseUnavailable, InvalidArgument
from turnfold.ranking import Found, Kind
from turnfold.records import Lease, SessionRecord, SummaryRecord, Turn, check_session_id, check_turns
from turnfold.sql import leases, operations, queries, search, upkeep, vectors
from turnfold.sql.engine import check_dialect, reading_options, translated_errors
from turnfold.sql.migrate import check_no_schema_on_sqlite, check_schema
from turnfold.sql.retrying import Again, delay_before_retry, uncertain
from turnfold.tokens import EstimatingCounter, TokenCounter, count_turn
from turnfold.vectors import Embedder, Embedding, embedder_name, no_embedder, unit_vectors

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

__all__ = ["SqlRepository"]

P = ParamSpec("P")
R = TypeVar("R")


class SqlShell:
    """What the sync and the async repository share: the checks, the counter and what a transaction is."""

    def __init__(
        self, engine: Engine, schema: str | None, token_counter: TokenCounter | None, embedder: Embedder | None
    ) -> None:
        check_dialect(engine)
        check_no_schema_on_sqlite(engine, schema)
        self._schema = schema
        self._writing = engine if schema is None else engine.execution_options(**_in_schema(schema))
        self._reading = self._writing.execution_options(**reading_options(engine))
        self._is_checked = False
        self._token_counter = token_counter or EstimatingCounter()
        self._embedder = embedder

    @property
    def token_counter(self) -> TokenCounter:
        return self._token_counter

    @property
    def embedder_name(self) -> str:
        return embedder_name(self._embedder)

    def _counts(self, turns: Sequence[Turn]) -> list[int]:
        return [count_turn(self._token_counter, turn) for turn in turns]

    def _try(
        self,
        attempt: int,
        writes: bool,
        operation: Callable[Concatenate[Connection, P], R],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R | Again:
        """One transaction, from its beginning to its end; `Again` where it did nothing and may be tried again."""
        engine = self._writing if writes else self._reading
        was_committing = False
        try:
            with translated_errors(engine), engine.begin() as connection:
                self._check_schema(connection)
                result = operation(connection, *args, **kwargs)
                was_committing = writes
            return result
        except DatabaseUnavailable as error:
            delay = delay_before_retry(error, attempt, was_committing=was_committing)
            if delay is None:
                raise (uncertain(error) if was_committing else error) from error.__cause__
            return Again(delay)

    def _check_schema(self, connection: Connection) -> None:
        if not self._is_checked:
            check_schema(connection, self._schema)
            self._is_checked = True


class SqlRepository(SqlShell):
    """`turnfold.repository.Repository` on SQLite or PostgreSQL.

    `schema` is the PostgreSQL schema of the tables, None for the first of the connection's search path. `token_counter`
    counts what is appended, by default `EstimatingCounter`; `embedder` makes the vectors that `embed_session` keeps and
    `search` compares, by default none.

    Raises `InvalidArgument` for another database; every method raises `SchemaMismatch` where the tables are missing or
    do not match this code, and `DatabaseUnavailable` where the database cannot be reached.
    """

    def __init__(
        self,
        engine: Engine,
        schema: str | None = None,
        *,
        token_counter: TokenCounter | None = None,
        embedder: Embedder | None = None,
    ) -> None:
        super().__init__(engine, schema, token_counter, embedder)
        self._engine = engine

    def bind(self, session: Session) -> BoundRepository:
        """This store inside the transaction of `session`: what is written there commits or rolls back with it.

        It cannot compact, which would hold the transaction open while a model answers.
        """
        bound = BoundRepository(
            self._engine, self._schema, session, token_counter=self._token_counter, embedder=self._embedder
        )
        bound._is_checked = self._is_checked
        return bound

    def append_turns(self, session_id: str, turns: Sequence[Turn]) -> list[Turn]:
        check_turns(session_id, turns)
        if not turns:
            return []
        counts = self._counts(turns)
        return self._write(operations.append_turns, session_id, turns, counts, self._token_counter.name, utc_now())

    def get_session(self, session_id: str) -> SessionRecord | None:
        return self._read(queries.session_record, session_id)

    def get_sessions(self, *, after_id: str = "", limit: int | None = None) -> list[SessionRecord]:
        return self._read(queries.session_records, after_id, limit)

    def get_session_token_count(self, session_id: str) -> int:
        return self._read(queries.active_tokens, session_id)

    def get_session_turns(self, session_id: str, *, after_position: int = 0, limit: int | None = None) -> list[Turn]:
        return self._read(queries.turns_after, session_id, after_position, limit)

    def get_turns_at(self, session_id: str, positions: Sequence[int]) -> list[Turn]:
        return self._read(queries.turns_at, session_id, positions)

    def find_documents(
        self,
        session_id: str | None,
        terms: Sequence[str],
        *,
        of: Kind,
        limit: int,
        session_prefix: str = "",
    ) -> list[Found]:
        return self._read(operations.find_documents, session_id, terms, of, limit, session_prefix)

    def embed(self, texts: Sequence[str]) -> list[tuple[float, ...]]:
        if self._embedder is None:
            raise no_embedder()
        return unit_vectors(self._embedder(texts), len(texts), self.embedder_name)

    def get_unembedded_turns(self, session_id: str, *, after_position: int = 0, limit: int | None = None) -> list[Turn]:
        return self._read(vectors.unembedded_turns, session_id, self.embedder_name, after_position, limit)

    def get_unembedded_summaries(self, session_id: str, *, limit: int | None = None) -> list[SummaryRecord]:
        return self._read(vectors.unembedded_summaries, session_id, self.embedder_name, limit)

    def add_embeddings(self, session_id: str, embeddings: Sequence[Embedding]) -> None:
        if embeddings:
            self._write(operations.add_embeddings, session_id, self.embedder_name, embeddings, utc_now())

    def find_nearest(
        self,
        session_id: str | None,
        vector: Sequence[float],
        *,
        of: Kind,
        limit: int,
        session_prefix: str = "",
    ) -> list[Found]:
        return self._read(vectors.nearest, session_id, self.embedder_name, vector, of, limit, session_prefix)

    def get_active_context(self, session_id: str) -> tuple[list[SummaryRecord], list[Turn]]:
        return self._read(operations.get_active_context, session_id)

    def get_pinned_turns(self, session_id: str, *, up_to_position: int | None = None) -> list[Turn]:
        return self._read(queries.pinned_turns, session_id, up_to_position)

    def get_uncovered_turns(self, session_id: str, *, after_position: int = 0, limit: int | None = None) -> list[Turn]:
        return self._read(queries.uncovered_turns, session_id, after_position, limit)

    def get_summaries(self, session_id: str, *, depth: int | None = None) -> list[SummaryRecord]:
        return self._read(queries.summaries_of, session_id, depth)

    def get_uncompacted_summaries(self, session_id: str, *, depth: int | None = None) -> list[SummaryRecord]:
        return self._read(queries.uncompacted_summaries, session_id, depth)

    def get_newest_leaf(self, session_id: str, *, before_position: int | None = None) -> SummaryRecord | None:
        return self._read(queries.newest_leaf, session_id, before_position)

    def get_stale_summaries(
        self, session_id: str, *, max_attempts: int | None = None, limit: int | None = None
    ) -> list[SummaryRecord]:
        return self._read(queries.stale_summaries, session_id, max_attempts, limit)

    def get_summary(self, summary_id: str) -> SummaryRecord:
        return self._read(operations.get_summary, summary_id)

    def get_source_turns(self, summary_id: str, *, after_position: int = 0, limit: int | None = None) -> list[Turn]:
        return self._read(operations.get_source_turns, summary_id, after_position, limit)

    def get_child_summaries(self, summary_id: str) -> list[SummaryRecord]:
        return self._read(operations.get_child_summaries, summary_id)

    def add_summary(self, summary: SummaryRecord, *, lease: Lease | None = None) -> None:
        self._write(operations.add_summary, summary, lease, utc_now())

    def replace_summaries(self, summaries: Sequence[SummaryRecord], *, lease: Lease | None = None) -> None:
        self._write(operations.replace_summaries, summaries, lease, utc_now())

    def mark_summary_compacted(self, summary_id: str, parent_id: str) -> None:
        self._read(operations.mark_summary_compacted, summary_id, parent_id)

    def acquire_lease(self, session_id: str, *, owner: str, seconds: float) -> Lease | None:
        return self._write(operations.acquire_lease, session_id, owner, seconds, utc_now())

    def renew_lease(self, lease: Lease, *, seconds: float) -> Lease:
        return self._write(operations.renew_lease, lease, seconds, utc_now())

    def release_lease(self, lease: Lease) -> None:
        self._write(leases.give_lease_back, lease, utc_now())

    def get_coverage(
        self, session_id: str, *, after_position: int = 0, limit: int | None = None
    ) -> list[tuple[int, str]]:
        return self._read(upkeep.coverage, session_id, after_position, limit)

    def get_orphans(self) -> list[str]:
        return self._read(upkeep.orphans)

    def recount_session(self, session_id: str) -> None:
        self._write(operations.recount_session, session_id, utc_now())

    def get_index_size(self, session_id: str) -> tuple[int, int]:
        return self._read(search.index_size, session_id)

    def reindex_session(self, session_id: str) -> None:
        self._write(operations.reindex_session, session_id, utc_now())

    def erase_session(self, session_id: str) -> bool:
        return self._write(operations.erase_session, check_session_id(session_id), utc_now())

    def _read(self, question: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        return self._run(False, question, *args, **kwargs)

    def _write(self, command: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        return self._run(True, command, *args, **kwargs)

    def _run(
        self, writes: bool, operation: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        for attempt in itertools.count():
            result = self._try(attempt, writes, operation, *args, **kwargs)
            if not isinstance(result, Again):
                return result
            time.sleep(result.seconds)
        raise AssertionError("unreachable")


class BoundRepository(SqlRepository):
    """`SqlRepository` inside a transaction of the service; made by `SqlRepository.bind`.

    Every call runs in a savepoint: one that raises leaves the transaction as it was before the call.
    """

    def __init__(
        self,
        engine: Engine,
        schema: str | None,
        session: Session,
        *,
        token_counter: TokenCounter,
        embedder: Embedder | None,
    ) -> None:
        super().__init__(engine, schema, token_counter=token_counter, embedder=embedder)
        self._session = session

    def bind(self, session: Session) -> BoundRepository:
        raise InvalidArgument("this repository is bound to a session already; bind the one made from the engine")

    def acquire_lease(self, session_id: str, *, owner: str, seconds: float) -> Lease | None:
        raise InvalidArgument(
            "a bound repository cannot compact: the transaction would stay open while the model answers; "
            "compact with the repository made from the engine, after the commit"
        )

    def _run(
        self, writes: bool, operation: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        connection = self._session.connection()
        _really_begin(connection)
        with translated_errors(self._engine), _within(self._schema, connection), connection.begin_nested():
            self._check_schema(connection)
            return operation(connection, *args, **kwargs)


def _in_schema(schema: str) -> dict[str, Any]:
    return {"schema_translate_map": {None: schema}}


@contextmanager
def _within(schema: str | None, connection: Connection) -> Iterator[None]:
    """Let a connection of the service mean the tables of a schema, until it has its own options again."""
    if schema is None:
        yield
        return
    before = connection.get_execution_options().get("schema_translate_map")
    connection.execution_options(**_in_schema(schema))
    try:
        yield
    finally:
        connection.execution_options(schema_translate_map=before)


def _really_begin(connection: Connection) -> None:
    """Begin on SQLite what Python's driver puts off until the first write: a savepoint made before would commit by
    itself."""
    driver = connection.connection.driver_connection
    if connection.dialect.name == "sqlite" and driver is not None and not driver.in_transaction:
        connection.exec_driver_sql("BEGIN")


def utc_now() -> datetime:
    return datetime.now(UTC)
