"""How a summary was made, and whether it should be made again: prompt version, usage, and the marks of refolding.

Only additions with defaults, so that processes of the version before go on writing beside it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "v1_0002_refolding"
down_revision = "v1_0001_initial"
branch_labels = None
depends_on = None

COLUMNS = ("prompt_version", "input_tokens", "output_tokens", "is_outdated", "refold_attempts")


def upgrade() -> None:
    table = "turnfold_summaries"
    op.add_column(table, sa.Column("prompt_version", sa.Text(), server_default=sa.text("''"), nullable=False))
    op.add_column(table, sa.Column("input_tokens", sa.BigInteger(), nullable=True))
    op.add_column(table, sa.Column("output_tokens", sa.BigInteger(), nullable=True))
    op.add_column(table, sa.Column("is_outdated", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.add_column(table, sa.Column("refold_attempts", sa.Integer(), server_default=sa.text("0"), nullable=False))
    op.create_index(
        "ix_turnfold_summaries_stale",
        table,
        ["session_id", "last_position"],
        sqlite_where=sa.text("tier = 'fallback' OR is_outdated"),
        postgresql_where=sa.text("tier = 'fallback' OR is_outdated"),
    )


def downgrade() -> None:
    op.drop_index("ix_turnfold_summaries_stale", "turnfold_summaries")
    for name in COLUMNS:
        op.drop_column("turnfold_summaries", name)
