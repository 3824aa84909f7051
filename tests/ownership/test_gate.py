"""What the gate asks the log's leader for, because its own folds may lag."""

from typing import Any

import pytest
from nats.aio.client import Client

from development.commands import carry_out
from events.cluster import AddCluster, SetOwnershipProtection
from events.commit import About
from events.project import CreateProject, GrantProjectRole
from events.refusal import Refusal
from events.workload.commands import SuspendWorkload
from services.ownership.decide import Admission
from services.ownership.gate import Audit, Gate
from services.runtime.identity.actors import Actors
from services.runtime.identity.directory import Directory
from services.runtime.log.memory import MemoryEventStore
from services.runtime.nats.requests import Requests
from tests.events.given import ID

pytestmark = pytest.mark.anyio


async def test_others_workloads_are_protected_from_the_moment_in_which_that_is_stored() -> None:
    """Also where the fold of roles and clusters has not heard of it yet."""
    store = MemoryEventStore()
    await carry_out(store, "1", AddCluster(name="lab", kind="kubernetes"))
    await carry_out(store, "2", CreateProject(name="nlp"))
    directory = Directory(store)
    await directory.start()
    (cluster_id,), (project_id,) = directory.clusters, directory.projects
    grant = GrantProjectRole(project_id=project_id, subject="bob", role="researcher")
    await directory.reached(await carry_out(store, "3", grant), timeout_seconds=60)
    await directory.close()  # it stands still from here on
    nobody: Any = None
    gate = Gate(
        connection=Client(),
        identities=nobody,
        actors=Actors(Client(), Requests(Client())),
        directory=directory,
        store=store,
        read_about=nobody,
        audit=Audit(Requests(Client())),
        refuse_roles_while_local=False,
    )
    adas = About(id=ID, owner="ada", project_id=project_id, cluster_id=cluster_id)
    command = SuspendWorkload(workload_id=ID)
    assert await gate._judge(command, "bob", adas) == Admission(others_unprotected=True)
    await carry_out(store, "4", SetOwnershipProtection(cluster_id=cluster_id, enabled=True))
    refused = await gate._judge(command, "bob", adas)
    assert isinstance(refused, Refusal)
    assert refused.code == "not_owner"
