"""A third backend, in memory: so small that every schedule of two workers can be tried on it.

It is held to the same contract as the store on SQLite and Postgres (tests/test_interleavings.py).
"""

from __future__ import annotations

import copy
import operator
import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from turnfold.analysis import terms_of, turn_terms
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
from turnfold.ranking import Corpus, Found, Posting, rank
from turnfold.records import (
    GIVEN_BY_CALLER,
    REPLACEABLE_FIELDS,
    Lease,
    SessionRecord,
    SummaryRecord,
    Turn,
    check_turns,
    derived_turn_id,
)
from turnfold.tokens import EstimatingCounter, count_turn
from turnfold.vectors import Embedding, no_embedder


class Memory:
    """One session."""

    def __init__(self, now: datetime) -> None:
        self.turns: list[Turn] = []
        self.summaries: dict[str, SummaryRecord] = {}
        self.vectors: dict[tuple[int, str], Embedding] = {}
        self.lease: Lease | None = None
        self.lease_token = 0
        self.created_at = self.updated_at = now

    @property
    def leaf_of(self) -> dict[str, str]:
        return {id: leaf.id for leaf in self.summaries.values() for id in leaf.source_turn_ids}

    @property
    def uncovered(self) -> list[Turn]:
        covered = self.leaf_of
        return [turn for turn in self.turns if not turn.pinned and turn.id not in covered]

    @property
    def uncompacted(self) -> list[SummaryRecord]:
        found = [summary for summary in self.summaries.values() if summary.parent_id is None]
        return sorted(found, key=lambda summary: summary.first_position)


