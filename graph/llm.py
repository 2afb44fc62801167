"""Chat models, made once and used by every answer on an event loop."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Awaitable, Callable, Hashable
from functools import cache
from typing import cast
from weakref import WeakKeyDictionary

import httpx2
import openai
from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable
from pydantic import SecretStr

from graph.chat_model import ChatModel
from graph.lru import Lru
from graph.tool_set import ToolSet
from schemas.models import ModelTarget

#: Seconds until a connection must stand, and between two pieces of an answer.
CONNECT_TIMEOUT_S = 5.0
SILENCE_TIMEOUT_S = 30.0
#: As many as there can be chats in a process, so that none waits for another's connection.
MAX_CONNECTIONS = 1000
#: Idle connections are kept for the next question of a chat; a TLS handshake costs more than a first token should.
MAX_IDLE_CONNECTIONS = 200
IDLE_CONNECTION_S = 30.0
#: Models with and without tools that one loop remembers; making one takes milliseconds.
MAX_MODELS = 128

BoundModel = Runnable[LanguageModelInput, AIMessage]


class LoopModels:
    """The models of one event loop. They share one pool of connections, which belongs to that loop."""

    def __init__(self) -> None:
        self._http = openai.DefaultAsyncHttpxClient(
            timeout=httpx2.Timeout(SILENCE_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            verify=_certificates(),
            limits=httpx2.Limits(
                max_connections=MAX_CONNECTIONS,
                max_keepalive_connections=MAX_IDLE_CONNECTIONS,
                keepalive_expiry=IDLE_CONNECTION_S,
            ),
        )
        self._plain: Lru[ChatModel] = Lru(MAX_MODELS)
        self._bound: Lru[BoundModel] = Lru(MAX_MODELS)

    def model(self, target: ModelTarget, tools: ToolSet) -> BoundModel:
        """The model at `target` with the tools bound to it."""
        key = cast("Hashable", target)  # it is frozen, which pyright does not see
        plain = self._plain.get(key, lambda: self._make(target))
        if not tools.schemas:
            return plain
        return self._bound.get((key, tools.key), lambda: plain.bind_tools(tools.schemas))

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    def _make(self, target: ModelTarget) -> ChatModel:
        return ChatModel(
            model=target.model,
            base_url=target.base_url,
            api_key=_key_of(target.api_key),
            http_async_client=self._http,
            max_retries=0,
            timeout=self._http.timeout,
            stream_usage=True,
            use_responses_api=False,
            silence_s=SILENCE_TIMEOUT_S,
            # The line above does the same without a task and a timer for every chunk.
            stream_chunk_timeout=None,
        )


@cache
def _certificates() -> ssl.SSLContext:
    """The certificates that servers are checked against; loading them takes 40 ms, so a process does it once."""
    return httpx2.create_ssl_context()


def _key_of(key: SecretStr) -> Callable[[], Awaitable[str]]:
    """The key behind an async function: ChatOpenAI then builds no second, synchronous client that nobody would use."""

    async def read() -> str:
        return key.get_secret_value()

    return read


# A process has one event loop, and a handler is given nothing but its session: there is no other place for what all
# answers share. Loops are keys because a connection must not be used on a loop that did not open it.
_models: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopModels] = WeakKeyDictionary()
_models_lock = threading.Lock()


def loop_models() -> LoopModels:
    """The models of the running event loop."""
    loop = asyncio.get_running_loop()
    with _models_lock:
        models = _models.get(loop)
        if models is None:
            models = _models[loop] = LoopModels()
        return models


def prepare_models() -> None:
    """Load what the first model of a process needs: certificates, and modules that are imported at their first use."""
    nobody = ModelTarget(name="none", model="none", base_url="http://127.0.0.1/v1", api_key=SecretStr("none"))
    LoopModels().model(nobody, ToolSet.of(()))


async def close_loop_models() -> None:
    """Close what the running event loop's models share; call it before the loop ends."""
    with _models_lock:
        models = _models.pop(asyncio.get_running_loop(), None)
    if models is not None:
        await models.close()
