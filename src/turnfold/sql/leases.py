"""The SQL statements of the lease. Time is the database's, which all workers share."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, func, literal, or_, select, type_coerce, update

from turnfold.records import Lease
from turnfold.sql.tables import sessions


def take_lease(connection: Connection, session_id: str, owner: str, seconds: float, now: datetime) -> Row[Any] | None:
    """Take the lease of a session, if it is free or ran out."""
    is_free = or_(sessions.c.lease_owner.is_(None), sessions.c.lease_expires_at <= _database_time(connection))
    statement = (
        update(sessions)
        .where(sessions.c.id == session_id, is_free)
        .values(
            lease_owner=owner,
            lease_token=sessions.c.lease_token + 1,
            lease_expires_at=_database_time(connection, seconds),
            updated_at=now,
        )
    )
    return connection.execute(statement.returning(sessions.c.lease_token, sessions.c.lease_expires_at)).one_or_none()


def prolong_lease(connection: Connection, lease: Lease, seconds: float, now: datetime) -> datetime | None:
    """When the lease ends now; None where it is held no more."""
    statement = (
        update(sessions)
        .where(*_is_holder(lease))
        .values(lease_expires_at=_database_time(connection, seconds), updated_at=now)
    )
    return connection.execute(statement.returning(sessions.c.lease_expires_at)).scalar_one_or_none()


def give_lease_back(connection: Connection, lease: Lease, now: datetime) -> None:
    values = {"lease_owner": None, "lease_expires_at": None, "updated_at": now}
    connection.execute(update(sessions).where(*_is_holder(lease)).values(values))


def _is_holder(lease: Lease) -> tuple[ColumnElement[bool], ...]:
    """Whether nobody took the lease over; one that expired unnoticed harmed nobody and is still held."""
    return (
        sessions.c.id == lease.session_id,
        sessions.c.lease_owner == lease.owner,
        sessions.c.lease_token == lease.token,
    )


def _database_time(connection: Connection, seconds_from_now: float = 0.0) -> ColumnElement[datetime]:
    """A time by the database's clock, which all workers share."""
    time: ColumnElement[Any]
    if connection.dialect.name == "sqlite":
        time = func.strftime("%Y-%m-%d %H:%M:%f000+00:00", "now", f"{seconds_from_now:+.3f} seconds")
    else:
        time = func.clock_timestamp() + literal(timedelta(seconds=seconds_from_now))
    return type_coerce(time, sessions.c.lease_expires_at.type)


def database_now(connection: Connection) -> datetime:
    return connection.execute(select(_database_time(connection))).scalar_one()
