"""Reservations whose run is over are released, and their room is given again in the same plan. What pods still hold
that were told to end comes free soon: a place there can be kept.
"""

from typing import Final

from services.scheduler.planning import Phase, Planning


def run(planning: Planning) -> None:
    planning.releases = planning.snapshot.releases
    for release in planning.releases:
        if release.row >= 0:
            held = release.reservation
            planning.room.give_back(release.row, held.cpu_milli, held.memory_bytes, held.devices, held.extended)
    for each in planning.snapshot.leaving:
        held = each.reservation
        planning.soon().give_back(each.row, held.cpu_milli, held.memory_bytes, held.devices, held.extended)


PHASE: Final = Phase(name="release", run=run)
