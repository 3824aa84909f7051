"""Rules of Kubernetes label keys and values, wherever a request gives one. Pure."""

from collections.abc import Iterator
from typing import Final

from events.fields.at_once import Lines
from events.labels import KEY_PATTERN, LABEL_KEY, LABEL_VALUE, VALUE_PATTERN
from services.api.issues import Issue, fault, shown

KEYS: Final = Lines(KEY_PATTERN)
VALUES: Final = Lines(VALUE_PATTERN)


def check_label_key(field: str, key: str) -> Iterator[Issue]:
    if not LABEL_KEY.match(key):
        yield fault(
            field,
            f"{shown(key)} is no Kubernetes key: letters, digits, `-`, `_` and `.`, beginning and ending "
            "with a letter or digit, perhaps after a domain and a slash",
        )


def check_label_value(field: str, value: str) -> Iterator[Issue]:
    if not LABEL_VALUE.match(value):
        yield fault(
            field,
            f"{shown(value)} is no Kubernetes label value: at most 63 letters, digits, `-`, `_` and `.`, "
            "beginning and ending with a letter or digit",
        )
