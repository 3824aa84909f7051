"""What Kubernetes takes for the key and the value of a label."""

import re
from typing import Final

LABEL_KEY: Final = re.compile(r"^([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\Z")
LABEL_VALUE: Final = re.compile(r"^([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?\Z")
