"""The store on both databases: the public contract, and what only this store promises."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from tests.conftest import empty
from turnfold import (
    AccessDenied,
    DatabaseUnavailable,
    InvalidArgument,
    SchemaMismatch,
    SqlRepository,
    Turn,
    create_engine,
    migrate,
)
from turnfold.errors import TurnConflict
from turnfold.testing import RepositoryContract, leaf_of, some_turns

ROOT = Path(__file__).parents[2]


class TestSqlRepository(RepositoryContract):
    @pytest.fixture
    def repository(self, store: SqlRepository) -> SqlRepository:
        return store


class TestOnAnEngineOfTheHost(RepositoryContract):
    """An engine that turnfold did not set up: SQLite as Python's driver begins transactions."""

    @pytest.fixture
    def repository(self, url: str) -> Iterator[SqlRepository]:
        engine = sqlalchemy.create_engine(create_engine(url).url)
        yield SqlRepository(engine)
        engine.dispose()


class TestInASchema(RepositoryContract):
    @pytest.fixture
    def dialect(self) -> str:
        return "postgres"

    @pytest.fixture
    def repository(self, engine: Engine) -> Iterator[SqlRepository]:
        migrate(engine, schema='odd "schema')
        yield SqlRepository(engine, schema='odd "schema')
        with engine.begin() as connection:
            connection.execute(text('DROP SCHEMA "odd ""schema" CASCADE'))


class TestUnderStricterIsolation(RepositoryContract):
    """Where PostgreSQL refuses what would not be serial, the transaction is tried again."""

    @pytest.fixture(params=["REPEATABLE READ", "SERIALIZABLE"])
    def repository(self, request: pytest.FixtureRequest, migrated_postgres: str) -> Iterator[SqlRepository]:
        engine = create_engine(migrated_postgres, isolation_level=request.param)
        yield SqlRepository(engine)
        engine.dispose()
        empty(migrated_postgres)


class TestAsALeastPrivilegedRole(RepositoryContract):
    """The service's role as the README grants it: it can do everything but change a turn and erase a session."""

    @pytest.fixture
    def repository(self, migrated_postgres: str) -> Iterator[SqlRepository]:
        owner = create_engine(migrated_postgres)
        with owner.begin() as connection:
            connection.execute(text("CREATE ROLE turnfold_service"))
            for statement in least_privileges():
                connection.execute(text(statement))
        engine = create_engine(migrated_postgres, connect_args={"options": "-c role=turnfold_service"})
        yield SqlRepository(engine)
        engine.dispose()
        with owner.begin() as connection:
            connection.execute(text("DROP OWNED BY turnfold_service"))
            connection.execute(text("DROP ROLE turnfold_service"))
        owner.dispose()
        empty(migrated_postgres)

    def test_erasing_takes_the_whole_session_and_no_other(self, repository: SqlRepository) -> None:  # type: ignore[override]
        turns = repository.append_turns("s", some_turns(2))
        with pytest.raises(AccessDenied, match="permission denied"):
            repository.erase_session("s")
        assert repository.get_session_turns("s") == turns

    @pytest.mark.parametrize("statement", ["UPDATE turnfold_turns SET content = 'x'", "DELETE FROM turnfold_turns"])
    def test_a_turn_cannot_be_changed_or_deleted(self, repository: SqlRepository, statement: str) -> None:
        repository.append_turns("s", some_turns(1))
        with (
            pytest.raises(sqlalchemy.exc.ProgrammingError, match="permission denied"),
            repository._engine.begin() as connection,
        ):
            connection.execute(text(statement))


