"""What a model is handed: a text that also tells what it is made of."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Model", "Prompt"]


class Prompt(str):
    """A prompt. A model may use it as the plain text that it is, or honour what it knows:

    `source`, the text to summarize, without instructions; `target_tokens`, how long the answer should be at most;
    `temperature`, which falls from tier to tier.
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


Model = Callable[[Prompt], str]
"""Any callable from a prompt to a text. Its `name`, else its `__qualname__`, is kept on each summary it writes."""
