"""Finds a model by its name."""

from __future__ import annotations

from turnfold.errors import InvalidArgument
from turnfold.models.extraction import extractive
from turnfold.models.prompt import Model

__all__ = ["load_model"]


def load_model(
    name: str,
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    timeout: float = 120.0,
    max_output_tokens: int | None = None,
    retries: int = 4,
    max_concurrent_calls: int = 8,
) -> Model:
    """A model by its name: `"extractive"`, or `"provider:model"` as pydantic-ai names them, such as
    `"openai:gpt-6.1-terra"` or `"anthropic:claude-haiku-5-5"`.

    `base_url` points to a server that speaks the provider's protocol; with `openai:` that is any OpenAI-compatible one
    (vLLM, Ollama, a LiteLLM proxy). Without `api_key` the provider's environment variable counts. `timeout` is in
    seconds a call; `retries` follow a passing fault; at most `max_concurrent_calls` run at once in one event loop.
    Without `max_output_tokens` an answer may take four times its target and a reserve for reasoning.
    A temperature goes only to models that take one: pydantic-ai leaves it out for the others, with a `UserWarning`.

    Raises `InvalidArgument` for a name without a provider, or a limit out of range.
    """
    if name == "extractive":
        return extractive
    if ":" not in name:
        raise InvalidArgument(
            f"model {name!r} names no provider; use 'extractive' or one such as 'openai:gpt-6.1-terra'"
        )
    for what, value, least in (
        ("timeout", timeout, 0.001),
        ("retries", retries, 0),
        ("max_concurrent_calls", max_concurrent_calls, 1),
    ):
        if not value >= least:
            raise InvalidArgument(f"{what} must be {least} or more, not {value!r}")
    from turnfold.models.llm import LLM  # it brings asyncio, which an offline service need not wait for

    return LLM(
        name,
        base_url=base_url,
        api_key=api_key,
        timeout=timeout,
        max_output_tokens=max_output_tokens,
        retries=retries,
        max_concurrent_calls=max_concurrent_calls,
    )
