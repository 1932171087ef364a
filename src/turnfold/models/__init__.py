"""What turns a prompt into text: any callable, or the built-in offline model."""

from turnfold.models.extraction import extractive
from turnfold.models.prompt import Model, Prompt

__all__ = ["Model", "Prompt", "extractive"]
