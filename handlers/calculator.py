"""Arithmetic on text that came from a model: parsed by Python's grammar, walked by hand, never evaluated."""

from __future__ import annotations

import ast
import decimal
from collections.abc import Callable
from decimal import Decimal

#: Characters of an expression; the walk below is then shallow enough and short enough whatever it says.
MAX_LENGTH = 500
MAX_DEPTH = 50
#: Significant digits. Together with the largest exponent this bounds the work of every operation.
_CONTEXT = decimal.Context(
    prec=50,
    Emax=1000,
    Emin=-1000,
    rounding=decimal.ROUND_HALF_EVEN,
    traps=[decimal.Overflow, decimal.InvalidOperation, decimal.DivisionByZero],
)

_SPELLINGS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-"})

_CONSTANTS = {
    "pi": Decimal("3.1415926535897932384626433832795028841971693993751"),
    "e": Decimal("2.7182818284590452353602874713526624977572470937000"),
}

_OPERATIONS: dict[type[ast.operator], Callable[[Decimal, Decimal], Decimal]] = {
    ast.Add: _CONTEXT.add,
    ast.Sub: _CONTEXT.subtract,
    ast.Mult: _CONTEXT.multiply,
    ast.Div: _CONTEXT.divide,
    ast.FloorDiv: lambda a, b: _floor(_CONTEXT.divide(a, b)),
    ast.Mod: lambda a, b: _CONTEXT.subtract(a, _CONTEXT.multiply(b, _floor(_CONTEXT.divide(a, b)))),
    ast.Pow: _CONTEXT.power,
    ast.BitXor: _CONTEXT.power,  # how people write a power outside of programs
}

_FUNCTIONS: dict[str, Callable[..., Decimal]] = {
    "abs": _CONTEXT.abs,
    "sqrt": _CONTEXT.sqrt,
    "exp": _CONTEXT.exp,
    "ln": _CONTEXT.ln,
    "log10": _CONTEXT.log10,
    "min": min,
    "max": max,
    "round": lambda value, digits=Decimal(0): _round(value, digits),
    "floor": lambda value: _floor(value),
    "ceil": lambda value: _CONTEXT.minus(_floor(_CONTEXT.minus(value))),
}


def calculate(expression: str) -> str:
    """The value of an arithmetic expression, in decimal, to 50 digits.

    Numbers, + - * / // % ** (or ^), parentheses, pi, e, abs, sqrt, exp, ln, log10, min, max, round, floor, ceil.
    Raises ValueError with the reason for anything else and for values beyond 10 to the 1000.
    """
    if len(expression) > MAX_LENGTH:
        raise ValueError(f"the expression is longer than {MAX_LENGTH} characters")
    try:
        tree = ast.parse(expression.translate(_SPELLINGS).strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise ValueError("this is not an arithmetic expression") from None
    try:
        return _shown(_value(tree.body, 0))
    except decimal.DivisionByZero:
        raise ValueError("division by zero") from None
    except decimal.Overflow:
        raise ValueError("the value is too large") from None
    except decimal.InvalidOperation:
        raise ValueError("the operation has no value for these numbers") from None


def _value(node: ast.expr, depth: int) -> Decimal:
    if depth > MAX_DEPTH:
        raise ValueError("the expression is nested too deeply")
    value = _unchecked(node, depth)
    if not value.is_finite():  # a literal such as 1e999, ln(0), 0 ** -1
        raise ValueError("the value is not a finite number")
    return value


def _unchecked(node: ast.expr, depth: int) -> Decimal:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return _CONTEXT.create_decimal(repr(number))
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _CONTEXT.minus(_value(operand, depth + 1))
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand, depth + 1)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
            return _OPERATIONS[type(op)](_value(left, depth + 1), _value(right, depth + 1))
        case ast.Call(func=ast.Name(id=name), args=[_, *_] as arguments, keywords=[]) if name in _FUNCTIONS:
            try:
                return _FUNCTIONS[name](*[_value(argument, depth + 1) for argument in arguments])
            except TypeError:
                raise ValueError(f"{name} takes other arguments") from None
    raise ValueError(f"{ast.unparse(node)[:60]!r} is not arithmetic")


def _floor(value: Decimal) -> Decimal:
    return value.to_integral_value(decimal.ROUND_FLOOR, _CONTEXT)


def _round(value: Decimal, digits: Decimal) -> Decimal:
    if digits != _floor(digits) or abs(digits) > 50:
        raise ValueError("round takes a whole number of digits, at most 50")
    return _CONTEXT.quantize(value, Decimal(1).scaleb(-int(digits)))


def _shown(value: Decimal) -> str:
    if not value:
        return "0"
    value = _CONTEXT.create_decimal(value).normalize(_CONTEXT)
    # Up to a line of digits is written out; beyond that the exponent is easier to read.
    return f"{value:f}" if -30 < value.adjusted() < 50 else f"{value:E}"
