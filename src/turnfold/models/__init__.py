"""What turns a prompt into text: any callable, a provider's model, or the built-in offline model."""

from turnfold.models.extraction import extractive
from turnfold.models.loading import load_model
from turnfold.models.prompt import Answer, Model, Prompt

__all__ = ["Answer", "Model", "Prompt", "extractive", "load_model"]
