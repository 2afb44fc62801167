"""Every table. Times are integer microseconds of the database's clock; every row carries its tenant.

A job's row is rewritten by each of its transitions, so what is large (bodies, events, texts) lives in other tables.
"""

from __future__ import annotations

from typing import Any

import orjson
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Dialect,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    false,
    text,
)


class Json(TypeDecorator[Any]):
    """JSON kept as text: the same bytes on both databases, encoded by orjson."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        return None if value is None else orjson.dumps(value).decode()

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        return None if value is None else orjson.loads(value)


Micros = BigInteger
Id = String(36)
Tenant = String(64)
Queue = String(80)
NAME_LENGTH = 128
Name = String(NAME_LENGTH)
Breaker = String(256)
CODE_LENGTH = 64

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

tenants = Table(
    "tenants",
    metadata,
    Column("id", Tenant, primary_key=True),
    Column("created_at", Micros, nullable=False),
)

#: One tenant on one queue: the unit of fairness. `next_due` is a hint that is never late.
lanes = Table(
    "lanes",
    metadata,
    Column("lane", Queue, nullable=False),
    Column("tenant", Tenant, nullable=False),
    Column("running", Integer, nullable=False, server_default=text("0")),
    Column("running_limit", Integer, nullable=False),
    Column("last_served", Micros, nullable=False, server_default=text("0")),
    Column("next_due", Micros),
    PrimaryKeyConstraint("lane", "tenant"),
)
Index(
    "ix_lanes_due",
    lanes.c.lane,
    lanes.c.running,
    lanes.c.last_served,
    lanes.c.next_due,
    postgresql_where=text("next_due IS NOT NULL"),
    sqlite_where=text("next_due IS NOT NULL"),
)

sessions = Table(
    "sessions",
    metadata,
    Column("id", Id, primary_key=True),
    Column("tenant", Tenant, nullable=False),
    Column("user_id", Name),
    #: Made for a stateless job; not listed.
    Column("hidden", Boolean, nullable=False, server_default=false()),
    Column("agent_framework", Name, nullable=False),
    Column("model", Name),
    Column("system", Text),
    Column("language", String(35)),
    Column("tools", Json),
    Column("parameters", Json, nullable=False),
    Column("metadata", Json, nullable=False),
    #: The last message of the branch that is being talked on; moved by `final` and by `cancelled` with text.
    Column("active_leaf", Id),
    #: The place the next job gets in this session.
    Column("next_seq", Integer, nullable=False, server_default=text("1")),
    Column("version", Integer, nullable=False, server_default=text("1")),
    Column("created_at", Micros, nullable=False),
    Column("updated_at", Micros, nullable=False),
    Index("ix_sessions_tenant_id", "tenant", "id"),
)

#: A tree: edits and regenerated replies are branches.
messages = Table(
    "messages",
    metadata,
    Column("id", Id, primary_key=True),
    Column("tenant", Tenant, nullable=False),
    Column("session_id", Id, nullable=False),
    Column("parent_id", Id),
    #: False until the first claim of its job gives a user message its parent.
    Column("placed", Boolean, nullable=False),
    Column("role", String(16), nullable=False),
    Column("content", Text, nullable=False),
    Column("tool_calls", Json),
    Column("tool_call_id", String(256)),
    #: `complete`, or `cancelled` for the partial text of a stopped answer.
    Column("status", String(16), nullable=False),
    Column("job_id", Id),
    Column("version", Integer, nullable=False, server_default=text("1")),
    Column("created_at", Micros, nullable=False),
    Index("ix_messages_session_id_id", "session_id", "id"),
)

jobs = Table(
    "jobs",
    metadata,
    Column("id", Id, primary_key=True),
    Column("tenant", Tenant, nullable=False),
    Column("queue", Queue, nullable=False),
    Column("lane", Queue, nullable=False),
    Column("session_id", Id, nullable=False),
    #: Its place among the jobs of its session, in order of acceptance.
    Column("session_seq", Integer, nullable=False),
    #: No earlier job of its session is unfinished.
    Column("head", Boolean, nullable=False),
    Column("status", String(16), nullable=False),
    #: The fence: every transition after acceptance adds 1, and a write that holds an older one meets no row.
    Column("epoch", Integer, nullable=False),
    #: Lower runs first: minus (2 × priority, and 1 more until the first run).
    Column("rank", Integer, nullable=False),
    Column("due_at", Micros, nullable=False),
    Column("deadline_at", Micros, nullable=False),
    Column("attempt", Integer, nullable=False, server_default=text("0")),
    Column("failures", Integer, nullable=False, server_default=text("0")),
    Column("releases", Integer, nullable=False, server_default=text("0")),
    Column("worker", Name),
    Column("lease_until", Micros),
    #: Why it is to be stopped; NULL unless someone asked for it while it ran.
    Column("cancel_reason", String(200)),
    #: The open breaker it waits for while it is queued.
    Column("held_by", Breaker),
    #: Attempts whose worker was lost while it ran other jobs too; two of them, and it runs once more alone.
    Column("lost_in_company", Integer, nullable=False, server_default=text("0")),
    #: A tool of it has written and its agent cannot continue from there: another attempt would write again.
    Column("wrote", Boolean, nullable=False, server_default=false()),
    Column("user_message_id", Id, nullable=False),
    #: It answers an existing message again, so it owns no user message.
    Column("regenerates", Boolean, nullable=False, server_default=false()),
    Column("agent_framework", Name, nullable=False),
    Column("model", Name),
    Column("user_id", Name),
    Column("outcome", String(16)),
    Column("error_code", String(CODE_LENGTH)),
    Column("created_at", Micros, nullable=False),
    Column("started_at", Micros),
    Column("ended_at", Micros),
)
Index(
    "ix_jobs_claim",
    jobs.c.lane,
    jobs.c.tenant,
    jobs.c.rank,
    jobs.c.due_at,
    jobs.c.id,
    postgresql_where=text("status = 'queued' AND head"),
    sqlite_where=text("status = 'queued' AND head"),
)
Index(
    "ix_jobs_unfinished",
    jobs.c.session_id,
    jobs.c.session_seq,
    postgresql_where=text("status IN ('queued', 'running')"),
    sqlite_where=text("status IN ('queued', 'running')"),
)
#: No lease column in it: renewing leases then rewrites no index.
Index(
    "ix_jobs_running",
    jobs.c.worker,
    postgresql_where=text("status = 'running'"),
    sqlite_where=text("status = 'running'"),
)
Index(
    "ix_jobs_deadline",
    jobs.c.deadline_at,
    postgresql_where=text("status = 'queued'"),
    sqlite_where=text("status = 'queued'"),
)
Index(
    "ix_jobs_held",
    jobs.c.held_by,
    postgresql_where=text("held_by IS NOT NULL"),
    sqlite_where=text("held_by IS NOT NULL"),
)
#: What retention looks through; the dead are kept until someone has decided about them.
Index(
    "ix_jobs_ended",
    jobs.c.ended_at,
    postgresql_where=text("status IN ('finished', 'cancelled')"),
    sqlite_where=text("status IN ('finished', 'cancelled')"),
)
Index("ix_jobs_list", jobs.c.tenant, jobs.c.created_at, jobs.c.id)
Index("ix_jobs_session", jobs.c.session_id)

job_bodies = Table(
    "job_bodies",
    metadata,
    Column("job_id", Id, primary_key=True),
    Column("tenant", Tenant, nullable=False),
    #: The ChatJob as accepted.
    Column("body", Json, nullable=False),
    #: SHA-256 of what was asked: the same id with another body is refused.
    Column("digest", String(64), nullable=False),
)

#: Every change of every job, with the event it shows to clients, byte for byte.
transitions = Table(
    "transitions",
    metadata,
    Column("position", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    #: With `position`, an order of commits that a reader's cursor can follow without skipping late ones.
    Column("xid", BigInteger, nullable=False),
    Column("tenant", Tenant, nullable=False),
    Column("job_id", Id, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("at", Micros, nullable=False),
    Column("event", Text, nullable=False),
    UniqueConstraint("job_id", "epoch"),
    Index("ix_transitions_order", "xid", "position"),
    Index("ix_transitions_at", "at"),
    sqlite_autoincrement=True,  # or a position could be given out twice, and a reader's cursor skip a row
)

attempts = Table(
    "attempts",
    metadata,
    Column("job_id", Id, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("tenant", Tenant, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("worker", Name, nullable=False),
    #: The model it asked: the job's, or its `fallback_model`.
    Column("model", Name),
    Column("started_at", Micros, nullable=False),
    Column("ended_at", Micros),
    #: The transition that ended it: `finish`, `fail`, `defer`, `release`, `cancel`, `expire`.
    Column("ending", String(16)),
    Column("error", Json),
    Column("error_class", Name),
    Column("trace", Text),
    #: What it had shown when it ended without an answer.
    Column("shown_text", Text),
    Column("shown_tools", Json),
    PrimaryKeyConstraint("job_id", "attempt"),
)
#: Who was lost with whom.
Index(
    "ix_attempts_lost",
    attempts.c.worker,
    postgresql_where=text("ending = 'expire'"),
    sqlite_where=text("ending = 'expire'"),
)

#: The finished tool rounds of an answer that is still being made: the next attempt continues from the last one.
rounds = Table(
    "rounds",
    metadata,
    Column("job_id", Id, nullable=False),
    Column("seq", Integer, nullable=False),
    Column("tenant", Tenant, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("messages", Json, nullable=False),
    #: Tokens of the model calls up to this round, since the round before.
    Column("usage", Json),
    Column("saved_at", Micros, nullable=False),
    PrimaryKeyConstraint("job_id", "seq"),
)

#: The ledger of calls that write: each is here before it runs, so that no other attempt runs it again unasked.
tool_calls = Table(
    "tool_calls",
    metadata,
    Column("job_id", Id, nullable=False),
    #: The call's own key, which a tool that takes one is given as its idempotency key.
    Column("ledger_key", Name, nullable=False),
    #: Rounds that were saved when it began: it is of the next one.
    Column("round", Integer, nullable=False, server_default=text("0")),
    Column("tenant", Tenant, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("call_id", String(256), nullable=False),
    Column("name", Name, nullable=False),
    Column("effect", String(8), nullable=False),
    Column("args", Json, nullable=False),
    #: `started`, or `finished` with its result.
    Column("status", String(16), nullable=False),
    Column("result", Text),
    Column("is_error", Boolean, nullable=False, server_default=false()),
    Column("started_at", Micros, nullable=False),
    Column("ended_at", Micros),
    PrimaryKeyConstraint("job_id", "ledger_key"),
)

dead_letters = Table(
    "dead_letters",
    metadata,
    Column("id", Id, primary_key=True),
    Column("tenant", Tenant, nullable=False),
    Column("job_id", Id, nullable=False),
    Column("queue", Queue, nullable=False),
    #: The epoch the job died in; a redrive compares it.
    Column("epoch", Integer, nullable=False),
    Column("error", Json, nullable=False),
    Column("error_code", String(CODE_LENGTH), nullable=False, server_default=text("''")),
    Column("agent_framework", Name, nullable=False, server_default=text("''")),
    Column("model", Name),
    Column("created_at", Micros, nullable=False),
    #: `redriven` or `discarded`, NULL while it lies there.
    Column("resolution", String(16)),
    Column("resolved_at", Micros),
    Index("ix_dead_letters_tenant_id", "tenant", "id"),
    Index("ix_dead_letters_job_id", "job_id"),
)
Index(
    "ix_dead_letters_lying",
    dead_letters.c.tenant,
    dead_letters.c.id,
    postgresql_where=text("resolution IS NULL"),
    sqlite_where=text("resolution IS NULL"),
)
Index(
    "ix_dead_letters_resolved",
    dead_letters.c.resolved_at,
    postgresql_where=text("resolved_at IS NOT NULL"),
    sqlite_where=text("resolved_at IS NOT NULL"),
)

#: Queue messages nobody could read, with their bytes.
quarantine = Table(
    "quarantine",
    metadata,
    Column("id", Id, primary_key=True),
    Column("tenant", Tenant, nullable=False),
    Column("queue", Queue, nullable=False),
    Column("reason", String(500), nullable=False),
    Column("payload", LargeBinary, nullable=False),
    Column("created_at", Micros, nullable=False),
    #: `requeued` or `dropped`, NULL while it lies there.
    Column("resolution", String(16)),
    Column("resolved_at", Micros),
    Index("ix_quarantine_tenant_id", "tenant", "id"),
)
Index(
    "ix_quarantine_lying",
    quarantine.c.tenant,
    quarantine.c.id,
    postgresql_where=text("resolution IS NULL"),
    sqlite_where=text("resolution IS NULL"),
)

#: One for each provider and model whose calls have failed lately. It is the provider's, so no tenant's.
breakers = Table(
    "breakers",
    metadata,
    Column("name", Breaker, primary_key=True),
    #: Failures in a row.
    Column("failures", Integer, nullable=False),
    #: Since when jobs are held; NULL while it is closed.
    Column("opened_at", Micros),
    #: When the next job may try; while one tries, when it is given up on.
    Column("probe_at", Micros),
    #: Pause before the next probe, doubled by each that fails.
    Column("pause_us", Micros, nullable=False),
    #: The job that is trying.
    Column("probe_job", Id),
    Column("last_error", Json),
    Column("updated_at", Micros, nullable=False),
)

#: Queues that are paused. A queue is the operator's, so no tenant's.
paused_queues = Table(
    "paused_queues",
    metadata,
    Column("queue", Queue, primary_key=True),
    Column("reason", String(200), nullable=False),
    Column("paused_at", Micros, nullable=False),
)

#: Redrive, discard or cancel for everything that meets a filter, at a rate, by whoever has the lease.
bulk_runs = Table(
    "bulk_runs",
    metadata,
    Column("id", Id, primary_key=True),
    Column("tenant", Tenant, nullable=False),
    #: `redrive`, `discard` or `cancel`.
    Column("action", String(16), nullable=False),
    Column("filter", Json, nullable=False),
    Column("reason", String(200), nullable=False, server_default=text("''")),
    #: Items a second; NULL is as fast as it goes.
    Column("rate", Float),
    #: Items that met the filter when it began.
    Column("total", Integer, nullable=False),
    Column("done", Integer, nullable=False, server_default=text("0")),
    #: Items that had moved on by the time they were reached.
    Column("skipped", Integer, nullable=False, server_default=text("0")),
    #: The last item that was dealt with; items come in the order of their ids.
    Column("cursor", Id),
    #: `running`, `finished` or `aborted`.
    Column("state", String(16), nullable=False),
    Column("lease_until", Micros, nullable=False, server_default=text("0")),
    Column("created_at", Micros, nullable=False),
    Column("ended_at", Micros),
    Index("ix_bulk_runs_tenant_id", "tenant", "id"),
)
Index(
    "ix_bulk_runs_running",
    bulk_runs.c.lease_until,
    postgresql_where=text("state = 'running'"),
    sqlite_where=text("state = 'running'"),
)

outbox = Table(
    "outbox",
    metadata,
    Column("id", Id, primary_key=True),
    Column("tenant", Tenant, nullable=False),
    Column("job_id", Id, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("url", Text, nullable=False),
    Column("due_at", Micros, nullable=False),
    Column("tries", Integer, nullable=False, server_default=text("0")),
    Column("created_at", Micros, nullable=False),
    Index("ix_outbox_due_at", "due_at"),
)
