"""What becomes of each answer of a model: how often it was called, and what was written, sync and async, in both wire
formats, against the local server of the tests.

Run: python -m benchmarks.model_outcomes
"""

from __future__ import annotations

import warnings

from benchmarks.databases import sqlite_store
from tests import fake_provider as fake
from tests.models.test_llm import OUTCOMES
from tests.worlds import Portal
from turnfold import SqlRepository, Summarizer, TurnfoldError, aio, compact_session, load_model
from turnfold.models.llm import LLM
from turnfold.testing import some_turns


def written(store: SqlRepository, portal: Portal, model: LLM, world: str) -> str:
    """What a compaction wrote, or the error that it raised."""
    store.erase_session("s")
    store.append_turns("s", some_turns(60))

    async def compacted() -> None:
        try:
            await aio.compact_session("s", portal.twin(store), aio.Summarizer(model))
        finally:
            await model.aclose()

    try:
        if world == "sync":
            compact_session("s", store, Summarizer(model))
        else:
            portal.run(compacted())
    except TurnfoldError as error:
        return f"nothing; {type(error).__name__}"
    return ", ".join(f"a summary of tier {summary.tier}" for summary in store.get_summaries("s"))


def main() -> None:
    warnings.simplefilter("ignore")
    portal = Portal()
    print("| the server answers with | calls | written |\n|---|---|---|")
    with fake.running() as provider, sqlite_store() as store:
        for name, (script, _, _) in OUTCOMES.items():
            results = set()
            for wire in ("openai", "anthropic"):
                for world in ("sync", "async"):
                    provider.script, provider.prompts = list(script), []
                    url = provider.url + ("/v1" if wire == "openai" else "")
                    model = load_model(f"{wire}:fake", base_url=url, api_key="key", retries=1)
                    assert isinstance(model, LLM)
                    became = written(store, portal, model, world)
                    results.add((len(provider.prompts), became))
                    model.close()
            assert len(results) == 1, f"{name}: {results}"
            ((calls, became),) = results
            print(f"| {name} | {calls} | {became} |")
    portal.close()


if __name__ == "__main__":
    main()
