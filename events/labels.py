"""What Kubernetes takes for the key and the value of a label."""

import re
from typing import Final

_DOMAIN: Final = r"[a-z0-9][a-z0-9.-]*+(?<=[a-z0-9])/"
_WORD: Final = r"[A-Za-z0-9][A-Za-z0-9._-]*+(?<=[A-Za-z0-9])"
KEY_PATTERN: Final = rf"(?:{_DOMAIN})?{_WORD}"
KEY_WITH_DOMAIN_PATTERN: Final = _DOMAIN + _WORD
VALUE_PATTERN: Final = r"(?:[A-Za-z0-9][A-Za-z0-9._-]{0,62}+(?<=[A-Za-z0-9]))?"
LABEL_KEY: Final = re.compile(rf"{KEY_PATTERN}\Z")
LABEL_VALUE: Final = re.compile(rf"{VALUE_PATTERN}\Z")
