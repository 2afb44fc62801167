"""Conversion between units of measurement."""

from __future__ import annotations

from decimal import Context, Decimal

#: Each unit in its kind's base unit. Exact by definition where the unit is (inch, pound, US gallon, nautical mile).
_FACTORS: dict[str, dict[str, str]] = {
    "length": {
        "mm": "0.001", "cm": "0.01", "m": "1", "km": "1000", "in": "0.0254", "ft": "0.3048", "yd": "0.9144",
        "mi": "1609.344", "nmi": "1852",
    },
    "mass": {
        "mg": "0.000001", "g": "0.001", "kg": "1", "t": "1000", "oz": "0.028349523125", "lb": "0.45359237",
        "st": "6.35029318",
    },
    "volume": {
        "ml": "0.001", "cl": "0.01", "l": "1", "m3": "1000", "tsp": "0.00492892159375", "tbsp": "0.01478676478125",
        "floz": "0.0295735295625", "cup": "0.2365882365", "pt": "0.473176473", "qt": "0.946352946",
        "gal": "3.785411784",
    },
    "area": {
        "cm2": "0.0001", "m2": "1", "ha": "10000", "km2": "1000000", "ft2": "0.09290304", "acre": "4046.8564224",
        "mi2": "2589988.110336",
    },
    "time": {"ms": "0.001", "s": "1", "min": "60", "h": "3600", "d": "86400", "wk": "604800"},
    "speed": {"m/s": "3.6", "km/h": "1", "mph": "1.609344", "kn": "1.852"},
    "data": {
        "b": "1", "kb": "1000", "mb": "1000000", "gb": "1000000000", "tb": "1000000000000", "kib": "1024",
        "mib": "1048576", "gib": "1073741824", "tib": "1099511627776",
    },
}  # fmt: skip

_TEMPERATURES = ("c", "f", "k")
_CONTEXT = Context(prec=28)
_SHOWN = Context(prec=12)

UNITS = tuple(unit for kind in _FACTORS.values() for unit in kind) + _TEMPERATURES


def convert(value: float, from_unit: str, to_unit: str) -> str:
    """`value` in another unit of the same kind, to 12 digits.

    Raises ValueError for a unit that is not known, two kinds of unit, or a temperature below absolute zero.
    """
    source, target = _known(from_unit), _known(to_unit)
    amount = _CONTEXT.create_decimal(repr(value))
    if not amount.is_finite():
        raise ValueError("the value is not a finite number")
    if source in _TEMPERATURES and target in _TEMPERATURES:
        return _shown(_from_kelvin(_to_kelvin(amount, source), target), to_unit)
    for factors in _FACTORS.values():
        if source in factors and target in factors:
            base = _CONTEXT.multiply(amount, Decimal(factors[source]))
            return _shown(_CONTEXT.divide(base, Decimal(factors[target])), to_unit)
    raise ValueError(f"{from_unit} and {to_unit} measure different things")


def _known(unit: str) -> str:
    name = unit.strip().lower().removeprefix("°")
    if name not in UNITS:
        raise ValueError(f"the unit {unit[:40]!r} is not known; known are: {', '.join(UNITS)}")
    return name


def _to_kelvin(value: Decimal, unit: str) -> Decimal:
    if unit == "f":
        value = _CONTEXT.divide(_CONTEXT.multiply(_CONTEXT.add(value, Decimal("459.67")), Decimal(5)), Decimal(9))
    elif unit == "c":
        value = _CONTEXT.add(value, Decimal("273.15"))
    if value < 0:
        raise ValueError("this is below absolute zero")
    return value


def _from_kelvin(kelvin: Decimal, unit: str) -> Decimal:
    if unit == "f":
        scaled = _CONTEXT.divide(_CONTEXT.multiply(kelvin, Decimal(9)), Decimal(5))
        return _CONTEXT.subtract(scaled, Decimal("459.67"))
    return _CONTEXT.subtract(kelvin, Decimal("273.15")) if unit == "c" else kelvin


def _shown(value: Decimal, unit: str) -> str:
    rounded = _SHOWN.create_decimal(value).normalize(_SHOWN)
    number = f"{rounded:f}" if -15 < rounded.adjusted() < 21 else f"{rounded:E}"
    return f"{number} {unit.strip()}"
