"""The calculator computes exactly and evaluates nothing."""

from __future__ import annotations

import contextlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers.calculator import calculate


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1+2", "3"),
        ("0.1 + 0.2", "0.3"),
        ("(3 + 4.5) * 2 ** 10", "7680"),
        ("2^10", "1024"),
        ("7 × 6 ÷ 2 − 1", "20"),
        ("1_000 * 2", "2000"),
        ("-7 // 2", "-4"),
        ("-7 % 3", "2"),
        ("+5 - -5", "10"),
        ("2 ** 100", "1267650600228229401496703205376"),
        ("sqrt(16) + abs(-1)", "5"),
        ("round(2.675, 2)", "2.68"),
        ("min(3, 1, 2) + max(1, 5)", "6"),
        ("floor(-1.5) + ceil(1.5)", "0"),
        ("round(exp(1) - e, 20) + ln(e) + log10(1000)", "4"),
        ("1e3", "1000"),
        ("10 ** 60", "1E+60"),
        ("0 * -1", "0"),
    ],
)
def test_arithmetic_is_exact(expression: str, value: str) -> None:
    assert calculate(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os').system('true')",
        "().__class__",
        "open('x')",
        "'a' * 9",
        "[1] * 9",
        "1 if 1 else 2",
        "lambda: 1",
        "x",
        "True + 1",
        "1j",
        "(1, 2)",
        "1 < 2",
        "abs(x=1)",
        "abs()",
        "abs(1, 2)",
        "round(1, 0.5)",
        "round(1, 99)",
        "1 +",
        "",
        "\x00",
        "\ud800",
    ],
)
def test_whatever_is_not_arithmetic_is_refused(expression: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        calculate(expression)


@pytest.mark.parametrize("expression", ["1/0", "0 ** -1", "ln(0)", "sqrt(-1)", "(-8) ** 0.5", "1e999 * 1e999", "0/0"])
def test_what_has_no_value_is_refused(expression: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        calculate(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "9**9**9**9",
        "exp(exp(exp(9)))",
        "1.0000001**1e300",
        "(" * 400 + "1",
        "-" * 499 + "1",
        "9" * 501,
        "1" + "+1" * 249,
    ],
)
def test_no_expression_takes_long(expression: str) -> None:
    started = time.process_time()
    with contextlib.suppress(ValueError):
        calculate(expression)

    assert time.process_time() - started < 0.5


@given(st.integers(-(10**12), 10**12), st.integers(-(10**12), 10**12))
def test_whole_numbers_behave_as_pythons_do(a: int, b: int) -> None:
    assert calculate(f"{a} * {b}") == str(a * b)
    assert calculate(f"{a} - {b}") == str(a - b)
    if b:
        assert calculate(f"({a}) // ({b})") == str(a // b)
        assert calculate(f"({a}) % ({b})") == str(a % b)


@given(st.text(max_size=60))
def test_any_text_gives_a_value_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert calculate(text)
