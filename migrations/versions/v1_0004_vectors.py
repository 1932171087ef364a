"""The vectors of turns and summaries, for services that give turnfold an embedder.

An array on PostgreSQL, so that the table needs no extension; only the comparison needs pgvector.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "v1_0004_vectors"
down_revision = "v1_0003_search"
branch_labels = None
depends_on = None

IDENTIFIER = sa.String(255).with_variant(sa.String(255, collation="C"), "postgresql")
NUMBERS = sa.LargeBinary().with_variant(sa.ARRAY(sa.REAL()), "postgresql")


def upgrade() -> None:
    op.create_table(
        "turnfold_vectors",
        sa.Column("session_id", IDENTIFIER, nullable=False),
        sa.Column("embedder", sa.Text(), nullable=False),
        sa.Column("ref", IDENTIFIER, nullable=False),
        sa.Column("position", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("embedding", NUMBERS, nullable=False),
        # Processes of the version before erase sessions without knowing of this table.
        sa.ForeignKeyConstraint(
            ["session_id"],
            ["turnfold_sessions.id"],
            name=op.f("fk_turnfold_vectors_session_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("session_id", "embedder", "ref", "position", name=op.f("pk_turnfold_vectors")),
    )
    if op.get_context().dialect.name == "postgresql":
        # Numbers at random hardly compress: trying to costs time at every read.
        op.execute("ALTER TABLE turnfold_vectors ALTER COLUMN embedding SET STORAGE EXTERNAL")


def downgrade() -> None:
    op.drop_table("turnfold_vectors")
