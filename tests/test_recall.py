"""Finding again what was folded away, on both databases and in both worlds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.memory_repository import MemoryRepository
from tests.worlds import world_of
from turnfold import (
    InvalidArgument,
    SqlRepository,
    Summarizer,
    Turn,
    UnknownSummary,
    around,
    compact_session,
    describe,
    expand,
    extractive,
    search,
)
from turnfold.analysis import matches_in, terms_of
from turnfold.testing import HOSTILE_TEXTS, some_turns

TREE: dict[str, Any] = {"fresh_tail_count": 2, "leaf_chunk_tokens": 300, "condensed_min_fanout": 2}

SAID = [
    Turn("user", "Why does the café build fail on the second machine?", name="Anna"),
    Turn("assistant", "The disk is full. I would delete the old builds."),
    Turn("user", "我们决定使用新的缓存键"),
    Turn("assistant", "キャッシュを消しました。"),
    Turn("user", "캐시를 다시 만들었습니다"),
    Turn(
        "assistant", None, tool_calls=[{"id": "c", "function": {"name": "read_log", "arguments": '{"path": "/var/x"}'}}]
    ),
    Turn("tool", "no space left on device", tool_call_id="c"),
    Turn("user", "Die Größe der Datei ist geändert; straße, naïve façade, Žluťoučký kůň"),
]


@pytest.fixture(autouse=True, params=["sync", "async"])
def world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with world_of(request.param, monkeypatch, globals(), "search", "describe", "expand", "around"):
        yield


@pytest.fixture
def said(store: SqlRepository) -> SqlRepository:
    store.append_turns("s", [*SAID, *some_turns(20)])
    return store


class TestSearch:
    @pytest.mark.parametrize(
        ("query", "position"),
        [
            ("What made the cafe's building fail?", 1),
            ("FULL DISKS", 2),
            ("缓存键", 3),
            ("キャッシュ", 4),
            ("캐시", 5),
            ("who called read_log on /var/x", 6),
            ("space left?", 7),
            ("groesse GRÖSSE größe", 8),
            ("zlutoucky KUN", 8),
            ("Anna", 1),
        ],
    )
    def test_a_question_in_plain_language_finds_its_turn(self, said: SqlRepository, query: str, position: int) -> None:
        hits = search("s", said, query, limit=3)
        assert hits[0].position == position
        assert hits[0].score == max(hit.score for hit in hits)

    @pytest.mark.parametrize(
        "query", [*HOSTILE_TEXTS, "NEAR(a b) AND (OR", '"unclosed', "a*", "col:x", "-", "'", "x" * 100_000]
    )
    def test_no_text_is_an_error(self, said: SqlRepository, query: str) -> None:
        assert isinstance(search("s", said, query, in_="both"), list)

    def test_the_excerpt_shows_where_the_words_stand(self, store: SqlRepository) -> None:
        long = "Nothing here says anything. " * 40
        store.append_turns("s", [Turn("user", f"{long}We moved the *cache* key to Redis. {long}")])
        (hit,) = search("s", store, "cached keys")
        assert len(hit.excerpt) < 260
        assert hit.excerpt.startswith("…")
        assert hit.excerpt.endswith("…")
        assert [hit.excerpt[start:end] for start, end in hit.highlights] == ["cache", "key"]

    def test_an_answer_is_found_beside_the_turn_that_has_the_words(self, store: SqlRepository) -> None:
        store.append_turns(
            "s", [*some_turns(10), Turn("user", "Where did you spend the holidays?"), Turn("assistant", "In Norway.")]
        )
        assert [hit.position for hit in search("s", store, "holidays", limit=2)] == [11, 12]

    def test_summaries_are_found_and_lead_to_their_turns(self, said: SqlRepository) -> None:
        compact_session("s", said, Summarizer(extractive), fresh_tail_count=2)
        hits = search("s", said, "café build", in_="summaries")
        assert hits[0].kind == "summary"
        both = search("s", said, "café build", in_="both")
        assert {hit.kind for hit in both} == {"turn", "summary"}
        turns = expand(hits[0].id, said).turns
        assert any(turn.position == 1 for turn in turns)

    def test_other_sessions_are_not_looked_at(self, said: SqlRepository) -> None:
        said.append_turns("tenant-1:a", [Turn("user", "A build of theirs.")])
        said.append_turns("tenant-2:a", [Turn("user", "A build of others.")])
        assert {hit.session_id for hit in search("s", said, "build")} == {"s"}
        assert {hit.session_id for hit in search(None, said, "build")} == {"s", "tenant-1:a", "tenant-2:a"}
        assert {hit.session_id for hit in search(None, said, "build", session_prefix="tenant-1:")} == {"tenant-1:a"}

    def test_what_was_erased_is_found_no_more(self, said: SqlRepository) -> None:
        said.erase_session("s")
        assert search(None, said, "disk full build", in_="both") == []

    def test_a_word_that_nearly_every_turn_has_is_found_too(self, store: SqlRepository) -> None:
        store.append_turns("s", [Turn("user", f"Apples and number {number}") for number in range(700)])
        assert len(search("s", store, "apples", limit=5)) == 5
        assert search("s", store, "apples 123")[0].position == 124

    @pytest.mark.parametrize(
        ("options", "said_"), [({"limit": 0}, "limit"), ({"in_": "all"}, "in_ must be"), ({"limit": True}, "limit")]
    )
    def test_an_option_out_of_range_is_refused_by_name(
        self, store: SqlRepository, options: dict[str, Any], said_: str
    ) -> None:
        with pytest.raises(InvalidArgument, match=said_):
            search("s", store, "x", **options)


class TestDownTheTree:
    def test_expanding_gives_the_very_turns_in_pieces_that_fit(self, store: SqlRepository) -> None:
        turns = store.append_turns("s", some_turns(100))
        compact_session("s", store, Summarizer(extractive), **TREE)
        (root,) = store.get_uncompacted_summaries("s")
        assert root.depth > 0
        whole = expand(root.id, store)
        assert list(whole.turns) == turns[:98]
        assert whole.next_position is None
        pieces, position = [], 0
        while True:
            piece = expand(root.id, store, max_tokens=200, after_position=position)
            assert piece.token_count <= 200
            pieces += piece.turns
            if piece.next_position is None:
                break
            position = piece.next_position
        assert pieces == turns[:98]

    def test_a_turn_larger_than_the_bound_comes_alone(self, store: SqlRepository) -> None:
        store.append_turns("s", [Turn("user", "word " * 500), *some_turns(5)])
        compact_session("s", store, Summarizer(extractive), fresh_tail_count=1)
        (leaf,) = store.get_summaries("s")
        piece = expand(leaf.id, store, max_tokens=10)
        assert (len(piece.turns), piece.next_position) == (1, 1)

    def test_a_summary_is_described_with_what_is_above_and_below_it(self, store: SqlRepository) -> None:
        store.append_turns("s", some_turns(100))
        compact_session("s", store, Summarizer(extractive), **TREE)
        leaf = store.get_summaries("s", depth=0)[0]
        (root,) = store.get_uncompacted_summaries("s")
        assert describe(leaf.id, store).ancestors[-1] == root
        assert leaf in describe(leaf.parent_id or "", store).children
        with pytest.raises(UnknownSummary):
            describe("sum-none", store)

    def test_what_stands_around_a_turn(self, store: SqlRepository) -> None:
        turns = store.append_turns("s", some_turns(10))
        assert around("s", store, 5, 2) == turns[2:7]
        assert around("s", store, 1, 1) == turns[:2]
        assert around("s", store, 10, 0) == turns[9:]
        with pytest.raises(InvalidArgument, match="position"):
            around("s", store, 0)


words = st.lists(
    st.sampled_from("cat dog build café fail 缓存 키 über x1 running runs".split()), min_size=1, max_size=6
)


@given(texts=st.lists(words, min_size=1, max_size=12), query=words)
def test_both_databases_and_a_plain_loop_find_the_same(
    texts: list[list[str]], query: list[str], store: SqlRepository
) -> None:
    memory = MemoryRepository()
    store.erase_session("s")
    for repository in (memory, store):
        repository.append_turns("s", [Turn("user", " ".join(text)) for text in texts])
    terms = terms_of(" ".join(query))
    expected = memory.find_documents("s", terms, of="turns", limit=50)
    assert store.find_documents("s", terms, of="turns", limit=50) == expected


@given(st.text())
def test_terms_are_plain_ascii_whatever_the_text(text: str) -> None:
    for term in terms_of(text):
        assert term.isascii()
        assert term.isalnum()
        assert term[0] in "wu"


@given(st.text(), st.text())
def test_a_text_is_found_by_its_own_terms_in_their_places(before: str, text: str) -> None:
    whole = f"{before} {text}"
    for start, end in matches_in(whole, frozenset(terms_of(text))):
        assert 0 <= start < end <= len(whole)
