"""What a model is handed, and what it may hand back: texts that also tell what they are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

__all__ = ["Answer", "Finish", "Model", "Prompt"]

Finish = Literal["stop", "length", "refusal", "content_filter"]


class Prompt(str):
    """A prompt. A model may use it as the plain text that it is, or honour what it knows:

    `source`, the text to summarize, without instructions; `target_tokens`, how long the answer should be at most;
    `temperature`, which falls from tier to tier; a model that takes none is not sent it.
    """

    source: str
    target_tokens: int
    temperature: float

    def __new__(cls, text: str, *, source: str, target_tokens: int, temperature: float) -> Prompt:
        prompt = super().__new__(cls, text)
        prompt.source = source
        prompt.target_tokens = target_tokens
        prompt.temperature = temperature
        return prompt


class Answer(str):
    """An answer that tells how it ended, for only one that stopped by itself becomes a summary, and the tokens that
    the provider counted for it (None: not told), which the summary's record keeps."""

    finish: Finish
    input_tokens: int | None
    output_tokens: int | None

    def __new__(
        cls,
        text: str,
        *,
        finish: Finish = "stop",
        input_tokens: int | None = None,
        output_tokens: int | None = None,
    ) -> Answer:
        answer = super().__new__(cls, text)
        answer.finish = finish
        answer.input_tokens = input_tokens
        answer.output_tokens = output_tokens
        return answer


Model = Callable[[Prompt], str]
"""Any callable from a prompt to a text. Its `name`, else its `__qualname__`, is kept on each summary it writes."""
