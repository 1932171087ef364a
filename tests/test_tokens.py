"""The default counter against o200k, on every kind of text the promise names; and what a whole turn costs."""

from __future__ import annotations

import base64
import json
import random
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnfold import EstimatingCounter, ExactCounter, MissingExtra, SqlRepository, TokenCounter, Turn
from turnfold.tokens import CALL_OVERHEAD_TOKENS, MESSAGE_OVERHEAD_TOKENS, _word_costs, count_turn

TEXTS = Path(__file__).parent / "texts"
ESTIMATE = EstimatingCounter()
EXACT = ExactCounter()
chance = random.Random(42)

EMOJI = "😀😂🤔😍😢😡👍🙏💪🎉🚀🔥✅❌⭐🌈🍕🐍🦊🌍📦🧪💡🔧🕐🎵🏆🥇🛠⚠❤💚🧠👀🤝🙈🍀☕🐛🪲"
SEQUENCES = ["👩‍💻", "👨‍👩‍👧", "👍🏽", "🇩🇪", "🇯🇵", "❤️", "🏳️‍🌈", "🤷‍♀️", "☀️"]


def log_lines(count: int) -> str:
    start = datetime(2026, 3, 1, tzinfo=UTC)
    messages = [
        "GET /api/v1/parcels/{} 200 {}ms",
        "worker {} finished job {}",
        "retrying delivery {} (attempt {})",
        "slow query ({} ms): SELECT id FROM scans WHERE depot = $1 LIMIT {}",
        "connection reset by peer fd={} retries={}",
    ]
    return "\n".join(
        f"{(start + timedelta(milliseconds=chance.randrange(10**9))).isoformat()} "
        f"{chance.choice(['INFO', 'WARNING', 'ERROR', 'DEBUG'])} [parcelbox.{chance.choice(['http', 'db', 'queue'])}] "
        + chance.choice(messages).format(chance.randrange(10**5), chance.randrange(10**4))
        for _ in range(count)
    )


def records(count: int) -> list[dict[str, object]]:
    return [
        {
            "id": chance.randrange(10**6),
            "customer": chance.choice(["Orchard Labs", "Bluebird Books", "Hanseatic Freight"]),
            "weight_kg": round(chance.random() * 40, 2),
            "express": chance.random() < 0.5,
            "tags": chance.sample(["fragile", "gift", "cold", "return"], 2),
            "position": {"lat": chance.uniform(-90, 90), "lon": chance.uniform(-180, 180)},
            "scanned_at": f"2026-03-{chance.randint(1, 28):02}T{chance.randint(0, 23):02}:15:00Z",
        }
        for _ in range(count)
    ]


def noise(count: int) -> bytes:
    return bytes(chance.randrange(256) for _ in range(count))


KINDS = {
    **{file.stem: file.read_text(encoding="utf-8") for file in sorted(TEXTS.glob("*.txt"))},
    "emoji": "".join(chance.choice(EMOJI) for _ in range(2_500)),
    "emoji sequences": "".join(chance.choice([chance.choice(EMOJI), chance.choice(SEQUENCES)]) for _ in range(1_500)),
    "emoji in prose": " ".join(
        word + (chance.choice(EMOJI) if chance.random() < 0.15 else "")
        for word in (TEXTS / "english.txt").read_text().split()
    ),
    "code": Path(sys.modules["turnfold.planning"].__file__ or "").read_text(),
    "code of others": Path(json.decoder.__file__).read_text(),
    "JSON": json.dumps(records(20)),
    "indented JSON": json.dumps(records(12), indent=2),
    "logs": log_lines(40),
    "UUIDs": "\n".join(str(UUID(int=chance.getrandbits(128))) for _ in range(80)),
    "UUIDs in JSON": json.dumps([str(UUID(int=chance.getrandbits(128))) for _ in range(80)]),
    "hex": noise(1_500).hex(),
    "HEX": noise(1_500).hex().upper(),
    "hex dump": "\n".join(noise(16).hex(" ") for _ in range(60)),
    "base64": base64.b64encode(noise(2_000)).decode(),
    "base64 lines": base64.encodebytes(noise(2_000)).decode(),
}


