"""`python -m tests.commands.registered FOLDER`: a command that the product does not have, registered and used. What was
seen of it is then in FOLDER/seen.

What follows up to `REGISTERED` is all that a new command takes: its decider, its line in the table, its operation.
"""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
import msgspec

from events import project
from events.decision import Context, Decision

# -- the decider, in the file of the aggregate ------------------------------------------------------------------------


class LiftQuota(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    project_id: str


_decide_others = project.decide


def decide(command: Any, state: project.Project, context: Context) -> Decision[project.ProjectEvent]:
    if not isinstance(command, LiftQuota):
        return _decide_others(command, state, context)
    return () if state.gpu_quota_milli is None else (project.ProjectChanged(node_pools=state.node_pools),)


_project: Any = project
_project.decide, _project.ProjectCommand = decide, project.ProjectCommand | LiftQuota

# -- its line in the table --------------------------------------------------------------------------------------------

from events.authorize import Permission  # noqa: E402
from events.commands import COMMANDS, CommandType  # noqa: E402
from events.ids import key_of_id  # noqa: E402

_LINE = CommandType(
    type=LiftQuota,
    aggregate="project",
    key=lambda command: key_of_id(command.project_id),
    permission=Permission.MANAGE_PROJECTS,
    target=lambda command: command.project_id,
)
COMMANDS.update({LiftQuota: _LINE})

# -- its operation ----------------------------------------------------------------------------------------------------

from services.api import application, paths  # noqa: E402
from services.api.answers import HttpResponse  # noqa: E402
from services.api.context import Call  # noqa: E402
from services.api.operations import Answer, changes  # noqa: E402


@changes(
    "POST",
    f"{paths.PROJECT}/lift-quota",
    tag="Organisation",
    summary="Lift a project's quota",
    errors=(403, 404),
)
async def lift_quota(call: Call) -> Answer[HttpResponse]:
    command: Any = LiftQuota(project_id=call.id)
    reply = await call.send(command)
    return call.accepted(reply, "lifted" if reply.changed else "there was none")


_application: Any = application
_application.OPERATIONS = (*application.OPERATIONS, lift_quota)

REGISTERED = True

from development.servers import NatsServer, PostgresServer  # noqa: E402
from development.stack import until  # noqa: E402
from tests.support.api import Served, serving  # noqa: E402


def used(served: Served) -> Iterable[str]:
    """The command given over HTTP, and what is to be seen of it."""
    path = f"/api/v1/org-unit/projects/{served.project}"
    with served.client() as admin, served.client("alice") as alice:
        # The document is made when it is first asked for, which a busy machine may not do in a request's time.
        described = until(lambda: admin.get("/openapi.json").json().get("paths"), 60)
        yield f"OpenAPI lists {described['/api/v1/org-unit/projects/{projectId}/lift-quota']['post']['operationId']}"
        admin.put(path, json={"gpuQuota": 4}).raise_for_status()
        for who, client in (("admin", admin), ("admin again", admin), ("alice", alice)):
            answer = client.post(f"{path}/lift-quota")
            yield f"{who}: {answer.status_code} {answer.json()['message'].partition(';')[0]}"
        yield f"quota: {_read(admin, path)['gpuQuota']}"
        audit = admin.get("/api/v1/audit", params={"type": "LiftQuota"}).json()["records"]
        assert {record["target"] for record in audit} == {served.project}
        yield f"audit: {', '.join(sorted(record['outcome'] for record in audit))}"


def _read(client: httpx.Client, path: str) -> dict[str, Any]:
    return client.get(path).raise_for_status().json()


def main(folder: Path) -> None:
    folder.mkdir()
    nats, postgres = NatsServer(folder / "nats"), PostgresServer(folder / "postgres")
    nats.start()
    try:
        postgres.start()
        with serving(nats, postgres, folder) as served:
            (folder / "seen").write_text("\n".join(used(served)))
    finally:
        postgres.stop()
        nats.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
