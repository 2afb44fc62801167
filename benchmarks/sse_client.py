"""The smallest client of an event stream that still reads every event: what it costs must not hide what is measured."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import orjson


async def follow_new_job(gateway_url: str, job: dict[str, Any]) -> AsyncIterator[tuple[float, dict[str, Any]]]:
    """Post a job and yield (time of arrival by time.time(), event) until its terminal event."""
    address = urlsplit(gateway_url)
    assert address.hostname is not None
    reader, writer = await asyncio.open_connection(address.hostname, address.port, limit=2**22)
    body = orjson.dumps(job)
    writer.write(
        b"POST /v1/jobs?stream=true HTTP/1.1\r\nHost: %s\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
        % (address.netloc.encode(), len(body))
        + body
    )
    try:
        status = await reader.readline()
        if b" 200 " not in status:
            raise RuntimeError(f"the gateway answered {status!r} {(await reader.read(2000))!r}")
        # Chunk sizes and headers are lines too; events are the lines that say `data:`.
        while line := await reader.readline():
            if line.startswith(b"data:"):
                yield time.time(), orjson.loads(line[5:])
    finally:
        writer.close()
