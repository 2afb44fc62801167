"""The bytes of an OpenAI-compatible answer: `chat.completion` objects and `chat.completion.chunk` events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from demo.reply import Call, Reply, words

DONE = b"[DONE]"


def frame(payload: bytes) -> bytes:
    """One server-sent event."""
    return b"data: " + payload + b"\n\n"


class Wire:
    """Encodes one answer; id, time and model are the same in all its chunks. A payload is JSON without framing."""

    def __init__(self, answer_id: str, created: int, model: str, *, include_usage: bool = False) -> None:
        self._common = {"id": answer_id, "created": created, "model": model, "system_fingerprint": "fp_demo"}
        self.include_usage = include_usage
        # A text chunk differs from the next one in its text only: what stands around it is encoded once.
        self._before_text, self._after_text = self.chunk({"content": "\0"}).split(rb'"\u0000"')

    def event(self, fields: dict[str, Any]) -> bytes:
        """A chunk with these fields instead of `choices`."""
        return orjson.dumps({**self._common, "object": "chat.completion.chunk", **fields})

    def chunk(self, delta: dict[str, Any] | None, finish: str | None = None) -> bytes:
        """A chunk with one choice."""
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return self.event({"choices": [choice], **({"usage": None} if self.include_usage else {})})

    def text(self, text: str) -> bytes:
        """A chunk with a piece of text; the fast path of every stream."""
        return self._before_text + orjson.dumps(text) + self._after_text

    def opening(self, *, with_text: bool = True) -> bytes:
        """The first chunk: the role."""
        return self.chunk({"role": "assistant", "content": "" if with_text else None, "refusal": None})

    def texts(self, text: str) -> list[bytes]:
        """A text word by word."""
        return [self.text(piece) for piece in words(text)]

    def call(self, index: int, call: Call) -> Iterator[bytes]:
        """A tool call as OpenAI streams it: index, id and name first, then the arguments in slices."""
        yield self.tool_delta(index, {"name": call.name, "arguments": ""}, id=call.id, type="function")
        for part in call.slices():
            yield self.tool_delta(index, {"arguments": part})

    def tool_delta(self, index: int | None, function: dict[str, Any], **fields: Any) -> bytes:
        """A chunk with a part of one tool call; without an index if that is None."""
        position = {} if index is None else {"index": index}
        return self.chunk({"tool_calls": [{**position, **fields, "function": function}]})

    def usage(self, reply: Reply, prompt_tokens: int) -> bytes:
        """The last chunk if usage was asked for: no choices, the figures."""
        return self.event({"choices": [], "usage": usage_of(reply, prompt_tokens)})

    def payloads(self, reply: Reply, prompt_tokens: int) -> Iterator[bytes]:
        """The whole answer in order, `[DONE]` included."""
        yield self.opening(with_text=bool(reply.text) or not reply.calls)
        for piece in words(reply.reasoning):
            yield self.chunk({"reasoning_content": piece})
        yield from self.texts(reply.text)
        for piece in words(reply.refusal or ""):
            yield self.chunk({"refusal": piece})
        for index, call in enumerate(reply.calls):
            yield from self.call(index, call)
        yield from self.ending(reply, prompt_tokens)

    def ending(self, reply: Reply, prompt_tokens: int) -> Iterator[bytes]:
        """The finish reason, usage if it was asked for, `[DONE]`."""
        yield self.chunk({}, reply.finish)
        if self.include_usage:
            yield self.usage(reply, prompt_tokens)
        yield DONE

    def completion(self, reply: Reply, prompt_tokens: int) -> bytes:
        """The answer to a request that does not stream."""
        message: dict[str, Any] = {"role": "assistant", "content": reply.text or None, "refusal": reply.refusal}
        if not reply.text and not reply.calls and reply.refusal is None:
            message["content"] = ""
        if reply.reasoning:
            message["reasoning_content"] = reply.reasoning
        if reply.calls:
            message["tool_calls"] = [_whole(call) for call in reply.calls]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reply.finish}
        usage = usage_of(reply, prompt_tokens)
        return orjson.dumps({**self._common, "object": "chat.completion", "choices": [choice], "usage": usage})


def usage_of(reply: Reply, prompt_tokens: int) -> dict[str, Any]:
    """Usage counted in words: what was sent, what was written, and their sum."""
    written = reply.completion_tokens
    usage: dict[str, Any] = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": written,
        "total_tokens": prompt_tokens + written,
    }
    if reply.reasoning:
        usage["completion_tokens_details"] = {"reasoning_tokens": len(words(reply.reasoning))}
    return usage


def _whole(call: Call) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
