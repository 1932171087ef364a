"""Alembic's environment for the tables of turnfold.

`turnfold.migrate` hands a connection inside its own transaction, and perhaps a schema. A developer's `alembic` command
(see alembic.ini) finds the database in TURNFOLD_DATABASE_URL.
"""

from __future__ import annotations

import os

from alembic import context
from sqlalchemy import Connection

from turnfold.sql.engine import create_engine
from turnfold.sql.migrate import SEARCH_PREFIX, TABLE_PREFIX, VERSION_TABLE
from turnfold.sql.tables import metadata


def include_name(name: str | None, type_: str, parent_names: object) -> bool:
    """Only our tables: those of the service in the same database are none of our business. The search index is no
    table of the models: on SQLite it is a virtual one, with tables of its own beside it."""
    if type_ != "table" or name is None:
        return True
    return name.startswith(TABLE_PREFIX) and not name.startswith(SEARCH_PREFIX)


def run(connection: Connection | None, **options: object) -> None:
    context.configure(
        connection=connection,
        target_metadata=metadata,
        version_table=VERSION_TABLE,
        version_table_schema=context.config.attributes.get("schema"),
        include_name=include_name,
        compare_server_default=True,
        **options,
    )
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
url = os.environ.get("TURNFOLD_DATABASE_URL") or context.config.get_main_option("sqlalchemy.url")
if given is not None:
    run(given)
elif context.is_offline_mode():
    run(None, url=url, literal_binds=True)
else:
    with create_engine(url or "sqlite:///turnfold.db").begin() as connection:
        run(connection)
