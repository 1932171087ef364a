"""turnfold keeps every turn of a long conversation in your own database and folds the old ones into summaries."""

from turnfold.checking import Fault, check, erase_session, repair
from turnfold.compaction import compact_if_needed, compact_session, refold_session, should_compact
from turnfold.context import Context, LeftOut, TokenBudget, assemble_context
from turnfold.embedding import EmbedStats, embed_session
from turnfold.errors import (
    AccessDenied,
    CompactionInProgress,
    ContextLengthExceeded,
    DatabaseUnavailable,
    InvalidAnswer,
    InvalidArgument,
    InvalidSummary,
    InvalidTurn,
    LeaseLost,
    MissingExtra,
    ModelFailed,
    ModelUnavailable,
    SchemaMismatch,
    TurnConflict,
    TurnfoldError,
    UnknownSession,
    UnknownSummary,
    UnreadableConversation,
)
from turnfold.models import Answer, Model, Prompt, extractive, load_model
from turnfold.outcomes import Outcome
from turnfold.prompts import Prompts
from turnfold.recall import Description, Expansion, Hit, around, describe, expand, search
from turnfold.records import (
    CompactionStats,
    Lease,
    Progress,
    RefoldProgress,
    RefoldStats,
    SessionRecord,
    SummaryRecord,
    Tier,
    Turn,
)
from turnfold.repository import AsyncRepository, Repository
from turnfold.sql.engine import create_engine, prepare_sqlite
from turnfold.sql.migrate import include_name, migrate
from turnfold.sql.repository import BoundRepository, SqlRepository
from turnfold.summarizer import Summarizer
from turnfold.tokens import EstimatingCounter, ExactCounter, TokenCounter
from turnfold.vectors import Embedder

__all__ = [
    "AccessDenied",
    "Answer",
    "AsyncRepository",
    "BoundRepository",
    "CompactionInProgress",
    "CompactionStats",
    "Context",
    "ContextLengthExceeded",
    "DatabaseUnavailable",
    "Description",
    "EmbedStats",
    "Embedder",
    "EstimatingCounter",
    "ExactCounter",
    "Expansion",
    "Fault",
    "Hit",
    "InvalidAnswer",
    "InvalidArgument",
    "InvalidSummary",
    "InvalidTurn",
    "Lease",
    "LeaseLost",
    "LeftOut",
    "MissingExtra",
    "Model",
    "ModelFailed",
    "ModelUnavailable",
    "Outcome",
    "Progress",
    "Prompt",
    "Prompts",
    "RefoldProgress",
    "RefoldStats",
    "Repository",
    "SchemaMismatch",
    "SessionRecord",
    "SqlRepository",
    "Summarizer",
    "SummaryRecord",
    "Tier",
    "TokenBudget",
    "TokenCounter",
    "Turn",
    "TurnConflict",
    "TurnfoldError",
    "UnknownSession",
    "UnknownSummary",
    "UnreadableConversation",
    "around",
    "assemble_context",
    "check",
    "compact_if_needed",
    "compact_session",
    "create_engine",
    "describe",
    "embed_session",
    "erase_session",
    "expand",
    "extractive",
    "include_name",
    "load_model",
    "migrate",
    "prepare_sqlite",
    "refold_session",
    "repair",
    "search",
    "should_compact",
]
