"""What a handler keeps of its progress, bound to one attempt: rounds, and the ledger of the calls that write."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import structlog

from schemas.agent_message import AgentMessage, Usage
from schemas.border_text import clean_json
from schemas.errors import AgentInvocationError, MalformedRequest, StorageUnavailable
from schemas.progress import Progress
from schemas.tool import ToolResult
from storage.database import Database
from storage.jobs import progress
from storage.jobs.claim import Claim

#: Pauses between tries to save what has happened already, while SQL does not answer.
SQL_RETRY_S = (0.1, 0.25, 0.5, 1.0)

logger = structlog.get_logger(__name__)


class ProgressKeeper:
    """Saves under the guard of (job id, attempt). Every method raises TransitionRefused once the attempt is lost."""

    def __init__(self, database: Database, claim: Claim, carried: Progress, *, continues: bool) -> None:
        self._database = database
        self._job_id = claim.job_id
        self._attempt = claim.attempt
        self._continues = continues
        self._rounds = carried.rounds

    async def save_round(self, messages: Sequence[AgentMessage], usage: Usage | None) -> None:
        """Keep a finished round. Nothing is kept for a handler that could not continue from it."""
        if not self._continues:
            return
        kept = [AgentMessage.model_validate(_storable(message.to_json())) for message in messages]
        seq = self._rounds
        await self._insist(
            lambda: self._database.write(progress.save_round, self._job_id, self._attempt, seq, kept, usage)
        )
        self._rounds += 1

    async def start_tool_call(self, name: str, args: dict[str, Any], call_id: str, effect: str) -> str:
        """Enter a call into the ledger before it runs; returns its key.

        Raises StorageUnavailable if it is not known to be there: then the call must not run.
        """
        return await self._database.write(
            progress.start_call,
            self._job_id,
            self._attempt,
            self._rounds,
            call_id,
            name,
            effect,
            _storable(args),
            self._continues,
        )

    async def finish_tool_call(self, key: str, result: ToolResult) -> None:
        """Enter what a call has returned."""
        await self._insist(lambda: self._database.write(progress.finish_call, self._job_id, self._attempt, key, result))

    async def _insist(self, write: Callable[[], Awaitable[None]]) -> None:
        """Write what has happened already, and may be written twice: it waits for SQL as long as the attempt lasts."""
        tries = 0
        while True:
            try:
                return await write()
            except StorageUnavailable as error:
                if tries == 0:
                    logger.warning("SQL does not answer; the progress waits in memory", error=str(error))
                await asyncio.sleep(SQL_RETRY_S[min(tries, len(SQL_RETRY_S) - 1)])
                tries += 1


def _storable(value: Any) -> Any:
    try:
        return clean_json(value)
    except MalformedRequest as error:
        raise AgentInvocationError(f"the agent said what cannot be stored: {error}", code="unstorable") from None
