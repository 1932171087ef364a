"""The offline model: which sentences it picks, and that it is the same every time."""

from __future__ import annotations

import json
import random
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnfold import EstimatingCounter, Prompt, Turn, extractive
from turnfold.models.extraction import extract, shortened
from turnfold.summarizer import transcript

COUNTER = EstimatingCounter()
CHATTER = [
    "That sounds nice indeed.",
    "We walked along slowly and talked about this and that.",
    "It was a pleasant afternoon for everyone.",
    "Somebody laughed and somebody sang.",
    "There was a smell of bread in the air.",
]
TELLING = {
    "decision": "We decided to use Postgres instead of Redis.",
    "name": "Ask Mireille Okafor about the rota.",
    "number": "The invoice came to 4711 euros.",
    "path": "The cause is in src/billing/totals.py somewhere.",
    "error": "It stopped with a timeout error again.",
    "question": "Who pays for the second server?",
}


@pytest.mark.parametrize("kind", TELLING)
def test_it_prefers_sentences_that_carry_something(kind: str) -> None:
    sentences = [CHATTER[number % 5].replace("and", f"and{'a' * number}") for number in range(40)]
    sentences.insert(23, TELLING[kind])
    assert TELLING[kind] in extract("\n".join(sentences), 60)


def test_it_hears_the_whole_source() -> None:
    source = "\n".join(f"In chapter {number} they measured value {number * 7}." for number in range(1, 101))
    picked = [int(sentence.split()[2]) for sentence in extract(source, 200).split(". ")]
    assert min(picked) <= 12
    assert max(picked) >= 88
    assert all(any(start <= number < start + 34 for number in picked) for start in (1, 34, 67))


def test_sentences_keep_their_order_and_their_speaker() -> None:
    turns = [Turn("user", "We decided on plan 7."), Turn("assistant", "I agree, plan 7 costs 90 euros. It is fine.")]
    assert extract(transcript(turns), 200) == (
        "user: We decided on plan 7.\nassistant: I agree, plan 7 costs 90 euros. It is fine."
    )


def test_a_sentence_said_again_and_again_is_picked_once() -> None:
    source = "\n".join(["We decided to call the bank in Hamburg at 9."] * 30 + ["The parrot is green."])
    assert extract(source, 500).count("bank in Hamburg") == 1


@pytest.mark.parametrize("target", [1, 5, 20, 100, 1_000])
def test_it_stays_within_its_target(target: int) -> None:
    source = (files("turnfold.cli") / "demo.json").read_text()
    text = extract("\n".join(str(message["content"]) for message in json.loads(source)), target)
    assert 0 < COUNTER.count(text) <= target


@given(st.text(), st.integers(1, 50))
def test_it_takes_any_text(source: str, target: int) -> None:
    text = extract(source, target)
    assert COUNTER.count(text) <= target
    assert bool(text) == any(map(str.isalnum, source))
    assert extract(source, target) == text


def test_a_text_in_chinese_is_cut_into_sentences() -> None:
    text = extract("今天天气很好。我们决定用新的服务器！价格是九百元。大家都同意了。" * 3, 40)
    assert "决定" in text


def test_as_a_model_it_reads_the_source_and_the_target_off_the_prompt() -> None:
    prompt = Prompt("Instructions with 99 numbers.", source="Only this counts, 5.", target_tokens=50, temperature=0)
    assert extractive(prompt) == "Only this counts, 5."
    assert extractive("A plain text, 7.") == "A plain text, 7."


def test_a_megabyte_without_structure_is_no_trouble() -> None:
    noise = "".join(random.Random(1).choices("abcdef0123456789 ", k=1_000_000))
    assert COUNTER.count(extract(noise, 500)) <= 500


@given(st.text(min_size=1, max_size=300), st.integers(1, 30))
def test_shortening_keeps_the_beginning(text: str, target: int) -> None:
    short = shortened(text, target, COUNTER)
    assert COUNTER.count(short) <= target
    assert short == text or (short.endswith("…") and text.startswith(short[:-1].rstrip()))
