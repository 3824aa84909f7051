"""What the events of all aggregates have in common."""

import msgspec


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Settings that all events share: immutable, keyword-only, defaults not written."""
