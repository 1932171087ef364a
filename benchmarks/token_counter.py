"""The default counter against o200k and against length / 4, on the kinds of text of tests/test_tokens.py.

Run: python -m benchmarks.token_counter
"""

from __future__ import annotations

import time

from tests.test_tokens import ESTIMATE, EXACT, KINDS


def main() -> None:
    print(f"{'kind':18} {'estimate':>8} {'length/4':>8}   (1.00 is the o200k count)")
    for kind, text in KINDS.items():
        exact = EXACT.count(text)
        print(f"{kind:18} {ESTIMATE.count(text) / exact:8.2f} {len(text) / 4 / exact:8.2f}")
    text = KINDS["english"] * 500
    started = time.perf_counter()
    ESTIMATE.count(text)
    print(f"{len(text) / 1e6 / (time.perf_counter() - started):.0f} MB of English a second")


if __name__ == "__main__":
    main()
