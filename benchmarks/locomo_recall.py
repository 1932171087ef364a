"""How often search finds a turn that holds the answer among its first k: LoCoMo, questions of categories 1 to 4.

Run: python -m benchmarks.locomo_recall
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from benchmarks.databases import DATA, STORES, locomo_turns
from turnfold import SqlRepository
from turnfold.recall import search

FIRST = (5, 10, 20)


def questions() -> Iterator[tuple[str, str, set[str]]]:
    """The session, the question and the ids of the turns that hold its answer, those that exist."""
    for sample in json.loads((DATA / "locomo5.json").read_text()):
        ids = {turn.id for turn in locomo_turns(sample["conversation"])}
        for asked in sample["qa"]:
            evidence = ids & set(asked.get("evidence", []))
            if asked["category"] in (1, 2, 3, 4) and evidence:
                yield sample["sample_id"], asked["question"], {str(id) for id in evidence}


def found(store: SqlRepository) -> list[list[str]]:
    for sample in json.loads((DATA / "locomo5.json").read_text()):
        store.append_turns(sample["sample_id"], list(locomo_turns(sample["conversation"])))
    return [[hit.id for hit in search(session, store, question, limit=20)] for session, question, _ in questions()]


def main() -> None:
    results = {}
    asked = list(questions())
    for database, opened in STORES.items():
        with opened() as store:
            results[database] = found(store)
        recalls = [
            sum(
                bool(evidence & set(ids[:first]))
                for ids, (_, _, evidence) in zip(results[database], asked, strict=True)
            )
            / len(asked)
            for first in FIRST
        ]
        figures = ", ".join(f"R@{first} {recall:.3f}" for first, recall in zip(FIRST, recalls, strict=True))
        print(f"{database}: {len(asked)} questions, {figures}")
    print(f"results equal on both: {results['sqlite'] == results['postgres']}")


if __name__ == "__main__":
    main()