def test_the_estimate_is_the_same_on_every_python() -> None:
    # Whole numbers: from Python 3.12 on sum() adds floats otherwise, and 221 became 222.
    assert [ESTIMATE.count("word " * count) for count in (1, 100, 200, 1_000)] == [3, 111, 221, 1_101]
    assert all(type(cost) is int for cost in _word_costs.values())


@pytest.mark.parametrize("kind", KINDS)
def test_the_estimate_is_near_the_exact_count(kind: str) -> None:
    text = KINDS[kind]
    assert len(text) >= 2_000
    assert 0.85 <= ESTIMATE.count(text) / EXACT.count(text) <= 1.2


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_text_is_counted_like_its_parts(kind: str) -> None:
    text = KINDS[kind]
    assert ESTIMATE.count(text * 60) == pytest.approx(60 * ESTIMATE.count(text), rel=0.02)


@pytest.mark.parametrize("counter", [ESTIMATE, EXACT], ids=lambda counter: counter.name)
@given(text=st.text() | st.text(alphabet="\ud800\udfff\0ab c1"))
def test_any_text_is_counted(counter: TokenCounter, text: str) -> None:
    count = counter.count(text)
    assert (count == 0) == (text == "")
    assert count == counter.count(text)


def test_counting_is_linear_for_a_text_without_a_blank() -> None:
    assert ESTIMATE.count("a" * 5_000_000) > 100_000


def test_a_counter_has_a_name_that_fits_into_its_column() -> None:
    for counter in (ESTIMATE, EXACT):
        assert isinstance(counter, TokenCounter)
        assert 0 < len(counter.name) <= 64


def test_without_its_extra_the_exact_counter_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "toktok", None)
    with pytest.raises(MissingExtra, match=r"pip install 'turnfold\[tokens\]'"):
        ExactCounter()


def test_the_row_remembers_which_counter_counted_it(store: SqlRepository) -> None:
    store.append_turns("s", [Turn("user", "Hello there.")])
    exact = SqlRepository(store._engine, token_counter=EXACT)
    exact.append_turns("s", [Turn("user", "Hello there.")])
    assert [turn.counter for turn in store.get_session_turns("s")] == ["estimate-o200k-1", "o200k_base"]


class TestTurns:
    def cost(self, turn: Turn) -> int:
        return count_turn(EXACT, turn)

    def test_a_message_costs_its_words_and_its_overhead(self) -> None:
        assert self.cost(Turn("user", "Hello there.")) == EXACT.count("Hello there.") + MESSAGE_OVERHEAD_TOKENS
        assert self.cost(Turn("assistant", None)) == self.cost(Turn("assistant", "")) == MESSAGE_OVERHEAD_TOKENS

    def test_names_and_all_arguments_of_calls_count(self) -> None:
        arguments = json.dumps({"query": "where is parcel PX-1", "limit": 25})
        call = {"id": "1", "type": "function", "function": {"name": "search_repo", "arguments": arguments}}
        expected = EXACT.count("search_repo") + EXACT.count(arguments) + CALL_OVERHEAD_TOKENS + MESSAGE_OVERHEAD_TOKENS
        assert self.cost(Turn("assistant", None, tool_calls=[call])) == expected

    def test_calls_and_results_in_parts_count(self) -> None:
        use = [{"type": "tool_use", "id": "1", "name": "search_repo", "input": {"query": "where is parcel PX-1"}}]
        result = [
            {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "in Hamburg " * 20}]}
        ]
        assert self.cost(Turn("assistant", use)) > 10
        assert self.cost(Turn("user", result)) >= EXACT.count("in Hamburg " * 20)

    def test_a_picture_counts_as_its_provider_counts_it_and_not_as_base64(self) -> None:
        picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{png(1024, 1024)}" + "A" * 90_000}}
        assert self.cost(Turn("user", [picture])) == 765 + MESSAGE_OVERHEAD_TOKENS

    def test_a_picture_inside_a_tool_result_counts(self) -> None:
        picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": png(750, 1000)}}
        result = {"type": "tool_result", "tool_use_id": "1", "content": [picture]}
        assert self.cost(Turn("user", [result])) == 1_000 + MESSAGE_OVERHEAD_TOKENS


def png(width: int, height: int) -> str:
    head = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + width.to_bytes(4, "big") + height.to_bytes(4, "big")
    return base64.b64encode(head + b"\x08\x02\0\0\0" * 3).decode()
