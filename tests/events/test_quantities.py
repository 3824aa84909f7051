"""Quantities as Kubernetes reads them (C9)."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.quantities import QuantityError, cores_to_milli, format_bytes, parse_bytes, parse_quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("512Mi", 512 * 1024**2),
        ("1.5Gi", 1.5 * 1024**3),
        ("2G", 2 * 10**9),
        ("+3k", 3000),
        ("1e3", 1000),
        ("1E3", 1000),
        ("12E", 12 * 10**18 if 12 * 10**18 < 2**63 else None),
        ("5.", 5),
        (".5", 0.5),
        ("100m", 0.1),
        ("1Ki", 1024),
        ("250u", 0.00025),
    ],
)
def test_a_quantity_has_its_kubernetes_value(text: str, value: float | None) -> None:
    if value is None:
        with pytest.raises(QuantityError, match="more than the largest"):
            parse_quantity(text)
    else:
        assert parse_quantity(text) == Decimal(str(value))


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("", "not a quantity"),
        ("1.2.3", "not a quantity"),
        ("1nuGi", "not a quantity"),
        ("abc", "not a quantity"),
        ("-1Gi", "not a quantity"),
        ("1GB", "Kubernetes writes 1G"),
        ("2TIB", "Kubernetes writes 2Ti"),
        ("4GiB", "Kubernetes writes 4Gi"),
        ("7KB", "Kubernetes writes 7k"),
        ("1X", "unknown unit 'X'"),
        ("1 Gi", "not a quantity"),
        ("١Gi", "not a quantity"),
        ("1e999", "more than the largest"),
        ("9" * 60, "more than the largest"),
    ],
)
def test_what_is_no_quantity_is_refused_with_what_would_do(text: str, hint: str) -> None:
    """The contract's pattern lets 1.2.3 and 1nuGi through and refuses GB: this parser decides."""
    with pytest.raises(QuantityError, match=hint):
        parse_quantity(text)


@given(number=st.integers(0, 10**6), suffix=st.sampled_from(["", "k", "Ki", "Mi", "G", "Gi", "Ti"]))
def test_bytes_shown_to_people_are_close_to_what_they_are(number: int, suffix: str) -> None:
    value = parse_bytes(f"{number}{suffix}")
    assert abs(parse_bytes(format_bytes(value)) - value) <= max(value * 0.01, 1)


def test_fractions_are_rounded_up_so_that_asking_for_something_is_never_nothing() -> None:
    assert parse_bytes("1m") == 1
    assert cores_to_milli(0.0001) == 1
    assert cores_to_milli(0.1) == 100
    assert cores_to_milli(2.0) == 2000
