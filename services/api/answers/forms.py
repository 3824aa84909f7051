"""What answers are made of."""

from typing import Annotated

import msgspec
from msgspec import Meta

Uuid = Annotated[str, Meta(extra_json_schema={"format": "uuid"})]
Name = Annotated[str, Meta(min_length=1)]


class Form(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What every answer is."""
