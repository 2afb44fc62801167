"""From a claimed job to the session its handler is given: stored settings, with the job's overrides."""

from __future__ import annotations

from schemas.agent_message import ChatMessage
from schemas.agent_session import AgentSession
from schemas.chat_job import Parameters
from schemas.errors import ConfigurationError
from schemas.models import ModelTarget
from schemas.progress import NO_PROGRESS, Progress
from schemas.settings import Settings
from schemas.tool import Tool
from storage.database import Database
from storage.jobs.claim import Claim
from storage.jobs.progress import read_progress
from storage.messages import read_branch
from workers.progress_keeper import ProgressKeeper


async def kept_progress(claim: Claim, database: Database, *, continues: bool) -> Progress:
    """What earlier attempts have kept, for a handler that continues. Raises StorageUnavailable."""
    if claim.attempt == 1 or not continues:
        return NO_PROGRESS
    return await database.read(read_progress, claim.job_id)


def agent_session(
    claim: Claim,
    settings: Settings,
    database: Database,
    tools: tuple[Tool, ...],
    progress: Progress = NO_PROGRESS,
    *,
    continues: bool = False,
) -> AgentSession:
    """The frozen session of one attempt. Raises ConfigurationError if the model it names is not known here."""
    job, stored = claim.job, claim.session
    keeper = ProgressKeeper(database, claim, progress, continues=continues)

    async def read_history(reply_to: str | None = None) -> list[ChatMessage]:
        leaf = reply_to or claim.history_leaf
        if leaf is None:
            return []  # a conversation's first message: nothing to ask the database for
        return await database.read(read_branch, claim.tenant, claim.session_id, leaf)

    parameters = Parameters.from_stored({**stored["parameters"], **job.parameters.to_json()})
    return AgentSession(
        session_id=claim.session_id,
        tenant=claim.tenant,
        user_id=claim.user_id,
        job_id=claim.job_id,
        attempt=claim.attempt,
        agent_framework=claim.agent_framework,
        system=job.system if job.system is not None else stored["system"],
        language=job.language or stored["language"],
        parameters=parameters,
        model_target=_model_target(claim.model, settings),
        tools=tools,
        timeout_s=settings.attempt_timeout_s,
        recursion_limit=settings.recursion_limit,
        read_history=read_history,
        progress=progress,
        save_round=keeper.save_round,
        start_tool_call=keeper.start_tool_call,
        finish_tool_call=keeper.finish_tool_call,
    )


def _model_target(name: str | None, settings: Settings) -> ModelTarget | None:
    """Where the job's model is called; None if it names none and none is configured: not every agent needs one."""
    try:
        return settings.model_target(name)
    except ConfigurationError:
        if name is not None:
            raise
        return None


def allowed_tools(claim: Claim) -> list[str] | None:
    """Names of the tools the job may use: its own list, else its session's; None means all."""
    names: list[str] | None = claim.job.tools if claim.job.tools is not None else claim.session["tools"]
    return names
