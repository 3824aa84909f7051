"""Kubernetes quantities (`500m`, `1.5Gi`, `2e3`) as exact integers.

Source: the Kubernetes page "Quantity" (apimachinery resource); the contract's pattern lets nonsense such as `1.2.3`
through and refuses units with a B, so this parser decides (C9).
"""

import re
from decimal import ROUND_CEILING, Decimal
from functools import lru_cache
from typing import Final

_QUANTITY = re.compile(r"^\+?(?P<number>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?P<suffix>[eE][-+]?[0-9]{1,3}|[a-zA-Z]{0,3})$")

_FACTORS: Final[dict[str, Decimal]] = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    "k": Decimal(1000),
    "M": Decimal(1000) ** 2,
    "G": Decimal(1000) ** 3,
    "T": Decimal(1000) ** 4,
    "P": Decimal(1000) ** 5,
    "E": Decimal(1000) ** 6,
    "Ki": Decimal(1024),
    "Mi": Decimal(1024) ** 2,
    "Gi": Decimal(1024) ** 3,
    "Ti": Decimal(1024) ** 4,
    "Pi": Decimal(1024) ** 5,
    "Ei": Decimal(1024) ** 6,
}

MAX_QUANTITY: Final = 2**63 - 1
"""The largest value Kubernetes keeps; also what fits a Postgres bigint."""

KEPT_QUANTITIES: Final = 1_000
"""Answers that are remembered: every fold of a workload asks the same few again."""
MAX_KEPT_CHARACTERS: Final = 40
"""Of a text whose answer is remembered, so that nobody's long ones fill the memory."""


class QuantityError(ValueError):
    """The text is no quantity; the message says what would be."""


def parse_quantity(text: str) -> Decimal:
    """The value of a quantity in its base unit (bytes, cores). Raises QuantityError."""
    match = _QUANTITY.match(text)
    if match is None:
        raise QuantityError(f"{text!r} is not a quantity; write a number and a unit, such as 512Mi, 1.5Gi or 2G")
    number, suffix = Decimal(match["number"]), match["suffix"]
    if suffix in _FACTORS:
        value = number * _FACTORS[suffix]
    elif suffix[:1] in "eE" and len(suffix) > 1 and suffix[-1].isdigit():
        value = number.scaleb(int(suffix[1:]))
    else:
        raise QuantityError(f"{text!r} has the unknown unit {suffix!r}{_hint(match['number'], suffix)}")
    if value > MAX_QUANTITY:
        raise QuantityError(f"{text!r} is more than the largest quantity, {MAX_QUANTITY}")
    return value


def parse_bytes(text: str) -> int:
    """Bytes, rounded up to a whole one as Kubernetes does."""
    return _bytes(text) if len(text) <= MAX_KEPT_CHARACTERS else _bytes.__wrapped__(text)


@lru_cache(maxsize=KEPT_QUANTITIES)
def _bytes(text: str) -> int:
    return int(parse_quantity(text).to_integral_value(rounding=ROUND_CEILING))


@lru_cache(maxsize=KEPT_QUANTITIES)
def cores_to_milli(cores: float) -> int:
    """CPU cores to thousandths, rounded up: 0.0001 cores still ask for something."""
    return int((Decimal(str(cores)) * 1000).to_integral_value(rounding=ROUND_CEILING))


def format_bytes(value: int) -> str:
    """Bytes for people: the largest binary unit that keeps two digits, such as 1.5Gi."""
    for suffix in ("Ei", "Pi", "Ti", "Gi", "Mi", "Ki"):
        factor = int(_FACTORS[suffix])
        if value >= factor:
            return f"{value / factor:.2f}".rstrip("0").rstrip(".") + suffix
    return str(value)


def _hint(number: str, suffix: str) -> str:
    without_b = suffix[:-1] if suffix[-1:] in "bB" else ""
    fixed = {"KI": "Ki", "K": "k"}.get(without_b.upper(), without_b[:1].upper() + without_b[1:].lower())
    if fixed in _FACTORS and fixed:
        return f"; Kubernetes writes {number}{fixed}"
    return "; known units are k, M, G, T, P, E and Ki, Mi, Gi, Ti, Pi, Ei, or m, u, n"
