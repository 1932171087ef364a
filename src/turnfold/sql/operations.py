"""The operations of the repository as functions of a SQLAlchemy connection, the same for both repositories.

Each runs inside a transaction that its caller began and ends: what raises here was never written. The statements
stand in `queries.py`; here stand the promises of `turnfold.repository`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Row

from turnfold.content import answered_ids, call_ids
from turnfold.errors import (
    CompactionInProgress,
    InvalidArgument,
    InvalidSummary,
    InvalidTurn,
    LeaseLost,
    TurnConflict,
    UnknownSummary,
)
from turnfold.ranking import COMMON, NEIGHBOUR_SHARES, Corpus, Found, Kind, rank
from turnfold.records import GIVEN_BY_CALLER, REPLACEABLE_FIELDS, Lease, SummaryRecord, Turn, derived_turn_id
from turnfold.sql import leases, queries, search, upkeep, vectors
from turnfold.vectors import Embedding


def append_turns(
    connection: Connection,
    session_id: str,
    turns: Sequence[Turn],
    token_counts: Sequence[int],
    counter: str,
    now: datetime,
) -> list[Turn]:
    last_position = queries.lock_session(connection, session_id, now).last_position
    ids = [turn.id for turn in turns if turn.id is not None]
    known = queries.turns_by_id(connection, session_id, ids) if last_position else {}
    pins = _Pins(connection, session_id, is_new=not last_position)
    new: list[Turn] = []
    result: list[Turn] = []
    for turn, token_count in zip(turns, token_counts, strict=True):
        stored = known.get(turn.id) if turn.id is not None else None
        if stored is None:
            position = last_position + len(new) + 1
            stored = turn.stored(
                id=turn.id or derived_turn_id(session_id, position),
                session_id=session_id,
                position=position,
                pinned=pins.is_pinned(turn, position),
                created_at=turn.created_at.astimezone(UTC) if turn.created_at else now,
                token_count=token_count,
                counter=counter,
            )
            new.append(stored)
            if turn.id is not None:
                known[turn.id] = stored
        else:
            _check_same(turn, stored)
        result.append(stored)
    if new:
        tokens = sum(turn.token_count for turn in new)
        queries.insert_turns(connection, new)
        search.index_turns(connection, new)
        queries.count_appended(connection, session_id, new[-1].position, tokens)
    return result


def get_summary(connection: Connection, summary_id: str) -> SummaryRecord:
    summary = queries.summary_by_id(connection, summary_id)
    if summary is None:
        raise UnknownSummary(f"no summary has the id {summary_id!r}; get_summaries lists those of a session")
    return summary


def get_active_context(connection: Connection, session_id: str) -> tuple[list[SummaryRecord], list[Turn]]:
    # Summaries first: they alone say what is covered, so that a leaf written between the reads hides no turn.
    summaries = queries.uncompacted_outlines(connection, session_id)
    covered = max((summary.last_position for summary in summaries), default=0)
    return summaries, queries.turns_beside(connection, session_id, covered)


def get_source_turns(connection: Connection, summary_id: str, after_position: int, limit: int | None) -> list[Turn]:
    return queries.source_turns(connection, get_summary(connection, summary_id), after_position, limit)


def get_child_summaries(connection: Connection, summary_id: str) -> list[SummaryRecord]:
    summary = get_summary(connection, summary_id)
    return queries.child_summaries(connection, summary) if summary.depth else []


def add_summary(connection: Connection, summary: SummaryRecord, lease: Lease | None, now: datetime) -> None:
    # Locked and counted by one statement; what raises below takes that back.
    counted = queries.count_folded(connection, summary, now)
    row = counted or queries.touch_session(connection, summary.session_id, now)
    if lease is not None and not _is_held(lease, row):
        raise _lease_lost(lease)
    if row is None:
        raise InvalidSummary(f"summary {summary.id}: session {summary.session_id!r} has no turn to be a source")
    _check_says_something(summary)
    if summary.parent_id is not None:
        raise InvalidSummary(f"summary {summary.id}: a new summary has no parent yet, not {summary.parent_id}")
    if summary.depth == 0:
        _add_leaf(connection, summary)
    else:
        _add_condensed(connection, summary)
    if counted is None:
        raise InvalidSummary(f"summary {summary.id}: the counters of {summary.session_id!r} are wrong; repair them")
    search.index_summary(connection, summary)


def replace_summaries(connection: Connection, new: Sequence[SummaryRecord], lease: Lease | None, now: datetime) -> None:
    old: SummaryRecord | None = None
    for index, summary in enumerate(new):
        if index == 0:
            row = queries.touch_session(connection, summary.session_id, now)
            if lease is not None and not _is_held(lease, row):
                raise _lease_lost(lease)
        elif summary.id != new[index - 1].parent_id:
            raise InvalidSummary(f"summary {summary.id} is not the parent of {new[index - 1].id}; name a chain upwards")
        old = get_summary(connection, summary.id)
        _check_replacement(connection, summary, old)
        queries.replace_summary(connection, summary)
        if summary.content != old.content:
            search.reindex_summary(connection, summary)
            vectors.forget_summary(connection, summary)
    if old is not None and (new[-1].content, new[-1].token_count) != (old.content, old.token_count):
        _count_replacement(connection, new[-1], old)


def _check_replacement(connection: Connection, summary: SummaryRecord, old: SummaryRecord) -> None:
    kept = {f.name: getattr(old, f.name) for f in fields(SummaryRecord) if f.name not in REPLACEABLE_FIELDS}
    differing = [name for name, value in kept.items() if getattr(summary, name) != value]
    if differing:
        raise InvalidSummary(
            f"summary {summary.id}: its {differing[0]} is {kept[differing[0]]!r} and never changes; a summary that is "
            "made again keeps its sources and its place"
        )
    _check_says_something(summary)
    tokens = queries.child_tokens(connection, summary.id) if summary.depth else old.source_token_count
    _check_derived(summary, {"source_token_count": tokens})


def _count_replacement(connection: Connection, summary: SummaryRecord, old: SummaryRecord) -> None:
    tokens = summary.token_count - old.token_count
    if summary.parent_id is None:
        queries.count_replaced(connection, summary.session_id, tokens)
    elif not queries.count_replaced_child(connection, summary.parent_id, tokens):
        raise InvalidSummary(
            f"summary {summary.id}: its parent {summary.parent_id} would not be smaller than its children any more; "
            "replace both in one call"
        )


def find_documents(
    connection: Connection, session_id: str | None, terms: Sequence[str], of: Kind, limit: int, session_prefix: str
) -> list[Found]:
    where = search.Where(connection, session_id, session_prefix, of)
    counts = search.counts(where, terms)
    common = sorted((term for term in terms if counts[term] > COMMON), key=lambda term: (counts[term], term))
    rare = [term for term in terms if 0 < counts[term] <= COMMON]
    if not rare and common:
        rare = [common.pop(0)]
        postings = search.newest_postings(where, rare[0], COMMON)
    else:
        postings = search.postings(where, rare)
    if common and rare:
        known = {posting.document: posting for posting in postings}
        pairs = search.pairs(where, common, rare)
        postings += [known[document]._replace(term=term) for term, document in pairs if document in known]
    corpus = Corpus(*search.size(where), counts)
    if of == "summaries":
        return rank(corpus, postings, limit, among_turns=False)
    found = rank(corpus, postings, limit + 2 * len(NEIGHBOUR_SHARES), among_turns=True)
    return _within_sessions(connection, found, limit)


def _within_sessions(connection: Connection, found: Sequence[Found], limit: int) -> list[Found]:
    """Without neighbours beyond the end of a session."""
    last = queries.last_positions(connection, {one.session_id for one in found})
    return [one for one in found if one.position <= last.get(one.session_id, 0)][:limit]


def add_embeddings(
    connection: Connection, session_id: str, embedder: str, embeddings: Sequence[Embedding], now: datetime
) -> None:
    if queries.touch_session(connection, session_id, now) is None:  # erased meanwhile
        return
    kept, given = vectors.length_of_vectors(connection, session_id, embedder), len(embeddings[0].vector)
    if kept is not None and kept != given:
        raise InvalidArgument(
            f"session {session_id!r} has vectors of {kept} numbers under the name of the embedder {embedder}, which "
            f"now gives {given}; give another model another name"
        )
    known = vectors.embedded(connection, session_id, embedder, embeddings)
    texts = vectors.texts_of_summaries(connection, session_id, embeddings) if any(one.ref for one in embeddings) else {}
    new = [
        one
        for one in embeddings
        if (one.position, one.ref) not in known and (not one.ref or texts.get(one.ref) == one.text)
    ]
    vectors.insert_vectors(connection, session_id, embedder, new)


def mark_summary_compacted(connection: Connection, summary_id: str, parent_id: str) -> None:
    child, parent = get_summary(connection, summary_id), get_summary(connection, parent_id)
    if child.parent_id != parent.id:
        raise InvalidSummary(
            f"summary {child.id} is no child of {parent.id}, which spans {parent.first_position} to "
            f"{parent.last_position} and has all its children; name it in the child_ids of a new summary"
        )


def acquire_lease(connection: Connection, session_id: str, owner: str, seconds: float, now: datetime) -> Lease | None:
    taken = leases.take_lease(connection, session_id, owner, seconds, now)
    if taken is None:
        return None
    return Lease(session_id=session_id, owner=owner, token=taken.lease_token, expires_at=taken.lease_expires_at)


def renew_lease(connection: Connection, lease: Lease, seconds: float, now: datetime) -> Lease:
    expires_at = leases.prolong_lease(connection, lease, seconds, now)
    if expires_at is None:
        raise _lease_lost(lease)
    return replace(lease, expires_at=expires_at)


def recount_session(connection: Connection, session_id: str, now: datetime) -> None:
    row = queries.touch_session(connection, session_id, now)
    if row is not None:
        queries.set_session(connection, session_id, **upkeep.recounted(connection, session_id))
        if row.lease_owner is not None and not _lasts(connection, row):
            queries.set_session(connection, session_id, lease_owner=None, lease_expires_at=None)


def reindex_session(connection: Connection, session_id: str, now: datetime) -> None:
    if queries.touch_session(connection, session_id, now) is not None:
        search.reindex_session(connection, session_id)


def erase_session(connection: Connection, session_id: str, now: datetime) -> bool:
    row = queries.touch_session(connection, session_id, now)
    if row is None:
        return False
    if row.lease_owner is not None and _lasts(connection, row):
        raise CompactionInProgress(
            f"session {session_id!r} is being compacted by {row.lease_owner}, until {row.lease_expires_at} at the "
            "longest; nothing was erased; erase it when that is over"
        )
    search.forget_session(connection, session_id)
    upkeep.delete_session(connection, session_id)
    return True


def _lasts(connection: Connection, row: Row[Any]) -> bool:
    """Whether the lease in the row has not run out, by the database's clock."""
    return bool(row.lease_expires_at > leases.database_now(connection))


