"""Brings the tables of turnfold to the state that this code needs, and tells whether they are.

The migrations are Alembic's, in a folder of their own with a version table of their own, so that they live beside the
service's Alembic in one database. A revision is named `v<compatibility>_<number>_<what>`: within one compatibility
every migration is additive, and code of any of its releases runs on the tables of any later one.
"""

from __future__ import annotations

import threading
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Column, Connection, Engine, MetaData, String, Table, inspect, select, text

from turnfold.errors import InvalidArgument, SchemaMismatch
from turnfold.sql.engine import check_dialect, translated_errors

if TYPE_CHECKING:
    from alembic.config import Config

__all__ = ["COMPATIBILITY", "VERSION_TABLE", "check_schema", "include_name", "migrate"]

VERSION_TABLE = "turnfold_alembic_version"
TABLE_PREFIX = "turnfold_"
SEARCH_PREFIX = "turnfold_search"
COMPATIBILITY = "v1_"

_ADVISORY_LOCK = 0x7475726E666F6C64  # "turnfold" in ASCII
one_at_a_time = threading.Lock()  # alembic.context and alembic.op are global to the process


def migrate(engine: Engine, schema: str | None = None) -> None:
    """Create the tables of turnfold, or bring them up to date; does nothing where they are.

    Safe to call at every start of every process: one migrates, the others wait for it. `schema` is a PostgreSQL
    schema, made where it is absent. Tables of a newer release of the same compatibility are left as they are.

    Raises `SchemaMismatch` where the tables are newer than this code can use, or were made by other migrations than
    these; `InvalidArgument` for a schema on SQLite; `DatabaseUnavailable` where the database cannot be reached.
    """
    check_dialect(engine)
    check_no_schema_on_sqlite(engine, schema)
    with one_at_a_time, translated_errors(engine), engine.begin() as connection:
        migrate_connection(connection, schema)


def migrate_connection(connection: Connection, schema: str | None) -> None:
    """`migrate` inside a transaction; the caller holds `one_at_a_time`."""
    from alembic import command  # takes longer to import than all the rest, and only migrating needs it

    with as_file(_migrations_folder()) as folder:
        _begin_alone(connection)
        if schema is not None:
            _use_schema(connection, schema)
        if _needs_upgrade(connection, schema, folder):
            command.upgrade(_config(folder, connection, schema), "head")


def check_no_schema_on_sqlite(engine: Engine, schema: str | None) -> None:
    """Raises `InvalidArgument` for a schema on SQLite."""
    if schema is not None and engine.dialect.name == "sqlite":
        raise InvalidArgument(f"schema {schema!r}: SQLite has no schemas; leave it out")


def check_schema(connection: Connection, schema: str | None) -> None:
    """Raises `SchemaMismatch` unless the tables are there and this code can use them."""
    revision = _revision(connection, schema)
    if revision is None:
        raise SchemaMismatch(
            f"the database {_shown(connection)} has no turnfold tables{_in(schema)}; "
            "run `turnfold migrate` or turnfold.migrate(engine)"
        )
    _check_compatible(revision, connection)


def include_name(name: str | None, type_: str, parent_names: object) -> bool:
    """For the `include_name` of the service's own Alembic `env.py`: leaves the tables of turnfold to turnfold."""
    return type_ != "table" or name is None or not name.startswith(TABLE_PREFIX)


def _migrations_folder() -> Path:
    """The folder inside the installed package, or that of the checkout."""
    packaged = files("turnfold") / "migrations"
    checkout = Path(__file__).parents[3] / "migrations"
    for folder in (packaged, checkout):
        if (folder / "env.py").is_file():
            return folder  # type: ignore[return-value]
    raise SchemaMismatch(f"the migrations of turnfold are neither in {packaged} nor in {checkout}; install it again")


def _config(folder: Path, connection: Connection, schema: str | None) -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes.update(connection=connection, schema=schema)
    return config


def _begin_alone(connection: Connection) -> None:
    """Make every other process that migrates wait until this transaction ends."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
    else:
        driver = connection.connection.driver_connection
        if driver is not None and not driver.in_transaction:
            connection.exec_driver_sql("BEGIN IMMEDIATE")


def _use_schema(connection: Connection, schema: str) -> None:
    # CREATE SCHEMA IF NOT EXISTS is refused to a role without the right even where the schema exists.
    if not inspect(connection).has_schema(schema):
        connection.exec_driver_sql(f"CREATE SCHEMA {connection.dialect.identifier_preparer.quote_identifier(schema)}")
    connection.execute(text("SELECT set_config('search_path', quote_ident(:schema), true)"), {"schema": schema})


def _needs_upgrade(connection: Connection, schema: str | None, folder: Path) -> bool:
    revision = _revision(connection, schema)
    if revision is None:
        names = inspect(connection).get_table_names(schema)
        tables = [name for name in names if name.startswith(TABLE_PREFIX) and name != VERSION_TABLE]
        if tables:
            raise SchemaMismatch(
                f"the database {_shown(connection)} has {', '.join(sorted(tables))}{_in(schema)} but no revision "
                f"in {VERSION_TABLE}: other migrations made them; keep turnfold's tables out of those (include_name)"
            )
        return True
    _check_compatible(revision, connection)
    from alembic.script import ScriptDirectory

    script = ScriptDirectory(str(folder))
    known = {item.revision for item in script.walk_revisions()}
    return revision in known and revision != script.get_current_head()


def _revision(connection: Connection, schema: str | None) -> str | None:
    if not inspect(connection).has_table(VERSION_TABLE, schema=schema):
        return None
    versions = Table(VERSION_TABLE, MetaData(), Column("version_num", String), schema=schema)
    revision: str | None = connection.scalar(select(versions.c.version_num))
    return revision


def _check_compatible(revision: str, connection: Connection) -> None:
    if not revision.startswith(COMPATIBILITY):
        raise SchemaMismatch(
            f"the turnfold tables of {_shown(connection)} are at revision {revision!r}, newer than this code, which "
            f"knows {COMPATIBILITY}…; upgrade turnfold"
        )


def _shown(connection: Connection) -> str:
    return connection.engine.url.render_as_string(hide_password=True)


def _in(schema: str | None) -> str:
    return "" if schema is None else f" in schema {schema}"
