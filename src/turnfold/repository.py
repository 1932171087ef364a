"""The store as the algorithm sees it: `Repository`, and `AsyncRepository` with the same promises, awaitable.

What the docstrings promise, `turnfold.testing.RepositoryContract` checks; a store of one's own is proven by
subclassing that suite. Four promises hold for every method:

- a call happens whole or not at all, and holds no connection after it returned;
- a session that has no turn yet is an empty session: reading it gives nothing and is no error;
- lists are ordered by position, oldest first, and complete unless `limit` bounds them;
- what was written is read back equal, character by character.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from turnfold.ranking import Found, Kind
from turnfold.records import Lease, SessionRecord, SummaryRecord, Turn
from turnfold.tokens import TokenCounter
from turnfold.vectors import Embedding

__all__ = ["AsyncRepository", "Repository"]


class Repository(Protocol):
    """Turns, summaries and leases of sessions."""

    @property
    def token_counter(self) -> TokenCounter:
        """Counts the tokens of every turn appended here, and of the summaries made from them."""

    @property
    def embedder_name(self) -> str:
        """The name of the embedder whose vectors are kept and compared here; "" where there is none."""

    def append_turns(self, session_id: str, turns: Sequence[Turn]) -> list[Turn]:
        """Write turns at the end of the session, whole batch or nothing, and return them as stored.

        Positions go on from the last one without a gap, whatever number of writers there is. A turn whose `id` the
        session already has is not written again: the stored one is returned. An answer to a pinned call is pinned too.

        Raises `InvalidTurn` for a turn that could not be read back equal, or a pinned answer to a call that is not
        pinned; `TurnConflict` for an `id` that stands for other content.
        """

    def get_session(self, session_id: str) -> SessionRecord | None:
        """The session's own row, or None where it has no turn yet."""

    def get_sessions(self, *, after_id: str = "", limit: int | None = None) -> list[SessionRecord]:
        """All sessions, by id (code point order), those after `after_id`."""

    def get_session_token_count(self, session_id: str) -> int:
        """The tokens of the active context; takes the same time at any length of the session."""

    def get_session_turns(self, session_id: str, *, after_position: int = 0, limit: int | None = None) -> list[Turn]:
        """The turns after a position."""

    def get_turns_at(self, session_id: str, positions: Sequence[int]) -> list[Turn]:
        """The turns at these positions, those that there are."""

    def find_documents(
        self,
        session_id: str | None,
        terms: Sequence[str],
        *,
        of: Kind,
        limit: int,
        session_prefix: str = "",
    ) -> list[Found]:
        """The turns or summaries that have most of the terms (see `turnfold.analysis`), ranked as `turnfold.ranking`
        does, best first; of one session, or of all (None) whose id begins with `session_prefix`."""

    def embed(self, texts: Sequence[str]) -> list[tuple[float, ...]]:
        """The vectors of texts, of length 1, made by the embedder outside any transaction.

        Raises `InvalidArgument` where there is no embedder, `InvalidAnswer` for what is no vector, and what it raises.
        """

    def get_unembedded_turns(self, session_id: str, *, after_position: int = 0, limit: int | None = None) -> list[Turn]:
        """The turns behind the last one that has a vector of the embedder, those after a position."""

    def get_unembedded_summaries(self, session_id: str, *, limit: int | None = None) -> list[SummaryRecord]:
        """The summaries that have no vector of the embedder, by position and without the ids of their sources."""

    def add_embeddings(self, session_id: str, embeddings: Sequence[Embedding]) -> None:
        """Keep the vectors of turns and summaries; one that is there already stays. A summary whose text is another one
        by now is passed over, and so is everything where the session is gone.

        Raises `InvalidArgument` where vectors of another length are kept there for the same embedder.
        """

    def find_nearest(
        self,
        session_id: str | None,
        vector: Sequence[float],
        *,
        of: Kind,
        limit: int,
        session_prefix: str = "",
    ) -> list[Found]:
        """The turns or summaries whose vectors have the largest inner product with this one, which is their score."""

    def get_active_context(self, session_id: str) -> tuple[list[SummaryRecord], list[Turn]]:
        """The summaries without a parent, by position and without the ids of their sources, and the turns that none of
        them stands for: the pinned ones and the uncovered ones. As much work as the context is long, not the session.
        """

    def get_pinned_turns(self, session_id: str, *, up_to_position: int | None = None) -> list[Turn]:
        """The pinned turns, those up to a position."""

    def get_uncovered_turns(self, session_id: str, *, after_position: int = 0, limit: int | None = None) -> list[Turn]:
        """The turns that no leaf covers, pinned ones aside, those after a position."""

    def get_summaries(self, session_id: str, *, depth: int | None = None) -> list[SummaryRecord]:
        """All summaries, or those of one depth, by depth and position."""

    def get_uncompacted_summaries(self, session_id: str, *, depth: int | None = None) -> list[SummaryRecord]:
        """The summaries without a parent, of all depths or of one, by position."""

    def get_newest_leaf(self, session_id: str, *, before_position: int | None = None) -> SummaryRecord | None:
        """The leaf of the highest position, compacted or not, of those that begin before a position; None where there
        is none."""

    def get_stale_summaries(
        self, session_id: str, *, max_attempts: int | None = None, limit: int | None = None
    ) -> list[SummaryRecord]:
        """The summaries of tier `fallback` and those that are outdated, newest first (by their last position, deepest
        first), those with fewer `refold_attempts` than `max_attempts`."""

    def get_summary(self, summary_id: str) -> SummaryRecord:
        """One summary. Raises `UnknownSummary`."""

    def get_source_turns(self, summary_id: str, *, after_position: int = 0, limit: int | None = None) -> list[Turn]:
        """The turns that a summary of any depth stands for, those after a position. Raises `UnknownSummary`."""

    def get_child_summaries(self, summary_id: str) -> list[SummaryRecord]:
        """The children of a condensed summary; none for a leaf. Raises `UnknownSummary`."""

    def add_summary(self, summary: SummaryRecord, *, lease: Lease | None = None) -> None:
        """Write a summary with its sources in one transaction: a leaf with `source_turn_ids`, a condensed summary
        with `child_ids`, which are marked compacted with it.

        Raises `InvalidSummary` where it is not smaller than its sources, the sources of a leaf are not the next
        uncovered turns, or its children are not neighbours of one depth without a parent; `LeaseLost` where the lease
        is given and no longer held.
        """

    def mark_summary_compacted(self, summary_id: str, parent_id: str) -> None:
        """Give a summary its parent; `add_summary` does so for each child. Saying it again changes nothing.

        Raises `UnknownSummary`; `InvalidSummary` where it has another parent, or the parent is not of the next depth
        or does not span it.
        """

    def replace_summaries(self, summaries: Sequence[SummaryRecord], *, lease: Lease | None = None) -> None:
        """Give summaries new texts, in one transaction: one, or one and its parent, and so on upwards.

        Only what a summarizer decides may differ from what is stored; links, positions and times stay. The parent of
        the last one counts its new tokens and, where the text changed, is marked outdated; without a parent the active
        context counts them.

        Raises `UnknownSummary`; `InvalidSummary` where anything else differs, one is not the parent of the one before,
        or one would not be smaller than its sources, the parent of the last included; `LeaseLost` as `add_summary`.
        """

    def acquire_lease(self, session_id: str, *, owner: str, seconds: float) -> Lease | None:
        """The lease of the session for `seconds` by the store's clock, or None while another one lasts."""

    def renew_lease(self, lease: Lease, *, seconds: float) -> Lease:
        """The same lease, lasting `seconds` from now. Raises `LeaseLost` where it is held no more."""

    def release_lease(self, lease: Lease) -> None:
        """Give the lease back; nothing happens where it is held no more."""

    def get_coverage(
        self, session_id: str, *, after_position: int = 0, limit: int | None = None
    ) -> list[tuple[int, str]]:
        """Which leaf covers which turn, as written: positions after one and summary ids."""

    def get_orphans(self) -> list[str]:
        """What belongs to nothing: a line for each session, turn or summary that rows name but that is not there."""

    def recount_session(self, session_id: str) -> None:
        """Set what the session's row counts from what there is to count, and clear a lease that ran out."""

    def get_index_size(self, session_id: str) -> tuple[int, int]:
        """How many turns of the session, and how many of its summaries, can be found by their words."""

    def reindex_session(self, session_id: str) -> None:
        """Make anew what is searched for the words of the session, from its turns and summaries."""

    def erase_session(self, session_id: str) -> bool:
        """Delete the session with its turns, summaries and sources, whole; whether there was one.

        Raises `CompactionInProgress` while a worker holds its lease.
        """


