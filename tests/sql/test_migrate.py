"""The tables: made once by whoever comes first, in agreement with the models, beside the tables of the service."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import Engine, inspect, text

from turnfold import InvalidArgument, SchemaMismatch, SqlRepository, create_engine, include_name, migrate
from turnfold.sql.migrate import VERSION_TABLE, _config, _migrations_folder
from turnfold.sql.tables import metadata
from turnfold.testing import some_turns

OURS = {*metadata.tables, VERSION_TABLE}


def tables(engine: Engine, schema: str | None = None) -> set[str]:
    """All tables but those of the search index, which differ between the databases."""
    return {name for name in inspect(engine).get_table_names(schema) if not name.startswith("turnfold_search")}


def columns(engine: Engine) -> dict[str, set[str]]:
    return {table: {column["name"] for column in inspect(engine).get_columns(table)} for table in tables(engine)}


def test_models_and_migrations_agree(empty_engine: Engine) -> None:
    migrate(empty_engine)
    with empty_engine.connect() as connection:
        options = {"include_name": lambda name, type_, _: type_ != "table" or name in metadata.tables}
        context = MigrationContext.configure(connection, opts={**options, "compare_server_default": True})
        assert compare_metadata(context, metadata) == []


def test_migrating_makes_every_table_and_column_of_the_models(empty_engine: Engine) -> None:
    migrate(empty_engine)
    found = columns(empty_engine)
    assert set(found) == OURS
    for table in metadata.tables.values():
        assert found[table.name] == {column.name for column in table.columns}


def test_down_and_up_again_loses_no_column(empty_engine: Engine) -> None:
    migrate(empty_engine)
    before = columns(empty_engine)
    with empty_engine.begin() as connection:
        command.downgrade(_config(_migrations_folder(), connection, None), "base")
    assert tables(empty_engine) == {VERSION_TABLE}
    migrate(empty_engine)
    assert columns(empty_engine) == before


def test_migrating_again_keeps_what_was_written(engine: Engine, store: SqlRepository) -> None:
    turns = store.append_turns("s", some_turns(3))
    migrate(engine)
    assert store.get_session_turns("s") == turns


def test_processes_that_start_at_once_migrate_once(empty_url: str) -> None:
    script = (
        "import sys, turnfold\n"
        "engine = turnfold.create_engine(sys.argv[1])\n"
        "turnfold.migrate(engine)\n"
        "store = turnfold.SqlRepository(engine)\n"
        "store.append_turns('first', [turnfold.Turn('user', f'{sys.argv[2]}-{n}') for n in range(5)])\n"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", script, empty_url, str(number)], stderr=subprocess.PIPE, text=True)
        for number in range(8)
    ]
    assert [(process.communicate()[1], process.returncode) for process in processes] == [("", 0)] * 8
    engine = create_engine(empty_url)
    turns = SqlRepository(engine).get_session_turns("first")
    assert [turn.position for turn in turns] == list(range(1, 41))
    assert len({turn.content for turn in turns}) == 40
    engine.dispose()


def test_threads_migrate_files_of_their_own_at_once(tmp_path: Path) -> None:
    failed: list[BaseException] = []

    def run(number: int) -> None:
        engine = create_engine(f"sqlite:///{tmp_path / str(number)}.db")
        try:
            migrate(engine)
            SqlRepository(engine).append_turns("s", some_turns(1))
        except BaseException as error:
            failed.append(error)
        finally:
            engine.dispose()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def test_a_path_with_a_percent_sign_is_migrated(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / '100%s %(here)s.db'}")
    migrate(engine)
    assert tables(engine) == OURS
    engine.dispose()


def test_tables_without_their_version_table_are_refused_and_left_alone(empty_engine: Engine) -> None:
    metadata.create_all(empty_engine)
    with pytest.raises(SchemaMismatch, match="other migrations made them"):
        migrate(empty_engine)
    assert VERSION_TABLE not in tables(empty_engine)


def test_tables_that_are_newer_than_the_code_are_refused_and_left_alone(empty_engine: Engine) -> None:
    migrate(empty_engine)
    set_revision(empty_engine, "v2_0001_other")
    with pytest.raises(SchemaMismatch, match="newer than this code"):
        migrate(empty_engine)


def test_an_old_process_that_restarts_during_a_rolling_deploy_leaves_the_new_tables(empty_engine: Engine) -> None:
    migrate(empty_engine)
    set_revision(empty_engine, "v1_0999_later")
    migrate(empty_engine)
    assert SqlRepository(empty_engine).append_turns("s", some_turns(1))


def set_revision(engine: Engine, revision: str) -> None:
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = :revision"), {"revision": revision})


class TestSchema:
    @pytest.fixture
    def dialect(self) -> str:
        return "postgres"

    def test_tables_go_into_the_schema_and_nowhere_else(self, empty_engine: Engine) -> None:
        migrate(empty_engine, schema="chat memory")
        migrate(empty_engine, schema="chat memory")
        assert tables(empty_engine, "chat memory") == OURS
        assert tables(empty_engine) == set()

    def test_two_schemas_hold_two_stores(self, empty_engine: Engine) -> None:
        for schema in (None, "other"):
            migrate(empty_engine, schema)
            SqlRepository(empty_engine, schema).append_turns("s", some_turns(2 if schema else 1))
        assert len(SqlRepository(empty_engine).get_session_turns("s")) == 1
        assert len(SqlRepository(empty_engine, "other").get_session_turns("s")) == 2

    def test_a_role_that_may_not_create_schemas_uses_one_that_exists(self, empty_engine: Engine) -> None:
        role = f"r_{empty_engine.url.database}"
        with empty_engine.begin() as connection:
            for statement in (f"CREATE ROLE {role}", f"CREATE SCHEMA given AUTHORIZATION {role}"):
                connection.execute(text(statement))
        limited = create_engine(empty_engine.url, connect_args={"options": f"-c role={role}"})
        migrate(limited, schema="given")
        assert tables(limited, "given") == OURS
        limited.dispose()
        with empty_engine.begin() as connection:
            connection.execute(text(f"DROP OWNED BY {role}"))
            connection.execute(text(f"DROP ROLE {role}"))

    def test_the_search_path_of_the_service_stays_as_it_was(self, empty_engine: Engine) -> None:
        migrate(empty_engine, schema="x")
        with empty_engine.connect() as connection:
            assert connection.execute(text("SHOW search_path")).scalar_one() == '"$user", public'


def test_a_schema_is_refused_on_sqlite() -> None:
    with pytest.raises(InvalidArgument, match="SQLite has no schemas"):
        migrate(create_engine("sqlite://"), schema="x")


HOST_ENV = """
from alembic import context
from sqlalchemy import Column, Integer, MetaData, Table
import turnfold

