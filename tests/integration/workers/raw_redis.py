"""A producer in another language: it has a socket, JSON, and docs/wire.md."""

from __future__ import annotations

import json
import socket
import time
import uuid
from typing import Any, Self
from urllib.parse import unquote, urlsplit


class RawRedis:
    """Speaks RESP by hand."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._socket = socket.create_connection((address.hostname or "", address.port or 6379), timeout=10)
        self._file = self._socket.makefile("rb")
        if address.password:
            assert self.command("AUTH", unquote(address.password)) == b"OK"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._socket.close()

    def command(self, *words: str | bytes) -> Any:
        """Send one command and return its reply; raises RuntimeError for an error reply."""
        encoded = [word.encode() if isinstance(word, str) else word for word in words]
        parts = [b"*%d\r\n" % len(encoded), *(b"$%d\r\n%s\r\n" % (len(word), word) for word in encoded)]
        self._socket.sendall(b"".join(parts))
        return self._reply()

    def enqueue(self, namespace: str, queue: str, redis_id: str, message: bytes) -> None:
        """The documented transaction."""
        key = f"{namespace}:{queue}"
        assert self.command("MULTI") == b"OK"
        assert self.command("HSET", f"{key}.msgs", redis_id, message) == b"QUEUED"
        assert self.command("RPUSH", key, redis_id) == b"QUEUED"
        self.command("EXEC")

    def send(self, namespace: str, job: Any, queue: str = "chat", **fields: Any) -> str:
        """Enqueue a message whose argument is `job`; `fields` replace the documented ones. Returns the message's id."""
        redis_id = str(uuid.uuid4())
        message = {
            "queue_name": queue,
            "actor_name": "chat",
            "args": [job],
            "kwargs": {},
            "options": {"redis_message_id": redis_id},
            "message_id": redis_id,
            "message_timestamp": int(time.time() * 1000),
            **fields,
        }
        self.enqueue(namespace, queue, redis_id, json.dumps(message).encode())
        return redis_id

    def _reply(self) -> Any:
        line = self._file.readline().removesuffix(b"\r\n")
        kind, rest = line[:1], line[1:]
        match kind:
            case b"+":
                return rest
            case b":":
                return int(rest)
            case b"$":
                return None if rest == b"-1" else self._file.read(int(rest) + 2)[:-2]
            case b"*":
                return None if rest == b"-1" else [self._reply() for _ in range(int(rest))]
        raise RuntimeError(line.decode())
