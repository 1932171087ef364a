"""The four tables: sessions, turns, summaries and the turns that each leaf covers.

Types are SQLAlchemy's own, not those of `turnfold.sql.tables`: a migration stays what it was when the models move on.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "v1_0001_initial"
down_revision = None
branch_labels = None
depends_on = None

IDENTIFIER = sa.String(255).with_variant(sa.String(255, collation="C"), "postgresql")
TIME = sa.DateTime(timezone=True).with_variant(sa.String(32), "sqlite")


def upgrade() -> None:
    create_sessions()
    create_turns()
    create_summaries()
    create_summary_sources()


def downgrade() -> None:
    op.drop_table("turnfold_summary_sources")
    op.drop_table("turnfold_summaries")
    op.drop_table("turnfold_turns")
    op.drop_table("turnfold_sessions")


def create_sessions() -> None:
    op.create_table(
        "turnfold_sessions",
        sa.Column("id", IDENTIFIER, nullable=False),
        sa.Column("last_position", sa.BigInteger(), nullable=False),
        sa.Column("covered_position", sa.BigInteger(), nullable=False),
        sa.Column("active_tokens", sa.BigInteger(), nullable=False),
        sa.Column("total_tokens", sa.BigInteger(), nullable=False),
        sa.Column("lease_owner", sa.Text(), nullable=True),
        sa.Column("lease_token", sa.BigInteger(), nullable=False),
        sa.Column("lease_expires_at", TIME, nullable=True),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("updated_at", TIME, nullable=False),
        sa.Column("attributes", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_turnfold_sessions"),
        sa.CheckConstraint(
            "covered_position BETWEEN 0 AND last_position", name=op.f("ck_turnfold_sessions_covered_position")
        ),
        sa.CheckConstraint("active_tokens BETWEEN 0 AND total_tokens", name=op.f("ck_turnfold_sessions_active_tokens")),
    )


def create_turns() -> None:
    op.create_table(
        "turnfold_turns",
        sa.Column("session_id", IDENTIFIER, nullable=False),
        sa.Column("position", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("id", IDENTIFIER, nullable=False),
        sa.Column("role", sa.String(32), nullable=False),
        sa.Column("content", sa.Text(), nullable=True),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column("tool_calls", sa.Text(), nullable=True),
        sa.Column("tool_call_id", sa.Text(), nullable=True),
        sa.Column("pinned", sa.Boolean(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=True),
        sa.Column("token_count", sa.BigInteger(), nullable=False),
        sa.Column("counter", sa.String(64), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("attributes", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("session_id", "position", name="pk_turnfold_turns"),
        sa.ForeignKeyConstraint(["session_id"], ["turnfold_sessions.id"], name="fk_turnfold_turns_session_id"),
        sa.UniqueConstraint("session_id", "id", name="uq_turnfold_turns_session_id_id"),
        sa.CheckConstraint("position >= 1", name=op.f("ck_turnfold_turns_position")),
        sa.CheckConstraint("token_count >= 0", name=op.f("ck_turnfold_turns_token_count")),
    )
    op.create_index(
        "ix_turnfold_turns_pinned",
        "turnfold_turns",
        ["session_id", "position"],
        sqlite_where=sa.text("pinned"),
        postgresql_where=sa.text("pinned"),
    )


def create_summaries() -> None:
    op.create_table(
        "turnfold_summaries",
        sa.Column("id", IDENTIFIER, nullable=False),
        sa.Column("session_id", IDENTIFIER, nullable=False),
        sa.Column("depth", sa.Integer(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("token_count", sa.BigInteger(), nullable=False),
        sa.Column("source_token_count", sa.BigInteger(), nullable=False),
        sa.Column("parent_id", IDENTIFIER, nullable=True),
        sa.Column("first_position", sa.BigInteger(), nullable=False),
        sa.Column("last_position", sa.BigInteger(), nullable=False),
        sa.Column("descendant_count", sa.BigInteger(), nullable=False),
        sa.Column("time_range_start", TIME, nullable=False),
        sa.Column("time_range_end", TIME, nullable=False),
        sa.Column("tier", sa.String(16), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("counter", sa.String(64), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_turnfold_summaries"),
        sa.ForeignKeyConstraint(["session_id"], ["turnfold_sessions.id"], name="fk_turnfold_summaries_session_id"),
        sa.ForeignKeyConstraint(["parent_id"], ["turnfold_summaries.id"], name="fk_turnfold_summaries_parent_id"),
        sa.UniqueConstraint(
            "session_id", "depth", "first_position", name="uq_turnfold_summaries_session_id_depth_first_position"
        ),
        sa.CheckConstraint("depth >= 0", name=op.f("ck_turnfold_summaries_depth")),
        sa.CheckConstraint("first_position BETWEEN 1 AND last_position", name=op.f("ck_turnfold_summaries_positions")),
        sa.CheckConstraint("token_count < source_token_count", name=op.f("ck_turnfold_summaries_shrinks")),
        sa.CheckConstraint("tier IN ('normal', 'aggressive', 'fallback')", name=op.f("ck_turnfold_summaries_tier")),
    )
    op.create_index("ix_turnfold_summaries_parent_id", "turnfold_summaries", ["parent_id"])
    op.create_index(
        "ix_turnfold_summaries_uncompacted",
        "turnfold_summaries",
        ["session_id", "first_position"],
        sqlite_where=sa.text("parent_id IS NULL"),
        postgresql_where=sa.text("parent_id IS NULL"),
    )


def create_summary_sources() -> None:
    op.create_table(
        "turnfold_summary_sources",
        sa.Column("session_id", IDENTIFIER, nullable=False),
        sa.Column("position", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("summary_id", IDENTIFIER, nullable=False),
        sa.PrimaryKeyConstraint("session_id", "position", name="pk_turnfold_summary_sources"),
        sa.ForeignKeyConstraint(
            ["session_id", "position"],
            ["turnfold_turns.session_id", "turnfold_turns.position"],
            name="fk_turnfold_summary_sources_session_id_position",
        ),
        sa.ForeignKeyConstraint(
            ["summary_id"], ["turnfold_summaries.id"], name="fk_turnfold_summary_sources_summary_id"
        ),
    )
    op.create_index("ix_turnfold_summary_sources_summary_id", "turnfold_summary_sources", ["summary_id"])
