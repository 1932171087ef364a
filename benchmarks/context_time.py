"""What assemble_context takes on 1,000 and on 100,000 turns that are compacted, with the same budget.

Run: python -m benchmarks.context_time
"""

from __future__ import annotations

import statistics
import time

from benchmarks.databases import STORES, spoken
from turnfold import SqlRepository, Summarizer, TokenBudget, assemble_context, compact_session

BUDGET = TokenBudget(total=8_000)
SHORT, LONG, TIMES = 1_000, 100_000, 200


def answer(prompt: str) -> str:
    return "They changed the cache key to hold the compiler version. " * 20


def prepared(store: SqlRepository, session: str, count: int) -> None:
    for start in range(0, count, 1_000):
        store.append_turns(session, spoken(start, min(1_000, count - start)))
    compact_session(session, store, Summarizer(answer))


def main() -> None:
    for database, opened in STORES.items():
        with opened() as store:
            prepared(store, "short", SHORT)
            prepared(store, "long", LONG)
            times: dict[str, list[float]] = {"short": [], "long": []}
            for _ in range(TIMES):
                for session, taken in times.items():
                    started = time.perf_counter()
                    assemble_context(session, store, BUDGET)
                    taken.append(time.perf_counter() - started)
            short, long = (statistics.median(taken) for taken in times.values())
        print(
            f"{database}: assemble_context {short * 1000:.2f} ms at {SHORT:,} turns, {long * 1000:.2f} ms at {LONG:,} "
            f"({long / short:.2f} times)"
        )


if __name__ == "__main__":
    main()
