"""The Redis connection that gateway and workers use."""

from __future__ import annotations

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from schemas.errors import ConfigurationError

#: Redis answers in well under a millisecond or is in trouble; nobody waits longer than this for it.
SOCKET_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 2.0
#: A burst shares these: a command takes less time than opening a connection for it, and the server has a limit too.
MAX_CONNECTIONS = 16


def open_redis(url: str, *, socket_timeout: float | None = SOCKET_TIMEOUT_S) -> Redis:
    """A client that connects on first use and answers in bytes. Raises ConfigurationError for a URL that is none.

    A command that meets a dead idle connection is sent once more on a new one: all of ours may be repeated.
    """
    try:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=MAX_CONNECTIONS,
            timeout=SOCKET_TIMEOUT_S,
            decode_responses=False,
            socket_timeout=socket_timeout,
            socket_connect_timeout=CONNECT_TIMEOUT_S,
            socket_keepalive=True,
            retry=Retry(NoBackoff(), 1),
        )
    except ValueError as error:
        raise ConfigurationError(f"REDIS_URL is wrong: {error}") from None
    return Redis.from_pool(pool)