def _check_same(turn: Turn, stored: Turn) -> None:
    """Raises `TurnConflict` unless `turn` is what `stored` was made from."""
    decided_by_store = {"created_at"} if turn.created_at is None else set()
    if answered_ids(turn):
        decided_by_store.add("pinned")
    for name in GIVEN_BY_CALLER:
        given = turn.is_pinned if name == "pinned" else getattr(turn, name)
        if name not in decided_by_store and given != getattr(stored, name):
            raise TurnConflict(
                f"turn id {turn.id!r} of session {stored.session_id!r} stands for another turn at position "
                f"{stored.position}: its {name} differs; give the new turn an id of its own"
            )


class _Pins:
    """Decides whether a turn is pinned: an answer is pinned where its call is, so that neither is ever folded alone."""

    def __init__(self, connection: Connection, session_id: str, *, is_new: bool) -> None:
        self._connection = connection
        self._session_id = session_id
        self._calls: dict[str, Turn] = {}
        self._stored_pinned: set[str] | None = set() if is_new else None

    def is_pinned(self, turn: Turn, position: int) -> bool:
        pinned = turn.is_pinned
        if not turn.tool_call_id and not turn.tool_calls and not isinstance(turn.content, list):
            return pinned
        for id in answered_ids(turn):
            call = self._calls.get(id) or self._stored_call(id, pinned)
            if call is not None and pinned and not call.pinned:
                raise InvalidTurn(
                    f"session {self._session_id!r}: the turn for position {position} is pinned but answers call "
                    f"{id!r}, which is not, and a call is never parted from its answers; pin the call instead"
                )
            pinned = pinned or (call is not None and bool(call.pinned))
        if ids := call_ids(turn):
            self._calls.update(dict.fromkeys(ids, replace(turn, pinned=pinned)))
        return pinned

    def _stored_call(self, id: str, answer_is_pinned: bool) -> Turn | None:
        """The nearest stored call, looked for only where it decides something."""
        if self._stored_pinned is None:
            pinned_turns = queries.pinned_turns(self._connection, self._session_id, None)
            self._stored_pinned = {call_id for turn in pinned_turns for call_id in call_ids(turn)}
        if not answer_is_pinned and id not in self._stored_pinned:
            return None
        calling = queries.assistant_turns_backwards(self._connection, self._session_id)
        return next((turn for turn in calling if id in call_ids(turn)), None)


