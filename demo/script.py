"""What the demo model answers: pure functions from a request to a `Reply`. The same request gets the same reply."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace

import orjson

from demo.controls import Controls, parse_controls
from demo.intents import find_expression, wanted_calls
from demo.reply import Call, Reply, words
from demo.request import ChatRequest
from demo.sample import sample

_SHOWN = 300  # characters of a user's text that are quoted back
_SHOWN_RESULT = 400  # characters of a tool's result that are repeated

_INTRODUCTION = (
    "Hello! I am the demo model: a scripted stand-in that answers with no network and no API key. "
    "Ask me for a sum, the time or a unit conversion and I call the tools I am offered; tell me your name and I "
    "remember it; anything else I repeat back to you. Set OPENAI_API_KEY to talk to a real model."
)
_CANNED = (
    "I am only the demo model, so this answer is canned: it was written in advance and is streamed word by word "
    "with no network. Ask me for a sum or the time to see tools at work."
)
_AFTER_TOOLS = "(The demo model's words are canned; the results are the tools' own.)"
_NO_TOOL = "I am the demo model and cannot do sums myself; with a calculator among my tools I would use it."

_GREETING = re.compile(r"\b(?:hello|hi|hey|good (?:morning|evening|afternoon)|who are you|introduce yourself)\b", re.I)
_NAME = re.compile(r"\bmy name is\s+([^\W\d_][\w'’-]*)", re.I)
_ASKS_NAME = re.compile(r"\b(?:what(?:'s| is) my name|who am i|do you (?:know|remember) my name)\b", re.I)
_ASKS_FIRST = re.compile(
    r"\bwhat (?:did i (?:say|ask|write)(?: to you)? first|was my first (?:message|question))\b", re.I
)
_ASKS_BEFORE = re.compile(r"\bwhat did i (?:just )?(?:say|ask|write)(?: last| before| just now)?\s*\?", re.I)
_ASKS_COUNT = re.compile(r"\bhow many messages\b", re.I)


def reply_to(request: ChatRequest, controls: Controls) -> Reply:
    """What the model says next in this conversation, with the limits of the request (max_tokens, stop) applied."""
    reply = _next_step(request, controls)
    if request.one_call_only:
        reply = replace(reply, calls=reply.calls[:1])
    return _limited(reply, request)


def make_calls(request: ChatRequest, wanted: list[tuple[str, str]]) -> tuple[Call, ...]:
    """Calls with ids that are the same for the same request and do not repeat within one conversation."""
    seed = f"{len(request.messages)}\0{request.last_user_text}"
    stem = hashlib.blake2s(seed.encode(), digest_size=6).hexdigest()
    return tuple(Call(f"call_{stem}_{number}", name, text) for number, (name, text) in enumerate(wanted))


def numbered_words(count: int) -> str:
    """`word1 word2 … word<count>`: a lost or repeated word shows."""
    return " ".join(f"word{number}" for number in range(1, count + 1))


def calling(request: ChatRequest, wanted: list[tuple[str, str]], text: str = "") -> Reply:
    """A reply that calls tools."""
    return Reply(text=text, calls=make_calls(request, wanted), finish="tool_calls")


def tool_requests(request: ChatRequest, text: str) -> list[tuple[str, str]]:
    """The calls (name, JSON) that the text or `tool_choice` asks for in this step."""
    wanted = wanted_calls(text, request.tools) if request.rounds == 0 or request.forced_tool else []
    forced = request.forced_tool
    if forced and not any(name == forced.name for name, _ in wanted):
        wanted = [(forced.name, sample(forced.parameters, text))]
    return [(name, orjson.dumps(arguments).decode()) for name, arguments in wanted]


def some_call(request: ChatRequest) -> tuple[str, str]:
    """A call (name, JSON) for faults that need one: what the text asks for, else the first tool, else `lookup`."""
    text = parse_controls(request.last_user_text).plain
    if wanted := wanted_calls(text, request.tools):
        name, arguments = wanted[0]
    elif request.tools:
        name, arguments = request.tools[0].name, sample(request.tools[0].parameters, text)
    else:
        name, arguments = "lookup", {"query": text}
    return name, orjson.dumps(arguments).decode()


def _next_step(request: ChatRequest, controls: Controls) -> Reply:
    if request.rounds < len(controls.rounds):
        scripted = controls.rounds[request.rounds]
        text = scripted.text if scripted.text is not None else ""
        if scripted.calls and request.may_call:
            return calling(request, list(scripted.calls), text)
        if scripted.text is not None:
            return Reply(text=text)
    if controls.words is not None:
        return Reply(text=numbered_words(controls.words), stamped=controls.stamp)
    if request.may_call and (wanted := tool_requests(request, controls.plain)):
        return calling(request, wanted)
    if request.output_schema:
        return Reply(text=orjson.dumps(sample(request.output_schema, controls.plain)).decode())
    return Reply(text=_with_results(request) if request.results else _answer(request, controls.plain))


def _limited(reply: Reply, request: ChatRequest) -> Reply:
    starts = [at for stop in request.stops if (at := reply.text.find(stop)) >= 0]
    if starts:
        reply = replace(reply, text=reply.text[: min(starts)])
    pieces = words(reply.text)
    if request.max_tokens is not None and len(pieces) > request.max_tokens:
        return replace(reply, text="".join(pieces[: request.max_tokens]), calls=(), finish="length")
    return reply


def _with_results(request: ChatRequest) -> str:
    sentences = [_sentence(call["name"], call["arguments"], result) for call, result in request.results]
    return " ".join([*sentences, _AFTER_TOOLS])


def _sentence(name: str, arguments: str, result: str) -> str:
    result = _shortened(result.strip(), _SHOWN_RESULT)
    period = "" if result.endswith((".", "!", "?")) else "."
    expression = _expression(arguments)
    return f"{expression} = {result}{period}" if expression else f"The tool {name} says: {result}{period}"


def _expression(arguments: str) -> str | None:
    try:
        parsed = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return None
    expression = parsed.get("expression") if isinstance(parsed, dict) else None
    return expression if isinstance(expression, str) else None


def _answer(request: ChatRequest, text: str) -> str:
    earlier = request.user_texts[:-1]
    if _ASKS_NAME.search(text):
        names = [name for said in earlier for name in _NAME.findall(said)]
        return f"Your name is {names[-1]}." if names else "You have not told me your name yet."
    if _ASKS_FIRST.search(text):
        return f"You said first: “{_shortened(earlier[0])}”." if earlier else "This is the first thing you said."
    if _ASKS_BEFORE.search(text):
        return f"You said before: “{_shortened(earlier[-1])}”." if earlier else "You said nothing before this."
    if _ASKS_COUNT.search(text):
        return f"You have sent me {len(request.user_texts)} messages, this one included."
    if named := _NAME.search(text):
        return f"Nice to meet you, {named[1]}. I am the demo model; ask me later what your name is."
    if not text or (len(text) < 60 and _GREETING.search(text)):
        return _INTRODUCTION
    if find_expression(text):
        return _NO_TOOL
    return f"You said: “{_shortened(text)}”. {_CANNED}"


def _shortened(text: str, limit: int = _SHOWN) -> str:
    return text if len(text) <= limit else f"{text[:limit].rstrip()} …"
