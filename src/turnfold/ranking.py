"""Ranks what was found, without a database: so that the order is the same on every one.

BM25 (Robertson and Zaragoza, "The Probabilistic Relevance Framework", 2009) over whether a document has a term, not how
often, which in turns of a conversation decides as well; the length of a document is its tokens. To the score of a turn
a share of its neighbours' is added: an answer often stands beside the turn that has the words of the question.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

__all__ = ["COMMON", "NEAREST", "NEIGHBOUR_SHARES", "Corpus", "Found", "Kind", "Posting", "fuse", "rank"]

Kind = Literal["turns", "summaries"]
"""What a search is made in."""

K1 = 1.2
B = 0.5
NEIGHBOUR_SHARES = (0.5, 0.25)
"""What of the score of the turns next to it, and next but one, a turn is given. Measured on LoCoMo
(benchmarks/locomo_recall.py): between 0.4 and 0.7 the figures hardly differ."""

COMMON = 300
"""A term that more documents have than these tells little: only the newest of them are looked at where no query term is
rarer, and else it only adds to the documents that rarer terms found."""


NEAREST = 100
"""How many documents are looked at by their vectors."""

SHARE_OF_NEARNESS = 0.75
"""What nearness adds to the score of the words. Measured on LoCoMo with all-MiniLM-L6-v2: between 0.5 and 1 the figures
hardly differ."""


class Posting(NamedTuple):
    """That a document has a term. `document` is the index's own number for it; `ref` a summary's id, "" for turns."""

    term: str
    document: int
    session_id: str
    position: int
    ref: str
    length: int


class Corpus(NamedTuple):
    """What is searched: how many documents, their tokens in all, and how many have each term of the query."""

    documents: int
    tokens: int
    counts: Mapping[str, int]

    def weight(self, term: str) -> float:
        """The inverse document frequency."""
        count = self.counts.get(term, 0)
        return math.log(1 + (self.documents - count + 0.5) / (count + 0.5)) if count <= self.documents else 0.0

    def score(self, posting: Posting) -> float:
        mean = max(1.0, self.tokens / max(1, self.documents))
        return self.weight(posting.term) * (K1 + 1) / (1 + K1 * (1 - B + B * posting.length / mean))


class Found(NamedTuple):
    """A document and its score, as a share of what a document of mean length with all the terms would have."""

    session_id: str
    position: int
    ref: str
    score: float


def rank(corpus: Corpus, postings: Iterable[Posting], limit: int, *, among_turns: bool) -> list[Found]:
    """The best documents, best first; of equal ones the newer. Turns may lie beyond the end of their session."""
    scores: dict[tuple[str, int, str], float] = {}
    for posting in sorted(postings):
        key = (posting.session_id, posting.position, posting.ref)
        scores[key] = scores.get(key, 0.0) + corpus.score(posting)
    if among_turns:
        scores = _with_neighbours(scores)
    full = sum(corpus.weight(term) for term in sorted(corpus.counts)) or 1.0
    found = [Found(*key, round(score / full, 6)) for key, score in scores.items()]
    return sorted(found, key=_order)[:limit]


def fuse(by_words: Iterable[Found], by_vectors: Iterable[Found], limit: int, *, asked: int) -> list[Found]:
    """What was found by words, and the nearest by vectors of which so many were asked for, ranked as one.

    What is not among those is at most as near as the last of them, and counts so. Where there are fewer than were asked
    for, all vectors are among them; then it has none yet, and counts as near as they are in the mean.
    """
    words = {found[:3]: found.score for found in by_words}
    nearness = {found[:3]: max(0.0, found.score) for found in by_vectors}
    else_ = min(nearness.values()) if len(nearness) >= asked else math.fsum(nearness.values()) / max(1, len(nearness))
    scores = {
        key: (words.get(key, 0.0) + SHARE_OF_NEARNESS * nearness.get(key, else_)) / (1 + SHARE_OF_NEARNESS)
        for key in words.keys() | nearness.keys()
    }
    return sorted((Found(*key, round(score, 6)) for key, score in scores.items()), key=_order)[:limit]


def _order(found: Found) -> tuple[float, str, int, str]:
    return (-found.score, found.session_id, -found.position, found.ref)


def _with_neighbours(scores: Mapping[tuple[str, int, str], float]) -> dict[tuple[str, int, str], float]:
    spread = dict(scores)
    for (session_id, position, ref), score in scores.items():
        for distance, share in enumerate(NEIGHBOUR_SHARES, start=1):
            for beside in (position - distance, position + distance):
                if beside >= 1:
                    key = (session_id, beside, ref)
                    spread[key] = spread.get(key, 0.0) + share * score
    return spread