def least_privileges() -> list[str]:
    """The SQL of the README."""
    (block,) = re.findall(r"^ *```sql\n(.*?)^ *```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    return [statement.strip() for statement in block.split(";") if statement.strip()]


@pytest.fixture(params=["turnfold's engine", "the host's engine"])
def any_engine(request: pytest.FixtureRequest, engine: Engine) -> Iterator[Engine]:
    if request.param == "turnfold's engine":
        yield engine
    else:
        host = sqlalchemy.create_engine(engine.url)
        yield host
        host.dispose()


class TestBound:
    """`bind`: the turn and the service's own rows, together or not at all."""

    @pytest.fixture(autouse=True)
    def table_of_the_service(self, any_engine: Engine) -> Iterator[None]:
        with any_engine.begin() as connection:
            connection.execute(text("CREATE TABLE orders (id INTEGER PRIMARY KEY)"))
        yield
        with any_engine.begin() as connection:
            connection.execute(text("DROP TABLE orders"))

    def test_a_turn_commits_with_the_rows_of_the_service(self, any_engine: Engine) -> None:
        store = SqlRepository(any_engine)
        with Session(any_engine) as session, session.begin():
            session.execute(text("INSERT INTO orders VALUES (1)"))
            store.bind(session).append_turns("s", some_turns(1))
        assert len(store.get_session_turns("s")) == 1
        assert self.orders(any_engine) == 1

    @pytest.mark.parametrize("first", ["order", "turn"])
    def test_a_turn_rolls_back_with_the_rows_of_the_service(self, any_engine: Engine, first: str) -> None:
        store = SqlRepository(any_engine)
        with Session(any_engine) as session:
            if first == "order":
                session.execute(text("INSERT INTO orders VALUES (1)"))
            store.bind(session).append_turns("s", some_turns(1))
            session.execute(text("INSERT INTO orders VALUES (2)"))
            session.rollback()
        assert store.get_session("s") is None
        assert self.orders(any_engine) == 0

    def test_it_sees_what_the_transaction_wrote(self, any_engine: Engine) -> None:
        store = SqlRepository(any_engine)
        with Session(any_engine) as session, session.begin():
            bound = store.bind(session)
            turns = bound.append_turns("s", some_turns(3))
            bound.add_summary(leaf_of(turns[:2]))
            assert bound.get_uncovered_turns("s") == turns[2:]
        assert store.get_uncovered_turns("s") == turns[2:]

    def test_a_refused_turn_leaves_the_transaction_as_it_was(self, any_engine: Engine) -> None:
        store = SqlRepository(any_engine)
        store.append_turns("s", [Turn("user", "one", id="1")])
        with Session(any_engine) as session, session.begin():
            session.execute(text("INSERT INTO orders VALUES (1)"))
            with pytest.raises(TurnConflict):
                store.bind(session).append_turns("s", [Turn("user", "two", id="2"), Turn("user", "three", id="1")])
            session.execute(text("INSERT INTO orders VALUES (2)"))
        assert self.orders(any_engine) == 2
        assert [turn.content for turn in store.get_session_turns("s")] == ["one"]

    def test_it_cannot_compact(self, any_engine: Engine) -> None:
        store = SqlRepository(any_engine)
        store.append_turns("s", some_turns(1))
        with Session(any_engine) as session, pytest.raises(InvalidArgument, match="cannot compact"):
            store.bind(session).acquire_lease("s", owner="me", seconds=1)

    def test_it_cannot_be_bound_twice(self, any_engine: Engine) -> None:
        with Session(any_engine) as session, pytest.raises(InvalidArgument, match="bound"):
            SqlRepository(any_engine).bind(session).bind(session)

    @pytest.mark.parametrize("own", [None, {"orders_schema": "public"}], ids=["no schemas", "schemas"])
    def test_the_connection_means_its_own_schemas_again_afterwards(
        self, any_engine: Engine, own: dict[str, str] | None
    ) -> None:
        if any_engine.dialect.name == "sqlite":
            pytest.skip("SQLite has no schemas")
        migrate(any_engine, schema="memory")
        store = SqlRepository(any_engine, schema="memory")
        with Session(any_engine) as session, session.begin():
            session.connection(execution_options={"schema_translate_map": own})
            bound = store.bind(session)
            bound.append_turns("s", some_turns(2))
            with pytest.raises(TurnConflict):
                bound.append_turns("s", [Turn("user", "one", id="1"), Turn("user", "two", id="1")])
            assert session.connection().get_execution_options()["schema_translate_map"] == own
            assert len(bound.get_session_turns("s")) == 2
        assert len(store.get_session_turns("s")) == 2
        assert SqlRepository(any_engine).get_session("s") is None
        with any_engine.begin() as connection:
            connection.execute(text("DROP SCHEMA memory CASCADE"))

    def orders(self, engine: Engine) -> int:
        with engine.connect() as connection:
            return int(connection.execute(text("SELECT count(*) FROM orders")).scalar_one())


class TestRefusals:
    def test_a_database_without_tables_is_named_with_the_cure(self, empty_engine: Engine) -> None:
        with pytest.raises(SchemaMismatch, match="turnfold migrate"):
            SqlRepository(empty_engine).append_turns("s", some_turns(1))

    @pytest.fixture
    def engine(self, empty_engine: Engine) -> Engine:
        migrate(empty_engine)
        return empty_engine

    def test_tables_that_are_newer_than_the_code_are_refused(self, engine: Engine) -> None:
        with engine.begin() as connection:
            connection.execute(text("UPDATE turnfold_alembic_version SET version_num = 'v2_0009_other'"))
        with pytest.raises(SchemaMismatch, match="newer than this code"):
            SqlRepository(engine).get_session_turns("s")

    def test_tables_of_a_later_release_of_the_same_compatibility_are_used(self, engine: Engine) -> None:
        with engine.begin() as connection:
            connection.execute(text("UPDATE turnfold_alembic_version SET version_num = 'v1_0999_later'"))
        assert SqlRepository(engine).append_turns("s", some_turns(1))

    def test_tables_that_vanished_meanwhile_are_named_with_the_cure(self, engine: Engine) -> None:
        store = SqlRepository(engine)
        store.append_turns("s", some_turns(1))
        with engine.begin() as connection:
            for table in ("vectors", "summary_sources", "summaries", "turns", "sessions"):
                connection.execute(text(f"DROP TABLE turnfold_{table}"))
        with pytest.raises(SchemaMismatch, match="turnfold migrate"):
            store.get_session_turns("s")

    @pytest.mark.parametrize(
        "url", ["sqlite:////nowhere/at/all.db", "postgresql://nobody:secret@127.0.0.1:1/none"], ids=["file", "server"]
    )
    def test_a_database_that_cannot_be_reached_is_one_clear_error(self, url: str) -> None:
        engine = create_engine(url)
        with pytest.raises(DatabaseUnavailable, match="nothing was written") as caught:
            SqlRepository(engine).append_turns("s", some_turns(1))
        assert "secret" not in str(caught.value)
        engine.dispose()

    def test_a_pool_that_stays_full_is_one_clear_error(self, url: str) -> None:
        engine = create_engine(url, pool_size=1, max_overflow=0, pool_timeout=0.05)
        store = SqlRepository(engine)
        with engine.connect(), pytest.raises(DatabaseUnavailable, match="enlarge the pool"):
            store.append_turns("s", some_turns(1))
        assert store.append_turns("s", some_turns(1))[0].position == 1
        engine.dispose()

    def test_a_schema_is_refused_on_sqlite(self) -> None:
        with pytest.raises(InvalidArgument, match="SQLite has no schemas"):
            SqlRepository(create_engine("sqlite://"), schema="x")

    def test_another_database_is_refused(self) -> None:
        engine = sqlalchemy.create_mock_engine("mysql://", executor=lambda *_: None)
        with pytest.raises(InvalidArgument, match="mysql"):
            SqlRepository(engine)  # type: ignore[arg-type]


def test_the_database_itself_refuses_a_second_leaf_for_a_turn(engine: Engine, store: SqlRepository) -> None:
    turns = store.append_turns("s", some_turns(4))
    store.add_summary(leaf_of(turns[:2]))
    insert = text("INSERT INTO turnfold_summary_sources (session_id, position, summary_id) VALUES ('s', 1, :id)")
    with pytest.raises(sqlalchemy.exc.IntegrityError), engine.begin() as connection:
        connection.execute(insert, {"id": leaf_of(turns[:2]).id})


def test_the_database_itself_refuses_a_summary_that_does_not_shrink(engine: Engine, store: SqlRepository) -> None:
    turns = store.append_turns("s", some_turns(2))
    store.add_summary(leaf_of(turns))
    with pytest.raises(sqlalchemy.exc.IntegrityError), engine.begin() as connection:
        connection.execute(text("UPDATE turnfold_summaries SET token_count = source_token_count"))


def test_an_engine_in_memory_works_in_one_thread() -> None:
    engine = create_engine("sqlite://")
    migrate(engine)
    store = SqlRepository(engine)
    assert store.append_turns("s", some_turns(2)) == store.get_session_turns("s")
    engine.dispose()
