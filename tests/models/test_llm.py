"""Real clients against a local server: every outcome of a call has its place, sync and async alike."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests import fake_provider as fake
from tests.fake_provider import Provider
from tests.worlds import Portal
from turnfold import (
    CompactionStats,
    ContextLengthExceeded,
    InvalidArgument,
    ModelFailed,
    ModelUnavailable,
    Prompt,
    SqlRepository,
    Summarizer,
    aio,
    check,
    compact_session,
    extractive,
    load_model,
)
from turnfold.models.llm import LLM
from turnfold.testing import some_turns

pytestmark = pytest.mark.filterwarnings("ignore")  # of the providers' own clients

GOOD = "They decided on plan 7."
PROMPT = Prompt("Summarize.", source="x", target_tokens=100, temperature=0.2)


@pytest.fixture(scope="module")
def server() -> Iterator[Provider]:
    with fake.running() as provider:
        yield provider


@pytest.fixture
def provider(server: Provider) -> Provider:
    server.__init__(server.url)  # type: ignore[misc]
    return server


@pytest.fixture(params=["openai", "anthropic"])
def wire(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make(provider: Provider, wire: str) -> Iterator[Callable[..., LLM]]:
    made: list[LLM] = []

    def load(**options: Any) -> LLM:
        url = provider.url + ("/v1" if wire == "openai" else "")
        model = load_model(f"{wire}:fake", base_url=url, api_key="key", **{"retries": 1, **options})
        assert isinstance(model, LLM)
        made.append(model)
        return model

    yield load
    for model in made:
        model.close()


@pytest.fixture(scope="module")
def portal() -> Iterator[Portal]:
    portal = Portal()
    yield portal
    portal.close()


@pytest.fixture(params=["sync", "async"])
def compact(request: pytest.FixtureRequest, portal: Portal, store: SqlRepository) -> Callable[..., CompactionStats]:
    """Compact the session `s` with a model, on either side."""
    store.append_turns("s", some_turns(60))

    def run(model: LLM, **options: Any) -> CompactionStats:
        if request.param == "sync":
            return compact_session("s", store, Summarizer(model, **options))

        async def compacted() -> CompactionStats:
            try:
                return await aio.compact_session("s", portal.twin(store), aio.Summarizer(model, **options))
            finally:
                await model.aclose()

        return portal.run(compacted())

    return run


# What the server answers, in order; then how many calls that takes, and the tiers written or the error raised.
OUTCOMES: dict[str, tuple[list[fake.Reply], int, Any]] = {
    "a normal answer": ([fake.says(GOOD)], 1, ["normal"]),
    "an answer with reasoning before it": ([fake.says(GOOD, reasoning="hm " * 50)], 1, ["normal"]),
    "a rate limit that passes": (
        [fake.fails(429, "rate_limit_error", Retry_After="0.05"), fake.says(GOOD)],
        2,
        ["normal"],
    ),
    "a server error that passes": ([fake.fails(500, "api_error"), fake.says(GOOD)], 2, ["normal"]),
    "an overload that passes": ([fake.fails(503, "overloaded_error"), fake.says(GOOD)], 2, ["normal"]),
    "a dropped connection": ([fake.drops, fake.says(GOOD)], 2, ["normal"]),
    "garbage once": ([fake.garbage, fake.says(GOOD)], 2, ["normal"]),
    "an outage": ([fake.fails(500, "api_error")], 2, ModelFailed),
    "garbage for ever": ([fake.garbage], 2, ModelFailed),
    "a wrong key": ([fake.fails(401, "authentication_error")], 1, ModelUnavailable),
    "no right to the model": ([fake.fails(403, "permission_error")], 1, ModelUnavailable),
    "an unknown model": ([fake.fails(404, "not_found_error")], 1, ModelUnavailable),
    "an empty answer": ([fake.says(""), fake.says(GOOD)], 2, ["aggressive"]),
    "only reasoning": ([fake.says("", reasoning="hm " * 50), fake.says(GOOD)], 2, ["aggressive"]),
    "an answer that was cut off": ([fake.says("They decided on", finish="length"), fake.says(GOOD)], 2, ["aggressive"]),
    "a content filter": ([fake.says("They", finish="content_filter"), fake.says(GOOD)], 2, ["aggressive"]),
    "a refusal": ([fake.refuses, fake.says(GOOD)], 2, ["aggressive"]),
    "refusals for ever": ([fake.refuses], 2, ["fallback"]),
    "an answer as long as its source": ([fake.says("word " * 2_000), fake.says(GOOD)], 2, ["aggressive"]),
    "an answer far over its target": ([fake.says("word " * 500), fake.says(GOOD)], 2, ["aggressive"]),
}


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_every_outcome_of_a_call_has_its_place(
    store: SqlRepository,
    provider: Provider,
    make: Callable[..., LLM],
    compact: Callable[..., CompactionStats],
    outcome: str,
) -> None:
    script, calls, expected = OUTCOMES[outcome]
    provider.script = list(script)
    if isinstance(expected, list):
        assert compact(make())["tiers_used"] == expected
        (leaf,) = store.get_summaries("s")
        assert "hm" not in leaf.content
        assert leaf.content == GOOD or expected == ["fallback"]
    else:
        with pytest.raises(expected, match="nothing was written"):
            compact(make())
        assert store.get_summaries("s") == []
    assert len(provider.prompts) == calls
    assert check(store) == []


def test_a_source_that_is_too_long_is_split_and_read_whole(
    store: SqlRepository, provider: Provider, make: Callable[..., LLM], compact: Callable[..., CompactionStats]
) -> None:
    provider.script = [fake.too_long, fake.says("First half."), fake.says("Second half.")]
    assert compact(make())["tiers_used"] == ["normal"]
    assert store.get_summaries("s")[0].content == "First half.\n\nSecond half."
    whole, first, second = provider.prompts
    for number in range(44):
        line = f"Turn number {number} says"
        assert line in whole
        assert (line in first) != (line in second)


def test_the_usage_that_the_provider_reports_stands_on_the_record(
    store: SqlRepository, provider: Provider, make: Callable[..., LLM], compact: Callable[..., CompactionStats]
) -> None:
    provider.script = [fake.says(""), fake.says(GOOD)]
    compact(make())
    (leaf,) = store.get_summaries("s")
    assert (leaf.input_tokens, leaf.output_tokens) == (200, 20)  # of both calls that it took
    assert leaf.prompt_version == "turnfold-1"


def test_an_outage_becomes_picked_sentences_where_the_caller_chose_so(
    store: SqlRepository, provider: Provider, make: Callable[..., LLM], compact: Callable[..., CompactionStats]
) -> None:
    provider.script = [fake.fails(500, "api_error")]
    assert compact(make(), fallback_on_failure=True)["tiers_used"] == ["fallback"]
    provider.script = [fake.fails(401, "authentication_error")]
    store.append_turns("s", some_turns(30))
    with pytest.raises(ModelUnavailable):
        compact(make(), fallback_on_failure=True)


class TestCalls:
    def test_the_wait_is_the_one_that_the_server_asks_for(self, provider: Provider, make: Callable[..., LLM]) -> None:
        provider.script = [fake.fails(429, "rate_limit_error", Retry_After="0.6"), fake.says(GOOD)]
        assert make()(PROMPT) == GOOD
        assert provider.at[1] - provider.at[0] >= 0.6

    def test_a_slow_answer_runs_into_the_time_limit(self, provider: Provider, make: Callable[..., LLM]) -> None:
        provider.script = [fake.says(GOOD, seconds=1.0)]
        with pytest.raises(ModelFailed, match="tried 1 times"):
            make(timeout=0.2, retries=0)(PROMPT)

    def test_the_temperature_reaches_a_server_that_takes_one(
        self, provider: Provider, make: Callable[..., LLM], wire: str
    ) -> None:
        assert make()(PROMPT) == GOOD
        (body,) = provider.bodies
        assert body.get("temperature") == {"openai": 0.2, "anthropic": None}[wire]

    def test_the_limit_reaches_the_server(self, provider: Provider, make: Callable[..., LLM]) -> None:
        make(max_output_tokens=321)(PROMPT)
        (body,) = provider.bodies
        assert 321 in (body.get("max_tokens"), body.get("max_completion_tokens"))

    def test_a_prompt_that_is_too_long_is_told_apart(self, provider: Provider, make: Callable[..., LLM]) -> None:
        provider.script = [fake.too_long]
        with pytest.raises(ContextLengthExceeded):
            make()(PROMPT)

    def test_many_threads_share_one_model_and_its_cap(self, provider: Provider, make: Callable[..., LLM]) -> None:
        provider.script = [fake.says(GOOD, seconds=0.05)]
        model = make(max_concurrent_calls=3)
        answers: list[str] = []
        threads = [threading.Thread(target=lambda: answers.append(model(PROMPT))) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers == [GOOD] * 12
        assert provider.most <= 3

    def test_one_model_serves_several_event_loops(self, provider: Provider, make: Callable[..., LLM]) -> None:
        import asyncio

        model = make()

        async def once() -> str:
            answer = await model.acall(PROMPT)
            await model.aclose()
            return answer

        assert [asyncio.run(once()) for _ in range(3)] == [GOOD] * 3
        assert model(PROMPT) == GOOD

    def test_a_synchronous_call_works_inside_a_running_loop(self, provider: Provider, make: Callable[..., LLM]) -> None:
        import asyncio

        async def handler() -> str:
            return make()(PROMPT)

        assert asyncio.run(handler()) == GOOD


def test_a_program_that_forgot_to_close_its_model_can_end(provider: Provider) -> None:
    script = (
        "import sys, turnfold\n"
        "model = turnfold.load_model('openai:fake', base_url=sys.argv[1], api_key='key')\n"
        "print(model(turnfold.Prompt('x', source='x', target_tokens=9, temperature=0)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, f"{provider.url}/v1"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == f"{GOOD}\n"


class TestNames:
    def test_the_offline_model_has_a_name(self) -> None:
        assert load_model("extractive") is extractive

    @pytest.mark.parametrize("name", ["gpt-5-mini", ""])
    def test_a_name_without_a_provider_is_refused(self, name: str) -> None:
        with pytest.raises(InvalidArgument, match="names no provider"):
            load_model(name)

    @pytest.mark.parametrize("option", [{"timeout": 0}, {"retries": -1}, {"max_concurrent_calls": 0}])
    def test_a_limit_that_makes_no_sense_is_refused_by_name(self, option: dict[str, Any]) -> None:
        with pytest.raises(InvalidArgument, match=next(iter(option))):
            load_model("openai:x", **option)

    def test_an_unknown_provider_is_unavailable(self) -> None:
        model = load_model("nobody:x")
        with pytest.raises(ModelUnavailable, match="nobody"):
            model(PROMPT)
        assert isinstance(model, LLM)
        model.close()

    def test_a_missing_key_is_unavailable_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)
        model = load_model("openai:gpt-5-mini")
        with pytest.raises(ModelUnavailable):
            model(PROMPT)
        assert isinstance(model, LLM)
        model.close()
