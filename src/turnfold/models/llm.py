"""A provider's model as a callable, sync and async, through pydantic-ai (extra `llm`).

Every outcome of a call has its place. Passing faults (time-outs, 429, 5xx, lost connections) are tried again, a
bounded number of times, and then raised as `ModelFailed`; permanent ones are raised at once as `ModelUnavailable`; a
prompt that is too long as `ContextLengthExceeded`. What the model said is an `Answer` that tells how it ended; its
reasoning is dropped. pydantic-ai is imported at the first call.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from turnfold.errors import ContextLengthExceeded, MissingExtra, ModelFailed, ModelUnavailable
from turnfold.models.prompt import Answer, Finish, Prompt

__all__ = ["LLM"]

LONGEST_DELAY_SECONDS = 60.0
REASONING_RESERVE_TOKENS = 4_000
"""What reasoning may take beside the answer, so that it does not eat the answer's own limit."""


class LLM:
    """A provider's model; made by `load_model`. Call it, or await `acall`."""

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None,
        api_key: str | None,
        timeout: float,
        max_output_tokens: int | None,
        retries: int,
        max_concurrent_calls: int,
    ) -> None:
        self.name = name
        self._access = {key: value for key, value in (("base_url", base_url), ("api_key", api_key)) if value}
        self._timeout = timeout
        self._max_output_tokens = max_output_tokens
        self._retries = retries
        self._max_concurrent_calls = max_concurrent_calls
        # A client belongs to the event loop that it was first used on.
        self._of_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[Any, asyncio.Semaphore]] = WeakKeyDictionary()
        self._lock = threading.Lock()
        self._own_loop: asyncio.AbstractEventLoop | None = None

    def __call__(self, prompt: Prompt) -> Answer:
        """The answer to a prompt. The calls of all threads run on one event loop in a thread of this model."""
        return asyncio.run_coroutine_threadsafe(self.acall(prompt), self._running_own_loop()).result()

    async def acall(self, prompt: Prompt) -> Answer:
        """The answer to a prompt. Raises `ModelUnavailable`, `ModelFailed` or `ContextLengthExceeded`."""
        model, slots = await self._for_running_loop()
        async with slots:
            for attempt in range(self._retries + 1):
                try:
                    return await self._ask(model, prompt)
                except _Passing as fault:
                    if attempt == self._retries:
                        raise ModelFailed(
                            f"model {self.name}: {fault} (tried {attempt + 1} times); nothing was written; "
                            "call again later"
                        ) from fault.__cause__
                    delay = fault.delay(attempt)
                await asyncio.sleep(delay)
        raise AssertionError("unreachable")

    def close(self) -> None:
        """Close the connections of synchronous calls, and end the thread that they ran on, if there is one."""
        with self._lock:
            loop, self._own_loop = self._own_loop, None
        if loop is not None:
            asyncio.run_coroutine_threadsafe(self.aclose(), loop).result()
            loop.call_soon_threadsafe(loop.stop)

    async def aclose(self) -> None:
        """Close the connections that calls on the running event loop opened."""
        with self._lock:
            model, _ = self._of_loop.pop(asyncio.get_running_loop(), (None, None))
        if model is not None:
            await model.__aexit__(None, None, None)

    def _running_own_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._own_loop is None:
                self._own_loop = asyncio.new_event_loop()
                # A daemon, so that a program that forgot to close the model can still end.
                threading.Thread(target=_run_and_close, args=(self._own_loop,), daemon=True).start()
            return self._own_loop

    async def _for_running_loop(self) -> tuple[Any, asyncio.Semaphore]:
        loop = asyncio.get_running_loop()
        with self._lock:
            known = self._of_loop.get(loop)
            if known is not None:
                return known
            known = self._of_loop[loop] = self._client(), asyncio.Semaphore(self._max_concurrent_calls)
        await known[0].__aenter__()
        return known

    def _client(self) -> Any:
        try:
            from pydantic_ai.exceptions import UserError
            from pydantic_ai.models import infer_model
            from pydantic_ai.providers import infer_provider_class
        except ImportError as error:
            raise MissingExtra(f"model {self.name} needs {error.name}", extra="llm") from None
        name = self.name
        if "base_url" in self._access and name.startswith("openai:"):  # what compatible servers speak
            name = "openai-chat:" + name.removeprefix("openai:")
        try:
            return infer_model(name, lambda provider: infer_provider_class(provider)(**self._access))
        except (UserError, ValueError, TypeError, ImportError) as error:
            raise ModelUnavailable(f"model {self.name}: {error}") from error

    async def _ask(self, model: Any, prompt: Prompt) -> Answer:
        from pydantic_ai import exceptions
        from pydantic_ai.direct import model_request
        from pydantic_ai.messages import ModelRequest
        from pydantic_ai.settings import ModelSettings

        settings = ModelSettings(
            max_tokens=self._max_output_tokens or 4 * prompt.target_tokens + REASONING_RESERVE_TOKENS,
            temperature=prompt.temperature,
            timeout=self._timeout,
            max_retries=0,
        )
        try:
            response = await model_request(model, [ModelRequest.user_text_prompt(str(prompt))], model_settings=settings)
        except exceptions.ContentFilterError:
            return Answer("", finish="content_filter")
        except exceptions.ModelContextWindowExceededError as error:
            raise ContextLengthExceeded(f"model {self.name}: {error}") from error
        except (
            exceptions.ModelAuthenticationError,
            exceptions.ModelNotFoundError,
            exceptions.ModelQuotaExceededError,
            exceptions.ModelRequestRejectedError,
        ) as error:
            raise ModelUnavailable(
                f"model {self.name}: {error}; nothing was written; correct it and call again"
            ) from error
        except (exceptions.ModelAPIError, exceptions.UnexpectedModelBehavior) as error:
            raise _Passing(error) from error
        return _answer(response)


def _run_and_close(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


def _answer(response: Any) -> Answer:
    text = "".join(part.content for part in response.parts if part.part_kind == "text")
    details = response.provider_details or {}
    finish: Finish = {"length": "length", "content_filter": "content_filter"}.get(response.finish_reason, "stop")  # type: ignore[assignment]
    if "refusal" in details or details.get("finish_reason") == "refusal":
        finish = "refusal"
    usage = response.usage
    return Answer(
        text, finish=finish, input_tokens=usage.input_tokens or None, output_tokens=usage.output_tokens or None
    )


class _Passing(Exception):
    """A fault that may pass; `delay` is how long to wait for it."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error) or type(error).__name__)
        self._headers: Mapping[str, str] = getattr(error, "headers", None) or {}

    def delay(self, attempt: int) -> float:
        """Seconds: what the server asks for, else twice as long each time, with jitter."""
        asked = next((value for key, value in self._headers.items() if key.lower() == "retry-after"), "")
        try:
            seconds = float(asked)
        except ValueError:
            seconds = random.uniform(0.5, 1) * 0.5 * 2**attempt  # noqa: S311
        return min(seconds, LONGEST_DELAY_SECONDS)
