"""ChatOpenAI as chatmill calls it: requests that every compatible server takes, and a cheaper, stricter stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, cast

import httpx2
import openai
import orjson
from langchain_core.callbacks import AsyncCallbackManager, AsyncCallbackManagerForLLMRun
from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.runnables import RunnableConfig, ensure_config
from langchain_openai import ChatOpenAI

from graph.chunks import plain_message, usual_form
from graph.fast_stream import read_chunks
from graph.messages import to_openai

#: Options that are no fields of the request, or ask the client to parse the answer.
_CLIENT_OPTIONS = frozenset({"response_format", "extra_headers", "extra_query", "extra_body", "timeout"})


class ChatModel(ChatOpenAI):
    """ChatOpenAI whose stream is read here, at a fraction of the cost.

    It yields what its parent yields, chunk for chunk, except that it raises where the parent takes a cut or empty
    stream for a whole one, keeps refusals, and understands some chunks on which the parent fails or loses something.
    Whatever is not a plain stream of chat completions that nobody traces is left to the parent.
    """

    #: Seconds without an event, comments not counted, after which a stream is given up.
    silence_s: float | None = None

    async def astream(
        self,
        input: LanguageModelInput,  # noqa: A002 - the parent's name for it
        config: RunnableConfig | None = None,
        *,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[AIMessageChunk]:
        """Stream one reply.

        Without anybody to trace it, the parent's work for callbacks is left out: it calls them for every chunk, keeps
        all chunks and adds them up at the end.
        """
        if not self._is_plain(kwargs) or self._is_traced(config):
            async for message in super().astream(input, config, stop=stop, **kwargs):
                yield message
            return
        messages = self._convert_input(input).to_messages()
        async with aclosing(self._read(messages, stop, kwargs)) as chunks:
            async for data in chunks:
                yield plain_message(data) or self._converted_message(data)
        yield AIMessageChunk(content="", chunk_position="last")

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        if not self._is_plain(kwargs) or run_manager is not None:
            async for generation in super()._astream(messages, stop, run_manager, **kwargs):
                yield generation
            return
        async with aclosing(self._read(messages, stop, kwargs)) as chunks:
            async for data in chunks:
                message = plain_message(data)
                yield self._converted(data) if message is None else ChatGenerationChunk(message=message)

    async def _read(
        self, messages: list[BaseMessage], stop: list[str] | None, options: dict[str, Any]
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Send the request and yield the chunks of its answer as they were sent. Raises as `read_chunks` does."""
        options = {**options, "stream": True}
        if self._should_stream_usage(options.pop("stream_usage", None), **options):
            options["stream_options"] = {"include_usage": True}
        payload = self._get_request_payload(messages, stop=stop, **options)
        # The client's own method for this endpoint would walk through every message of the request to transform it.
        response = await self.root_async_client.post(
            "/chat/completions",
            cast_to=httpx2.Response,
            content=orjson.dumps(payload),
            options={"headers": {"Content-Type": "application/json"}},
            stream=True,
            stream_cls=openai.AsyncStream[Any],
        )
        async with aclosing(response), aclosing(read_chunks(response, self.silence_s)) as chunks:
            async for data in chunks:
                yield data

    def _converted(self, data: dict[str, Any]) -> ChatGenerationChunk:
        """A chunk that is not plain, by the parent's own conversion."""
        usual = usual_form(data)
        generation = self._convert_chunk_to_generation_chunk(usual, AIMessageChunk, {})
        assert generation is not None, "it is None only for chunks without a delta, and these have got an empty one"
        for choice in usual["choices"]:
            if refusal := choice["delta"].get("refusal"):
                generation.message.additional_kwargs["refusal"] = refusal
        return generation

    def _converted_message(self, data: dict[str, Any]) -> AIMessageChunk:
        generation = self._converted(data)
        message = cast("AIMessageChunk", generation.message)
        message.response_metadata = {**(generation.generation_info or {}), **message.response_metadata}
        return message

    def _is_plain(self, kwargs: dict[str, Any]) -> bool:
        """Whether this is a request for an ordinary stream, with nothing that only the client library understands."""
        options = {**self._default_params, **kwargs}
        unusual = self.include_response_headers or self._uses_gateway or self.output_version == "v1"
        return not (unusual or _CLIENT_OPTIONS & options.keys() or self._use_responses_api(options))

    def _is_traced(self, config: RunnableConfig | None) -> bool:
        configured = ensure_config(config)
        manager = AsyncCallbackManager.configure(configured.get("callbacks"), self.callbacks, self.verbose)
        return bool(manager.handlers)

    def _get_request_payload(
        self, input_: LanguageModelInput, *, stop: list[str] | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        payload: dict[str, Any] = super()._get_request_payload([], stop=stop, **kwargs)
        payload["messages"] = [to_openai(message) for message in self._convert_input(input_).to_messages()]
        return payload
