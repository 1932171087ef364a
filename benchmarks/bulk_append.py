"""Appending 10,000 turns in one call on SQLite, against a bare executemany of the same rows into the same table.

Run: python -m benchmarks.bulk_append
"""

from __future__ import annotations

import sqlite3
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.databases import spoken
from turnfold import SqlRepository, create_engine, migrate

TURNS, ROUNDS = 10_000, 7


def main() -> None:
    ours, bare = zip(*(one_round() for _ in range(ROUNDS)), strict=True)
    share = statistics.median(bare) / statistics.median(ours)
    seconds = statistics.median(ours)
    print(
        f"sqlite: {TURNS:,} turns appended in {seconds:.3f} s ({TURNS / seconds:,.0f} a second), bare executemany "
        f"{statistics.median(bare):.3f} s: {share:.2f} of its speed"
    )


def one_round() -> tuple[float, float]:
    """Seconds for us, then for the driver alone, each into an empty table of a database of its own."""
    with tempfile.TemporaryDirectory() as folder:
        engine = create_engine(f"sqlite:///{folder}/ours.db")
        migrate(engine)
        turns = spoken(0, TURNS)
        started = time.perf_counter()
        SqlRepository(engine).append_turns("bulk", turns)
        ours = time.perf_counter() - started
        with engine.connect() as connection:
            rows = [tuple(row) for row in connection.exec_driver_sql("SELECT * FROM turnfold_turns")]
        engine.dispose()
        return ours, bare_seconds(Path(folder) / "bare.db", rows)


def bare_seconds(file: Path, rows: list[tuple[object, ...]]) -> float:
    engine = create_engine(f"sqlite:///{file}")
    migrate(engine)
    SqlRepository(engine).append_turns("bulk", spoken(0, 1))
    with engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM turnfold_turns")
    engine.dispose()
    connection = sqlite3.connect(file)
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA foreign_keys = ON")
    started = time.perf_counter()
    connection.executemany(f"INSERT INTO turnfold_turns VALUES ({','.join('?' * len(rows[0]))})", rows)
    connection.commit()
    seconds = time.perf_counter() - started
    connection.close()
    return seconds


if __name__ == "__main__":
    main()
