"""The border to SQLAlchemy's engines: how turnfold makes one, how SQLite is set up, and what its errors mean here.

An engine that the service made itself works as it is; `prepare_sqlite` gives one the settings that turnfold gives its
own: WAL, a busy timeout, and write transactions that take the write lock at their start.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy
from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DatabaseError,
    DBAPIError,
    IntegrityError,
    NoSuchModuleError,
    OperationalError,
    SQLAlchemyError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout

from turnfold.errors import (
    AccessDenied,
    DatabaseUnavailable,
    InvalidArgument,
    MissingExtra,
    SchemaMismatch,
    TurnConflict,
    TurnfoldError,
)

__all__ = [
    "check_dialect",
    "create_engine",
    "prepare_sqlite",
    "translated_errors",
]

READ_ONLY = "turnfold_read_only"
"""The execution option of engines whose transactions only read; on SQLite these take no write lock."""

SQLITE_BUSY_TIMEOUT_SECONDS = 30

DATABASES = ("sqlite", "postgresql")


def create_engine(url: str | URL, **options: Any) -> Engine:
    """An engine for SQLite or PostgreSQL. `postgresql://` means psycopg 3, on every version of SQLAlchemy.

    Raises `InvalidArgument` for a URL that cannot be used, `MissingExtra` where the driver is not installed.
    """
    try:
        parsed = make_url(url)
        if parsed.drivername in ("postgres", "postgresql"):
            parsed = parsed.set(drivername="postgresql+psycopg")
        if parsed.get_backend_name() not in DATABASES:
            raise ValueError(f"{parsed.get_backend_name()} is not supported")
        engine = sqlalchemy.create_engine(parsed, **options)
    except (ArgumentError, NoSuchModuleError, ValueError) as error:
        raise InvalidArgument(
            f"database URL {_without_password(url)}: {error}; use one such as sqlite:///turnfold.db or "
            "postgresql://user:password@host/database"
        ) from None
    except ModuleNotFoundError as error:
        raise MissingExtra(f"database URL {_without_password(url)} needs {error.name}", extra="postgres") from None
    return prepare_sqlite(engine) if engine.dialect.name == "sqlite" else engine


def prepare_sqlite(engine: Engine) -> Engine:
    """Set up an engine for SQLite under several threads and processes, and return it. Call it before the first use; for
    an async engine with its `sync_engine`.

    Every connection gets WAL, `synchronous=NORMAL`, foreign keys, a busy timeout of 30 seconds, and `secure_delete`,
    which overwrites what `erase_session` deletes. Every transaction begins IMMEDIATE, so that it can never fail
    half-way for want of the write lock; with the execution option `turnfold_read_only` it begins DEFERRED.
    """
    event.listen(engine, "connect", _set_up_connection)
    event.listen(engine, "begin", _begin)
    return engine


def reading_options(engine: Engine) -> dict[str, Any]:
    """How an engine reads. PostgreSQL needs no transaction around statements that only read, and two round trips less;
    on SQLite one that is read only never takes the write lock."""
    return {READ_ONLY: True} if engine.dialect.name == "sqlite" else {"isolation_level": "AUTOCOMMIT"}


def check_dialect(engine: Engine) -> None:
    """Raises `InvalidArgument` unless the engine is for SQLite or PostgreSQL."""
    if engine.dialect.name not in DATABASES:
        raise InvalidArgument(f"turnfold runs on sqlite and postgresql, not on {engine.dialect.name}")


@contextmanager
def translated_errors(engine: Engine) -> Iterator[None]:
    """Turn what the database refused into an error of ours; what is not understood passes unchanged."""
    try:
        yield
    except IntegrityError as error:
        if "turnfold_turns" in str(error.orig):
            raise TurnConflict(
                f"a turn id is given twice in one session: {_first_line(error)}; nothing of the batch was written"
            ) from error
        raise
    except PoolTimeout as error:
        raise DatabaseUnavailable(
            f"no connection became free in the pool of {engine.url.render_as_string(hide_password=True)}: "
            f"{str(error).partition('(Background')[0].strip()}; nothing was written; enlarge the pool"
        ) from error
    except DBAPIError as error:
        meant = _meaning(error, engine.url.render_as_string(hide_password=True))
        if meant is None:
            raise
        raise meant from error


def _meaning(error: DBAPIError, where: str) -> TurnfoldError | None:
    """What an error of the database means here, if anything."""
    sqlstate = getattr(error.orig, "sqlstate", None)
    if _is_missing_table(error):
        return SchemaMismatch(
            f"the database {where} has no turnfold tables here ({_first_line(error)}); "
            "run `turnfold migrate` or turnfold.migrate(engine)"
        )
    if sqlstate == "42704" and 'type "vector"' in str(error.orig):
        return SchemaMismatch(
            f"the database {where} has no pgvector, which compares vectors; let its owner run CREATE EXTENSION vector"
        )
    if sqlstate == "42501":
        return AccessDenied(f"{where}: {_first_line(error)}; nothing was written; grant it to the role")
    if isinstance(error, OperationalError) or type(error) is DatabaseError or _is_trouble_of_the_server(error):
        return DatabaseUnavailable(
            f"the database {where} did not answer as it should: {_first_line(error)}; nothing was written; "
            "check that it runs, can be written and can be reached"
        )
    return None


def _set_up_connection(connection: Any, _record: object) -> None:
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {SQLITE_BUSY_TIMEOUT_SECONDS * 1000}")
    _use_wal(cursor)
    cursor.execute("PRAGMA synchronous = NORMAL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.execute("PRAGMA secure_delete = ON")
    cursor.close()


def _use_wal(cursor: Any) -> None:
    # Turning a file to WAL makes a reader of it a writer, which SQLite refuses at once where another connection is in
    # the way, whatever the busy timeout. BEGIN EXCLUSIVE waits until that one has finished.
    deadline = time.monotonic() + SQLITE_BUSY_TIMEOUT_SECONDS
    while True:
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if not _is_busy(error) or time.monotonic() > deadline:
                raise
        cursor.execute("BEGIN EXCLUSIVE")
        cursor.execute("ROLLBACK")


def _is_busy(error: sqlite3.OperationalError) -> bool:
    """Whether it is SQLITE_BUSY, in any of the kinds that the upper bits of the code tell."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


def _begin(connection: Connection) -> None:
    options = connection.get_execution_options()
    if options.get("isolation_level") != "AUTOCOMMIT":
        connection.exec_driver_sql("BEGIN DEFERRED" if options.get(READ_ONLY) else "BEGIN IMMEDIATE")


def _is_missing_table(error: SQLAlchemyError) -> bool:
    original = getattr(error, "orig", None)
    return getattr(original, "sqlstate", None) == "42P01" or "no such table: turnfold_" in str(original)


def _is_trouble_of_the_server(error: DBAPIError) -> bool:
    """Connection, resources, operator, system (classes 08, 53, 57, 58), or a transaction that may only read."""
    sqlstate = str(getattr(error.orig, "sqlstate", None) or "")
    return sqlstate[:2] in ("08", "53", "57", "58") or sqlstate == "25006"


def _first_line(error: DBAPIError) -> str:
    return str(error.orig).strip().partition("\n")[0]


def _without_password(url: str | URL) -> str:
    try:
        return make_url(url).render_as_string(hide_password=True)
    except ArgumentError:
        return repr(url)
