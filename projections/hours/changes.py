"""What the events of a batch change in the rows of hourly use. Pure."""

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from events.hours import Measured
from events.ids import ANY_CLUSTER
from events.workload.pod import Pod
from events.workload.state import Workload
from projections.hours.rows import HourRow, RateRow
from projections.values import clean, fit

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)
HOUR_MICROS: Final = 3_600_000_000
_DIGEST_BYTES: Final = 16


class Whose(NamedTuple):
    """Whom an amount counts for."""

    project_id: str
    owner: str
    cluster_id: str
    priority_class: str


type _Cell = tuple[int, Whose, str, str]
"""(hours since 1970, whose, node pool, GPU model)."""


def whose(state: Workload, priority_class: str) -> Whose:
    return Whose(state.project_id, state.owner, state.cluster_id or ANY_CLUSTER, priority_class)


class HourChanges:
    """Changes of a batch, added up by hour and whom they count for."""

    __slots__ = ("_at", "_cells", "_hour", "_micros")

    def __init__(self) -> None:
        self._at: datetime = EPOCH
        """The time that was looked at last: the events of a commit have one."""
        self._hour = self._micros = 0
        """Its hour since 1970, and microseconds into it."""
        self._cells: dict[_Cell, list[int]] = {}
        """To (thousandths of a GPU, their weight, waiting workloads, their weight, runs, measured, used)."""

    def reserve(self, of: Whose, pod: Pod, at: datetime, *, sign: int = +1, runs: int = 0) -> None:
        """What the pod holds counts from now on; with a negative sign, no longer."""
        milli = sign * sum(share.milli for share in pod.devices)
        if not milli and not runs:
            return
        cell = self._cell(at, of, pod.pool, pod.gpu_model)
        cell[0] += milli
        cell[1] += milli * self._micros
        cell[4] += runs

    def wait(self, of: Whose, at: datetime, *, sign: int = +1) -> None:
        """A workload waits from now on; with a negative sign, no longer."""
        cell = self._cell(at, of, "", "")
        cell[2] += sign
        cell[3] += sign * self._micros

    def measure(self, project_id: str, hour: datetime, row: Measured) -> None:
        """So much of an hour was measured and used."""
        of = Whose(project_id, row.owner, row.cluster_id, row.priority_class)
        cell = self._cell(hour, of, row.pool, row.gpu_model)
        cell[5] += row.measured
        cell[6] += row.used

    def _cell(self, at: datetime, of: Whose, pool: str, model: str) -> list[int]:
        if at is not self._at:
            self._at = at
            self._hour, self._micros = divmod((at - EPOCH) // MICROSECOND, HOUR_MICROS)
        key = (self._hour, of, pool, model)
        cell = self._cells.get(key)
        if cell is None:
            cell = self._cells[key] = [0, 0, 0, 0, 0, 0, 0]
        return cell

    def rows(self) -> tuple[dict[tuple[datetime, str], HourRow], dict[str, RateRow]]:
        """What is to be added to the rows of hours, and to those of now, by their keys."""
        hours: dict[tuple[datetime, str], HourRow] = {}
        rates: dict[str, list[int]] = {}
        texts: dict[str, dict[str, str]] = {}
        for (hour, of, pool, model), cell in self._cells.items():
            if not any(cell):
                continue
            key = _digest(of, pool, model)
            if key not in texts:
                texts[key] = _texts(of, pool, model)
            begins = EPOCH + timedelta(hours=hour)
            milli, weight, waiting, waiting_weight, runs, measured, used = map(fit, cell)
            hours[begins, key] = HourRow(
                hour=begins,
                key=key,
                **texts[key],
                gpu_milli=milli,
                gpu_weight=weight,
                waiting=waiting,
                waiting_weight=waiting_weight,
                runs=runs,
                measured=measured,
                used=used,
            )
            rate = rates.setdefault(key, [0, 0])
            rate[0] += cell[0]
            rate[1] += cell[2]
        return hours, {
            key: RateRow(key=key, **texts[key], gpu_milli=fit(milli), waiting=fit(waiting))
            for key, (milli, waiting) in rates.items()
            if milli or waiting
        }


def _digest(of: Whose, pool: str, model: str) -> str:
    parts = "\x00".join((*of, pool, model))
    return hashlib.blake2b(parts.encode(errors="surrogatepass"), digest_size=_DIGEST_BYTES).hexdigest()


def _texts(of: Whose, pool: str, model: str) -> dict[str, str]:
    return {
        "project_id": clean(of.project_id),
        "owner": clean(of.owner),
        "cluster_id": clean(of.cluster_id),
        "pool": clean(pool),
        "priority_class": clean(of.priority_class),
        "gpu_model": clean(model),
    }
