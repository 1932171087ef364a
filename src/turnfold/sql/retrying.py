"""Which failed transactions may be tried again, and after how long. Decides only; the repositories wait and try.

A transaction is tried again where it certainly did nothing: it was rolled back as not serial or as the victim of a
deadlock, it never got SQLite's write lock, or its connection broke before the commit. A connection that breaks during
the commit leaves it open whether the transaction happened; that is raised, and never tried again unasked.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from turnfold.errors import DatabaseUnavailable

__all__ = ["Again", "delay_before_retry", "uncertain"]

ROLLED_BACK = frozenset({"40001", "40P01"})
RESTARTING = frozenset({"57P01", "57P02", "57P03"})

_MOST_ROLLBACKS = 12
_MOST_BREAKS = 5


@dataclass(frozen=True, slots=True)
class Again:
    """A transaction that did nothing, and may be tried again after so many seconds."""

    seconds: float


def delay_before_retry(error: DatabaseUnavailable, attempt: int, *, was_committing: bool) -> float | None:
    """Seconds to wait before the transaction is tried again, or None where it must not be; `attempt` counts from 0."""
    if _sqlstate(error) in ROLLED_BACK:
        return random.uniform(0, 0.01 * 2 ** min(attempt, 5)) if attempt < _MOST_ROLLBACKS else None  # noqa: S311
    if attempt >= _MOST_BREAKS:
        return None
    if "database is locked" in str(error.__cause__):
        return 0.05
    if not was_committing and (_lost_connection(error) or _sqlstate(error) in RESTARTING):
        return float(0.1 * 2**attempt)
    return None


def uncertain(error: DatabaseUnavailable) -> DatabaseUnavailable:
    """The error for a connection that broke during the commit of a write."""
    if not _lost_connection(error):
        return error
    return DatabaseUnavailable(
        f"the connection broke during the commit ({error.__cause__}); whether it was written is unknown; "
        "call again: a turn with an id is not written twice"
    )


def _sqlstate(error: DatabaseUnavailable) -> str | None:
    sqlstate: str | None = getattr(getattr(error.__cause__, "orig", None), "sqlstate", None)
    return sqlstate


def _lost_connection(error: DatabaseUnavailable) -> bool:
    return bool(getattr(error.__cause__, "connection_invalidated", False))
