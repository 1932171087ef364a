"""A chat service: FastAPI, async, one model, and turnfold for its memory, on Postgres or SQLite.

Start it from the root of the project with `make example`, or, where turnfold is installed::

    pip install 'turnfold[async,llm,postgres]' fastapi uvicorn aiosqlite
    CHAT_MODEL=gpt-6.1-terra OPENAI_API_KEY=… uvicorn --factory examples.chat_service:create_app

It reads its environment: `TURNFOLD_DATABASE_URL` (default: the file chats.db), `CHAT_MODEL` (default: gpt-6.1-terra),
`OPENAI_BASE_URL` for any OpenAI-compatible server, `CHAT_CONTEXT_TOKENS` (default: 30000), and `CHAT_COMPACTION`, where
`off` turns compaction off, to compare.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Query
from openai import AsyncOpenAI, OpenAIError
from pydantic import BaseModel, Field
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from turnfold import TurnConflict, TurnfoldError, load_model, prepare_sqlite
from turnfold.aio import (
    AsyncSqlRepository,
    Summarizer,
    TokenBudget,
    Turn,
    assemble_context,
    compact_if_needed,
    migrate,
)

log = logging.getLogger("chat_service")

COMPACTIONS_AT_ONCE = 4
"""They share one process with the requests; more would only make those wait."""

INSTRUCTIONS = "You are a helpful assistant. What stands in summaries was said earlier in this conversation."


class Message(BaseModel):
    content: str = Field(min_length=1)
    id: str | None = Field(None, max_length=240, description="Your id: the same message sent again is answered once.")


class Reply(BaseModel):
    content: str
    turn_id: str
    context_tokens: int


def create_app() -> FastAPI:
    chat: Chat

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        nonlocal chat
        engine = engine_for(os.environ.get("TURNFOLD_DATABASE_URL", "sqlite:///chats.db"))
        await migrate(engine)
        chat = Chat(AsyncSqlRepository(engine))
        yield
        await chat.close()
        await engine.dispose()

    app = FastAPI(title="A chat service with turnfold", lifespan=lifespan)

    @app.post("/sessions/{session_id}/messages")
    async def send(session_id: str, message: Message) -> Reply:
        return await chat.send(session_id, message)

    @app.get("/sessions/{session_id}/messages")
    async def history(
        session_id: str, after: Annotated[int, Query(ge=0)] = 0, limit: Annotated[int, Query(ge=1, le=500)] = 100
    ) -> list[dict[str, Any]]:
        turns = await chat.store.get_session_turns(session_id, after_position=after, limit=limit)
        return [{"position": turn.position, "id": turn.id, **turn.to_message()} for turn in turns]

    @app.get("/sessions/{session_id}/tree")
    async def tree(session_id: str) -> list[dict[str, Any]]:
        return [asdict(summary) for summary in await chat.store.get_summaries(session_id)]

    return app


class Chat:
    """Answers messages, and compacts behind their back."""

    def __init__(self, store: AsyncSqlRepository) -> None:
        self.store = store
        self._model = os.environ.get("CHAT_MODEL", "gpt-6.1-terra")
        self._client = AsyncOpenAI()
        self._llm: Any = load_model(f"openai:{self._model}", base_url=os.environ.get("OPENAI_BASE_URL"))
        self._summarizer = Summarizer(self._llm)
        self._budget = TokenBudget(total=int(os.environ.get("CHAT_CONTEXT_TOKENS", "30000")))
        self._compacts = os.environ.get("CHAT_COMPACTION", "on") != "off"
        self._compactions: dict[str, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(COMPACTIONS_AT_ONCE)

    async def send(self, session_id: str, message: Message) -> Reply:
        asked = await self._append(session_id, Turn("user", message.content, id=message.id))
        reply_id = f"{asked.id}-reply"
        context = await assemble_context(session_id, self.store, self._budget, system=INSTRUCTIONS)
        answered = next((turn for turn in context.turns if turn.id == reply_id), None)
        if answered is not None:  # sent again by a client that did not see the answer
            return Reply(content=str(answered.content), turn_id=reply_id, context_tokens=context.token_count)
        text, prompt_tokens = await self._ask(context.openai())
        await self._append(session_id, Turn("assistant", text, id=reply_id))
        self._compact_later(session_id, prompt_tokens)
        return Reply(content=text, turn_id=reply_id, context_tokens=context.token_count)

    async def close(self) -> None:
        """Let compactions end; one that is cut off here would be gone on with by the next."""
        await asyncio.gather(*self._compactions.values())
        await self._llm.aclose()
        await self._client.close()

    async def _append(self, session_id: str, turn: Turn) -> Turn:
        try:
            return (await self.store.append_turns(session_id, [turn]))[0]
        except TurnConflict as error:  # another message, or another answer, under an id that is taken
            raise HTTPException(409, str(error)) from error

    async def _ask(self, messages: list[dict[str, Any]]) -> tuple[str, int]:
        prompt: Any = messages
        try:
            answer = await self._client.chat.completions.create(model=self._model, messages=prompt)
        except OpenAIError as error:
            raise HTTPException(503, f"the model did not answer ({error}); send the message again") from error
        return answer.choices[0].message.content or "", answer.usage.prompt_tokens if answer.usage else 0

    def _compact_later(self, session_id: str, prompt_tokens: int) -> None:
        if self._compacts and session_id not in self._compactions:
            task = asyncio.create_task(self._compact(session_id, prompt_tokens))
            self._compactions[session_id] = task
            task.add_done_callback(lambda _: self._compactions.pop(session_id, None))

    async def _compact(self, session_id: str, prompt_tokens: int) -> None:
        try:
            async with self._slots:
                await compact_if_needed(
                    session_id, self.store, self._summarizer, self._budget, reported_tokens=prompt_tokens
                )
        except TurnfoldError as error:  # nothing is lost: the next message tries again
            log.warning("session %s was not compacted: %s", session_id, error)


def engine_for(url: str) -> AsyncEngine:
    """An async engine for the URL that the turnfold command takes."""
    parsed = make_url(url)
    driver = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+psycopg"}.get(parsed.drivername)
    # No connection beyond the pool: those would be opened for one statement and closed again.
    engine = create_async_engine(parsed.set(drivername=driver) if driver else parsed, pool_size=10, max_overflow=0)
    if engine.dialect.name == "sqlite":
        prepare_sqlite(engine.sync_engine)
    return engine
