"""Gives the turns and summaries of a session their vectors, so that search also finds what says it in other words.

The embedder is asked outside any transaction, as a model is. Who writes a turn does not wait for it: what has no vector
yet is found by its words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypedDict

from turnfold.analysis import searched_text
from turnfold.drive import drive, immediately
from turnfold.planning import check_count
from turnfold.records import Turn, check_session_id
from turnfold.repository import AsyncRepository, Repository
from turnfold.vectors import MOST_CHARACTERS, Embedding, no_embedder

__all__ = ["EmbedStats", "OnEmbedProgress", "embed_session"]

BATCH_SIZE = 100
"""Texts in one call of the embedder."""


class EmbedStats(TypedDict):
    """What got a vector."""

    turns_embedded: int
    summaries_embedded: int


OnEmbedProgress = Callable[[EmbedStats], None]


def embed_session(
    session_id: str,
    memory_store: Repository,
    *,
    batch_size: int = BATCH_SIZE,
    on_progress: OnEmbedProgress | None = None,
) -> EmbedStats:
    """Embed the turns and summaries of a session that have no vector of the store's embedder yet, `batch_size` texts a
    call. What was done stays, should a call fail; several workers at once do no harm but ask twice.

    Raises `InvalidArgument` for a store without an embedder, or where its vectors have another length than those that
    the session has under its name; `InvalidAnswer` for something else than vectors; and what the embedder raises.
    """
    return drive(embed_missing(session_id, immediately(memory_store), batch_size, on_progress))


async def embed_missing(
    session_id: str, store: AsyncRepository, batch_size: int, on_progress: OnEmbedProgress | None
) -> EmbedStats:
    check_session_id(session_id)
    check_count("batch_size", batch_size, at_least=1)
    if not store.embedder_name:
        raise no_embedder()
    stats = EmbedStats(turns_embedded=0, summaries_embedded=0)
    after = 0
    while turns := await store.get_unembedded_turns(session_id, after_position=after, limit=batch_size):
        after = turns[-1].position
        texts = [(turn.position, "", embedded_text(turn)) for turn in turns]
        stats["turns_embedded"] += await _embed(session_id, store, [text for text in texts if text[2]])
        if on_progress is not None:
            on_progress(stats)
    while summaries := await store.get_unembedded_summaries(session_id, limit=batch_size):
        texts = [(summary.first_position, summary.id, summary.content) for summary in summaries]
        stats["summaries_embedded"] += await _embed(session_id, store, texts)
        if on_progress is not None:
            on_progress(stats)
    return stats


def embedded_text(turn: Turn) -> str:
    """What of a turn is embedded: what it says and calls, behind the name of who says it."""
    text = searched_text(turn).strip()
    return f"{turn.name}: {text}" if turn.name and text else text


async def _embed(session_id: str, store: AsyncRepository, texts: Sequence[tuple[int, str, str]]) -> int:
    if not texts:
        return 0
    vectors = await store.embed([text[:MOST_CHARACTERS] for _, _, text in texts])
    embeddings = [Embedding(*text, vector) for text, vector in zip(texts, vectors, strict=True)]
    await store.add_embeddings(session_id, embeddings)
    return len(embeddings)
