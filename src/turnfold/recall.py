"""Finds again what was folded away: search in turns and summaries, and from a summary down to the very turns.

A question in plain language is a query; no character of it has a meaning of its own. What is found is the same on every
store, and in the same order (`turnfold.ranking`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple

from turnfold.analysis import matches_in, query_terms, searched_text
from turnfold.drive import drive, immediately
from turnfold.errors import InvalidArgument, TurnfoldError
from turnfold.outcomes import log
from turnfold.planning import check_count
from turnfold.ranking import NEAREST, Found, Kind, fuse
from turnfold.records import SummaryRecord, Turn, check_session_id
from turnfold.repository import AsyncRepository, Repository
from turnfold.vectors import MOST_CHARACTERS

__all__ = ["Description", "Expansion", "Hit", "around", "describe", "expand", "search"]

SearchIn = Literal["turns", "summaries", "both"]

EXCERPT_CHARACTERS = 240
PAGE = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A turn or a summary that was found.

    `position` is the turn's, or that of the first turn that the summary stands for. `score` is about 1 where it has all
    the words of the query. `excerpt` is the part of the text that has most of them, and `highlights` are where they
    stand in it, as starts and ends.
    """

    kind: Literal["turn", "summary"]
    session_id: str
    id: str
    position: int
    role: str
    created_at: datetime
    score: float
    excerpt: str
    highlights: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A summary, the summaries above it (its parent first) and those that it was made from."""

    summary: SummaryRecord
    ancestors: tuple[SummaryRecord, ...]
    children: tuple[SummaryRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expansion:
    """The turns that a summary stands for, from its first on, as many as there was room for; `next_position` is where
    the next call goes on, None where nothing is left."""

    summary_id: str
    turns: tuple[Turn, ...]
    token_count: int
    next_position: int | None


def search(
    session_id: str | None,
    memory_store: Repository,
    query: str,
    *,
    limit: int = 10,
    in_: SearchIn = "turns",
    session_prefix: str = "",
) -> list[Hit]:
    """The turns, summaries or both that fit a question best, of one session, or of all (None) whose id begins with
    `session_prefix`. Any text is a query; one without a word that counts finds nothing.

    Raises `InvalidArgument` for a limit below 1, or another `in_`.
    """
    return drive(find(session_id, immediately(memory_store), query, limit, in_, session_prefix))


def describe(summary_id: str, memory_store: Repository) -> Description:
    """A summary and where it stands in its tree. Raises `UnknownSummary`."""
    return drive(described(summary_id, immediately(memory_store)))


def expand(
    summary_id: str, memory_store: Repository, *, max_tokens: int | None = None, after_position: int = 0
) -> Expansion:
    """The turns that a summary of any depth stands for, those after a position, in at most `max_tokens` tokens, but one
    at the least. Raises `UnknownSummary`, and `InvalidArgument` for a bound below 1."""
    return drive(expanded(summary_id, immediately(memory_store), max_tokens, after_position))


def around(session_id: str, memory_store: Repository, position: int, n: int = 3) -> list[Turn]:
    """The turn at a position with the `n` before it and the `n` after it. Raises `InvalidArgument` for a position below
    1 or a number below 0."""
    return drive(surrounding(session_id, immediately(memory_store), position, n))


async def find(
    session_id: str | None, store: AsyncRepository, query: str, limit: int, in_: SearchIn, session_prefix: str
) -> list[Hit]:
    if session_id is not None:
        check_session_id(session_id)
    check_count("limit", limit, at_least=1)
    if in_ not in ("turns", "summaries", "both"):
        raise InvalidArgument(f"in_ must be 'turns', 'summaries' or 'both', not {in_!r}")
    if not isinstance(query, str):
        raise InvalidArgument(f"query must be a text, not a {type(query).__name__}")
    asked = await understood(query, store)
    terms = frozenset(asked.terms)
    hits: list[Hit] = []
    if in_ != "summaries":
        found = await ranked(session_id, store, asked, "turns", limit, session_prefix)
        hits += await _turn_hits(store, found, terms)
    if in_ != "turns":
        found = await ranked(session_id, store, asked, "summaries", limit, session_prefix)
        hits += [_summary_hit(await store.get_summary(one.ref), one.score, terms) for one in found]
    return sorted(hits, key=lambda hit: (-hit.score, hit.kind, hit.session_id, -hit.position))[:limit]


class Asked(NamedTuple):
    """A question as it is compared: its terms, and its vector where the store has an embedder that answers."""

    terms: list[str]
    vector: tuple[float, ...] | None


async def understood(query: str, store: AsyncRepository) -> Asked:
    """The embedder is asked once for a question, whatever it is searched in."""
    terms = query_terms(query)
    if not store.embedder_name or not query.strip():
        return Asked(terms, None)
    try:
        (vector,) = await store.embed([query[:MOST_CHARACTERS]])
    except TurnfoldError:
        raise
    except Exception as error:  # whatever the embedder raises: words find most, and an outage must not stop them
        log.warning("the embedder %s failed (%s); searched by words alone", store.embedder_name, error)
        return Asked(terms, None)
    return Asked(terms, vector)


async def ranked(
    session_id: str | None, store: AsyncRepository, asked: Asked, of: Kind, limit: int, session_prefix: str = ""
) -> list[Found]:
    """The documents that fit a question best, by its words and, where it has a vector, by its meaning."""
    most = max(limit, NEAREST)
    near: list[Found] = []
    if asked.vector is not None:
        near = await store.find_nearest(session_id, asked.vector, of=of, limit=most, session_prefix=session_prefix)
    found: list[Found] = []
    if asked.terms:
        found = await store.find_documents(
            session_id, asked.terms, of=of, limit=most if near else limit, session_prefix=session_prefix
        )
    return fuse(found, near, limit, asked=most) if near else found


async def described(summary_id: str, store: AsyncRepository) -> Description:
    summary = await store.get_summary(summary_id)
    ancestors: list[SummaryRecord] = []
    parent_id = summary.parent_id
    while parent_id is not None:
        ancestors.append(await store.get_summary(parent_id))
        parent_id = ancestors[-1].parent_id
    children = await store.get_child_summaries(summary_id)
    return Description(summary=summary, ancestors=tuple(ancestors), children=tuple(children))


async def expanded(summary_id: str, store: AsyncRepository, max_tokens: int | None, after_position: int) -> Expansion:
    if max_tokens is not None:
        check_count("max_tokens", max_tokens, at_least=1)
    check_count("after_position", after_position, at_least=0)
    turns: list[Turn] = []
    tokens = 0
    while True:
        page = await store.get_source_turns(
            summary_id, after_position=turns[-1].position if turns else after_position, limit=PAGE
        )
        for turn in page:
            if turns and max_tokens is not None and tokens + turn.token_count > max_tokens:
                return _expansion(summary_id, turns, tokens, turns[-1].position)
            turns.append(turn)
            tokens += turn.token_count
        if len(page) < PAGE:
            return _expansion(summary_id, turns, tokens, None)


async def surrounding(session_id: str, store: AsyncRepository, position: int, n: int) -> list[Turn]:
    check_session_id(session_id)
    check_count("position", position, at_least=1)
    check_count("n", n, at_least=0)
    first = max(1, position - n)
    return await store.get_session_turns(session_id, after_position=first - 1, limit=position + n - first + 1)


def _expansion(summary_id: str, turns: Sequence[Turn], tokens: int, next_position: int | None) -> Expansion:
    return Expansion(summary_id=summary_id, turns=tuple(turns), token_count=tokens, next_position=next_position)


async def _turn_hits(store: AsyncRepository, found: Sequence[Found], terms: frozenset[str]) -> list[Hit]:
    turns: dict[tuple[str, int], Turn] = {}
    for session_id in sorted({one.session_id for one in found}):
        positions = [one.position for one in found if one.session_id == session_id]
        turns |= {(session_id, turn.position): turn for turn in await store.get_turns_at(session_id, positions)}
    placed = ((turns.get((one.session_id, one.position)), one.score) for one in found)
    return [_turn_hit(turn, score, terms) for turn, score in placed if turn is not None]


def _turn_hit(turn: Turn, score: float, terms: frozenset[str]) -> Hit:
    excerpt, highlights = _excerpt(searched_text(turn), terms)
    assert turn.created_at is not None  # noqa: S101  (a stored turn has one)
    return Hit(
        kind="turn",
        session_id=turn.session_id,
        id=str(turn.id),
        position=turn.position,
        role=turn.role,
        created_at=turn.created_at,
        score=score,
        excerpt=excerpt,
        highlights=highlights,
    )


def _summary_hit(summary: SummaryRecord, score: float, terms: frozenset[str]) -> Hit:
    excerpt, highlights = _excerpt(summary.content, terms)
    return Hit(
        kind="summary",
        session_id=summary.session_id,
        id=summary.id,
        position=summary.first_position,
        role="summary",
        created_at=summary.created_at,
        score=score,
        excerpt=excerpt,
        highlights=highlights,
    )


def _excerpt(text: str, terms: frozenset[str]) -> tuple[str, tuple[tuple[int, int], ...]]:
    """The stretch of a text that has most of the terms, cut at blanks, and where they stand in it."""
    places = matches_in(text, terms)
    start = _best_start(places)
    start = 0 if start <= 40 else text.find(" ", start - 40, start) + 1 or start
    end = min(len(text), start + EXCERPT_CHARACTERS)
    if end < len(text):
        end = max(text.rfind(" ", start + EXCERPT_CHARACTERS // 2, end), start + EXCERPT_CHARACTERS // 2)
    before, after = ("…" if start else ""), ("…" if end < len(text) else "")
    shift = len(before) - start
    inside = tuple((first + shift, last + shift) for first, last in places if start <= first and last <= end)
    return before + text[start:end] + after, inside


def _best_start(places: Iterable[tuple[int, int]]) -> int:
    starts = [first for first, _ in places]
    if not starts:
        return 0
    return max(
        starts, key=lambda start: (sum(start <= other < start + EXCERPT_CHARACTERS - 60 for other in starts), -start)
    )
