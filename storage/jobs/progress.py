"""What a running attempt keeps for the next one: its finished tool rounds, and a ledger of the calls that write.

Everything written here is guarded by (job id, attempt, status): an attempt that has lost its job writes nothing. The
job's row is locked meanwhile, so that nobody takes the job away between the look and the commit. The epoch is no guard
here, since a rebuilt log moves it within an attempt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, bindparam, func, literal_column, select, update
from sqlalchemy.dialects.postgresql import insert  # its ON CONFLICT DO NOTHING compiles for SQLite as well

from schemas.agent_message import AgentMessage, Usage, add_usage
from schemas.errors import TransitionRefused
from schemas.ids import new_id
from schemas.progress import OpenCall, Progress
from schemas.tool import ToolResult
from storage.clock import now_us
from storage.tables import jobs, rounds, tool_calls

STARTED = "started"
FINISHED = "finished"

_RUNNING: ColumnElement[bool] = literal_column("jobs.status = 'running'")
_HELD = (
    select(jobs.c.tenant, jobs.c.wrote, now_us().label("now"))
    .where(jobs.c.id == bindparam("job"), jobs.c.attempt == bindparam("attempt"), _RUNNING)
    .with_for_update(of=jobs)
)
_INSERT_ROUND = insert(rounds).on_conflict_do_nothing().returning(rounds.c.seq)
_ROUND_OF = select(rounds.c.attempt).where(rounds.c.job_id == bindparam("job"), rounds.c.seq == bindparam("round"))
_INSERT_CALL = insert(tool_calls)
_FINISH_CALL = (
    update(tool_calls)
    .where(tool_calls.c.job_id == bindparam("job"), tool_calls.c.ledger_key == bindparam("key"))
    .values(
        status=FINISHED,
        result=bindparam("the_result"),
        is_error=bindparam("failed"),
        ended_at=bindparam("now"),
    )
)
_HAS_WRITTEN = update(jobs).where(jobs.c.id == bindparam("the_job")).values(wrote=True)
_ROUNDS = select(rounds.c.messages, rounds.c.usage).where(rounds.c.job_id == bindparam("job")).order_by(rounds.c.seq)
_SAVED = select(func.count()).select_from(rounds).where(rounds.c.job_id == bindparam("job")).scalar_subquery()
_OPEN_CALLS = (
    select(tool_calls)
    .where(tool_calls.c.job_id == bindparam("job"), tool_calls.c.round >= _SAVED)
    .order_by(tool_calls.c.started_at, tool_calls.c.ledger_key)
)


def save_round(
    connection: Connection,
    job_id: str,
    attempt: int,
    seq: int,
    messages: Sequence[AgentMessage],
    usage: Usage | None,
) -> None:
    """Keep a finished round: the assistant message and all results. `seq` counts from 0 over all attempts.

    May be repeated if the fate of its commit is unknown. Raises TransitionRefused if the attempt has lost its job.
    """
    job = _hold(connection, job_id, attempt)
    row = {
        "job_id": job_id,
        "seq": seq,
        "tenant": job.tenant,
        "attempt": attempt,
        "messages": [message.to_json() for message in messages],
        "usage": usage,
        "saved_at": job.now,
    }
    if connection.execute(_INSERT_ROUND, row).one_or_none() is None:
        owner = connection.execute(_ROUND_OF, {"job": job_id, "round": seq}).scalar_one()
        if owner != attempt:
            raise TransitionRefused(f"job {job_id}: round {seq} is of attempt {owner}")


def start_call(
    connection: Connection,
    job_id: str,
    attempt: int,
    round_: int,
    call_id: str,
    name: str,
    effect: str,
    args: Mapping[str, Any],
    continues: bool,
) -> str:
    """Enter a call into the ledger before it runs; returns its key. `round_` is the number of rounds saved so far.

    An attempt whose handler cannot continue marks its job as one that has written and is not to be tried again.
    Raises TransitionRefused if the attempt has lost its job: then the call must not run.
    """
    job = _hold(connection, job_id, attempt)
    key = new_id()
    connection.execute(
        _INSERT_CALL,
        {
            "job_id": job_id,
            "ledger_key": key,
            "round": round_,
            "tenant": job.tenant,
            "attempt": attempt,
            "call_id": call_id,
            "name": name,
            "effect": effect,
            "args": dict(args),
            "status": STARTED,
            "started_at": job.now,
        },
    )
    if not continues and not job.wrote:
        connection.execute(_HAS_WRITTEN, {"the_job": job_id})
    return key


def finish_call(connection: Connection, job_id: str, attempt: int, key: str, result: ToolResult) -> None:
    """Enter what a call has returned. May be repeated. Raises TransitionRefused if the attempt has lost its job."""
    job = _hold(connection, job_id, attempt)
    connection.execute(
        _FINISH_CALL,
        {"job": job_id, "key": key, "the_result": result.text, "failed": result.is_error, "now": job.now},
    )


def read_progress(connection: Connection, job_id: str) -> Progress:
    """What the job's attempts have kept; to be read by an attempt that holds the job, so that nothing is added."""
    messages: list[AgentMessage] = []
    usage: Usage | None = None
    saved = connection.execute(_ROUNDS, {"job": job_id}).all()
    for row in saved:
        messages += [AgentMessage.model_validate(message) for message in row.messages]
        usage = add_usage(usage, row.usage)
    open_calls = [
        OpenCall(row.ledger_key, row.call_id, row.name, row.args, row.result, row.is_error)
        for row in connection.execute(_OPEN_CALLS, {"job": job_id})
    ]
    return Progress(len(saved), tuple(messages), usage, tuple(open_calls))


def _hold(connection: Connection, job_id: str, attempt: int) -> Any:
    """Lock the job's row for the attempt that holds it; returns its tenant, whether it `wrote`, and the time."""
    job = connection.execute(_HELD, {"job": job_id, "attempt": attempt}).one_or_none()
    if job is None:
        raise TransitionRefused(f"job {job_id}: attempt {attempt} has lost it")
    return job
