"""A job's events over HTTP: server-sent events, straight from the hub to the socket."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.follower import START, Event, Follower
from gateway.operation import JOB_ID, Answer, Operation, Parameter
from gateway.requests import path_id, tenant_of
from gateway.services import Services
from schemas.errors import InvalidRequest
from schemas.job_event import EventId
from storage.jobs.views import ENDED_STATUSES, job_state

_HEADERS = [
    (b"content-type", b"text/event-stream"),
    # A proxy may neither keep nor re-encode nor hold back what is sent.
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]
_FIRST = b": following\n\n"
_HEARTBEAT = b": still here\n\n"

#: Every event is encoded with its kind first, between these and a quotation mark.
_KIND_START = len(b'{"kind":"')


class EventStream:
    """A response that sends a follower's events until the terminal one, and a comment when there are none for long.

    `first` is what the client gets before anything is read. At the end the follower is let go.
    """

    __slots__ = ("_first", "_follower", "_headers", "_heartbeat_s")

    def __init__(
        self, follower: Follower, *, heartbeat_s: float, first: Sequence[Event] = (), location: str | None = None
    ) -> None:
        self._follower = follower
        self._heartbeat_s = heartbeat_s
        self._first = _frames(first) if first else _FIRST
        self._headers = _HEADERS if location is None else [*_HEADERS, (b"location", location.encode())]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._follower:
            await send({"type": "http.response.start", "status": 200, "headers": self._headers})
            if scope["method"] != "HEAD":
                gone = close_when_gone(self._follower, receive)
                try:
                    await self._send_events(send)
                finally:
                    gone.cancel()
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_events(self, send: Send) -> None:
        body = self._first
        follower, heartbeat_s = self._follower, self._heartbeat_s
        while True:
            await send({"type": "http.response.body", "body": body, "more_body": True})
            events = await follower.next(heartbeat_s)
            if events is None:
                return
            body = _frames(events) if events else _HEARTBEAT


def close_when_gone(follower: Follower, receive: Receive) -> asyncio.Task[None]:
    """A task that closes the follower when the client leaves; cancel it when it no longer matters."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        follower.close()

    return asyncio.create_task(watch())


class EventRoutes:
    """`GET /v1/jobs/{id}/events`."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def operations(self) -> list[Operation]:
        return [
            Operation(
                "GET",
                "/v1/jobs/{id}/events",
                "follow_job",
                "A job's events, from a cursor on, live until it has ended",
                self._follow,
                {
                    200: Answer("The events, each one a frame of `id`, `event` (its kind) and `data`.", events=True),
                    204: Answer("The job has ended, and the cursor is at its last event or past it."),
                },
                description="Leaving does not stop the job. Come back with the id of the last event received.",
                parameters=(
                    JOB_ID,
                    Parameter("Last-Event-ID", "The event to go on behind; goes before `after`.", _EVENT_ID, "header"),
                    Parameter("after", "The same for clients that cannot set headers.", _EVENT_ID),
                ),
                problems=(400, 404),
            )
        ]

    async def _follow(self, request: Request) -> ASGIApp:
        tenant, job_id = tenant_of(request), path_id(request, "job")
        cursor = cursor_of(request)
        with ExitStack() as stack:
            # Subscribing goes on while SQL is asked.
            follower = stack.enter_context(self._services.hub.follow(tenant, job_id, cursor))
            status, epoch = await self._services.database.read(job_state, tenant, job_id)
            follower.known_epoch = epoch
            if status in ENDED_STATUSES:
                if cursor >= EventId(epoch, 1):
                    return Response(status_code=204, headers={"cache-control": "no-store"})
                follower.end()
            elif cursor.epoch > epoch:
                follower.skip_to(START)  # there are no such events yet: it must come from elsewhere
            stack.pop_all()  # the stream lets go of it
            return EventStream(follower, heartbeat_s=self._services.settings.heartbeat_s)


def cursor_of(request: Request) -> EventId:
    """The event a client wants to go on behind; the place before all of them if it does not say."""
    for name, text in (
        ("last-event-id", request.headers.get("last-event-id")),
        ("after", request.query_params.get("after")),
    ):
        if text:
            try:
                return EventId.parse(text)
            except ValueError as error:
                raise BadCursor(str(error), field=name) from None
    return START


class BadCursor(InvalidRequest):
    """The cursor is not the id of an event."""

    status = 400
    code = "bad_cursor"


_EVENT_ID = {"type": "string", "pattern": "^[0-9]+-[0-9]+$", "examples": ["1-17"]}


def _frames(events: Sequence[Event]) -> bytes:
    return b"".join([_frame(event) for event in events])


def _frame(event: Event) -> bytes:
    data = event.data
    kind = data[_KIND_START : data.index(b'"', _KIND_START)]
    return b"id: %d-%d\nevent: %b\ndata: %b\n\n" % (*event.id, kind, data)
