"""What summaries keep: the share of LoCoMo's answers (categories 1, 2 and 4) whose words all stand in the context, at
the same number of tokens, with the offline model, with only the newest turns, and with lede and LexRank as models.

Run: pip install lede sumy && python -m benchmarks.kept_answers
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

from benchmarks.databases import DATA, locomo_turns, sqlite_store
from turnfold import SqlRepository, Summarizer, TokenBudget, assemble_context, compact_session, extractive
from turnfold.analysis import terms_of
from turnfold.models.prompt import Prompt

TOTALS = (2_000, 4_000, 8_000)


def by_lede(prompt: Prompt) -> str:
    import lede

    return str(lede.summarize(prompt.source, max_length=prompt.target_tokens * 4).summary)


def by_lexrank(prompt: Prompt) -> str:
    from sumy.models.dom import ObjectDocumentModel, Paragraph, Sentence
    from sumy.summarizers.lex_rank import LexRankSummarizer

    class Words:
        def to_words(self, text: str) -> list[str]:
            return re.findall(r"\w+", text.lower())

    found = [Sentence(line, Words()) for line in re.split(r"(?<=[.!?])\s+|\n+", prompt.source) if line.strip()]
    document = ObjectDocumentModel([Paragraph(found)])
    average = max(1, len(prompt.source) // 4 // max(1, len(found)))
    best = LexRankSummarizer()(document, max(1, prompt.target_tokens // average))
    return "\n".join(str(sentence) for sentence in best)


def answers(sample: dict[str, object]) -> Iterator[set[str]]:
    for asked in sample["qa"]:  # type: ignore[attr-defined]
        words = set(terms_of(str(asked.get("answer", ""))))
        if asked["category"] in (1, 2, 4) and words:
            yield words


def share(context: Callable[[SqlRepository, str, int], str], total: int) -> float:
    kept = asked = 0
    with sqlite_store() as store:
        for sample in json.loads((DATA / "locomo5.json").read_text()):
            session = sample["sample_id"]
            store.append_turns(session, list(locomo_turns(sample["conversation"])))
            there = set(terms_of(context(store, session, total)))
            for words in answers(sample):
                asked += 1
                kept += words <= there
    return kept / asked


def summarized_by(model: Callable[[Prompt], str]) -> Callable[[SqlRepository, str, int], str]:
    def context(store: SqlRepository, session: str, total: int) -> str:
        leaf = max(400, total // 2)
        compact_session(session, store, Summarizer(model), leaf_chunk_tokens=leaf, condensed_min_fanout=4)
        found = assemble_context(session, store, TokenBudget(total=total))
        return "\n".join(str(message["content"]) for message in found.messages)

    return context


def newest(store: SqlRepository, session: str, total: int) -> str:
    said: list[str] = []
    for turn in reversed(store.get_session_turns(session)):
        total -= turn.token_count
        if total < 0:
            break
        said.append(f"{turn.name}: {turn.content}")
    return "\n".join(reversed(said))


def main() -> None:
    ways = {
        "turnfold's extractive": summarized_by(extractive),
        "only the newest turns": newest,
        "lede": summarized_by(by_lede),
        "LexRank (sumy)": summarized_by(by_lexrank),
    }
    for total in TOTALS:
        shares = ", ".join(f"{name} {share(way, total):.3f}" for name, way in ways.items())
        print(f"{total:,} tokens: {shares}")


if __name__ == "__main__":
    main()
