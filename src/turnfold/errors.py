"""Everything that turnfold raises on purpose. Each error is also the builtin that a caller would expect.

::

    TurnfoldError
    ├── InvalidArgument (ValueError)          a limit, threshold or name that cannot be used
    │   └── InvalidTurn                       a turn that cannot be stored exactly
    ├── TurnConflict (ValueError)             a turn id that already stands for another turn
    ├── InvalidSummary (ValueError)           a summary that would break an invariant
    ├── InvalidAnswer (TypeError)             a model that returned something other than text
    ├── ModelUnavailable (RuntimeError)       a wrong key, an unknown model, no credit: trying again is no use
    ├── ModelFailed (ConnectionError)         a passing fault of the model that lasted through every retry
    ├── ContextLengthExceeded (ValueError)    a prompt longer than the model reads; the source is split
    ├── UnreadableConversation (ValueError)   a file that cannot be imported
    ├── UnknownSession (LookupError)          a session without any turn
    ├── UnknownSummary (LookupError)          a summary id that no session has
    ├── CompactionInProgress (RuntimeError)   another worker holds the lease of the session
    ├── LeaseLost (RuntimeError)              the lease ended before the work did; nothing more was written
    ├── SchemaMismatch (RuntimeError)         the tables are missing, older or newer than this code
    ├── DatabaseUnavailable (ConnectionError) the database cannot be reached, opened or written
    ├── AccessDenied (PermissionError)        the role of the connection lacks a right
    └── MissingExtra (ImportError)            an optional dependency that is not installed

A message has three parts: what was wrong, where, and what to do about it.
"""

from __future__ import annotations

__all__ = [
    "AccessDenied",
    "CompactionInProgress",
    "ContextLengthExceeded",
    "DatabaseUnavailable",
    "InvalidAnswer",
    "InvalidArgument",
    "InvalidSummary",
    "InvalidTurn",
    "LeaseLost",
    "MissingExtra",
    "ModelFailed",
    "ModelUnavailable",
    "SchemaMismatch",
    "TurnConflict",
    "TurnfoldError",
    "UnknownSession",
    "UnknownSummary",
    "UnreadableConversation",
]


class TurnfoldError(Exception):
    """The base of all errors of turnfold."""


class InvalidArgument(TurnfoldError, ValueError):
    """A limit, threshold or name that cannot be used; nothing was written."""


class InvalidTurn(InvalidArgument):
    """A turn that cannot be stored exactly as it is; nothing of its batch was written."""


class TurnConflict(TurnfoldError, ValueError):
    """A turn id that already stands for a turn with other content; nothing of its batch was written."""


class InvalidSummary(TurnfoldError, ValueError):
    """A summary that would break an invariant: not smaller than its sources, or not next to what is covered."""


class InvalidAnswer(TurnfoldError, TypeError):
    """A model that returned something other than text."""


class ModelUnavailable(TurnfoldError, RuntimeError):
    """The model refuses for good: a wrong key, an unknown name, no credit. Nothing was written."""


class ModelFailed(TurnfoldError, ConnectionError):
    """The model was slow, overloaded or out of reach, and stayed so through every retry. Nothing was written."""


class ContextLengthExceeded(TurnfoldError, ValueError):
    """The prompt is longer than the model reads. A model of your own may raise it, too: the source is then split."""


class UnreadableConversation(TurnfoldError, ValueError):
    """A file or stream that does not hold a conversation; nothing of it was written."""


class UnknownSession(TurnfoldError, LookupError):
    """A session without any turn."""


class UnknownSummary(TurnfoldError, LookupError):
    """A summary id that no session has."""


class CompactionInProgress(TurnfoldError, RuntimeError):
    """Another worker holds the lease of the session."""


class LeaseLost(TurnfoldError, RuntimeError):
    """The lease ended before the work did: another worker may compact the session, this one wrote nothing more."""


class SchemaMismatch(TurnfoldError, RuntimeError):
    """The turnfold tables are missing, older or newer than this code."""


class DatabaseUnavailable(TurnfoldError, ConnectionError):
    """The database cannot be reached, opened or written."""


class AccessDenied(TurnfoldError, PermissionError):
    """The database refused what the role of the connection may not do; nothing was written."""


class MissingExtra(TurnfoldError, ImportError):
    """An optional dependency that is not installed. `extra` names the extra of turnfold that brings it."""

    def __init__(self, message: str, *, extra: str) -> None:
        super().__init__(f"{message}; install it with: pip install 'turnfold[{extra}]'")
        self.extra = extra
