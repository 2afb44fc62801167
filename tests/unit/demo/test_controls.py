import pytest

from demo.controls import Controls, Round, parse_controls


def test_a_text_without_brackets_has_no_controls() -> None:
    assert parse_controls(" hello ") == Controls(plain="hello")


def test_numbers_are_read_and_taken_out_of_the_text() -> None:
    controls = parse_controls("Hi [words=200][pace=50] there [first=0][stamp][seconds=0.5][retry-after=7]")
    assert controls == Controls("Hi  there", (), 200, True, 0.05, 0.0, 0.5, 7.0)


@pytest.mark.parametrize("text", ["[words=]", "[words=x]", "[wards=3]", "see [1] and [2]", "[say:", "[call: x]", "[[]"])
def test_what_is_not_quite_a_control_is_text(text: str) -> None:
    assert parse_controls(text) == Controls(plain=text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[say:exactly this]", "exactly this"),
        ("[say: with spaces ]", " with spaces "),
        ("[say:a [1] and [2]]", "a [1] and [2]"),
        ('[say:"a ] b\\n\\u00e9"]', "a ] b\né"),
        ('[say:"quoted" words]', '"quoted" words'),
        ('[say:"\\ud83d\\ude00 and \\ud83d"]', "😀 and \ufffd"),
        ("[say:]", ""),
        ("[say:one] [say: two]", "one two"),
    ],
)
def test_say_gives_the_exact_text(text: str, said: str) -> None:
    assert parse_controls(text).rounds == (Round(said),)


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ('[call:f {"a": [1, {"b": "]"}]}]', ("f", '{"a": [1, {"b": "]"}]}')),
        ("[call:f]", ("f", "{}")),
        ('[call:f {"x": y}]', ("f", '{"x": y}')),
        ("[call:my-tool_2 [1]]", ("my-tool_2", "[1]")),
    ],
)
def test_call_gives_the_exact_arguments(text: str, call: tuple[str, str]) -> None:
    assert parse_controls(f"please {text}") == Controls("please", (Round(None, (call,)),))


def test_then_separates_rounds_and_rounds_repeats_those_with_calls() -> None:
    first, second = Round("A", (("f", "{}"),)), Round(None, (("g", "{}"), ("h", "{}")))
    text = "[say:A][call:f][then][call:g][call:h][then][say:Z]"
    assert parse_controls(text).rounds == (first, second, Round("Z"))
    assert parse_controls(text + "[rounds=2]").rounds == (first, second, first, second, Round("Z"))


def test_no_control_makes_more_than_a_test_can_need() -> None:
    assert parse_controls("[words=999999999]").words == 200_000
    assert len(parse_controls("[call:f][rounds=999999999]").rounds) <= 1_001
