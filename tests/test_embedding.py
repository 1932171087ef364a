"""Search by what is meant, not only by the words, on both databases and in both worlds."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Engine, text

from tests.memory_repository import MemoryRepository
from tests.worlds import world_of
from turnfold import (
    InvalidAnswer,
    InvalidArgument,
    SchemaMismatch,
    SqlRepository,
    Summarizer,
    TokenBudget,
    Turn,
    assemble_context,
    compact_session,
    embed_session,
    erase_session,
    extractive,
    search,
)
from turnfold.ranking import Found, fuse
from turnfold.testing import HOSTILE_TEXTS, some_turns
from turnfold.vectors import Embedding

SAID = [
    Turn("user", "My automobile makes a strange noise."),
    Turn("assistant", "I would ask the physician about the pills first."),
    Turn("user", "The invoice is paid."),
    Turn("assistant", None, tool_calls=[{"id": "c", "function": {"name": "book_vehicle", "arguments": "{}"}}]),
    Turn("tool", "", tool_call_id="c"),
]

MEANINGS = [("car", "automobile", "vehicle"), ("doctor", "physician"), ("bill", "invoice"), ("cake", "baker")]


class Meanings:
    """An embedder: one number for each meaning, and a little for all else. Keeps what it was asked."""

    def __init__(self, name: str = "meanings", more: int = 0) -> None:
        self.name = name
        self.asked: list[list[str]] = []
        self._more = more

    def __call__(self, texts: Sequence[str]) -> list[list[float]]:
        self.asked.append(list(texts))
        return [
            [*(float(any(word in text for word in words)) for words in MEANINGS), 0.1, *[0.0] * self._more]
            for text in texts
        ]


@pytest.fixture(autouse=True, params=["sync", "async"])
def world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    names = ("search", "embed_session", "assemble_context", "erase_session")
    with world_of(request.param, monkeypatch, globals(), *names):
        yield


@pytest.fixture
def embedder() -> Meanings:
    return Meanings()


@pytest.fixture
def said(engine: Engine, embedder: Meanings) -> SqlRepository:
    store = SqlRepository(engine, embedder=embedder)
    store.append_turns("s", [*SAID, *some_turns(20)])
    return store


class TestEmbedSession:
    def test_every_turn_and_summary_with_a_text_is_embedded_once(self, said: SqlRepository, embedder: Meanings) -> None:
        compact_session("s", said, Summarizer(extractive), fresh_tail_count=2, leaf_chunk_tokens=200)
        summaries = len(said.get_summaries("s"))
        assert summaries > 1
        stats = embed_session("s", said, batch_size=7)
        assert stats == {"turns_embedded": 24, "summaries_embedded": summaries}
        assert max(map(len, embedder.asked)) <= 7
        embedder.asked.clear()
        assert embed_session("s", said) == {"turns_embedded": 0, "summaries_embedded": 0}
        assert embedder.asked == []
        said.append_turns("s", [Turn("user", "More.", name="Anna")])
        assert embed_session("s", said)["turns_embedded"] == 1
        assert embedder.asked == [["Anna: More."]]

    def test_progress_is_told_after_each_call(self, said: SqlRepository) -> None:
        told: list[int] = []
        embed_session("s", said, batch_size=10, on_progress=lambda stats: told.append(stats["turns_embedded"]))
        assert told == [9, 19, 24]

    def test_what_was_done_before_a_failure_stays(self, said: SqlRepository, embedder: Meanings) -> None:
        def fails_at_the_third(texts: Sequence[str]) -> list[list[float]]:
            if len(embedder.asked) == 2:
                raise ConnectionError("gone")
            return embedder(texts)

        fails_at_the_third.name = "meanings"  # type: ignore[attr-defined]
        broken = SqlRepository(said._engine, embedder=fails_at_the_third)
        with pytest.raises(ConnectionError, match="gone"):
            embed_session("s", broken, batch_size=10)
        assert embed_session("s", said)["turns_embedded"] == 24 - 19

    def test_a_summary_that_is_made_again_is_embedded_again(self, said: SqlRepository, embedder: Meanings) -> None:
        compact_session("s", said, Summarizer(extractive), fresh_tail_count=2)
        embed_session("s", said)
        (leaf,) = said.get_summaries("s")
        said.replace_summaries([replace(leaf, content="They ate a cake.")])
        assert embed_session("s", said) == {"turns_embedded": 0, "summaries_embedded": 1}
        assert embedder.asked[-1] == ["They ate a cake."]
        assert search("s", said, "baker", in_="summaries")[0].id == leaf.id

    def test_long_texts_are_cut_to_what_providers_take(self, said: SqlRepository, embedder: Meanings) -> None:
        said.append_turns("s", [Turn("user", "word " * 10_000)])
        embed_session("s", said)
        assert max(len(text) for asked in embedder.asked for text in asked) == 8_000

    def test_any_text_can_be_embedded(self, said: SqlRepository) -> None:
        said.append_turns("hostile", [Turn("user", text) for text in HOSTILE_TEXTS])
        assert embed_session("hostile", said)["turns_embedded"] > len(HOSTILE_TEXTS) // 2

    def test_numbers_too_small_for_32_bits_count_as_none(self, engine: Engine) -> None:
        store = SqlRepository(engine, embedder=lambda texts: [[1.0, 1e-60, -1e-60, 1e-42] for _ in texts])
        store.append_turns("s", some_turns(3))
        embed_session("s", store)
        assert [hit.position for hit in search("s", store, "anything")] == [3, 2, 1]

    def test_a_batch_may_be_as_large_as_the_session(self, said: SqlRepository) -> None:
        said.append_turns("long", some_turns(3_000))
        assert embed_session("long", said, batch_size=1_000_000)["turns_embedded"] == 3_000

    def test_a_store_without_an_embedder_says_what_it_needs(self, store: SqlRepository) -> None:
        with pytest.raises(InvalidArgument, match="embedder="):
            embed_session("s", store)

    @pytest.mark.parametrize(
        ("given", "said_"),
        [
            ([[1.0, 2.0]], "1 vectors for 25"),
            ([[1.0], [1.0, 2.0]] + [[1.0]] * 23, "different lengths"),
            ([[]] * 25, "empty"),
            ([[math.nan]] * 25, "NaN"),
            ([["a"]] * 25, "list of numbers"),
            (None, "list of numbers"),
        ],
    )
    def test_what_is_no_vector_is_refused_before_anything_is_written(
        self, engine: Engine, given: Any, said_: str
    ) -> None:
        store = SqlRepository(engine, embedder=lambda texts: given)
        store.append_turns("s", some_turns(25))
        with pytest.raises(InvalidAnswer, match=said_):
            embed_session("s", store)
        assert len(store.get_unembedded_turns("s")) == 25

    def test_another_model_under_the_same_name_is_refused(self, said: SqlRepository) -> None:
        embed_session("s", said)
        said.append_turns("s", some_turns(1))
        with pytest.raises(InvalidArgument, match="give another model another name"):
            embed_session("s", SqlRepository(said._engine, embedder=Meanings(more=3)))

    def test_another_name_is_another_index(self, said: SqlRepository) -> None:
        embed_session("s", said)
        other = SqlRepository(said._engine, embedder=Meanings("larger", more=3))
        assert embed_session("s", other)["turns_embedded"] == 24
        for store in (said, other):
            assert {hit.position for hit in search("s", store, "car", limit=2)} == {1, 4}

    def test_erasing_a_session_erases_its_vectors(self, said: SqlRepository) -> None:
        embed_session("s", said)
        assert erase_session("s", said)
        with said._engine.connect() as connection:
            assert connection.scalar(text("SELECT count(*) FROM turnfold_vectors")) == 0
        assert search(None, said, "car") == []


class TestSearch:
    def test_other_words_for_the_same_are_found(self, said: SqlRepository, store: SqlRepository) -> None:
        embed_session("s", said)
        assert [hit.position for hit in search("s", said, "car", limit=2)] == [4, 1]
        assert search("s", said, "Which doctor?")[0].position == 2
        assert search("s", store, "car") == []

    def test_a_question_is_embedded_once_wherever_it_is_searched(self, said: SqlRepository, embedder: Meanings) -> None:
        compact_session("s", said, Summarizer(extractive), fresh_tail_count=2)
        embed_session("s", said)
        embedder.asked.clear()
        assert {hit.kind for hit in search("s", said, "car", in_="both", limit=50)} == {"turn", "summary"}
        assert embedder.asked == [["car"]]

    def test_words_still_count(self, said: SqlRepository) -> None:
        said.append_turns("s", [Turn("user", "The vehicle is a car, and the car is red.")])
        embed_session("s", said)
        hits = search("s", said, "car", limit=3)
        assert hits[0].position == 26
        assert hits[0].highlights
        assert 0 < hits[1].score < hits[0].score <= 1.01

    def test_what_has_no_vector_yet_is_found_by_its_words(self, said: SqlRepository) -> None:
        embed_session("s", said)
        said.append_turns("s", [Turn("user", "A zebra crossed the road.")])
        assert search("s", said, "zebra")[0].position == 26

    def test_an_embedder_out_of_reach_leaves_the_words(
        self, said: SqlRepository, caplog: pytest.LogCaptureFixture
    ) -> None:
        def broken(texts: Sequence[str]) -> list[list[float]]:
            raise ConnectionError("gone")

        with caplog.at_level(logging.WARNING, "turnfold"):
            (hit, *_) = search("s", SqlRepository(said._engine, embedder=broken), "invoice")
        assert hit.position == 3
        assert "searched by words alone" in caplog.text

    def test_other_sessions_are_not_looked_at(self, said: SqlRepository) -> None:
        for session in ("s", "tenant-1:a", "tenant-2:a"):
            said.append_turns(session, [Turn("user", "An automobile.")])
            embed_session(session, said)
        assert {hit.session_id for hit in search("s", said, "car")} == {"s"}
        assert {hit.session_id for hit in search(None, said, "car", session_prefix="tenant-1:")} == {"tenant-1:a"}
        assert len({hit.session_id for hit in search(None, said, "car", limit=50)}) == 3

    @pytest.mark.parametrize("query", [*HOSTILE_TEXTS, "", "   ", "x" * 100_000])
    def test_no_text_is_an_error(self, said: SqlRepository, query: str) -> None:
        embed_session("s", said)
        assert isinstance(search("s", said, query, in_="both"), list)

    def test_a_context_recalls_by_meaning_too(self, said: SqlRepository) -> None:
        compact_session("s", said, Summarizer(lambda prompt: "They talked."), fresh_tail_count=2)
        embed_session("s", said)
        context = assemble_context("s", said, TokenBudget(total=4_000, fresh_tail_count=2), query="a car")
        assert {turn.position for turn in context.recalled} >= {1, 4}

    def test_a_postgres_without_pgvector_is_named_with_the_cure(self, said: SqlRepository) -> None:
        if said._engine.dialect.name == "sqlite":
            pytest.skip("SQLite needs no extension")
        embed_session("s", said)
        with said._engine.begin() as connection:
            connection.execute(text("DROP EXTENSION vector"))
        try:
            with pytest.raises(SchemaMismatch, match="CREATE EXTENSION vector"):
                search("s", said, "car")
        finally:
            with said._engine.begin() as connection:
                connection.execute(text("CREATE EXTENSION vector"))


class TestFuse:
    def test_words_and_nearness_add_up(self) -> None:
        words = [Found("s", 1, "", 1.0), Found("s", 2, "", 0.5)]
        near = [Found("s", 2, "", 1.0), Found("s", 3, "", 0.9), Found("s", 1, "", 0.2)]
        assert [one.position for one in fuse(words, near, 9, asked=3)] == [2, 1, 3]
        assert fuse(words, near, 1, asked=3)[0].score == round((0.5 + 0.75) / 1.75, 6)

    def test_what_is_not_among_the_nearest_counts_as_the_last_of_them(self) -> None:
        words = [Found("s", 1, "", 0.4), Found("s", 2, "", 0.4)]
        near = [Found("s", 3, "", 0.9), Found("s", 2, "", 0.6)]
        scores = {one.position: one.score for one in fuse(words, near, 9, asked=2)}
        assert scores[1] == scores[2]

    def test_what_has_no_vector_yet_counts_as_the_mean_of_all(self) -> None:
        words = [Found("s", 1, "", 0.4), Found("s", 2, "", 0.4)]
        near = [Found("s", 3, "", 0.9), Found("s", 2, "", 0.5), Found("s", 4, "", 0.1)]
        scores = {one.position: one.score for one in fuse(words, near, 9, asked=100)}
        assert scores[1] == scores[2]

    def test_an_opposite_meaning_takes_nothing_away(self) -> None:
        assert fuse([Found("s", 1, "", 0.7)], [Found("s", 1, "", -1.0)], 1, asked=1)[0].score == 0.4


eighths = st.integers(-8, 8).map(lambda number: number / 8)  # what 32 bits hold exactly
directions = st.tuples(eighths, eighths, eighths)


@given(vectors=st.lists(directions, min_size=1, max_size=40), asked=directions, limit=st.integers(1, 50))
def test_both_databases_and_a_plain_loop_find_the_same_nearest(
    vectors: list[tuple[float, ...]], asked: tuple[float, ...], limit: int, store: SqlRepository
) -> None:
    memory = MemoryRepository()
    store.erase_session("s")
    for repository in (memory, store):
        repository.append_turns("s", some_turns(len(vectors)))
        repository.add_embeddings("s", [Embedding(n, "", "said", v) for n, v in enumerate(vectors, start=1)])
    expected = memory.find_nearest("s", asked, of="turns", limit=limit)
    found = store.find_nearest("s", asked, of="turns", limit=limit)
    assert [one.score for one in found] == [one.score for one in expected]
    last = expected[-1].score
    assert {one for one in found if one.score > last} == {one for one in expected if one.score > last}
