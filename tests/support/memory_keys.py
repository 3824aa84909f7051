"""Idempotency keys in memory."""

from services.commands.keys import Entry, Kept


class MemoryKeys:
    """Passes the same contract suite as those of JetStream."""

    def __init__(self) -> None:
        self._kept: dict[str, Kept] = {}
        self._seq = 0

    async def read(self, command_id: str) -> Kept | None:
        return self._kept.get(command_id)

    async def write(self, command_id: str, entry: Entry, *, over: int) -> int | None:
        before = self._kept.get(command_id)
        if (0 if before is None else before.seq) != over:
            return None
        self._seq += 1
        self._kept[command_id] = Kept(entry, self._seq)
        return self._seq
