"""The types that many fields share, with what a request may give for them."""

from dataclasses import replace
from typing import Annotated, Final

from events.fields.declare import Limits

MAX_LIST_ITEMS: Final = 1000
"""The contract's maxItems, everywhere."""

Int32 = Annotated[int, Limits(format="int32")]
Int64 = Annotated[int, Limits(format="int64")]
NaturalInt32 = Annotated[int, Limits(format="int32", least=0)]
NaturalInt64 = Annotated[int, Limits(format="int64", least=0)]
NaturalNumber = Annotated[float, Limits(format="double", least=0)]
QUANTITY_PATTERN: Final = r"^([+]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$"
Quantity = Annotated[str, Limits(longest=63, pattern=QUANTITY_PATTERN)]
"""The pattern is the contract's; the real parser is stricter where this lets nonsense through (C9)."""
SomeQuantity = Annotated[str, Limits(shortest=1, longest=63, pattern=QUANTITY_PATTERN)]
Excluded = Annotated[bool, Limits(shows_default=True)]
Uuid = Annotated[str, Limits(format="uuid")]
NonEmpty = Annotated[str, Limits(shortest=1)]
ItemName = Annotated[str, Limits(shortest=1, longest=63)]
LabelName = Annotated[str, Limits(longest=63)]
"""Key of a label as the contract bounds it; rules see to the rest."""
LongName = Annotated[str, Limits(shortest=1, longest=253)]
ShortText = Annotated[str, Limits(longest=250)]
LongText = Annotated[str, Limits(longest=10_000)]
LongUrl = Annotated[str, Limits(longest=2048)]
Words = Annotated[str, Limits(shortest=1, longest=10_000)]
ImageName = Annotated[str, Limits(shortest=1, longest=253)]
FilePath = Annotated[str, Limits(shortest=1, longest=4096)]
PoolWord = Annotated[str, Limits(longest=63)]
_OBJECT_NAME: Final = Limits(
    longest=253,
    pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$",
    words="must be small letters, digits and `-`, with a letter or digit at both ends",
)
ObjectName = Annotated[str, replace(_OBJECT_NAME, shortest=1)]
PullSecretName = Annotated[str, replace(_OBJECT_NAME, not_null=True)]
Digest = Annotated[
    str, Limits(pattern=r"^[0-9a-f]{64}$", words="must be a SHA-256 in 64 hexadecimal digits, 0 to 9 and a to f")
]
type Items[T] = Annotated[tuple[T, ...], Limits(longest=MAX_LIST_ITEMS)]
