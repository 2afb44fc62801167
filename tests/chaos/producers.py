"""Producers: they ask over HTTP, or write straight to Redis, and do not give up before they know what became of it."""

from __future__ import annotations

import asyncio
import json
import random
import uuid
from collections.abc import Callable
from typing import Any

import httpx2
from redis.exceptions import RedisError

from tests.chaos.clients import Follower
from tests.chaos.collect import epoch_of
from tests.chaos.evidence import Asked, Client, Evidence, Sitting
from tests.chaos.mix import Conversation, Turn
from tests.chaos.stage import Stage
from workers.ring import wire_message

RETRY_S = (0.1, 0.5)
#: How long a raw producer waits before it sends again what nobody has heard of.
RESEND_S = 3.0
Spawn = Callable[[Any], None]


class Producers:
    """Holds conversations; `spawn` starts what goes on beside them."""

    def __init__(self, stage: Stage, http: httpx2.AsyncClient, evidence: Evidence, seed: int, spawn: Spawn) -> None:
        self._stage = stage
        self._http = http
        self._evidence = evidence
        self._seed = seed
        self._spawn = spawn

    async def hold(self, number: int, conversation: Conversation) -> None:
        """Send the turns of a conversation, each one when the one before it is accepted, or answered."""
        session_id: str | None = None
        for place, turn in enumerate(conversation.turns):
            rng = random.Random(f"{self._seed}/turn/{turn.job_id}")
            asked = Asked(turn, number, place, len(conversation.turns) > 1)
            self._evidence.asked[turn.job_id] = asked
            body = turn.body if session_id is None else {**turn.body, "session_id": session_id}
            if turn.via == "raw":
                await self._send_raw(asked, body, rng)
            else:
                await self._post(asked, body, rng)
            if asked.refused:
                continue
            session_id = session_id or await self._session_of(turn.job_id, rng)
            followers = [self._follow(turn, place) for place in range(turn.followers)]
            self._spawn(self._meddle(asked, body, rng))
            if conversation.patient:
                await followers[0]

    def _follower(self, turn: Turn, name: str) -> Follower:
        client = Client(turn.job_id, name)
        self._evidence.clients.append(client)
        return Follower(self._stage, self._http, client, f"{self._seed}/client/{turn.job_id}/{name}")

    def _follow(self, turn: Turn, number: int) -> asyncio.Task[None]:
        task = asyncio.ensure_future(self._follower(turn, f"client{number}").follow())
        self._spawn(task)
        return task

    async def _post(self, asked: Asked, body: dict[str, Any], rng: random.Random) -> None:
        """Until it is accepted or refused; as a stream, its first events are a client's."""
        while not (asked.accepted or asked.refused):
            url = f"{self._stage.any_gateway(rng)}/v1/jobs"
            try:
                if asked.turn.via == "stream":
                    await self._post_streamed(asked, url, body)
                else:
                    asked.answers.append(await self._send("POST", url, body))
            except httpx2.HTTPError:
                asked.answers.append(0)
            if not (asked.accepted or asked.refused):
                await asyncio.sleep(rng.uniform(*RETRY_S))

    async def _post_streamed(self, asked: Asked, url: str, body: dict[str, Any]) -> None:
        sitting = Sitting(None)
        stream = self._http.stream("POST", f"{url}?stream=true", json=body)
        response = await stream.__aenter__()
        asked.answers.append(response.status_code)
        if response.status_code != 200:
            self._note(response.status_code, "POST", url)
            await stream.__aexit__(None, None, None)
            return
        follower = self._follower(asked.turn, f"stream{len(asked.answers)}")
        follower.client.sittings.append(sitting)

        async def read_on() -> None:
            try:
                await follower.read(sitting, response, follower.leaves_after())
            except httpx2.HTTPError:
                pass
            finally:
                await stream.__aexit__(None, None, None)
            await follower.follow()

        self._spawn(read_on())

    async def _send_raw(self, asked: Asked, body: dict[str, Any], rng: random.Random) -> None:
        """Redis may lose what was sent; the producer sends it again until the job is known."""
        while not asked.accepted:
            redis_id, message = wire_message("chat", body)
            redis = self._stage.redis()
            try:
                async with redis.pipeline(transaction=True) as pipeline:
                    pipeline.hset(f"{self._stage.namespace}:chat.msgs", redis_id, message)
                    pipeline.rpush(f"{self._stage.namespace}:chat", redis_id)
                    await pipeline.execute()
            except (RedisError, OSError):
                await asyncio.sleep(rng.uniform(*RETRY_S))
                continue
            finally:
                await redis.aclose()
            await self._await_known(asked, rng)

    async def _await_known(self, asked: Asked, rng: random.Random) -> None:
        give_up = asyncio.get_running_loop().time() + RESEND_S
        while asyncio.get_running_loop().time() < give_up and not asked.accepted:
            url = f"{self._stage.any_gateway(rng)}/v1/jobs/{asked.turn.job_id}"
            try:
                if await self._send("GET", url) == 200:
                    asked.answers.append(200)
                    return
            except httpx2.HTTPError:
                pass
            await asyncio.sleep(rng.uniform(*RETRY_S))

    async def _session_of(self, job_id: str, rng: random.Random) -> str:
        while True:
            url = f"{self._stage.any_gateway(rng)}/v1/jobs/{job_id}"
            try:
                response = await self._http.get(url)
                self._note(response.status_code, "GET", url)
                if response.status_code == 200:
                    return str(response.json()["session_id"])
            except httpx2.HTTPError:
                pass
            await asyncio.sleep(rng.uniform(*RETRY_S))

    async def _meddle(self, asked: Asked, body: dict[str, Any], rng: random.Random) -> None:
        """Send it again, send something else under its id, cancel it."""
        turn = asked.turn
        if turn.repeated:
            await asyncio.sleep(rng.uniform(0, 1))
            asked.repeat = await self._insist(rng, "/v1/jobs", body)
            asked.other_body = await self._insist(rng, "/v1/jobs", {**body, "metadata": {"other": str(uuid.uuid4())}})
        if turn.cancel_after_s is not None:
            await asyncio.sleep(turn.cancel_after_s)
            status = await self._insist(rng, f"/v1/jobs/{turn.job_id}/cancel", {"reason": "enough"})
            if status in (200, 202):
                asked.cancelled_in = await epoch_of(self._stage, turn.job_id)

    async def _insist(self, rng: random.Random, path: str, body: dict[str, Any]) -> int:
        """Post until there is an answer of some meaning; its status."""
        while True:
            try:
                status = await self._send("POST", self._stage.any_gateway(rng) + path, body)
                if status < 500:
                    return status
            except httpx2.HTTPError:
                pass
            await asyncio.sleep(rng.uniform(*RETRY_S))

    async def _send(self, method: str, url: str, body: dict[str, Any] | None = None) -> int:
        content = None if body is None else json.dumps(body).encode()
        response = await self._http.request(method, url, content=content)
        self._note(response.status_code, method, url)
        return response.status_code

    def _note(self, status: int, method: str, url: str) -> None:
        # 503 says that the database is away, and what to do.
        if status >= 500 and status != 503:
            self._evidence.bad_answers.append(f"{status} to {method} {url}")
