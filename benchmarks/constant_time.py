"""should_compact and an append cost the same at 1,000 and at 100,000 turns.

Run: python -m benchmarks.constant_time
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from benchmarks.databases import STORES, spoken
from turnfold import should_compact

SMALL, LARGE, ROUNDS = 1_000, 100_000, 300


def main() -> None:
    for name, opened in STORES.items():
        with opened() as store:
            for session_id, count in (("small", SMALL), ("large", LARGE)):
                for start in range(0, count, 1_000):
                    store.append_turns(session_id, spoken(start, 1_000))
            works: dict[str, Callable[[str], object]] = {
                "should_compact": lambda session_id, store=store: should_compact(session_id, store, 30_000),
                "append_turns": lambda session_id, store=store: store.append_turns(session_id, spoken(0, 1)),
            }
            for what, work in works.items():
                small, large = interleaved(work)
                print(
                    f"{name}: {what} {small * 1e6:.0f} us at {SMALL:,} turns, {large * 1e6:.0f} us at {LARGE:,} "
                    f"({large / small:.2f} times)"
                )
                assert large / small <= 1.5


def interleaved(work: Callable[[str], object]) -> tuple[float, float]:
    """The median seconds for each session, taken in turns so that the noise of the machine meets both."""
    seconds: dict[str, list[float]] = {"small": [], "large": []}
    for _ in range(ROUNDS):
        for session_id, times in seconds.items():
            started = time.perf_counter()
            work(session_id)
            times.append(time.perf_counter() - started)
    return statistics.median(seconds["small"]), statistics.median(seconds["large"])


if __name__ == "__main__":
    main()