class AsyncRepository(Protocol):
    """`Repository`, awaitable; every method promises what its namesake there promises."""

    @property
    def token_counter(self) -> TokenCounter: ...

    @property
    def embedder_name(self) -> str: ...

    async def append_turns(self, session_id: str, turns: Sequence[Turn]) -> list[Turn]: ...

    async def get_session(self, session_id: str) -> SessionRecord | None: ...

    async def get_sessions(self, *, after_id: str = "", limit: int | None = None) -> list[SessionRecord]: ...

    async def get_session_token_count(self, session_id: str) -> int: ...

    async def get_session_turns(
        self, session_id: str, *, after_position: int = 0, limit: int | None = None
    ) -> list[Turn]: ...

    async def get_turns_at(self, session_id: str, positions: Sequence[int]) -> list[Turn]: ...

    async def find_documents(
        self,
        session_id: str | None,
        terms: Sequence[str],
        *,
        of: Kind,
        limit: int,
        session_prefix: str = "",
    ) -> list[Found]: ...

    async def embed(self, texts: Sequence[str]) -> list[tuple[float, ...]]: ...

    async def get_unembedded_turns(
        self, session_id: str, *, after_position: int = 0, limit: int | None = None
    ) -> list[Turn]: ...

    async def get_unembedded_summaries(self, session_id: str, *, limit: int | None = None) -> list[SummaryRecord]: ...

    async def add_embeddings(self, session_id: str, embeddings: Sequence[Embedding]) -> None: ...

    async def find_nearest(
        self,
        session_id: str | None,
        vector: Sequence[float],
        *,
        of: Kind,
        limit: int,
        session_prefix: str = "",
    ) -> list[Found]: ...

    async def get_active_context(self, session_id: str) -> tuple[list[SummaryRecord], list[Turn]]: ...

    async def get_pinned_turns(self, session_id: str, *, up_to_position: int | None = None) -> list[Turn]: ...

    async def get_uncovered_turns(
        self, session_id: str, *, after_position: int = 0, limit: int | None = None
    ) -> list[Turn]: ...

    async def get_summaries(self, session_id: str, *, depth: int | None = None) -> list[SummaryRecord]: ...

    async def get_uncompacted_summaries(self, session_id: str, *, depth: int | None = None) -> list[SummaryRecord]: ...

    async def get_newest_leaf(self, session_id: str, *, before_position: int | None = None) -> SummaryRecord | None: ...

    async def get_stale_summaries(
        self, session_id: str, *, max_attempts: int | None = None, limit: int | None = None
    ) -> list[SummaryRecord]: ...

    async def get_summary(self, summary_id: str) -> SummaryRecord: ...

    async def get_source_turns(
        self, summary_id: str, *, after_position: int = 0, limit: int | None = None
    ) -> list[Turn]: ...

    async def get_child_summaries(self, summary_id: str) -> list[SummaryRecord]: ...

    async def add_summary(self, summary: SummaryRecord, *, lease: Lease | None = None) -> None: ...

    async def mark_summary_compacted(self, summary_id: str, parent_id: str) -> None: ...

    async def replace_summaries(self, summaries: Sequence[SummaryRecord], *, lease: Lease | None = None) -> None: ...

    async def acquire_lease(self, session_id: str, *, owner: str, seconds: float) -> Lease | None: ...

    async def renew_lease(self, lease: Lease, *, seconds: float) -> Lease: ...

    async def release_lease(self, lease: Lease) -> None: ...

    async def get_coverage(
        self, session_id: str, *, after_position: int = 0, limit: int | None = None
    ) -> list[tuple[int, str]]: ...

    async def get_orphans(self) -> list[str]: ...

    async def recount_session(self, session_id: str) -> None: ...

    async def get_index_size(self, session_id: str) -> tuple[int, int]: ...

    async def reindex_session(self, session_id: str) -> None: ...

    async def erase_session(self, session_id: str) -> bool: ...
