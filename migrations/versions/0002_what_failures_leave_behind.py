"""Everything a failure leaves behind: breakers, pauses, isolation, kept progress, bulk runs, retention"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

#: Letters written before the columns were there take them from their jobs.
_FILL_DEAD_LETTERS = """
UPDATE dead_letters SET
  error_code = coalesce((SELECT jobs.error_code FROM jobs WHERE jobs.id = dead_letters.job_id), ''),
  agent_framework = coalesce((SELECT jobs.agent_framework FROM jobs WHERE jobs.id = dead_letters.job_id), ''),
  model = (SELECT jobs.model FROM jobs WHERE jobs.id = dead_letters.job_id)
"""


def upgrade() -> None:
    op.create_table(
        "breakers",
        sa.Column("name", sa.String(length=256), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("opened_at", sa.BigInteger(), nullable=True),
        sa.Column("probe_at", sa.BigInteger(), nullable=True),
        sa.Column("pause_us", sa.BigInteger(), nullable=False),
        sa.Column("probe_job", sa.String(length=36), nullable=True),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_breakers")),
    )
    op.create_table(
        "bulk_runs",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("action", sa.String(length=16), nullable=False),
        sa.Column("filter", sa.Text(), nullable=False),
        sa.Column("reason", sa.String(length=200), server_default=sa.text("''"), nullable=False),
        sa.Column("rate", sa.Float(), nullable=True),
        sa.Column("total", sa.Integer(), nullable=False),
        sa.Column("done", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("skipped", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("cursor", sa.String(length=36), nullable=True),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("lease_until", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_bulk_runs")),
    )
    op.create_index(
        "ix_bulk_runs_running",
        "bulk_runs",
        ["lease_until"],
        unique=False,
        postgresql_where=sa.text("state = 'running'"),
        sqlite_where=sa.text("state = 'running'"),
    )
    op.create_index("ix_bulk_runs_tenant_id", "bulk_runs", ["tenant", "id"], unique=False)
    op.create_table(
        "paused_queues",
        sa.Column("queue", sa.String(length=80), nullable=False),
        sa.Column("reason", sa.String(length=200), nullable=False),
        sa.Column("paused_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("queue", name=op.f("pk_paused_queues")),
    )
    op.add_column("attempts", sa.Column("model", sa.String(length=128), nullable=True))
    op.create_index(
        "ix_attempts_lost",
        "attempts",
        ["worker"],
        unique=False,
        postgresql_where=sa.text("ending = 'expire'"),
        sqlite_where=sa.text("ending = 'expire'"),
    )
    op.add_column(
        "dead_letters", sa.Column("error_code", sa.String(length=64), server_default=sa.text("''"), nullable=False)
    )
    op.add_column(
        "dead_letters",
        sa.Column("agent_framework", sa.String(length=128), server_default=sa.text("''"), nullable=False),
    )
    op.add_column("dead_letters", sa.Column("model", sa.String(length=128), nullable=True))
    op.create_index(
        "ix_dead_letters_lying",
        "dead_letters",
        ["tenant", "id"],
        unique=False,
        postgresql_where=sa.text("resolution IS NULL"),
        sqlite_where=sa.text("resolution IS NULL"),
    )
    op.create_index(
        "ix_dead_letters_resolved",
        "dead_letters",
        ["resolved_at"],
        unique=False,
        postgresql_where=sa.text("resolved_at IS NOT NULL"),
        sqlite_where=sa.text("resolved_at IS NOT NULL"),
    )
    op.add_column("jobs", sa.Column("held_by", sa.String(length=256), nullable=True))
    op.add_column("jobs", sa.Column("lost_in_company", sa.Integer(), server_default=sa.text("0"), nullable=False))
    op.add_column("jobs", sa.Column("wrote", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.create_index(
        "ix_jobs_ended",
        "jobs",
        ["ended_at"],
        unique=False,
        postgresql_where=sa.text("status IN ('finished', 'cancelled')"),
        sqlite_where=sa.text("status IN ('finished', 'cancelled')"),
    )
    op.create_index(
        "ix_jobs_held",
        "jobs",
        ["held_by"],
        unique=False,
        postgresql_where=sa.text("held_by IS NOT NULL"),
        sqlite_where=sa.text("held_by IS NOT NULL"),
    )
    op.create_index("ix_quarantine_tenant_id", "quarantine", ["tenant", "id"], unique=False)
    op.create_index(
        "ix_quarantine_lying",
        "quarantine",
        ["tenant", "id"],
        unique=False,
        postgresql_where=sa.text("resolution IS NULL"),
        sqlite_where=sa.text("resolution IS NULL"),
    )
    op.add_column("rounds", sa.Column("usage", sa.Text(), nullable=True))
    op.add_column("tool_calls", sa.Column("round", sa.Integer(), server_default=sa.text("0"), nullable=False))
    op.add_column("tool_calls", sa.Column("is_error", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.execute(_FILL_DEAD_LETTERS)
