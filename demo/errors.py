"""The one way in which the demo model says no: an HTTP status with an OpenAI-shaped error object."""

from __future__ import annotations

from typing import Any

import orjson


class ProviderError(Exception):
    """The request is answered with an error: status, and the four fields of OpenAI's `error` object."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.kind = kind
        self.param = param
        self.code = code

    def payload(self) -> dict[str, Any]:
        """`{"error": {"message", "type", "param", "code"}}`."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def body(self) -> bytes:
        """The payload as JSON."""
        return orjson.dumps(self.payload())
