"""`AsyncSqlRepository`: the store on an async engine. The same operations as `repository.py`, through `run_sync`.

A shell, too: it decides nothing and states no SQL. It runs on psycopg 3, asyncpg and aiosqlite, and holds no connection
between calls.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.pool import QueuePool

from turnfold.ranking import Found, Kind
from turnfold.records import Lease, SessionRecord, SummaryRecord, Turn, check_session_id, check_turns
from turnfold.sql import leases, operations, queries, search, upkeep, vectors
from turnfold.sql.engine import check_dialect, translated_errors
from turnfold.sql.migrate import check_no_schema_on_sqlite, migrate_connection, one_at_a_time
from turnfold.sql.repository import SqlRepository, SqlShell, utc_now
from turnfold.sql.retrying import Again
from turnfold.tokens import TokenCounter
from turnfold.vectors import Embedder, Embedding, no_embedder, unit_vectors

__all__ = ["AsyncSqlRepository", "migrate"]

SESSIONS_AT_ONCE = 16
"""So many transactions are under way at once in an event loop, or as many as the engine's pool keeps open."""

P = ParamSpec("P")
R = TypeVar("R")


async def migrate(engine: AsyncEngine, schema: str | None = None) -> None:
    """`turnfold.migrate` on an async engine. Alembic's state is global to the process: this waits for its turn without
    stopping the event loop."""
    check_dialect(engine.sync_engine)
    check_no_schema_on_sqlite(engine.sync_engine, schema)
    while not one_at_a_time.acquire(blocking=False):
        await asyncio.sleep(0.01)
    try:
        with translated_errors(engine.sync_engine):
            async with engine.begin() as connection:
                await connection.run_sync(migrate_connection, schema)
    finally:
        one_at_a_time.release()


