"""Records of a history that repeat each other, as one line: only where a part of a history is shown."""

import re
from collections.abc import Sequence
from typing import Final

from muster.cli.output import Output
from muster.cli.values import Row, text_of

_TIME: Final = re.compile(r"\d\d:\d\d:\d\d")


def folded(out: Output, records: Sequence[Row]) -> list[Row]:
    """Of those that say the same within one phase, but for the time of day, the newest, with how many there are and
    when the first one was.
    """
    found: dict[tuple[object, ...], list[Row]] = {}
    stretch = 0
    for before, record in zip([None, *records], records, strict=False):
        if before is not None and before.get("phase") != record.get("phase"):
            stretch += 1
        told = _TIME.sub("", text_of(record, "message"))
        found.setdefault((stretch, text_of(record, "type"), str(record.get("actor")), told), []).append(record)
    newest = [_newest(out, of) for of in found.values()]
    order = {id(record): at for at, record in enumerate(records)}
    return [row for _, row in sorted(newest, key=lambda each: order[id(each[0])])]


def _newest(out: Output, of: Sequence[Row]) -> tuple[Row, Row]:
    """(the record, as it is shown)."""
    last = of[-1]
    if len(of) == 1:
        return last, last
    told = f"{text_of(last, 'message')} ({len(of)} times; the first {out.time(of[0].get('at'))})"
    return last, {**last, "message": told}
