"""The models by name: the ordinary ones, and one for each fault with its variants.

`demo-fault-<name>` plays a fault (`demo-fault-status-<code>` any status from 400 to 599, `demo-fault-window-<tokens>` a
context window of that size), without pauses unless the text asks for some (see `controls`). Endings narrow it, and can
be combined in this order:

| ending | the fault plays |
|---|---|
| `-after-tools` | only once results of tools have come back; before that all is well |
| `-once`, `-twice`, `-times-<n>` | so many times for the same user text (or the same `user` field), then all is well |
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from demo import fault_chunks, fault_endings, fault_framing, fault_status, fault_timing, fault_tools
from demo.errors import ProviderError
from demo.fault import Fault
from demo.request import ChatRequest
from demo.scene import Pacing
from demo.validation import STRICT_MODEL

FAULTS = (
    *fault_status.FAULTS,
    *fault_timing.FAULTS,
    *fault_endings.FAULTS,
    *fault_framing.FAULTS,
    *fault_chunks.FAULTS,
    *fault_tools.FAULTS,
)

_PREFIX = "demo-fault-"
_VARIANT = re.compile(r"(?P<name>.+?)(?P<after>-after-tools)?(?:-(?P<times>once|twice|times-(?P<count>\d{1,4})))?")
_TIMES = {"once": 1, "twice": 2}

#: How many different texts are counted; the oldest are forgotten.
_COUNTED = 10_000


class Tally:
    """How often each fault has been played for the same text."""

    def __init__(self) -> None:
        self._counts: OrderedDict[tuple[str, str], int] = OrderedDict()

    def add(self, request: ChatRequest) -> int:
        """Count one more playing; returns how many there were before."""
        marker = request.body.get("user") or hashlib.sha256(request.last_user_text.encode()).hexdigest()
        key = (request.model, marker)
        before = self._counts.pop(key, 0)
        self._counts[key] = before + 1
        if len(self._counts) > _COUNTED:
            self._counts.popitem(last=False)
        return before


@dataclass(frozen=True, slots=True)
class Model:
    """A model's name, what it does, its pacing (None: the server's), and what goes wrong and when."""

    name: str
    about: str
    pacing: Pacing | None = None
    fault: Fault | None = None
    after_tools: bool = False
    times: int | None = None

    def fault_for(self, request: ChatRequest, tally: Tally) -> Fault | None:
        """The fault to play on this request, counted in the tally; None if all is well."""
        if self.fault is None or (self.after_tools and not request.results):
            return None
        if self.times is not None and tally.add(request) >= self.times:
            return None
        return self.fault

    def shown(self) -> dict[str, Any]:
        """As an entry of `GET /v1/models`."""
        return {"id": self.name, "object": "model", "created": 0, "owned_by": "demo", "description": self.about}


_ORDINARY = (
    Model("demo", "canned answers at a readable pace"),
    Model("demo-instant", "the same answers without any delay, in one write", Pacing()),
    Model("demo-slow", "the same answers, slowly", Pacing(first=1.0, pace=0.2)),
    Model(STRICT_MODEL, "the same answers; refuses what only the strictest providers refuse"),
    Model("demo-401", "refuses every key", Pacing(), Fault("401", "HTTP 401", fault_status.status(401))),
)


def _of_fault(fault: Fault) -> Model:
    return Model(_PREFIX + fault.name, fault.about, Pacing(), fault)


ALL_MODELS = (*_ORDINARY, *map(_of_fault, FAULTS))
_BY_NAME = {model.name: model for model in ALL_MODELS}


def find_model(name: str) -> Model:
    """The model of this name; raises ProviderError (404, model_not_found)."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    variant = _VARIANT.fullmatch(name.removeprefix(_PREFIX)) if name.startswith(_PREFIX) else None
    fault = _find_fault(variant["name"]) if variant else None
    if variant is None or fault is None:
        raise ProviderError(
            f"There is no model {name!r}; see /v1/models.", status=404, param="model", code="model_not_found"
        )
    times = None if variant["times"] is None else int(variant["count"] or _TIMES[variant["times"]])
    return Model(name, fault.about, Pacing(), fault, bool(variant["after"]), times)


def _find_fault(name: str) -> Fault | None:
    if number := re.fullmatch(r"status-([45]\d\d)", name):
        return Fault(name, f"HTTP {number[1]}", fault_status.status(int(number[1])))
    if number := re.fullmatch(r"window-(\d{1,9})", name):
        return Fault(name, f"a context window of {number[1]} tokens", fault_status.window(int(number[1])))
    model = _BY_NAME.get(_PREFIX + name)
    return model.fault if model else None
