"""Why a run ended as it did: one of a few names, for the caller and for the log."""

from __future__ import annotations

import logging
from enum import StrEnum

from turnfold.errors import LeaseLost, ModelFailed, ModelUnavailable

__all__ = ["Outcome", "log", "outcome_of"]

log = logging.getLogger("turnfold")
log.addHandler(logging.NullHandler())  # without a handler of the service Python would print warnings itself


class Outcome(StrEnum):
    """Why a run ended. An error is raised as well; the others are no errors. What was written before stays."""

    COMPACTED = "compacted"
    """Everything that could be folded was."""

    REFOLDED = "refolded"
    """`refold_session`: every stale summary was made again, or tried."""

    BELOW_THRESHOLD = "below_threshold"
    """`compact_if_needed`: the active context is below the threshold."""

    NOTHING_TO_FOLD = "nothing_to_fold"
    """Every turn is pinned, in the fresh tail, or covered already."""

    PENDING_CALL = "pending_call"
    """A tool call that waits for its answer holds back what follows it."""

    TOO_LITTLE_TO_FOLD = "too_little_to_fold"
    """`compact_if_needed`: what could be folded is no larger than the summary that would replace it."""

    IN_PROGRESS = "in_progress"
    """Another worker compacts the session."""

    MAX_MODEL_CALLS = "max_model_calls"
    """The run ended at its `max_model_calls`; the next one goes on."""

    DEADLINE = "deadline"
    """The run ended at its `deadline`; the next one goes on."""

    MODEL_FAILED = "model_failed"
    """The model stayed out of reach through every retry (`ModelFailed`)."""

    MODEL_UNAVAILABLE = "model_unavailable"
    """The model refuses for good (`ModelUnavailable`)."""

    LEASE_LOST = "lease_lost"
    """Another worker took the session over (`LeaseLost`)."""

    FAILED = "failed"
    """Any other error."""

    @property
    def level(self) -> int:
        """How loud it is logged: what happens after every turn is not for everybody's eyes."""
        if self in _FAULTS:
            return logging.WARNING
        return logging.DEBUG if self in _EVERYDAY else logging.INFO


_FAULTS = frozenset({Outcome.MODEL_FAILED, Outcome.MODEL_UNAVAILABLE, Outcome.LEASE_LOST, Outcome.FAILED})
_EVERYDAY = frozenset(
    {Outcome.BELOW_THRESHOLD, Outcome.NOTHING_TO_FOLD, Outcome.PENDING_CALL, Outcome.TOO_LITTLE_TO_FOLD}
)


def outcome_of(error: Exception) -> Outcome:
    """The outcome of a run that an error ended."""
    kinds = {
        ModelFailed: Outcome.MODEL_FAILED,
        ModelUnavailable: Outcome.MODEL_UNAVAILABLE,
        LeaseLost: Outcome.LEASE_LOST,
    }
    return next((outcome for kind, outcome in kinds.items() if isinstance(error, kind)), Outcome.FAILED)
