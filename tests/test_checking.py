"""The check: clean after everything that turnfold does, and every kind of damage named; erasing. In both worlds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text

from tests.worlds import world_of
from turnfold import (
    CompactionInProgress,
    InvalidArgument,
    LeaseLost,
    SqlRepository,
    Summarizer,
    Turn,
    UnknownSession,
    check,
    compact_session,
    create_engine,
    erase_session,
    extractive,
    migrate,
    repair,
    search,
)
from turnfold.sql.tables import metadata
from turnfold.testing import leaf_of, some_turns
from turnfold.vectors import Embedding

DAMAGE = {
    "a leaf that covers a turn less": ("DELETE FROM turnfold_summary_sources WHERE position = 5", "coverage"),
    "a source in the middle of nothing": (
        "UPDATE turnfold_summary_sources SET position = 199 WHERE position = 180",
        "coverage",
    ),
    "a pinned turn that is covered": ("UPDATE turnfold_turns SET pinned = true WHERE position = 7", "coverage"),
    "a turn of another leaf": (
        "UPDATE turnfold_summary_sources SET summary_id = (SELECT max(id) FROM turnfold_summaries WHERE depth = 0 AND "
        "id <> summary_id) WHERE position = 3",
        "coverage",
    ),
    "a turn that vanished": (
        "DELETE FROM turnfold_summary_sources WHERE position = 4; DELETE FROM turnfold_turns WHERE position = 4",
        "turns",
    ),
    "calls that are no JSON": ("UPDATE turnfold_turns SET tool_calls = '{broken' WHERE position = 9", "turns"),
    "a parent that spans more than its children": (
        "UPDATE turnfold_summaries SET last_position = last_position + 1 WHERE depth = 1",
        "tree",
    ),
    "a child that lost its parent": (
        "UPDATE turnfold_summaries SET parent_id = NULL WHERE depth = 0 AND first_position = 2",
        "tree",
    ),
    "a child of two depths above": (
        "UPDATE turnfold_summaries SET depth = 2 WHERE depth = 1",
        "tree",
    ),
    "an empty summary": ("UPDATE turnfold_summaries SET content = ' ' WHERE depth = 1", "tree"),
    "a wrong last position": ("UPDATE turnfold_sessions SET last_position = 500", "counters"),
    "a wrong covered position": ("UPDATE turnfold_sessions SET covered_position = 3", "counters"),
    "a wrong number of tokens": ("UPDATE turnfold_sessions SET total_tokens = total_tokens + 1", "counters"),
    "a wrong number of active tokens": ("UPDATE turnfold_sessions SET active_tokens = 1", "counters"),
    "a lease that ran out": (
        "UPDATE turnfold_sessions SET lease_owner = 'gone', lease_expires_at = '2000-01-01 00:00:00.000000+00:00'",
        "lease",
    ),
    "turns that search does not know": (
        "DELETE FROM turnfold_search WHERE ref = '' AND position BETWEEN 5 AND 9",
        "index",
    ),
    "a turn that search knows twice": (
        "INSERT INTO turnfold_search (terms, session_id, position, ref, length) "
        "SELECT terms, session_id, position, ref, length FROM turnfold_search WHERE ref = '' AND position = 5",
        "index",
    ),
    "summaries that search does not know": ("DELETE FROM turnfold_search WHERE ref <> ''", "index"),
}


@pytest.fixture(params=["sync", "async"])
def world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with world_of(request.param, monkeypatch, globals(), "check", "repair", "erase_session"):
        yield


@pytest.fixture
def folded(store: SqlRepository) -> SqlRepository:
    """Two sessions with leaves, condensed summaries and a tail."""
    for session_id in ("s", "other"):
        store.append_turns(session_id, [Turn("system", "Rules."), *some_turns(199)])
        compact_session(session_id, store, Summarizer(extractive), leaf_chunk_tokens=300, condensed_min_fanout=3)
    return store


def damage(engine: Engine, statements: str) -> None:
    with engine.begin() as connection:
        for statement in statements.split("; "):
            connection.execute(
                text(
                    statement + (" AND session_id = 's'" if "turnfold_sessions" not in statement else " WHERE id = 's'")
                )
            )


@pytest.mark.usefixtures("world")
class TestCheck:
    def test_what_turnfold_wrote_has_no_fault(self, folded: SqlRepository) -> None:
        assert check(folded) == []
        assert check(folded, "s") == []

    def test_an_empty_store_has_no_fault(self, store: SqlRepository) -> None:
        assert check(store) == []

    def test_a_long_session_is_checked_page_by_page(self, store: SqlRepository) -> None:
        store.append_turns("s", some_turns(2_345))
        compact_session("s", store, Summarizer(extractive), leaf_chunk_tokens=3_000)
        assert check(store) == []

    @pytest.mark.parametrize("kind", DAMAGE)
    def test_every_kind_of_damage_is_named_with_its_session(
        self, folded: SqlRepository, engine: Engine, kind: str
    ) -> None:
        statements, expected = DAMAGE[kind]
        damage(engine, statements)
        faults = check(folded)
        assert expected in {fault.kind for fault in faults}
        assert {fault.session_id for fault in faults} == {"s"}
        assert check(folded, "other") == []
        assert check(folded, "s") == faults

    def test_rows_that_belong_to_nothing_are_named(self, tmp_path: Path) -> None:
        engine = create_engine(f"sqlite:///{tmp_path / 'orphans.db'}")
        migrate(engine)
        store = SqlRepository(engine)
        for session_id in ("a", "b", "c", "d"):
            turns = store.append_turns(session_id, some_turns(6))
            store.add_summary(leaf := leaf_of(turns[:2]))
            vectors = [Embedding(1, "", "said", (1.0,)), Embedding(1, leaf.id, leaf.content, (1.0,))]
            store.add_embeddings(session_id, vectors)
        with engine.connect() as connection:
            connection.execute(text("COMMIT"))
            connection.execute(text("PRAGMA foreign_keys = OFF"))
            for statement in (
                "DELETE FROM turnfold_sessions WHERE id = 'a'",
                "DELETE FROM turnfold_summaries WHERE session_id = 'b'",
                "DELETE FROM turnfold_turns WHERE session_id = 'c' AND position = 1",
                "UPDATE turnfold_summaries SET parent_id = 'none' WHERE session_id = 'd'",
            ):
                connection.execute(text(statement))
            connection.execute(text("PRAGMA foreign_keys = ON"))
        orphans = " ".join(fault.message for fault in check(store) if fault.kind == "orphan")
        for part in (
            "turns of session 'a'",
            "summaries of session 'a'",
            "vectors of session 'a'",
            "what search knows of session 'a'",
            "session 'b' that name summary",
            "a vector of summary",
            "session 'c' that name turns",
            "parent none",
        ):
            assert part in orphans
        engine.dispose()

    def test_progress_is_told_page_by_page(self, store: SqlRepository) -> None:
        store.append_turns("long", some_turns(1_100))
        store.append_turns("short", some_turns(20))
        told: list[tuple[str, int, int]] = []
        check(store, on_progress=lambda session, read: told.append((session.id, read, session.last_position)))
        assert told == [("long", 500, 1_100), ("long", 1_000, 1_100), ("long", 1_100, 1_100), ("short", 20, 20)]
        told.clear()
        repair(store, "short", on_progress=lambda session, read: told.append((session.id, read, session.last_position)))
        assert told == [("short", 20, 20)] * 2

    def test_an_unknown_session_is_an_error(self, store: SqlRepository) -> None:
        with pytest.raises(UnknownSession, match="'none'"):
            check(store, "none")
        with pytest.raises(InvalidArgument):
            check(store, "x" * 300)


def test_a_session_that_is_written_to_meanwhile_is_no_fault(folded: SqlRepository, engine: Engine) -> None:
    class Live(SqlRepository):
        writes = 5

        def get_coverage(self, session_id: str, **page: Any) -> list[tuple[int, str]]:
            if Live.writes:
                Live.writes -= 1
                folded.append_turns("s", some_turns(30))
                compact_session("s", folded, Summarizer(extractive), leaf_chunk_tokens=300)
            return super().get_coverage(session_id, **page)

    assert check(Live(engine)) == []
    assert Live.writes == 0


@pytest.mark.usefixtures("world")
class TestRepair:
    @pytest.mark.parametrize(
        "kind", [kind for kind, (_, what) in DAMAGE.items() if what in ("counters", "lease", "index")]
    )
    def test_what_can_be_derived_is_mended(self, folded: SqlRepository, engine: Engine, kind: str) -> None:
        before = folded.get_session("s")
        damage(engine, DAMAGE[kind][0])
        assert all(fault.can_be_repaired for fault in check(folded))
        assert repair(folded) == []
        after = folded.get_session("s")
        assert before is not None
        assert after is not None
        assert (before.last_position, before.covered_position, before.active_tokens, before.total_tokens) == (
            after.last_position,
            after.covered_position,
            after.active_tokens,
            after.total_tokens,
        )

    def test_what_search_lost_is_found_again(self, folded: SqlRepository, engine: Engine) -> None:
        questions = ("turn 7", "turn 150", "reply 12")
        before = [search(None, folded, question, in_="both") for question in questions]
        damage(engine, "DELETE FROM turnfold_search WHERE position > 0")
        assert [search("s", folded, question, in_="both") for question in questions] != before
        assert {fault.kind for fault in check(folded)} == {"index"}
        assert repair(folded) == []
        assert [search(None, folded, question, in_="both") for question in questions] == before

    def test_a_turn_that_cannot_be_read_back_leaves_the_index_as_it_was(
        self, folded: SqlRepository, engine: Engine
    ) -> None:
        damage(engine, DAMAGE["calls that are no JSON"][0])
        damage(engine, DAMAGE["turns that search does not know"][0])
        indexed = folded.get_index_size("s")
        assert {"turns", "index"} <= {fault.kind for fault in repair(folded)}
        assert folded.get_index_size("s") == indexed

    def test_nothing_else_is_touched(self, folded: SqlRepository, engine: Engine) -> None:
        damage(engine, DAMAGE["an empty summary"][0])
        faults = check(folded)
        summaries, turns = folded.get_summaries("s"), folded.get_session_turns("s")
        assert repair(folded) == faults
        assert (folded.get_summaries("s"), folded.get_session_turns("s")) == (summaries, turns)

    def test_a_lease_that_lasts_is_left_alone(self, folded: SqlRepository) -> None:
        lease = folded.acquire_lease("s", owner="working", seconds=60)
        assert lease is not None
        assert repair(folded) == []
        folded.recount_session("s")
        assert folded.renew_lease(lease, seconds=60)


@pytest.mark.usefixtures("world")
class TestErase:
    def test_nothing_of_the_session_is_left_in_any_table(self, folded: SqlRepository, engine: Engine) -> None:
        assert erase_session("s", folded) is True
        with engine.connect() as connection:
            for table in metadata.sorted_tables:
                key = "id" if table.name == "turnfold_sessions" else "session_id"
                rows = connection.execute(text(f"SELECT count(*) FROM {table.name} WHERE {key} = 's'"))
                assert rows.scalar_one() == 0
        assert folded.get_session("s") is None
        assert check(folded) == []
        assert len(folded.get_session_turns("other")) == 200

    def test_a_session_without_turns_is_nothing_to_erase(self, store: SqlRepository) -> None:
        assert erase_session("none", store) is False

    def test_a_session_under_compaction_is_refused(self, folded: SqlRepository) -> None:
        lease = folded.acquire_lease("s", owner="working", seconds=60)
        assert lease is not None
        with pytest.raises(CompactionInProgress, match="working"):
            erase_session("s", folded)
        assert len(folded.get_session_turns("s")) == 200
        folded.release_lease(lease)
        assert erase_session("s", folded)

    def test_a_worker_from_before_writes_nothing_into_a_session_of_the_same_name(self, store: SqlRepository) -> None:
        turns = store.append_turns("s", some_turns(4))
        old = store.acquire_lease("s", owner="old", seconds=0)
        assert old is not None
        erase_session("s", store)
        assert store.append_turns("s", some_turns(4))
        with pytest.raises(LeaseLost):
            store.add_summary(leaf_of(turns[:2]), lease=old)
        new = store.acquire_lease("s", owner="new", seconds=60)
        assert new is not None
        assert new.token == old.token
        with pytest.raises(LeaseLost):
            store.add_summary(leaf_of(turns[:2]), lease=old)

    def test_the_file_itself_forgets_the_words(self, tmp_path: Path) -> None:
        file = tmp_path / "private.db"
        engine = create_engine(f"sqlite:///{file}")
        migrate(engine)
        store = SqlRepository(engine)
        store.append_turns("s", [Turn("user", f"my secret is xylophone {number}") for number in range(100)])
        compact_session("s", store, Summarizer(extractive))
        erase_session("s", store)
        with engine.connect() as connection:
            connection.execute(text("COMMIT"))
            connection.execute(text("PRAGMA wal_checkpoint(TRUNCATE)"))
        engine.dispose()
        assert b"xylophone" not in file.read_bytes()
