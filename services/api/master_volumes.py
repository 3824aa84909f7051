"""The volumes of a master that has its own (S066), in a request. All holds for them that holds for workers'. Pure."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from events.workload.fields.creation import Creation, DistributedCreation
from events.workload.fields.storage import StorageSpec
from events.workload.spec import OF_WORKERS, MasterSpec
from events.workload.volumes import claim_itself
from services.api.issues import Issue, fault

_STEP: Final = re.compile(r"[.\[]")
_VOLUMES: Final = "spec.storage."


def own_volumes(asked: Creation) -> StorageSpec | None:
    """None where it has those of the workers, or there is no master."""
    return asked.master_spec.storage if isinstance(asked, DistributedCreation) and asked.master_spec else None


def storages(asked: Creation) -> Iterator[tuple[str, StorageSpec]]:
    """All volumes that it asks for: those of the spec, and those of a master that has its own."""
    yield "spec", asked.order()[0].storage
    if (own := own_volumes(asked)) is not None:
        yield "masterSpec", own


def of_master(issues: Iterable[Issue], asked: Creation) -> Iterator[Issue]:
    """What is wrong with a master's whole spec, said of what it was given; nothing of what it has from the workers."""
    given = asked.master_spec if isinstance(asked, DistributedCreation) else None
    of_workers = [name for name in OF_WORKERS if getattr(given, name, None) is None]
    own = "storage" not in of_workers
    for issue in issues:
        name = _STEP.split(issue.field.removeprefix("spec."), maxsplit=1)[0]
        if name == "checkpoint" and own and any(field.startswith(_VOLUMES) for field in issue.involves):
            pass  # the folder is there in the master, too, and one of its own volumes hides it
        elif name not in MasterSpec.__struct_encode_fields__ or name in of_workers:
            continue
        fields = {field: _field(field) for field in issue.involves | {issue.field}}
        yield replace(
            issue,
            field=fields[issue.field],
            details=issue.details.replace(_VOLUMES, "masterSpec.storage.") if own else issue.details,
            involves=frozenset(fields.values()),
        )


def _field(field: str) -> str:
    of_both = field == "spec.code" or field.startswith("spec.checkpoint")
    return f"masterSpec{field.removeprefix('spec')}" if field.startswith("spec.") and not of_both else field


def check_claims_of_both(asked: Creation) -> Iterator[Issue]:
    """A claim with a name is one claim, whoever asks for it: master and workers must ask for the same."""
    own = own_volumes(asked)
    if own is None:
        return
    workers = {
        one.claim_name: (index, one)
        for index, one in enumerate(asked.order()[0].storage.pvc)
        if one.claim_name and not one.exclude
    }
    for index, one in enumerate(own.pvc):
        there = workers.get(one.claim_name or "")
        if there is None or one.exclude or claim_itself(one) == claim_itself(there[1]):
            continue
        theirs = f"spec.storage.pvc[{there[0]}]"
        details = f"is asked for otherwise by {theirs}; say the same of it here and there, or give another name"
        yield fault(f"masterSpec.storage.pvc[{index}].claimName", details, None, theirs)
