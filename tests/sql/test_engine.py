"""The border to SQLAlchemy: URLs, the set-up of SQLite, and errors in our words."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from turnfold import DatabaseUnavailable, InvalidArgument, SqlRepository, create_engine, migrate, prepare_sqlite
from turnfold.sql.engine import READ_ONLY
from turnfold.testing import some_turns


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_a_plain_postgresql_url_means_psycopg_3(scheme: str) -> None:
    assert create_engine(f"{scheme}://user@host/database").dialect.driver == "psycopg"


@pytest.mark.parametrize("url", ["", "no url", "oracle://x", "nonsense://x", "sqlite:///x.db?timeout=abc"])
def test_a_url_that_cannot_be_used_is_one_clear_error(url: str) -> None:
    with pytest.raises(InvalidArgument):
        create_engine(url)


def test_an_error_never_shows_the_password() -> None:
    with pytest.raises(InvalidArgument) as caught:
        create_engine("nonsense://user:secret@host/x")
    assert "secret" not in str(caught.value)


def test_sqlite_runs_with_wal_and_foreign_keys(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'a.db'}")
    with engine.connect() as connection:
        assert connection.execute(text("PRAGMA journal_mode")).scalar_one() == "wal"
        assert connection.execute(text("PRAGMA foreign_keys")).scalar_one() == 1
        assert connection.execute(text("PRAGMA busy_timeout")).scalar_one() == 30_000
    engine.dispose()


def journal_mode(url: str) -> str:
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            return str(connection.execute(text("PRAGMA journal_mode")).scalar_one())
    finally:
        engine.dispose()


async def journal_mode_async(url: str) -> str:
    engine = create_async_engine(url.replace("sqlite:", "sqlite+aiosqlite:"))
    prepare_sqlite(engine.sync_engine)
    try:
        async with engine.connect() as connection:
            return str((await connection.execute(text("PRAGMA journal_mode"))).scalar_one())
    finally:
        await engine.dispose()


@pytest.mark.parametrize("held", ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE", "BEGIN; SELECT * FROM theirs"])
@pytest.mark.parametrize("ask", [journal_mode, lambda url: asyncio.run(journal_mode_async(url))], ids=["sync", "async"])
def test_the_first_connection_waits_for_whoever_is_in_the_file(
    tmp_path: Path, held: str, ask: Callable[[str], str]
) -> None:
    theirs = sqlite3.connect(tmp_path / "a.db", check_same_thread=False, isolation_level=None)
    theirs.executescript(f"CREATE TABLE theirs (x); {held}")
    leave = threading.Timer(0.3, theirs.execute, ["COMMIT"])
    leave.start()
    assert ask(f"sqlite:///{tmp_path / 'a.db'}") == "wal"
    leave.join()
    theirs.close()


def test_an_open_read_keeps_no_writer_waiting(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'a.db'}")
    migrate(engine)
    store = SqlRepository(engine)
    with engine.execution_options(**{READ_ONLY: True}).connect() as reader:
        reader.execute(text("SELECT count(*) FROM turnfold_turns"))
        done = threading.Event()
        writer = threading.Thread(target=lambda: (store.append_turns("s", some_turns(1)), done.set()))
        writer.start()
        assert done.wait(10)
        writer.join()
    engine.dispose()


def test_a_file_that_is_no_database_is_one_clear_error(tmp_path: Path) -> None:
    file = tmp_path / "text.db"
    file.write_text("this is no database, " * 100)
    engine = create_engine(f"sqlite:///{file}")
    with pytest.raises(DatabaseUnavailable, match="not a database"):
        migrate(engine)
    engine.dispose()


def test_a_file_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'a.db'}")
    migrate(engine)
    engine.dispose()
    engine = create_engine(f"sqlite:///file:{tmp_path / 'a.db'}?mode=ro&uri=true")
    with pytest.raises(DatabaseUnavailable, match="readonly"):
        SqlRepository(engine).append_turns("s", some_turns(1))
    engine.dispose()