metadata = MetaData()
Table("orders", metadata, Column("id", Integer, primary_key=True))
context.configure(
    connection=context.config.attributes["connection"], target_metadata=metadata, include_name=turnfold.include_name
)
with context.begin_transaction():
    context.run_migrations()
"""

HOST_MIGRATION = """
import sqlalchemy as sa
from alembic import op
revision, down_revision = "abc123", None
def upgrade(): op.create_table("orders", sa.Column("id", sa.Integer(), primary_key=True))
def downgrade(): op.drop_table("orders")
"""


class TestBesideTheAlembicOfTheService:
    """A real second Alembic environment in the same database."""

    @pytest.fixture
    def host(self, tmp_path: Path) -> Config:
        folder = tmp_path / "host"
        (folder / "versions").mkdir(parents=True)
        (folder / "env.py").write_text(HOST_ENV)
        (folder / "script.py.mako").write_text("")
        (folder / "versions" / "abc123_orders.py").write_text(HOST_MIGRATION)
        config = Config()
        config.set_main_option("script_location", str(folder))
        config.set_main_option("path_separator", "os")
        return config

    @pytest.fixture(params=["host first", "turnfold first"])
    def both(self, request: pytest.FixtureRequest, empty_engine: Engine, host: Config) -> Engine:
        steps = [lambda: self.run(command.upgrade, empty_engine, host, "head"), lambda: migrate(empty_engine)]
        for step in steps if request.param == "host first" else reversed(steps):
            step()
        return empty_engine

    def run(self, what: object, engine: Engine, host: Config, *arguments: str) -> None:
        with engine.begin() as connection:
            host.attributes["connection"] = connection
            what(host, *arguments)  # type: ignore[operator]

    def test_each_has_its_tables_and_its_version(self, both: Engine) -> None:
        assert tables(both) == {*OURS, "orders", "alembic_version"}
        with both.connect() as connection:
            assert connection.execute(text("SELECT version_num FROM alembic_version")).scalars().all() == ["abc123"]

    def test_the_autogenerate_of_the_service_leaves_our_tables_alone(self, both: Engine, host: Config) -> None:
        self.run(command.check, both, host)

    def test_our_autogenerate_leaves_the_tables_of_the_service_alone(self, both: Engine) -> None:
        with both.begin() as connection:
            command.check(_config(_migrations_folder(), connection, None))

    def test_the_service_can_go_down_and_up_while_we_stay(self, both: Engine, host: Config) -> None:
        store = SqlRepository(both)
        turns = store.append_turns("s", some_turns(2))
        self.run(command.downgrade, both, host, "base")
        self.run(command.upgrade, both, host, "head")
        migrate(both)
        assert store.get_session_turns("s") == turns

    def test_include_name_passes_what_is_not_ours(self) -> None:
        assert include_name("orders", "table", {})
        assert include_name("turnfold_turns_of_mine", "column", {})
        assert not include_name("turnfold_turns", "table", {})
        assert not include_name(VERSION_TABLE, "table", {})
