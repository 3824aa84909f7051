"""Amounts of money: whole numbers of millionths, and decimal text. Nothing is ever a float. Pure."""

import re
from typing import Final

MICROS: Final = 1_000_000
"""Of one unit of the currency."""
MOST_AMOUNT: Final = 1_000_000_000
"""Of one price or budget, in units: far inside 64 bits in millionths."""
AMOUNT_PATTERN: Final = re.compile(r"^(0|[1-9][0-9]{0,9})(\.[0-9]{1,6})?\Z")
CURRENCY_PATTERN: Final = re.compile(r"^[A-Z]{3}\Z")
NO_CURRENCY: Final = "XXX"
"""As ISO 4217 calls what has none."""
_FEWEST_DIGITS: Final = 2


def micros_of(text: str) -> int | None:
    """Of a decimal such as `2.5`; None where it is none, has more than six decimals, or is above MOST_AMOUNT."""
    if not AMOUNT_PATTERN.match(text):
        return None
    whole, _, part = text.partition(".")
    micros = int(whole) * MICROS + int(part.ljust(6, "0"))
    return micros if micros <= MOST_AMOUNT * MICROS else None


def amount_text(micros: int) -> str:
    """As a decimal with two digits at least: `2.50`, `0.000125`."""
    whole, part = divmod(abs(micros), MICROS)
    digits = f"{part:06d}".rstrip("0").ljust(_FEWEST_DIGITS, "0")
    return f"{'-' if micros < 0 else ''}{whole}.{digits}"


def rounded(dividend: int, divisor: int) -> int:
    """The nearest whole number; of two, the even one."""
    whole, rest = divmod(dividend, divisor)
    twice = 2 * rest
    return whole + (twice > divisor or (twice == divisor and whole % 2 == 1))
