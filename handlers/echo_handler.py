"""The smallest agent there is: it repeats the message. Read it to see how a framework is added.

Only `invoke` and `astream` are written; what the worker calls is built from `invoke` by the base class. A framework of
your own becomes known by a line in `chatmill.toml`:

    [frameworks.mine]
    handler = "my_package.my_module:MyHandler"
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Sequence

from handlers.base import BaseAgentHandler
from schemas.agent_message import AgentMessage, Usage


class EchoHandler(BaseAgentHandler):
    """Repeats what the user said; a token is a word."""

    uses_model = False

    def invoke(
        self, user_message: str, images: Sequence[str] | None = None, reply_to: str | None = None
    ) -> tuple[list[AgentMessage], Usage | None]:
        return [AgentMessage.assistant(user_message)], _usage(user_message)

    async def astream(self, user_message: str) -> AsyncGenerator[tuple[str, Usage | None], None]:
        for word in re.findall(r"\S+\s*|\s+", user_message):
            yield word, None
        yield "", _usage(user_message)


def _usage(text: str) -> Usage:
    words = len(text.split())
    return Usage(prompt_tokens=words, completion_tokens=words, total_tokens=2 * words)
