"""Everything known when one request is about to be answered, and the ordinary way of answering it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from demo.controls import Controls
from demo.errors import ProviderError
from demo.reply import Reply, words
from demo.request import ChatRequest
from demo.response import EVENTS, Action, Response
from demo.wire import Wire, frame


@dataclass(frozen=True, slots=True)
class Pacing:
    """Seconds before the first token and between tokens."""

    first: float = 0.0
    pace: float = 0.0

    @property
    def instant(self) -> bool:
        return not self.first and not self.pace


@dataclass(frozen=True, slots=True)
class Scene:
    """One request, the controls in it, what the script answers, how it is encoded, and how fast it goes."""

    request: ChatRequest
    controls: Controls
    reply: Reply
    wire: Wire
    pacing: Pacing

    def answer(self, reply: Reply | None = None) -> Response:
        """The response that says the scripted reply, or another one, as a provider in good health would send it."""
        reply = reply or self.reply
        if not self.request.stream:
            return Response(self._completion(reply))
        if self.pacing.instant and not reply.stamped:
            return Response(b"".join(map(frame, self.payloads(reply))), content_type=EVENTS)
        return Response(self._paced(reply), content_type=EVENTS)

    def stream(self, actions: Iterator[Action]) -> Response:
        """A response of raw bytes, with the pauses the text asks for after each write.

        Raises ProviderError (400) if the request does not stream.
        """
        if not self.request.stream:
            raise ProviderError(f"{self.request.model} plays on streams only: ask with stream: true", param="stream")
        return Response(actions if self.pacing.instant else self._spaced(actions), content_type=EVENTS)

    def frames(self, reply: Reply | None = None) -> list[bytes]:
        """The events of the whole stream."""
        return [frame(payload) for payload in self.payloads(reply)]

    def half(self) -> list[bytes]:
        """The events of the first half of what the reply says or calls, and of its role."""
        opening, *said = self.frames()[: -len(self.ending())]
        return [opening, *said[: (len(said) + 1) // 2]]

    @property
    def seconds(self) -> float:
        """How long a pause or delay of a fault lasts: `[seconds=…]`, else 2."""
        return 2.0 if self.controls.seconds is None else self.controls.seconds

    def payloads(self, reply: Reply | None = None) -> list[bytes]:
        """The payloads of the whole stream, `[DONE]` included."""
        return list(self.wire.payloads(reply or self.reply, self.request.prompt_tokens))

    def ending(self, reply: Reply | None = None) -> list[bytes]:
        """The payloads after the last word."""
        return list(self.wire.ending(reply or self.reply, self.request.prompt_tokens))

    def completion(self, reply: Reply | None = None) -> bytes:
        """The whole answer as one `chat.completion`."""
        return self.wire.completion(reply or self.reply, self.request.prompt_tokens)

    def _completion(self, reply: Reply) -> bytes | Iterator[Action]:
        body = self.completion(reply)
        if self.pacing.instant:
            return body
        return iter((self.pacing.first + self.pacing.pace * reply.completion_tokens, body))

    def _spaced(self, actions: Iterator[Action]) -> Iterator[Action]:
        yield self.pacing.first
        for action in actions:
            yield action
            if isinstance(action, bytes):
                yield self.pacing.pace

    def _paced(self, reply: Reply) -> Iterator[Action]:
        """The stream with its pauses. Text goes by the fast path; it is most of what a benchmark sends."""
        pace = self.pacing.pace
        if self.pacing.first:
            yield self.pacing.first
        if reply.calls or reply.refusal or reply.reasoning:
            for payload in self.payloads(reply):
                yield frame(payload)
                yield pace
            return
        opening = frame(self.wire.opening())
        for piece in words(reply.text):
            stamp = f"@{time.time_ns() // 1000}" if reply.stamped else ""
            yield opening + frame(self.wire.text(piece + stamp))
            yield pace
            opening = b""
        yield opening + b"".join(map(frame, self.ending(reply)))
