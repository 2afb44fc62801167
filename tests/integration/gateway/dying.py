"""Jobs that die, for tests of what comes afterwards."""

from __future__ import annotations

from typing import Any

from tests.integration.gateway.client import GatewayClient
from tests.integration.gateway.played import PlayedWorker


async def dead_job(client: GatewayClient, worker: PlayedWorker, text: str = "", **fields: Any) -> dict[str, Any]:
    """A job that said `text` and was given up: the job, as it is then."""
    job = await client.create_job({"message": "hello", **fields})
    attempt = await worker.claim(fields.get("queue", "chat"))
    if text:
        await attempt.say(text)
    await attempt.fail(retryable=False)
    return await client.get(f"/v1/jobs/{job['id']}")


async def dead_letter(client: GatewayClient, worker: PlayedWorker, **fields: Any) -> str:
    """The id of a new dead letter."""
    letter_id: str = (await dead_job(client, worker, **fields))["error"]["dead_letter_id"]
    return letter_id