class AsyncSqlRepository(SqlShell):
    """`turnfold.repository.AsyncRepository` on SQLite or PostgreSQL; see `SqlRepository`, its twin."""

    def __init__(
        self,
        engine: AsyncEngine,
        schema: str | None = None,
        *,
        token_counter: TokenCounter | None = None,
        embedder: Embedder | None = None,
    ) -> None:
        super().__init__(engine.sync_engine, schema, token_counter, embedder)
        self._engine = engine
        self._slots_of_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

    async def bound(self, session: AsyncSession, operation: Callable[[SqlRepository], R]) -> R:
        """Run an operation inside the transaction of `session`: what it writes commits or rolls back with that.

        `operation` gets a bound store, synchronous: `await store.bound(session, lambda s: s.append_turns(…))`.
        """
        store = SqlRepository(
            self._engine.sync_engine, self._schema, token_counter=self._token_counter, embedder=self._embedder
        )
        return await session.run_sync(lambda inner: operation(store.bind(inner)))

    async def append_turns(self, session_id: str, turns: Sequence[Turn]) -> list[Turn]:
        check_turns(session_id, turns)
        if not turns:
            return []
        counts = self._counts(turns)
        return await self._write(
            operations.append_turns, session_id, turns, counts, self._token_counter.name, utc_now()
        )

    async def get_session(self, session_id: str) -> SessionRecord | None:
        return await self._read(queries.session_record, session_id)

    async def get_sessions(self, *, after_id: str = "", limit: int | None = None) -> list[SessionRecord]:
        return await self._read(queries.session_records, after_id, limit)

    async def get_session_token_count(self, session_id: str) -> int:
        return await self._read(queries.active_tokens, session_id)

    async def get_session_turns(
        self, session_id: str, *, after_position: int = 0, limit: int | None = None
    ) -> list[Turn]:
        return await self._read(queries.turns_after, session_id, after_position, limit)

    async def get_turns_at(self, session_id: str, positions: Sequence[int]) -> list[Turn]:
        return await self._read(queries.turns_at, session_id, positions)

    async def find_documents(
        self,
        session_id: str | None,
        terms: Sequence[str],
        *,
        of: Kind,
        limit: int,
        session_prefix: str = "",
    ) -> list[Found]:
        return await self._read(operations.find_documents, session_id, terms, of, limit, session_prefix)

    async def embed(self, texts: Sequence[str]) -> list[tuple[float, ...]]:
        if self._embedder is None:
            raise no_embedder()
        given = self._embedder(texts)
        return unit_vectors(await given if inspect.isawaitable(given) else given, len(texts), self.embedder_name)

    async def get_unembedded_turns(
        self, session_id: str, *, after_position: int = 0, limit: int | None = None
    ) -> list[Turn]:
        return await self._read(vectors.unembedded_turns, session_id, self.embedder_name, after_position, limit)

    async def get_unembedded_summaries(self, session_id: str, *, limit: int | None = None) -> list[SummaryRecord]:
        return await self._read(vectors.unembedded_summaries, session_id, self.embedder_name, limit)

    async def add_embeddings(self, session_id: str, embeddings: Sequence[Embedding]) -> None:
        if embeddings:
            await self._write(operations.add_embeddings, session_id, self.embedder_name, embeddings, utc_now())

    async def find_nearest(
        self,
        session_id: str | None,
        vector: Sequence[float],
        *,
        of: Kind,
        limit: int,
        session_prefix: str = "",
    ) -> list[Found]:
        return await self._read(vectors.nearest, session_id, self.embedder_name, vector, of, limit, session_prefix)

    async def get_active_context(self, session_id: str) -> tuple[list[SummaryRecord], list[Turn]]:
        return await self._read(operations.get_active_context, session_id)

    async def get_pinned_turns(self, session_id: str, *, up_to_position: int | None = None) -> list[Turn]:
        return await self._read(queries.pinned_turns, session_id, up_to_position)

    async def get_uncovered_turns(
        self, session_id: str, *, after_position: int = 0, limit: int | None = None
    ) -> list[Turn]:
        return await self._read(queries.uncovered_turns, session_id, after_position, limit)

    async def get_summaries(self, session_id: str, *, depth: int | None = None) -> list[SummaryRecord]:
        return await self._read(queries.summaries_of, session_id, depth)

    async def get_uncompacted_summaries(self, session_id: str, *, depth: int | None = None) -> list[SummaryRecord]:
        return await self._read(queries.uncompacted_summaries, session_id, depth)

    async def get_newest_leaf(self, session_id: str, *, before_position: int | None = None) -> SummaryRecord | None:
        return await self._read(queries.newest_leaf, session_id, before_position)

    async def get_stale_summaries(
        self, session_id: str, *, max_attempts: int | None = None, limit: int | None = None
    ) -> list[SummaryRecord]:
        return await self._read(queries.stale_summaries, session_id, max_attempts, limit)

    async def get_summary(self, summary_id: str) -> SummaryRecord:
        return await self._read(operations.get_summary, summary_id)

    async def get_source_turns(
        self, summary_id: str, *, after_position: int = 0, limit: int | None = None
    ) -> list[Turn]:
        return await self._read(operations.get_source_turns, summary_id, after_position, limit)

    async def get_child_summaries(self, summary_id: str) -> list[SummaryRecord]:
        return await self._read(operations.get_child_summaries, summary_id)

    async def add_summary(self, summary: SummaryRecord, *, lease: Lease | None = None) -> None:
        await self._write(operations.add_summary, summary, lease, utc_now())

    async def replace_summaries(self, summaries: Sequence[SummaryRecord], *, lease: Lease | None = None) -> None:
        await self._write(operations.replace_summaries, summaries, lease, utc_now())

    async def mark_summary_compacted(self, summary_id: str, parent_id: str) -> None:
        await self._read(operations.mark_summary_compacted, summary_id, parent_id)

    async def acquire_lease(self, session_id: str, *, owner: str, seconds: float) -> Lease | None:
        work = asyncio.ensure_future(self._write(operations.acquire_lease, session_id, owner, seconds, utc_now()))
        try:
            return await _uninterrupted(work)
        except asyncio.CancelledError:
            lease = None if work.cancelled() or work.exception() else work.result()
            if lease is not None:  # nobody else would give it back
                await self.release_lease(lease)
            raise

    async def renew_lease(self, lease: Lease, *, seconds: float) -> Lease:
        return await self._write(operations.renew_lease, lease, seconds, utc_now())

    async def release_lease(self, lease: Lease) -> None:
        await self._write(leases.give_lease_back, lease, utc_now())

    async def get_coverage(
        self, session_id: str, *, after_position: int = 0, limit: int | None = None
    ) -> list[tuple[int, str]]:
        return await self._read(upkeep.coverage, session_id, after_position, limit)

    async def get_orphans(self) -> list[str]:
        return await self._read(upkeep.orphans)

    async def recount_session(self, session_id: str) -> None:
        await self._write(operations.recount_session, session_id, utc_now())

    async def get_index_size(self, session_id: str) -> tuple[int, int]:
        return await self._read(search.index_size, session_id)

    async def reindex_session(self, session_id: str) -> None:
        await self._write(operations.reindex_session, session_id, utc_now())

    async def erase_session(self, session_id: str) -> bool:
        return await self._write(operations.erase_session, check_session_id(session_id), utc_now())

    def _read(
        self, question: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[R]:
        return self._run(False, question, *args, **kwargs)

    def _write(
        self, command: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[R]:
        return self._run(True, command, *args, **kwargs)

    async def _run(
        self, writes: bool, operation: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        async with self._slots():
            return await self._until_done(writes, operation, *args, **kwargs)

    async def _until_done(
        self, writes: bool, operation: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        for attempt in itertools.count():
            transaction = partial(self._try, attempt, writes, operation, *args, **kwargs)
            result = await _uninterrupted(asyncio.ensure_future(self._in_greenlet(transaction)))
            if not isinstance(result, Again):
                return result
            await asyncio.sleep(result.seconds)
        raise AssertionError("unreachable")

    def _in_greenlet(self, transaction: Callable[[], R]) -> Coroutine[Any, Any, R]:
        """One greenlet for the whole transaction, in which the engine is used as a synchronous one: each further
        greenlet would cost as much as a statement. `run_sync` of a session is the only public way into one."""
        return AsyncSession(self._engine).run_sync(lambda _: transaction())

    def _slots(self) -> asyncio.Semaphore:
        """Who comes when the pool is busy waits here: setting up hundreds of sessions in one turn of the event loop,
        only for them to wait for a connection, would hold it up. One for each loop: a semaphore belongs to one."""
        loop = asyncio.get_running_loop()
        slots = self._slots_of_loop.get(loop)
        if slots is None:
            pool = self._engine.sync_engine.pool
            count = max(SESSIONS_AT_ONCE, pool.size() if isinstance(pool, QueuePool) else 0)
            slots = self._slots_of_loop[loop] = asyncio.Semaphore(count)
        return slots


async def _uninterrupted(work: asyncio.Future[R]) -> R:
    """The result of work that is carried to its end even where the task is cancelled meanwhile: a transaction that is
    torn off in the middle leaves its connection in an unknown state. The cancellation follows."""
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError as error:
            cancelled = error
        except Exception:
            break
    if cancelled is not None:
        if not work.cancelled():
            work.exception()  # looked at, so that asyncio does not report it as forgotten
        raise cancelled
    return work.result()