def _add_leaf(connection: Connection, summary: SummaryRecord) -> None:
    found = queries.uncovered_outlines(connection, summary.session_id, summary.last_position)
    positions, ids, tokens, times = zip(*found, strict=True) if found else ((), (), (), ())
    if ids != summary.source_turn_ids or not found:
        raise InvalidSummary(
            f"summary {summary.id}: the sources of a leaf must be the next uncovered turns of session "
            f"{summary.session_id!r}, pinned ones aside; it names {len(summary.source_turn_ids)} turns where these are "
            f"{len(found)}; plan it again"
        )
    derived = {
        "first_position": positions[0],
        "last_position": positions[-1],
        "descendant_count": len(found),
        "source_token_count": sum(tokens),
        "time_range_start": min(times),
        "time_range_end": max(times),
    }
    _check_derived(summary, derived)
    queries.insert_summary(connection, summary)
    queries.insert_sources(connection, summary)


def _add_condensed(connection: Connection, summary: SummaryRecord) -> None:
    found = queries.child_outlines(connection, summary)
    if tuple(child.id for child in found) != summary.child_ids or not found:
        raise InvalidSummary(
            f"summary {summary.id}: its children must be all summaries of depth {summary.depth - 1} from position "
            f"{summary.first_position} to {summary.last_position}; it names {len(summary.child_ids)} where these are "
            f"{len(found)}; plan it again"
        )
    derived = {
        "first_position": found[0].first_position,
        "last_position": found[-1].last_position,
        "descendant_count": sum(child.descendant_count for child in found),
        "source_token_count": sum(child.token_count for child in found),
        "time_range_start": min(child.time_range_start for child in found),
        "time_range_end": max(child.time_range_end for child in found),
    }
    _check_derived(summary, derived)
    queries.insert_summary(connection, summary)
    if queries.set_parent(connection, summary) != len(found):
        raise InvalidSummary(f"summary {summary.id}: some of its children have a parent already; plan it again")


def _check_says_something(summary: SummaryRecord) -> None:
    if not summary.content.strip():
        raise InvalidSummary(f"summary {summary.id} is empty; a summary must say something")


def _check_derived(summary: SummaryRecord, derived: Mapping[str, object]) -> None:
    for name, value in derived.items():
        if getattr(summary, name) != value:
            raise InvalidSummary(f"summary {summary.id}: {name} is {getattr(summary, name)}, its sources give {value}")
    if summary.token_count >= summary.source_token_count:
        raise InvalidSummary(
            f"summary {summary.id}: its {summary.token_count:,} tokens are not fewer than the "
            f"{summary.source_token_count:,} of its sources; a summary must shrink them"
        )


def _is_held(lease: Lease, row: Row[Any] | None) -> bool:
    """Whether nobody took the lease over; one that expired unnoticed harmed nobody and is still held."""
    if row is None:
        return False
    return (row.id, row.lease_owner, row.lease_token) == (lease.session_id, lease.owner, lease.token)


def _lease_lost(lease: Lease) -> LeaseLost:
    return LeaseLost(
        f"{lease.owner} no longer holds the lease of session {lease.session_id!r} (token {lease.token}); it wrote "
        "nothing more; another worker goes on, or call again"
    )
