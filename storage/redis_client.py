"""The Redis connection that gateway and workers use."""

from __future__ import annotations

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from schemas.errors import ConfigurationError

#: Redis answers in well under a millisecond or is in trouble; nobody waits longer than this for it.
SOCKET_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 2.0


def open_redis(url: str, *, socket_timeout: float | None = SOCKET_TIMEOUT_S) -> Redis:
    """A client that connects on first use and answers in bytes. Raises ConfigurationError for a URL that is none.

    A command that meets a dead idle connection is sent once more on a new one: all of ours may be repeated.
    """
    try:
        return Redis.from_url(
            url,
            decode_responses=False,
            socket_timeout=socket_timeout,
            socket_connect_timeout=CONNECT_TIMEOUT_S,
            socket_keepalive=True,
            retry=Retry(NoBackoff(), 1),
        )
    except ValueError as error:
        raise ConfigurationError(f"REDIS_URL is wrong: {error}") from None
