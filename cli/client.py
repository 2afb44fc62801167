"""The gateway, as the command line speaks to it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx2

from cli.failure import CommandFailed, GatewayUnreachable, WrongUsage
from cli.loopback import is_loopback_url
from cli.safe_text import safe_line
from schemas.border_text import clean_json

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from types import TracebackType
    from typing import Self

TENANT_HEADER = "x-chatmill-tenant"
#: An answer that is not waited for comes in milliseconds; a database that is busy may take seconds.
TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 5.0
#: The gateway sends a comment every 15 s; after three that did not come, the connection is dead.
SILENCE_S = 45.0
#: Tries of a request that may be repeated, and the pause before the next one.
TRIES = 3
PAUSE_S = 0.5
#: Items the gateway tells in one page.
PAGE_MAX = 200
_SENTENCE_WIDTH = 500


class Client:
    """Speaks HTTP to one gateway for one tenant. Belongs to the event loop it is used in; close it or use `async with`.

    Every call raises GatewayUnreachable if nobody answers, and CommandFailed with the gateway's reason if it refuses.
    """

    def __init__(self, url: str, tenant: str | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise WrongUsage(f"{url!r} is not an address of the form http://host:port")
        self.url = url.rstrip("/")
        headers = {"accept": "application/json", "user-agent": "chatmill"}
        if tenant is not None:
            headers[TENANT_HEADER] = tenant
        self._http = httpx2.AsyncClient(
            headers=headers,
            timeout=httpx2.Timeout(TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            # A proxy in the environment is meant for the network, never for this machine.
            trust_env=not is_loopback_url(url),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close its connections."""
        await self._http.aclose()

    async def get(self, path: str, **params: Any) -> dict[str, Any]:
        """The JSON object at a path; parameters that are None are left out."""
        return await self._repeat("GET", path, params={k: v for k, v in params.items() if v is not None})

    async def items(self, path: str, *, limit: int, **filters: Any) -> list[dict[str, Any]]:
        """At most `limit` items of a list that is told in pages."""
        found: list[dict[str, Any]] = []
        before: str | None = None
        while len(found) < limit:
            page = await self.get(path, limit=min(limit - len(found), PAGE_MAX), before=before, **filters)
            found += page["data"]
            before = page["next"]
            if before is None:
                break
        return found

    async def submit(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Have a job accepted. It carries its `job_id`, so that a sending whose fate is unknown may be repeated."""
        return await self._repeat("POST", "/v1/jobs", json=clean_json(dict(job)))

    async def cancel(self, job_id: str, reason: str | None = None) -> dict[str, Any]:
        """Ask for a job to be stopped; its terminal event says that it was."""
        body = {} if reason is None else {"json": clean_json({"reason": reason})}
        return await self._repeat("POST", f"/v1/jobs/{job_id}/cancel", **body)

    async def post(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Ask for something that is not to be asked for twice."""
        return await self._request("POST", path, json=clean_json(dict(body or {})))

    async def abort_bulk_run(self, run_id: str) -> dict[str, Any]:
        """Stop a bulk run; returns it with what was done by then."""
        return await self._repeat("POST", f"/v1/bulk-runs/{run_id}/abort")

    async def create_session(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        return await self._request("POST", "/v1/sessions", json=clean_json(dict(settings)))

    async def delete_session(self, session_id: str) -> None:
        await self._request("DELETE", f"/v1/sessions/{session_id}")

    @asynccontextmanager
    async def open_events(self, job_id: str, after: str | None) -> AsyncIterator[AsyncIterator[bytes] | None]:
        """The bytes of a job's event stream behind the event `after`; None if there is nothing more to come.

        Beside what every call raises, httpx2's TransportError comes through when the connection breaks.
        """
        headers = {"accept": "text/event-stream", "accept-encoding": "identity", "cache-control": "no-store"}
        if after is not None:
            headers["last-event-id"] = after
        timeout = httpx2.Timeout(SILENCE_S, connect=CONNECT_TIMEOUT_S)
        url = f"{self.url}/v1/jobs/{job_id}/events"
        async with self._http.stream("GET", url, headers=headers, timeout=timeout) as response:
            if response.status_code == 204:
                yield None
                return
            if response.status_code != 200:
                await response.aread()
                raise self._refusal(response)
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                raise self._stranger()
            yield response.aiter_bytes()

    async def _repeat(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        """A request that does no harm when it is sent twice."""
        for tries_left in reversed(range(TRIES)):
            try:
                return await self._request(method, path, **options)
            except GatewayUnreachable as error:
                # A connection that is refused will be refused again; one that broke may have been an old one.
                if tries_left == 0 or isinstance(error.__cause__, (httpx2.ConnectError, httpx2.TimeoutException)):
                    raise
            await asyncio.sleep(PAUSE_S)
        raise AssertionError("unreachable")

    async def _request(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        try:
            response = await self._http.request(method, self.url + path, **options)
        except httpx2.TransportError as error:
            raise self.unreachable(error) from error
        if response.status_code == 204:
            return {}
        if not response.is_success:
            raise self._refusal(response)
        return self._object(response)

    def _object(self, response: httpx2.Response) -> dict[str, Any]:
        try:
            body = response.json()
        except ValueError:
            raise self._stranger() from None
        if not isinstance(body, dict):
            raise self._stranger()
        return body

    def unreachable(self, error: Exception) -> GatewayUnreachable:
        """The error for a gateway that could not be spoken to."""
        reason = str(error) or type(error).__name__
        return GatewayUnreachable(
            f"nobody answers at {self.url} ({reason}): start `chatmill up`, or name another address with --url"
        )

    def _stranger(self) -> GatewayUnreachable:
        return GatewayUnreachable(
            f"what answers at {self.url} is not chatmill: name its address with --url or CHATMILL_URL"
        )

    def _refusal(self, response: httpx2.Response) -> CommandFailed:
        """The gateway's problem+json as one sentence."""
        try:
            problem = response.json()
        except ValueError:
            problem = None
        if not isinstance(problem, dict):
            if response.status_code == 404:
                return self._stranger()
            return Refused(f"{self.url} answers with HTTP {response.status_code}", response.status_code)
        reason = problem.get("detail") or problem.get("title") or f"HTTP {response.status_code}"
        field = problem.get("field")
        return Refused(safe_line(f"{field}: {reason}" if field else str(reason), _SENTENCE_WIDTH), response.status_code)


class Refused(CommandFailed):
    """The gateway refused a request; the message is its reason, with the field that is wrong."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status
