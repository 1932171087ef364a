"""Recall as tools of an agent: what they answer, and that they read nothing else."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters

from tests.worlds import Portal
from turnfold import InvalidArgument, SqlRepository, Summarizer, Turn, aio, compact_session, extractive, tools
from turnfold.mcp_server import mcp_server
from turnfold.testing import some_turns
from turnfold.tools import Scope, anthropic_tools, openai_tools

pytestmark = pytest.mark.filterwarnings("ignore")  # of the mcp package


def call_tool(name: str, arguments: dict[str, Any], store: SqlRepository, scope: Scope) -> str:
    return tools.call_tool(name, arguments, store, scope)


@pytest.fixture(params=["sync", "async"])
def world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if request.param == "sync":
        yield
        return
    portal = Portal()
    monkeypatch.setitem(
        globals(),
        "call_tool",
        lambda name, arguments, store, scope: portal.run(aio.call_tool(name, arguments, portal.twin(store), scope)),
    )
    yield
    portal.close()


@pytest.fixture
def folded(store: SqlRepository) -> SqlRepository:
    store.append_turns("a:1", [Turn("user", "Why does the build fail?", name="Anna"), *some_turns(60)])
    store.append_turns("a:2", [Turn("user", "Another build of ours.")])
    store.append_turns("b:1", [Turn("user", "The build of somebody else.")])
    for session in ("a:1", "b:1"):
        compact_session(session, store, Summarizer(extractive), fresh_tail_count=0)
    return store


ONE, PREFIX = Scope("a:1"), Scope(session_prefix="a:")


@pytest.mark.usefixtures("world")
class TestTools:
    def test_an_agent_finds_its_way_from_a_question_to_the_turns(self, folded: SqlRepository) -> None:
        found = call_tool("search", {"query": "failing builds", "in": "both"}, folded, ONE)
        assert "position 1" in found
        summary_id = folded.get_summaries("a:1")[0].id
        assert summary_id in found
        assert "turns 1 to" in call_tool("describe", {"summary_id": summary_id}, folded, ONE)
        read = call_tool("expand", {"summary_id": summary_id, "max_tokens": 100}, folded, ONE)
        assert read.startswith("[1] user Anna, ")
        assert "more follows: expand with after_position" in read
        assert "Why does the build fail?" in call_tool("around", {"position": 2, "n": 1}, folded, ONE)

    def test_an_agent_reads_nothing_beyond_its_scope(self, folded: SqlRepository) -> None:
        (foreign,) = [s.id for s in folded.get_summaries("b:1")] or [""]
        for scope in (ONE, PREFIX):
            assert "somebody else" not in call_tool("search", {"query": "build of somebody else"}, folded, scope)
            for name in ("describe", "expand"):
                assert "no summary has the id" in call_tool(name, {"summary_id": foreign}, folded, scope)
            assert "no session" in call_tool("around", {"position": 1, "session_id": "b:1"}, folded, scope)
        assert "a:2" in call_tool("search", {"query": "build"}, folded, PREFIX)
        assert "a:2" not in call_tool("search", {"query": "build"}, folded, ONE)

    @pytest.mark.parametrize(
        ("name", "arguments", "said"),
        [
            ("delete", {}, "There is no tool 'delete'"),
            ("search", {}, "needs query"),
            ("search", {"query": "x", "session_id": "b:1"}, "search takes query, limit, in"),
            ("search", {"query": 7}, "query must be a text"),
            ("search", {"query": "x", "limit": "many"}, "limit must be a whole number"),
            ("expand", {"summary_id": "sum-none"}, "no summary has the id"),
            ("expand", {"summary_id": None}, "no summary has the id"),
            ("around", {"position": 0}, "position must be a whole number"),
            ("around", {"position": 10**6}, "There is no turn at position"),
            ("search", {"query": "unheardofword"}, "Nothing was found"),
        ],
    )
    def test_a_mistake_of_the_model_is_answered_in_words(
        self, folded: SqlRepository, name: str, arguments: dict[str, Any], said: str
    ) -> None:
        assert said in call_tool(name, arguments, folded, ONE)


def test_the_definitions_are_those_that_providers_take() -> None:
    names = ["search", "describe", "expand", "around"]
    assert [tool["function"]["name"] for tool in openai_tools()] == names
    assert [tool["name"] for tool in anthropic_tools()] == names
    for tool in anthropic_tools():
        assert tool["input_schema"]["type"] == "object"
        assert set(tool["input_schema"]["required"]) <= set(tool["input_schema"]["properties"])


def test_a_scope_without_a_bound_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="never reads everything"):
        Scope()


async def used(server: Any) -> tuple[list[str], str]:
    async with Client(server) as client:
        listed = await client.list_tools()
        answered = await client.call_tool("search", {"query": "failing builds"})
        return [tool.name for tool in listed.tools], answered.content[0].text  # type: ignore[union-attr]


def test_the_official_client_uses_the_mcp_server(folded: SqlRepository) -> None:
    names, found = anyio.run(used, mcp_server(folded, ONE))
    assert names == ["search", "describe", "expand", "around"]
    assert "position 1" in found


def test_the_official_client_uses_the_command_on_standard_input(folded: SqlRepository, url: str) -> None:
    command = str(Path(sys.executable).with_name("turnfold"))
    arguments = ["mcp", "--session-prefix", "a:", "--database-url", url]
    _, found = anyio.run(used, StdioServerParameters(command=command, args=arguments))
    assert "session a:1, turn" in found


@pytest.fixture
def served(folded: SqlRepository, url: str) -> Iterator[str]:
    """The address of the command that serves over HTTP, as a process of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = str(Path(sys.executable).with_name("turnfold"))
    arguments = ["mcp", "--http", "--port", str(port), "--session-prefix", "a:", "--database-url", url]
    process = subprocess.Popen([command, *arguments], stderr=subprocess.DEVNULL)
    while True:
        assert process.poll() is None
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    yield f"http://127.0.0.1:{port}/mcp"
    process.terminate()
    process.wait(30)


def test_the_official_client_uses_the_command_over_http(served: str) -> None:
    names, found = anyio.run(used, served)
    assert names == ["search", "describe", "expand", "around"]
    assert "session a:1, turn" in found
    assert "b:1" not in found
