"""The request of a workload: as it is sent, and as a workload that there is was asked for."""

import shlex
from typing import TYPE_CHECKING, Final

from muster.cli.command import Session
from muster.cli.conditions import Condition, wait_for
from muster.cli.exits import ExitCode
from muster.cli.output import Column, plain_text
from muster.cli.values import Row, row_of, text_of

if TYPE_CHECKING:
    from collections.abc import Callable

_OF_TOKEN: Final = frozenset({"runAsUid", "runAsGid", "supplementalGroups"})

SUBMITTED_COLUMNS: Final = (
    Column("NAME", "name"),
    Column("ID", "workloadId"),
    Column("PHASE", "actualPhase"),
    Column("PROJECT", "projectId", wide=True),
    Column("CLUSTER", "clusterId", wide=True),
)


def send(
    session: Session,
    request: Row,
    kind: str,
    *,
    idempotency_key: str | None,
    condition: Condition | None,
    timeout_seconds: float | None,
    then: "Callable[[str], int] | None" = None,
) -> int | None:
    """Submits one of this kind, says what comes next, and waits for what is asked. Raises Problem.

    Args:
        then: with its id, once what is waited for is so; its exit code is this one's.
    """
    from events.workload.kinds import KINDS

    path = f"/workloads/{KINDS[kind].collection}"
    answer = session.api.mutate("POST", path, request, idempotency_key=idempotency_key).body
    identifier = text_of(answer, "workloadId")
    session.out.one(
        answer,
        lambda: session.out.table([answer], SUBMITTED_COLUMNS),
        columns=SUBMITTED_COLUMNS,
    )
    waiting = answer.get("notYetInForce")
    if isinstance(waiting, list) and waiting:
        session.out.talk(f"nothing acts yet on {', '.join(map(plain_text, waiting))}")
    if condition is not None:
        code = wait_for(session.api, identifier, session.out, condition, timeout_seconds=timeout_seconds)
        return then(identifier) if then is not None and code == ExitCode.OK else code
    called = text_of(answer, "name")
    # One that begins with a hyphen would be taken for an option.
    noun = {"Workspace": "workspace", "Inference": "inference"}.get(kind, "training")
    session.out.talk(f"next: muster {noun} logs {identifier if called.startswith('-') else shlex.quote(called)} -f")
    return None


def send_again(session: Session, workload_id: str) -> Row:
    """Submits a workload again as it was, under its name; what the API says of the new one. Raises Problem."""
    from events.workload.kinds import KINDS

    found = session.api.get(f"/workloads/{workload_id}")
    kind = KINDS[text_of(found, "type")]
    return session.api.mutate("POST", f"/workloads/{kind.collection}", request_of(found)).body


def request_of(row: Row) -> Row:
    """The request that makes this workload again, from what the API says of it: as `submit -f` takes it."""
    request: Row = {
        "name": text_of(row, "name"),
        "projectId": text_of(row, "projectId"),
        "clusterId": text_of(row, "clusterId"),
        "spec": _set(row_of(row, "spec")),
    }
    if text_of(row, "type") == "Distributed":
        request["masterSpecSameAsWorker"] = row.get("masterSpecSameAsWorker")
        if master := row_of(row, "masterSpec"):
            request["masterSpec"] = _set(master)
    return request


def _set(row: Row) -> Row:
    """Without what is null, which says the same as nothing, and what comes from the token of who submits."""
    left = _OF_TOKEN if row.get("uidGidSource") == "fromIdpToken" else frozenset[str]()
    return {
        key: _set(value) if isinstance(value, dict) else value
        for key, value in row.items()
        if value is not None and key not in left
    }
