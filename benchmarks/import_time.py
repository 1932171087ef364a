"""What `import turnfold` takes beside `import sqlalchemy`, each in a fresh process, the best of ten.

Run: python -m benchmarks.import_time
"""

from __future__ import annotations

import subprocess
import sys
import time

RUNS = 10


def milliseconds(module: str) -> float:
    times = []
    for _ in range(RUNS):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", f"import {module}"], check=True)
        times.append(time.perf_counter() - started)
    return min(times) * 1000


def main() -> None:
    empty, sqlalchemy, turnfold = (milliseconds(module) for module in ("sys", "sqlalchemy", "turnfold"))
    print(
        f"import sqlalchemy {sqlalchemy - empty:.0f} ms, import turnfold {turnfold - empty:.0f} ms: "
        f"{turnfold - sqlalchemy:.0f} ms more"
    )


if __name__ == "__main__":
    main()
