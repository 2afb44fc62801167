"""What tests of the border share: a good request's parts, and how a bad one is refused."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.chat_job import ChatJob
from schemas.errors import InvalidRequest

UUID = "0196f0a1-0000-7000-8000-000000000001"
CALL = {"id": "c1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
RESULT = {"role": "tool", "content": "noon", "tool_call_id": "c1"}
USER = {"role": "user", "content": "hello"}


def refusal(data: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as refused:
        ChatJob.from_request(data)
    return refused.value
