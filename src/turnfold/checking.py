"""Verifies that a store keeps the promises that a database can show, and mends what can be derived.

`check` compares what is written with what the design promises, session by session and page by page: it never holds a
whole session, and reads every turn, so that text that cannot be read back is found as well.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from turnfold.drive import drive, immediately
from turnfold.errors import UnknownSession
from turnfold.records import SessionRecord, SummaryRecord, Turn, check_session_id
from turnfold.repository import AsyncRepository, Repository

__all__ = ["Fault", "OnCheckProgress", "check", "erase_session", "repair"]

Kind = Literal["turns", "coverage", "tree", "counters", "lease", "index", "orphan"]

PAGE = 500

MOST_READINGS = 10
"""How often a session is read again that is written to meanwhile."""

OnCheckProgress = Callable[[SessionRecord, int], None]
"""Told after each page of turns: the session, and the position up to which it was read."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A promise that does not hold: in which session (None for what belongs to none), of what kind, and what it is.

    `can_be_repaired` where `repair` derives what is right: counters, leases that ran out, and the search index.
    """

    session_id: str | None
    kind: Kind
    message: str

    @property
    def can_be_repaired(self) -> bool:
        return self.kind in ("counters", "lease", "index")


def check(
    memory_store: Repository, session_id: str | None = None, *, on_progress: OnCheckProgress | None = None
) -> list[Fault]:
    """Every fault of one session, or of all and of the store; none where all is well.

    A lease that ran out counts as a fault only in that it can be cleared: the next worker takes it over anyway.
    Raises `UnknownSession` for a session without turns.
    """
    return drive(find_faults(immediately(memory_store), session_id, on_progress))


def repair(
    memory_store: Repository, session_id: str | None = None, *, on_progress: OnCheckProgress | None = None
) -> list[Fault]:
    """Mend what can be derived, counters, leases that ran out and the search index, and nothing else; the faults that
    are left.

    Raises `UnknownSession` for a session without turns.
    """
    return drive(mend(immediately(memory_store), session_id, on_progress))


def erase_session(session_id: str, memory_store: Repository) -> bool:
    """Delete a session whole, turns, summaries and sources, in one transaction; whether there was one.

    The one way to delete anything. Raises `CompactionInProgress` while a worker holds the session's lease.
    """
    return drive(erase(session_id, immediately(memory_store)))


async def erase(session_id: str, store: AsyncRepository) -> bool:
    return await store.erase_session(check_session_id(session_id))


async def mend(store: AsyncRepository, session_id: str | None, on_progress: OnCheckProgress | None) -> list[Fault]:
    faults = await find_faults(store, session_id, on_progress)
    for id in _sessions_with(faults, "counters", "lease"):
        await store.recount_session(id)
    for id in _sessions_with(faults, "index"):
        with suppress(ValueError):  # a turn that cannot be read back is a fault of its own, and stays one
            await store.reindex_session(id)
    return await find_faults(store, session_id, on_progress)


def _sessions_with(faults: Sequence[Fault], *kinds: Kind) -> list[str]:
    return sorted({fault.session_id or "" for fault in faults if fault.kind in kinds})


async def find_faults(
    store: AsyncRepository, session_id: str | None, on_progress: OnCheckProgress | None
) -> list[Fault]:
    if session_id is not None:
        session = await store.get_session(check_session_id(session_id))
        if session is None:
            raise UnknownSession(f"there is no session {session_id!r} in this store")
        return await _settled_faults(store, session, on_progress)
    faults = [Fault(None, "orphan", line) for line in await store.get_orphans()]
    async for session in _all_sessions(store):
        faults += await _settled_faults(store, session, on_progress)
    return faults


async def _settled_faults(
    store: AsyncRepository, session: SessionRecord, on_progress: OnCheckProgress | None
) -> list[Fault]:
    """The faults of a session that nobody wrote to meanwhile: each write changes its row."""
    faults = await _session_faults(store, session, on_progress)
    for _ in range(MOST_READINGS - 1):
        now = await store.get_session(session.id) if faults else session
        if now == session:
            break
        if now is None:  # erased meanwhile
            return []
        session = now
        faults = await _session_faults(store, session, on_progress)
    return faults


async def _all_sessions(store: AsyncRepository) -> AsyncIterator[SessionRecord]:
    page = await store.get_sessions(limit=PAGE)
    while page:
        for session in page:
            yield session
        page = await store.get_sessions(after_id=page[-1].id, limit=PAGE)


async def _session_faults(
    store: AsyncRepository, session: SessionRecord, on_progress: OnCheckProgress | None
) -> list[Fault]:
    summaries = await store.get_summaries(session.id)
    walk = _Walk(session, [summary for summary in summaries if summary.depth == 0])
    while True:
        page, is_broken = await _page(store, session.id, walk.position)
        if not page and not is_broken:
            break
        walk.over(page, dict(await store.get_coverage(session.id, after_position=walk.position, limit=PAGE)))
        if is_broken:
            walk.pass_over_unreadable()
        if on_progress is not None:
            on_progress(session, walk.position)
    uncompacted = sum(summary.token_count for summary in summaries if summary.parent_id is None)
    return [
        *walk.finished(),
        *_tree_faults(session.id, summaries),
        *_counter_faults(session, walk, uncompacted),
        *_lease_faults(session),
        *_index_faults(session.id, (walk.position, len(summaries)), await store.get_index_size(session.id)),
    ]


async def _page(store: AsyncRepository, session_id: str, position: int) -> tuple[list[Turn], bool]:
    """The next turns, and whether they end before one that cannot be read back."""
    try:
        return await store.get_session_turns(session_id, after_position=position, limit=PAGE), False
    except ValueError:
        turns: list[Turn] = []
    while True:
        try:
            found = await store.get_session_turns(session_id, after_position=position, limit=1)
        except ValueError:
            return turns, True
        if not found:
            return turns, False
        turns += found
        position = found[-1].position


class _Walk:
    """Compares turns and coverage, page after page, in order of position."""

    def __init__(self, session: SessionRecord, leaves: Sequence[SummaryRecord]) -> None:
        self.position = 0
        self.covered_position = 0
        self.total_tokens = 0
        self.uncovered_tokens = 0
        self.faults: list[Fault] = []
        self._session_id = session.id
        self._counts = {leaf.id: 0 for leaf in leaves}
        self._leaves = {leaf.id: leaf for leaf in leaves}
        self._first_uncovered: int | None = None

    def over(self, page: Sequence[Turn], coverage: dict[int, str]) -> None:
        for turn in page:
            if turn.position != self.position + 1:
                self._fault("turns", f"positions {self.position + 1} to {turn.position - 1} are missing")
            self.position = turn.position
            self.total_tokens += turn.token_count
            self._cover(turn, coverage.get(turn.position))

    def pass_over_unreadable(self) -> None:
        self.position += 1
        self._fault("turns", f"the turn at position {self.position} cannot be read back")

    def finished(self) -> list[Fault]:
        for id, count in self._counts.items():
            leaf = self._leaves[id]
            if count != leaf.descendant_count:
                self._fault("coverage", f"leaf {id} stands for {leaf.descendant_count} turns, and covers {count}")
        return self.faults

    def _cover(self, turn: Turn, leaf_id: str | None) -> None:
        if leaf_id is None:
            self.uncovered_tokens += turn.token_count
            if not turn.pinned and self._first_uncovered is None:
                self._first_uncovered = turn.position
            return
        self.covered_position = turn.position
        leaf = self._leaves.get(leaf_id)
        if leaf is None:
            self._fault("coverage", f"turn {turn.id} (position {turn.position}) is covered by {leaf_id}, no leaf here")
            return
        self._counts[leaf_id] += 1
        if turn.pinned:
            self._fault("coverage", f"turn {turn.id} (position {turn.position}) is pinned and covered by {leaf_id}")
        if not leaf.first_position <= turn.position <= leaf.last_position:
            self._fault("coverage", f"turn {turn.id} (position {turn.position}) lies outside of its leaf {leaf_id}")
        if self._first_uncovered is not None:
            self._fault(
                "coverage",
                f"turn {turn.id} (position {turn.position}) is covered, {self._first_uncovered} before it not",
            )
            self._first_uncovered = None

    def _fault(self, kind: Kind, message: str) -> None:
        self.faults.append(Fault(self._session_id, kind, message))


def _tree_faults(session_id: str, summaries: Sequence[SummaryRecord]) -> Iterator[Fault]:
    by_id = {summary.id: summary for summary in summaries}
    ends: dict[int, SummaryRecord] = {}
    for summary in summaries:
        before = ends.get(summary.depth)
        if before is not None and before.last_position >= summary.first_position:
            yield Fault(session_id, "tree", f"summaries {before.id} and {summary.id} of one depth overlap")
        ends[summary.depth] = summary
        if not summary.content.strip():
            yield Fault(session_id, "tree", f"summary {summary.id} is empty")
        if summary.token_count >= summary.source_token_count:
            yield Fault(session_id, "tree", f"summary {summary.id} is not smaller than its sources")
        if summary.depth:
            yield from _parent_faults(session_id, summary, [by_id[id] for id in summary.child_ids if id in by_id])


def _parent_faults(session_id: str, parent: SummaryRecord, children: Sequence[SummaryRecord]) -> Iterator[Fault]:
    derived = (
        min((child.first_position for child in children), default=0),
        max((child.last_position for child in children), default=0),
        sum(child.descendant_count for child in children),
        sum(child.token_count for child in children),
    )
    if derived != (parent.first_position, parent.last_position, parent.descendant_count, parent.source_token_count):
        yield Fault(session_id, "tree", f"summary {parent.id} does not span exactly its {len(children)} children")
    if any(child.depth != parent.depth - 1 for child in children):
        yield Fault(session_id, "tree", f"summary {parent.id} has children of another depth than {parent.depth - 1}")


def _counter_faults(session: SessionRecord, walk: _Walk, uncompacted_tokens: int) -> Iterable[Fault]:
    derived = {
        "last_position": walk.position,
        "covered_position": walk.covered_position,
        "total_tokens": walk.total_tokens,
        "active_tokens": walk.uncovered_tokens + uncompacted_tokens,
    }
    for name, value in derived.items():
        if getattr(session, name) != value:
            yield Fault(session.id, "counters", f"{name} is {getattr(session, name):,}, and should be {value:,}")


def _index_faults(session_id: str, there_are: tuple[int, int], indexed: tuple[int, int]) -> Iterable[Fault]:
    for kind, count, found in zip(("turns", "summaries"), there_are, indexed, strict=True):
        if count != found:
            yield Fault(session_id, "index", f"search knows {found:,} {kind}, and should know {count:,}")


def _lease_faults(session: SessionRecord) -> Iterable[Fault]:
    # By the clock of this process, which may differ from the database's: repair asks that one before it clears.
    expires_at = session.lease_expires_at
    if session.lease_owner is not None and (expires_at is None or expires_at < datetime.now(UTC)):
        yield Fault(session.id, "lease", f"the lease of {session.lease_owner} ran out at {expires_at}")
