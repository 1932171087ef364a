"""Recall as an MCP server, so that any agent can look into the memory of one session, or of those with a prefix."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from turnfold.errors import MissingExtra
from turnfold.repository import Repository
from turnfold.tools import Scope, anthropic_tools, call_tool

try:
    import anyio
    import uvicorn
    from mcp.server import Server
    from mcp.server.stdio import stdio_server
    from mcp.types import CallToolResult, ListToolsResult, TextContent, Tool
except ImportError as error:
    raise MissingExtra(f"the MCP server needs {error.name}", extra="mcp") from None

__all__ = ["mcp_server", "serve_http", "serve_stdio"]


def mcp_server(memory_store: Repository, scope: Scope) -> Server[Any]:
    """The server, to be run on any transport. Each call reads the store in a thread of its own."""

    async def list_tools(_context: Any, _request: Any) -> ListToolsResult:
        return ListToolsResult(
            tools=[
                Tool(name=tool["name"], description=tool["description"], input_schema=tool["input_schema"])
                for tool in anthropic_tools()
            ]
        )

    async def call(_context: Any, request: Any) -> CallToolResult:
        text = await anyio.to_thread.run_sync(call_tool, request.name, request.arguments or {}, memory_store, scope)
        return CallToolResult(content=[TextContent(type="text", text=text)])

    return Server("turnfold", version=version("turnfold"), on_list_tools=list_tools, on_call_tool=call)


def serve_stdio(memory_store: Repository, scope: Scope) -> None:
    """Serve one client on standard input and output, until it leaves."""

    async def run() -> None:
        server = mcp_server(memory_store, scope)
        async with stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())

    anyio.run(run)


def serve_http(memory_store: Repository, scope: Scope, host: str, port: int) -> None:
    """Serve any number of clients on http://host:port/mcp, until interrupted."""
    app = mcp_server(memory_store, scope).streamable_http_app(host=host, json_response=True, stateless_http=True)
    uvicorn.run(app, host=host, port=port, log_level="warning")
