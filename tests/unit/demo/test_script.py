import orjson
import pytest

from demo.reply import words
from tests.unit.demo.asking import ALL_TOOLS, CALCULATOR, CLOCK, assistant, reply, request, tool, with_results


def test_the_model_says_that_it_is_a_demo() -> None:
    for text in ("Hello!", "who are you?", "", "Write a poem about the sea."):
        assert "demo model" in reply(text).text


def test_it_repeats_what_it_understood_and_shortens_long_texts() -> None:
    assert "“Write a poem.”" in reply("Write a poem.").text
    assert len(reply("word " * 10_000).text) < 1_000


def test_the_same_request_gets_the_same_reply() -> None:
    asked = ("what is 1 + 2 and what time is it",)
    assert reply(*asked, tools=ALL_TOOLS) == reply(*asked, tools=ALL_TOOLS)


def test_tools_are_called_at_once_and_their_results_said_in_words() -> None:
    text = "What is 17 * 23, and what time is it in Paris?"
    called = reply(text, tools=ALL_TOOLS)
    assert called.finish == "tool_calls"
    assert [(call.name, orjson.loads(call.arguments)) for call in called.calls] == [
        ("calculator", {"expression": "17 * 23"}),
        ("current_time", {"timezone": "Europe/Paris"}),
    ]
    answered = reply(text, *with_results(called, "391", "noon"), tools=ALL_TOOLS)
    assert answered.finish == "stop"
    assert "17 * 23 = 391." in answered.text
    assert "current_time says: noon." in answered.text


def test_ids_of_calls_do_not_repeat_within_a_conversation() -> None:
    first = reply("what is 1 + 2", tools=[CALCULATOR])
    second = reply("what is 1 + 2", *with_results(first, "3"), assistant("3"), "what is 1 + 2", tools=[CALCULATOR])
    assert second.calls[0].id != first.calls[0].id


def test_without_tools_a_sum_is_not_worked_out() -> None:
    assert reply("what is 17 * 23").calls == ()
    assert "calculator" in reply("what is 17 * 23").text


def test_tool_choice_is_obeyed() -> None:
    text = "what is 17 * 23"
    untouched = reply(text, tools=ALL_TOOLS, tool_choice="none")
    assert (untouched.calls, untouched.finish) == ((), "stop")
    assert untouched.text
    forced = reply(
        "hello", tools=[CLOCK, CALCULATOR], tool_choice={"type": "function", "function": {"name": "calculator"}}
    )
    assert [(call.name, call.arguments) for call in forced.calls] == [("calculator", '{"expression":"hello"}')]
    required = reply("hello", tools=[CLOCK, CALCULATOR], tool_choice="required")
    assert [call.name for call in required.calls] == ["current_time"]


def test_a_forced_tool_is_called_in_every_step_for_as_long_as_it_is_forced() -> None:
    first = reply("hello", tools=[CLOCK], tool_choice="required")
    round_one = with_results(first, "noon")
    assert reply("hello", *round_one, tools=[CLOCK], tool_choice="required").calls
    assert not reply("hello", *round_one, tools=[CLOCK]).calls


def test_one_call_only_if_parallel_calls_are_not_wanted() -> None:
    assert len(reply("what is 1 + 2? what time is it?", tools=ALL_TOOLS, parallel_tool_calls=False).calls) == 1


def test_forced_arguments_satisfy_the_schema() -> None:
    schema = {"type": "object", "properties": {"deep": {"$ref": "#/$defs/Deep"}}, "required": ["deep"]}
    deep = {
        "type": "object",
        "properties": {"n": {"type": "integer"}, "e": {"enum": ["x", "y"]}},
        "required": ["n", "e"],
    }
    offered = tool("f")
    offered["function"]["parameters"] = {**schema, "$defs": {"Deep": deep}}
    assert reply("hello", tools=[offered], tool_choice="required").calls[0].arguments == '{"deep":{"n":1,"e":"x"}}'


def test_structured_output_is_the_smallest_that_fits() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "string"},
            "b": {"anyOf": [{"type": "null"}, {"type": "number"}]},
            "c": {"const": 7},
        },
        "required": ["a", "b", "c"],
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    assert orjson.loads(reply("hello", response_format=wanted).text) == {"a": "hello", "b": None, "c": 7}
    assert reply("hello", response_format={"type": "json_object"}).text == "{}"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("What is my name?", "Your name is Ada."),
        ("what did I say first?", "You said first: “Hello there”."),
        ("what did I just say?", "You said before: “By the way, my name is Ada.”."),
        ("how many messages have I sent?", "You have sent me 3 messages, this one included."),
    ],
)
def test_it_remembers_what_the_history_says(text: str, answer: str) -> None:
    history = ("Hello there", assistant("Hi."), "By the way, my name is Ada.", assistant("Nice to meet you."))
    assert reply(*history, text).text == answer


def test_it_remembers_nothing_without_history() -> None:
    assert reply("What is my name?").text == "You have not told me your name yet."
    assert reply("What did I say first?").text == "This is the first thing you said."


def test_words_makes_exactly_so_many_words() -> None:
    made = reply("[words=200]")
    assert made.text.split() == [f"word{number}" for number in range(1, 201)]
    assert made.completion_tokens == 200


def test_scripted_rounds_are_played_one_after_another() -> None:
    text = '[say:First.][call:current_time {"a":1}][call:nobody][then][call:current_time][then][say:Done.]'
    first = reply(text, tools=[CLOCK])
    assert first.text == "First."
    assert [(call.name, call.arguments) for call in first.calls] == [("current_time", '{"a":1}'), ("nobody", "{}")]
    one = with_results(first, "1", "2")
    second = reply(text, *one, tools=[CLOCK])
    assert [call.name for call in second.calls] == ["current_time"]
    last = reply(text, *one, *with_results(second, "3"), tools=[CLOCK])
    assert (last.text, last.finish) == ("Done.", "stop")


def test_scripted_calls_without_a_last_word_end_in_the_usual_words() -> None:
    called = reply("[call:current_time]", tools=[CLOCK])
    assert "current_time says: noon." in reply("[call:current_time]", *with_results(called, "noon"), tools=[CLOCK]).text


def test_rounds_start_again_with_each_user_message() -> None:
    called = reply("[call:current_time]", tools=[CLOCK])
    again = reply("x", *with_results(called, "noon"), assistant("noon"), "[call:current_time]", tools=[CLOCK])
    assert again.calls


def test_limits_of_the_request_cut_the_text() -> None:
    assert reply("[words=10]", max_tokens=3).text == "word1 word2 word3"
    assert reply("[words=10]", max_completion_tokens=3).finish == "length"
    assert reply("[words=3]", max_tokens=3).finish == "stop"
    assert reply("[words=10]", stop=[" word4"]).text == "word1 word2 word3"


def test_prompt_tokens_count_the_words_of_all_messages() -> None:
    asked = request({"role": "system", "content": "Be brief now."}, "one two", assistant("three"), "four")
    assert asked.prompt_tokens == 4 + 7


@pytest.mark.parametrize(
    "text", ["", " ", "a", " a  b\n\nc ", "\n\n", "x" * 100, "日本語" * 20, "a\u2028b\x1fc\x85d", "🏳️‍🌈 " * 9]
)
def test_pieces_joined_are_the_text(text: str) -> None:
    pieces = words(text)
    assert "".join(pieces) == text
    assert all(pieces)
