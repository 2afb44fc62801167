"""One reply of the model, put together from the chunks of its stream.

LangChain repairs the arguments of a call that was cut in half and merges calls that carry no index. Here the pieces are
kept as they came and parsed strictly at the end, so that a tool never runs with half of what was meant.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import AIMessageChunk

from graph.messages import parse_arguments, text_of
from schemas.agent_message import ToolCall, Usage
from schemas.border_text import TextRepair, clean_text
from schemas.errors import AgentInvocationError

#: Providers refuse a history whose tool names hold anything else.
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]")
_NAME_LENGTH = 64


@dataclass(slots=True)
class _CallParts:
    """One tool call as far as it has arrived."""

    index: int | None
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(slots=True)
class Reply:
    """What one model call has said so far."""

    #: What the model said instead of an answer, if it refused.
    refusal: str = ""
    finish_reason: str | None = None
    #: Some providers send a running total with every chunk: the last one counts.
    usage: Usage | None = None
    _shown: list[str] = field(default_factory=list)
    _calls: list[_CallParts] = field(default_factory=list)
    #: Calls that the last chunk to open any opened without an index.
    _opened_together: int = 0
    _repair: TextRepair = field(default_factory=TextRepair)

    @property
    def text(self) -> str:
        """Everything that `add` and `end` have given to be shown."""
        return "".join(self._shown)

    @property
    def has_calls(self) -> bool:
        return bool(self._calls)

    def add(self, chunk: AIMessageChunk) -> str:
        """Take the next chunk; returns the text that may be shown now.

        Raises AgentInvocationError if it is not clear to which tool call a piece belongs.
        """
        metadata = chunk.response_metadata
        if metadata and (reason := metadata.get("finish_reason")):
            self.finish_reason = reason
        if chunk.usage_metadata is not None:
            self.usage = Usage(
                prompt_tokens=chunk.usage_metadata["input_tokens"],
                completion_tokens=chunk.usage_metadata["output_tokens"],
                total_tokens=chunk.usage_metadata["total_tokens"],
            )
        if chunk.tool_call_chunks:
            self._add_calls([dict(piece) for piece in chunk.tool_call_chunks])
        if chunk.additional_kwargs and (refusal := chunk.additional_kwargs.get("refusal")):
            self.refusal += clean_text(str(refusal))
        content = chunk.content
        if not content:
            return ""
        shown = self._repair.feed(content if isinstance(content, str) else text_of(content))
        self._shown.append(shown)
        return shown

    def end(self) -> str:
        """Take note that the stream has ended; returns text that was held back."""
        rest = self._repair.flush()
        self._shown.append(rest)
        return rest

    def calls(self, used_ids: Collection[str], stem: str) -> tuple[list[ToolCall], dict[str, str]]:
        """The tool calls, and which of them must not run: call id to reason.

        Every call gets an id that is not among `used_ids`; one that came without is named after `stem` and its place,
        so that the same reply gets the same ids again.
        """
        calls: list[ToolCall] = []
        invalid: dict[str, str] = {}
        taken = set(used_ids)
        for place, parts in enumerate(self._calls):
            call_id = _unused(clean_text(parts.id) or f"call_{stem}_{place}", taken)
            taken.add(call_id)
            try:
                arguments = self._arguments(parts)
            except ValueError as error:
                arguments, invalid[call_id] = {}, str(error)
            name = _NOT_IN_A_NAME.sub("_", parts.name)[:_NAME_LENGTH] or "unnamed"
            calls.append(ToolCall(id=call_id, name=name, args=arguments))
        return calls, invalid

    def _arguments(self, parts: _CallParts) -> dict[str, Any]:
        if self.finish_reason == "length" and not parts.arguments.strip():
            raise ValueError("the call was cut off by the token limit")
        return parse_arguments(parts.arguments)

    def _add_calls(self, pieces: list[dict[str, Any]]) -> None:
        opened = 0
        for piece in pieces:
            name, arguments = piece.get("name") or "", piece.get("args") or ""
            parts = self._continued(piece.get("index"), piece.get("id") or "", name)
            if parts is None:
                parts = _CallParts(index=piece.get("index"))
                self._calls.append(parts)
                opened += parts.index is None
            parts.id = parts.id or piece.get("id") or ""
            if name != parts.name:  # else it is repeated with every piece
                parts.name += name
            parts.arguments += arguments
        if opened:
            self._opened_together = opened

    def _continued(self, index: int | None, call_id: str, name: str) -> _CallParts | None:
        """The call that a piece continues; None if it opens a new one, which only a piece with a name or an id can."""
        if not self._calls:
            return None
        if index is not None:
            known = [parts for parts in self._calls if parts.index == index]
            return known[-1] if known and not _is_another(known[-1], call_id, name) else None
        if call_id:
            known = [parts for parts in self._calls if parts.id == call_id]
            return known[-1] if known and not (name and _is_complete(known[-1].arguments)) else None
        last = self._calls[-1]
        if name:
            return last if name == last.name and not _is_complete(last.arguments) else None
        if self._opened_together > 1:
            raise AgentInvocationError("the model's tool calls cannot be told apart", code="provider_error")
        return last


def _is_another(parts: _CallParts, call_id: str, name: str) -> bool:
    """Whether a piece with the index of `parts` opens another call all the same.

    Some providers number every call 0; some send a new id with every piece of one call, but not its name.
    """
    if not name:
        return False
    if call_id and parts.id:
        return call_id != parts.id
    return bool(parts.arguments) and name != parts.name


def _is_complete(arguments: str) -> bool:
    try:
        parse_arguments(arguments)
    except ValueError:
        return False
    return bool(arguments.strip())


def _unused(call_id: str, taken: set[str]) -> str:
    unused, number = call_id, 1
    while unused in taken:
        number += 1
        unused = f"{call_id}-{number}"
    return unused
