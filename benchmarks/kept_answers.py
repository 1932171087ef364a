"""What summaries keep: the share of LoCoMo's answers (categories 1, 2 and 4) whose words all stand in the context, at
the same number of tokens, with the offline model, with only the newest turns, and with lede and LexRank as models.

Run: pip install lede sumy && python -m benchmarks.kept_answers
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

from benchmarks.databases import DATA, locomo_turns, sqlite_store
from turnfold import Summarizer, TokenBudget, assemble_context, compact_session, extractive
from turnfold.analysis import terms_of
from turnfold.models.prompt import Prompt
from turnfold.tokens import EstimatingCounter

TOTALS = (4_000, 6_000, 8_000)
COUNTER = EstimatingCounter()


def longest_that_fits(summarize: Callable[[int], str], most: int, target_tokens: int) -> str:
    """What a summarizer makes of the largest length for which that fits into the target."""
    fitting, low, high = "", 0, most
    while low < high:
        length = (low + high + 1) // 2
        text = summarize(length)
        if COUNTER.count(text) <= target_tokens:
            fitting, low = text, length
        else:
            high = length - 1
    return fitting


def by_lede(prompt: Prompt) -> str:
    import lede

    return longest_that_fits(
        lambda length: str(lede.summarize(prompt.source, max_length=length).summary),
        prompt.target_tokens * 6,
        prompt.target_tokens,
    )


def by_lexrank(prompt: Prompt) -> str:
    from sumy.models.dom import ObjectDocumentModel, Paragraph, Sentence
    from sumy.summarizers.lex_rank import LexRankSummarizer

    class Words:
        def to_words(self, text: str) -> list[str]:
            return re.findall(r"\w+", text.lower())

    found = [Sentence(line, Words()) for line in re.split(r"(?<=[.!?])\s+|\n+", prompt.source) if line.strip()]
    document = ObjectDocumentModel([Paragraph(found)])
    return longest_that_fits(
        lambda count: "\n".join(map(str, LexRankSummarizer()(document, count))), len(found), prompt.target_tokens
    )


def answers(sample: dict[str, object]) -> Iterator[set[str]]:
    for asked in sample["qa"]:  # type: ignore[attr-defined]
        words = set(terms_of(str(asked.get("answer", ""))))
        if asked["category"] in (1, 2, 4) and words:
            yield words


def kept(texts: dict[str, str]) -> float:
    """The share of the answers whose words all stand in the context of their session."""
    found = asked = 0
    for sample in json.loads((DATA / "locomo5.json").read_text()):
        there = set(terms_of(texts[sample["sample_id"]]))
        for words in answers(sample):
            asked += 1
            found += words <= there
    return found / asked


def contexts(model: Callable[[Prompt], str], total: int) -> tuple[dict[str, str], dict[str, int]]:
    """The text of each session's context, and its tokens."""
    texts, tokens = {}, {}
    with sqlite_store() as store:
        for sample in json.loads((DATA / "locomo5.json").read_text()):
            session = sample["sample_id"]
            store.append_turns(session, list(locomo_turns(sample["conversation"])))
            compact_session(session, store, Summarizer(model), leaf_chunk_tokens=total // 2, condensed_min_fanout=99)
            found = assemble_context(session, store, TokenBudget(total=total))
            texts[session] = "\n".join(str(message["content"]) for message in found.messages)
            tokens[session] = found.token_count
    return texts, tokens


def newest(tokens: dict[str, int]) -> dict[str, str]:
    """As many of the newest turns of each session as have so many tokens."""
    texts = {}
    with sqlite_store() as store:
        for sample in json.loads((DATA / "locomo5.json").read_text()):
            session, left = sample["sample_id"], tokens[sample["sample_id"]]
            said: list[str] = []
            for turn in reversed(store.append_turns(session, list(locomo_turns(sample["conversation"])))):
                left -= turn.token_count
                if left < 0:
                    break
                said.append(f"{turn.name}: {turn.content}")
            texts[session] = "\n".join(said)
    return texts


def main() -> None:
    for total in TOTALS:
        ours, tokens = contexts(extractive, total)
        shares = {"turnfold's extractive": kept(ours), "as many tokens of the newest turns": kept(newest(tokens))}
        for name, model in (("lede", by_lede), ("LexRank (sumy)", by_lexrank)):
            texts, taken = contexts(model, total)
            shares[f"{name} (in {sum(taken.values()) // len(taken):,} tokens)"] = kept(texts)
        mean = sum(tokens.values()) // len(tokens)
        print(f"{mean:,} tokens: " + ", ".join(f"{name} {share:.3f}" for name, share in shares.items()))


if __name__ == "__main__":
    main()