class MemoryRepository:
    token_counter = EstimatingCounter()
    embedder_name = ""

    def __init__(self) -> None:
        self._sessions: dict[str, Memory] = {}
        self._lock = threading.Lock()

    def append_turns(self, session_id: str, turns: Sequence[Turn]) -> list[Turn]:
        check_turns(session_id, turns)
        with self._lock:
            memory = self._sessions.get(session_id) or Memory(_now())
            before = list(memory.turns)
            try:
                stored = [self._append(memory, session_id, turn) for turn in turns]
            except Exception:
                memory.turns = before
                raise
            if memory.turns:
                self._sessions[session_id] = memory
            return stored

    def _append(self, memory: Memory, session_id: str, turn: Turn) -> Turn:
        known = next((stored for stored in memory.turns if turn.id is not None and stored.id == turn.id), None)
        if known is not None:
            for name in GIVEN_BY_CALLER:
                given = turn.is_pinned if name == "pinned" else getattr(turn, name)
                is_decided = (name == "created_at" and given is None) or (name == "pinned" and answered_ids(turn))
                if not is_decided and given != getattr(known, name):
                    raise TurnConflict(f"turn id {turn.id!r} stands for another turn: its {name} differs")
            return known
        pinned = turn.is_pinned
        for id in answered_ids(turn):
            call = next((stored for stored in reversed(memory.turns) if id in call_ids(stored)), None)
            if call is not None and pinned and not call.pinned:
                raise InvalidTurn(f"the answer to {id!r} is pinned and the call is not; pin the call")
            pinned = pinned or (call is not None and bool(call.pinned))
        position = len(memory.turns) + 1
        stored = copy.deepcopy(turn).stored(
            id=turn.id or derived_turn_id(session_id, position),
            session_id=session_id,
            position=position,
            pinned=pinned,
            created_at=(turn.created_at or _now()).astimezone(UTC),
            token_count=count_turn(self.token_counter, turn),
            counter=self.token_counter.name,
        )
        memory.turns.append(stored)
        return stored

    def get_session(self, session_id: str) -> SessionRecord | None:
        memory = self._sessions.get(session_id)
        if memory is None:
            return None
        covered = memory.leaf_of
        active = sum(summary.token_count for summary in memory.uncompacted)
        return SessionRecord(
            id=session_id,
            last_position=len(memory.turns),
            covered_position=max((turn.position for turn in memory.turns if turn.id in covered), default=0),
            active_tokens=active + sum(turn.token_count for turn in memory.turns if turn.id not in covered),
            total_tokens=sum(turn.token_count for turn in memory.turns),
            lease_owner=memory.lease.owner if memory.lease else None,
            lease_expires_at=memory.lease.expires_at if memory.lease else None,
            created_at=memory.created_at,
            updated_at=memory.updated_at,
            attributes={},
        )

    def get_sessions(self, *, after_id: str = "", limit: int | None = None) -> list[SessionRecord]:
        found = [self.get_session(id) for id in sorted(self._sessions) if id > after_id]
        return [session for session in found if session is not None][:limit]

    def get_session_token_count(self, session_id: str) -> int:
        session = self.get_session(session_id)
        return session.active_tokens if session else 0

    def get_session_turns(self, session_id: str, *, after_position: int = 0, limit: int | None = None) -> list[Turn]:
        turns = self._sessions[session_id].turns if session_id in self._sessions else []
        return [turn for turn in turns if turn.position > after_position][:limit]

    def get_turns_at(self, session_id: str, positions: Sequence[int]) -> list[Turn]:
        return [turn for turn in self.get_session_turns(session_id) if turn.position in positions]

    def find_documents(
        self, session_id: str | None, terms: Sequence[str], *, of: str, limit: int, session_prefix: str = ""
    ) -> list[Found]:
        ids = [id for id in sorted(self._sessions) if session_id in (None, id) and id.startswith(session_prefix)]
        documents: list[tuple[set[str], Any]] = []
        for id in ids:
            if of == "turns":
                documents += [
                    (set(turn_terms(turn)), (0, id, turn.position, "", turn.token_count))
                    for turn in self._sessions[id].turns
                ]
            else:
                documents += [
                    (set(terms_of(s.content)), (0, id, s.first_position, s.id, s.token_count))
                    for s in self._sessions[id].summaries.values()
                ]
        counts = {term: sum(term in has for has, _ in documents) for term in terms}
        corpus = Corpus(len(documents), sum(row[-1] for _, row in documents), counts)
        postings = [Posting(term, *row) for has, row in documents for term in has & set(terms)]
        found = rank(corpus, postings, 10**9, among_turns=of == "turns")
        return [one for one in found if one.position <= len(self._sessions[one.session_id].turns)][:limit]

    def embed(self, texts: Sequence[str]) -> list[tuple[float, ...]]:
        raise no_embedder()

    def get_unembedded_turns(self, session_id: str, *, after_position: int = 0, limit: int | None = None) -> list[Turn]:
        memory = self._sessions.get(session_id)
        last = max((position for position, ref in memory.vectors if not ref), default=0) if memory else 0
        return self.get_session_turns(session_id, after_position=max(last, after_position), limit=limit)

    def get_unembedded_summaries(self, session_id: str, *, limit: int | None = None) -> list[SummaryRecord]:
        memory = self._sessions.get(session_id)
        known = {ref for _, ref in memory.vectors} if memory else set()
        missing = [summary for summary in self.get_summaries(session_id) if summary.id not in known]
        in_order = sorted(missing, key=lambda summary: (summary.first_position, summary.depth))
        return [replace(summary, source_turn_ids=(), child_ids=()) for summary in in_order][:limit]

    def add_embeddings(self, session_id: str, embeddings: Sequence[Embedding]) -> None:
        with self._lock:
            memory = self._sessions.get(session_id)
            if memory is None:
                return
            for one in embeddings:
                if any(len(kept.vector) != len(one.vector) for kept in memory.vectors.values()):
                    raise InvalidArgument("the vectors of an embedder are of one length")
                if not one.ref or memory.summaries[one.ref].content == one.text:
                    memory.vectors.setdefault((one.position, one.ref), one)

    def find_nearest(
        self, session_id: str | None, vector: Sequence[float], *, of: str, limit: int, session_prefix: str = ""
    ) -> list[Found]:
        found = [
            Found(id, one.position, one.ref, round(sum(map(operator.mul, one.vector, vector)), 6))
            for id, memory in self._sessions.items()
            if session_id in (None, id) and id.startswith(session_prefix)
            for one in memory.vectors.values()
            if bool(one.ref) == (of == "summaries") and len(one.vector) == len(vector)
        ]
        return sorted(found, key=lambda one: (-one.score, one.session_id, -one.position, one.ref))[:limit]

    def get_active_context(self, session_id: str) -> tuple[list[SummaryRecord], list[Turn]]:
        summaries = self.get_uncompacted_summaries(session_id)
        covered = self._sessions[session_id].leaf_of if session_id in self._sessions else {}
        turns = [turn for turn in self.get_session_turns(session_id) if turn.id not in covered]
        return [replace(summary, source_turn_ids=(), child_ids=()) for summary in summaries], turns

    def get_pinned_turns(self, session_id: str, *, up_to_position: int | None = None) -> list[Turn]:
        found = [turn for turn in self.get_session_turns(session_id) if turn.pinned]
        return [turn for turn in found if up_to_position is None or turn.position <= up_to_position]

    def get_uncovered_turns(self, session_id: str, *, after_position: int = 0, limit: int | None = None) -> list[Turn]:
        memory = self._sessions.get(session_id)
        return [turn for turn in memory.uncovered if turn.position > after_position][:limit] if memory else []

    def get_summaries(self, session_id: str, *, depth: int | None = None) -> list[SummaryRecord]:
        memory = self._sessions.get(session_id)
        found = [s for s in memory.summaries.values() if depth in (None, s.depth)] if memory else []
        return sorted(found, key=lambda summary: (summary.depth, summary.first_position))

    def get_uncompacted_summaries(self, session_id: str, *, depth: int | None = None) -> list[SummaryRecord]:
        memory = self._sessions.get(session_id)
        return [summary for summary in memory.uncompacted if depth in (None, summary.depth)] if memory else []

    def get_newest_leaf(self, session_id: str, *, before_position: int | None = None) -> SummaryRecord | None:
        leaves = self.get_summaries(session_id, depth=0)
        before = [leaf for leaf in leaves if before_position is None or leaf.first_position < before_position]
        return before[-1] if before else None

    def get_stale_summaries(
        self, session_id: str, *, max_attempts: int | None = None, limit: int | None = None
    ) -> list[SummaryRecord]:
        found = [s for s in self.get_summaries(session_id) if s.tier == "fallback" or s.is_outdated]
        tried_less = [s for s in found if max_attempts is None or s.refold_attempts < max_attempts]
        return sorted(tried_less, key=lambda summary: (-summary.last_position, summary.depth))[:limit]

    def get_summary(self, summary_id: str) -> SummaryRecord:
        for memory in self._sessions.values():
            if summary_id in memory.summaries:
                return memory.summaries[summary_id]
        raise UnknownSummary(f"no summary has the id {summary_id!r}")

    def get_source_turns(self, summary_id: str, *, after_position: int = 0, limit: int | None = None) -> list[Turn]:
        summary = self.get_summary(summary_id)
        memory = self._sessions[summary.session_id]
        covered = memory.leaf_of
        within = [turn for turn in memory.turns if summary.first_position <= turn.position <= summary.last_position]
        return [turn for turn in within if turn.id in covered and turn.position > after_position][:limit]

    def get_child_summaries(self, summary_id: str) -> list[SummaryRecord]:
        return [self.get_summary(id) for id in self.get_summary(summary_id).child_ids]

    def add_summary(self, summary: SummaryRecord, *, lease: Lease | None = None) -> None:
        with self._lock:
            memory = self._sessions.get(summary.session_id)
            if lease is not None and not self._holds(memory, lease):
                raise LeaseLost(f"{lease.owner} no longer holds the lease")
            if memory is None:
                raise InvalidSummary("the session has no turn")
            self._check(memory, summary)
            for id in summary.child_ids:
                memory.summaries[id] = replace(memory.summaries[id], parent_id=summary.id)
            memory.summaries[summary.id] = summary

    def _check(self, memory: Memory, summary: SummaryRecord) -> None:
        sources: Sequence[Turn | SummaryRecord]
        if summary.depth == 0:
            sources = [turn for turn in memory.uncovered if turn.position <= summary.last_position]
            named, first, last = summary.source_turn_ids, "position", "position"
            if not sources or tuple(turn.id for turn in sources) != named:
                raise InvalidSummary("the sources of a leaf must be the next uncovered turns")
            facts = (len(sources), max(turn.created_at or _now() for turn in sources if isinstance(turn, Turn)))
        else:
            sources = [
                s
                for s in self.get_summaries(summary.session_id, depth=summary.depth - 1)
                if summary.first_position <= s.first_position <= summary.last_position
            ]
            first, last = "first_position", "last_position"
            if not sources or tuple(child.id for child in sources) != summary.child_ids:
                raise InvalidSummary("its children must be all summaries that it spans")
            if any(child.parent_id for child in sources if isinstance(child, SummaryRecord)):
                raise InvalidSummary("some of its children have a parent already")
            children = [child for child in sources if isinstance(child, SummaryRecord)]
            facts = (sum(c.descendant_count for c in children), max(c.time_range_end for c in children))
        told = (summary.descendant_count, summary.time_range_end)
        tokens = sum(source.token_count for source in sources)
        spans = (getattr(sources[0], first), getattr(sources[-1], last))
        if told != facts or spans != (summary.first_position, summary.last_position) or summary.parent_id:
            raise InvalidSummary("it tells an untruth")
        if summary.source_token_count != tokens or summary.token_count >= tokens or not summary.content.strip():
            raise InvalidSummary("it does not shrink its sources")

    def replace_summaries(self, summaries: Sequence[SummaryRecord], *, lease: Lease | None = None) -> None:
        with self._lock:
            if not summaries:
                return
            memory = self._sessions.get(summaries[0].session_id)
            if memory is None:
                raise UnknownSummary(f"no summary has the id {summaries[0].id!r}")
            if lease is not None and not self._holds(memory, lease):
                raise LeaseLost(f"{lease.owner} no longer holds the lease")
            before = dict(memory.summaries)
            try:
                self._replace(memory, summaries)
            except Exception:
                memory.summaries = before
                raise

    def _replace(self, memory: Memory, summaries: Sequence[SummaryRecord]) -> None:
        below: SummaryRecord | None = None
        for new in summaries:
            if new.id not in memory.summaries:
                raise UnknownSummary(f"no summary has the id {new.id!r}")
            old = memory.summaries[new.id]
            same = replace(new, **{name: getattr(old, name) for name in REPLACEABLE_FIELDS})
            if same != old or (below is not None and below.parent_id != new.id):
                raise InvalidSummary("only what a summarizer decides may change, of a chain upwards")
            tokens = sum(memory.summaries[id].token_count for id in new.child_ids) or old.source_token_count
            if new.source_token_count != tokens or new.token_count >= tokens or not new.content.strip():
                raise InvalidSummary("it does not shrink its sources")
            memory.summaries[new.id] = below = new
            if new.content != old.content:
                memory.vectors.pop((new.first_position, new.id), None)
        assert below is not None
        if below.parent_id is not None and (below.content, below.token_count) != (old.content, old.token_count):
            parent = memory.summaries[below.parent_id]
            tokens = sum(memory.summaries[id].token_count for id in parent.child_ids)
            if parent.token_count >= tokens:
                raise InvalidSummary("its parent would not shrink its children")
            memory.summaries[parent.id] = replace(parent, source_token_count=tokens, is_outdated=True)

    def mark_summary_compacted(self, summary_id: str, parent_id: str) -> None:
        if self.get_summary(summary_id).parent_id != self.get_summary(parent_id).id:
            raise InvalidSummary(f"{summary_id} is no child of {parent_id}")

    def acquire_lease(self, session_id: str, *, owner: str, seconds: float) -> Lease | None:
        with self._lock:
            memory = self._sessions.get(session_id)
            if memory is None or (memory.lease is not None and memory.lease.expires_at > _now()):
                return None
            memory.lease_token += 1
            memory.lease = Lease(
                session_id=session_id,
                owner=owner,
                token=memory.lease_token,
                expires_at=_now() + timedelta(seconds=seconds),
            )
            return memory.lease

    def renew_lease(self, lease: Lease, *, seconds: float) -> Lease:
        with self._lock:
            memory = self._sessions.get(lease.session_id)
            if memory is None or not self._holds(memory, lease):
                raise LeaseLost(f"{lease.owner} no longer holds the lease")
            memory.lease = replace(lease, expires_at=_now() + timedelta(seconds=seconds))
            return memory.lease

    def release_lease(self, lease: Lease) -> None:
        memory = self._sessions.get(lease.session_id)
        if memory is not None and self._holds(memory, lease):
            memory.lease = None

    def _holds(self, memory: Memory | None, lease: Lease) -> bool:
        held = memory.lease if memory else None
        return held is not None and (held.owner, held.token) == (lease.owner, lease.token)

    def get_coverage(
        self, session_id: str, *, after_position: int = 0, limit: int | None = None
    ) -> list[tuple[int, str]]:
        memory = self._sessions.get(session_id)
        covered = memory.leaf_of if memory else {}
        turns = self.get_session_turns(session_id, after_position=after_position)
        return [(turn.position, covered[str(turn.id)]) for turn in turns if turn.id in covered][:limit]

    def get_orphans(self) -> list[str]:
        return []

    def recount_session(self, session_id: str) -> None:
        memory = self._sessions.get(session_id)
        if memory is not None and memory.lease is not None and memory.lease.expires_at <= _now():
            memory.lease = None

    def get_index_size(self, session_id: str) -> tuple[int, int]:
        return len(self.get_session_turns(session_id)), len(self.get_summaries(session_id))

    def reindex_session(self, session_id: str) -> None:
        """Documents are read from what is there."""

    def erase_session(self, session_id: str) -> bool:
        with self._lock:
            memory = self._sessions.get(session_id)
            if memory is not None and memory.lease is not None and memory.lease.expires_at > _now():
                raise CompactionInProgress(f"{memory.lease.owner} compacts {session_id!r}")
            return self._sessions.pop(session_id, None) is not None


def _now() -> datetime:
    return datetime.now(UTC)
