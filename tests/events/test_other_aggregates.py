"""Clusters, projects, the tenant, and who may do what."""

from typing import Any

import pytest

from events import cluster, project, tenant
from events.aggregate import CLUSTER, PROJECT, TENANT, Aggregate, BrokenChainError, Chain, advance, apply, draft
from events.authorize import ROLE_PERMISSIONS, Grants, Permission, authorize
from events.commands import target
from events.commit import BatchPart
from events.ids import cluster_key
from events.refusal import REFUSALS, Refusal
from events.workload.commands import CreateWorkload, DeleteWorkload
from events.workload.spec import TrainingSpec
from tests.events.given import ALICE, NOW, context, names


def run[S](aggregate: Aggregate[S], *commands: Any) -> S:
    """Carry the commands out one after the other; each decided twice must change nothing the second time."""
    state = aggregate.initial
    for number, command in enumerate(commands):
        ctx = context(command_id=f"c{number}")
        decision = aggregate.decide(command, state, ctx)
        assert not isinstance(decision, Refusal), decision
        for event in decision:
            state = aggregate.evolve(state, event)
        again = aggregate.decide(command, state, ctx)
        assert isinstance(again, Refusal) or again == ()
    return state


def refusal[S](aggregate: Aggregate[S], state: S, command: Any) -> str:
    decision = aggregate.decide(command, state, context())
    assert isinstance(decision, Refusal), decision
    assert decision.code in REFUSALS
    return decision.code


def a_cluster(*more: Any) -> cluster.Cluster:
    added = run(CLUSTER, cluster.AddCluster(name="local", kind="local"))
    state = added
    for command in more:
        decision = cluster.decide(command, state, context())
        assert not isinstance(decision, Refusal), decision
        for event in decision:
            state = cluster.evolve(state, event)
    return state


CLUSTER_ID = a_cluster().cluster_id


def heard(protection: bool | None = None) -> cluster.ReportCluster:
    return cluster.ReportCluster(cluster_id=CLUSTER_ID, connected=True, ownership_protection=protection)


def test_a_cluster_name_is_taken_once() -> None:
    assert refusal(CLUSTER, a_cluster(), cluster.AddCluster(name="local", kind="local")) == "name_taken"
    removed = a_cluster(cluster.RemoveCluster(cluster_id=CLUSTER_ID))
    assert refusal(CLUSTER, removed, heard()) == "not_found"
    assert not isinstance(cluster.decide(cluster.AddCluster(name="local", kind="local"), removed, context()), Refusal)


def test_the_agents_silence_and_return_are_each_told_once() -> None:
    state = a_cluster(heard())
    assert state.connected
    assert cluster.decide(heard(), state, context()) == ()
    silent = cluster.ReportCluster(cluster_id=CLUSTER_ID, connected=False, silent_seconds=31)
    assert names(cluster.decide(silent, state, context())) == ["ClusterDisconnected"]  # type: ignore[arg-type]
    assert cluster.decide(silent, a_cluster(), context()) == ()


def test_what_keeps_an_agent_from_working_with_its_cluster_is_told_once_and_gone_when_it_works_again() -> None:
    broken = cluster.ReportCluster(cluster_id=CLUSTER_ID, connected=False, problem="the API server is away")
    other = cluster.ReportCluster(cluster_id=CLUSTER_ID, connected=False, problem="its certificate is unknown")
    silent = cluster.ReportCluster(cluster_id=CLUSTER_ID, connected=False, silent_seconds=31)
    state = a_cluster(heard(), broken)
    assert (state.connected, state.problem) == (False, "the API server is away")
    assert cluster.decide(other, state, context()) == ()
    assert cluster.decide(silent, state, context()) == ()
    assert a_cluster(broken).problem, "also where it was never connected"
    assert a_cluster(heard(), silent, broken).problem, "also where it was silent before"
    assert a_cluster(heard(), broken, heard()).problem == ""


def test_the_clusters_own_word_on_ownership_protection_wins() -> None:
    """S084, C14: the agent reports the cluster's configuration; an administrator speaks where it says nothing."""
    on = cluster.SetOwnershipProtection(cluster_id=CLUSTER_ID, enabled=True)
    assert not a_cluster().ownership_protection
    assert a_cluster(on).ownership_protection
    assert not a_cluster(on, heard(protection=False)).ownership_protection
    assert refusal(CLUSTER, a_cluster(heard(protection=False)), on) == "set_by_cluster"
    assert a_cluster(on, heard(protection=False), heard(protection=None)).ownership_protection


def test_a_node_is_in_the_pool_whose_label_it_carries_else_in_default() -> None:
    """S039."""
    pool = cluster.NodePool(name="a100", label_key="gpu", label_value="A100")
    state = a_cluster(cluster.SetNodePool(cluster_id=CLUSTER_ID, pool=pool))
    assert cluster.pool_of({"gpu": "A100"}, state.node_pools) == "a100"
    assert cluster.pool_of({"gpu": "H100"}, state.node_pools) == "default"
    gone = a_cluster(
        cluster.SetNodePool(cluster_id=CLUSTER_ID, pool=pool),
        cluster.RemoveNodePool(cluster_id=CLUSTER_ID, name="a100"),
    )
    assert gone.node_pools == {}


def test_a_project_is_created_changed_and_has_roles() -> None:
    created = run(PROJECT, project.CreateProject(name="nlp", gpu_quota_milli=4000))
    assert refusal(PROJECT, created, project.CreateProject(name="nlp")) == "name_taken"
    grant = project.GrantProjectRole(project_id=created.project_id, subject="bob", actor="bob", role="researcher")
    other = project.GrantProjectRole(project_id=created.project_id, subject="bob", actor="bob", role="viewer")
    state = run(PROJECT, project.CreateProject(name="nlp"), grant, other)
    assert state.roles == {"bob": ("researcher", "viewer")}
    again = run(PROJECT, project.CreateProject(name="nlp"), grant, other, grant)
    assert again.roles == state.roles, "a role that somebody has already is granted again, and nothing changes"
    revoke = project.RevokeProjectRole(project_id=created.project_id, subject="bob", actor="bob", role="viewer")
    changed = project.ChangeProject(
        project_id=created.project_id, gpu_quota_milli=1000, node_pools=("a100",), pod_security="restricted"
    )
    state = run(PROJECT, project.CreateProject(name="nlp"), grant, other, revoke, changed)
    assert state.roles == {"bob": ("researcher",)}
    assert (state.gpu_quota_milli, state.node_pools, state.pod_security) == (1000, ("a100",), "restricted")
    assert not state.privileged
    loosened = project.ChangeProject(project_id=created.project_id, privileged=True)
    state = run(PROJECT, project.CreateProject(name="nlp"), loosened)
    assert (state.privileged, state.pod_security) == (True, None)
    assert run(PROJECT, project.CreateProject(name="nlp", privileged=True), loosened).privileged
    assert refusal(PROJECT, PROJECT.initial, grant) == "not_found"


def test_somebody_always_remains_who_can_administer() -> None:
    alice = tenant.GrantTenantRole(subject="alice", actor="alice", role="administrator")
    state = run(TENANT, alice)
    assert refusal(TENANT, state, tenant.RevokeTenantRole(subject="alice", actor="alice", role="administrator")) == (
        "last_administrator"
    )
    bob = tenant.GrantTenantRole(subject="bob", actor="bob", role="administrator")
    state = run(TENANT, alice, bob, tenant.RevokeTenantRole(subject="alice", actor="alice", role="administrator"))
    assert state.roles == {"bob": ("administrator",)}


@pytest.mark.parametrize(
    ("grants", "permission", "project_id", "code"),
    [
        (Grants(), Permission.READ, "p1", "not_in_project"),
        (Grants(), Permission.READ, None, "not_permitted"),
        (Grants(project_roles={"p1": ("viewer",)}), Permission.READ, "p1", None),
        (Grants(project_roles={"p1": ("viewer",)}), Permission.SUBMIT, "p1", "not_permitted"),
        (Grants(project_roles={"p1": ("researcher",)}), Permission.SUBMIT, "p1", None),
        (Grants(project_roles={"p1": ("researcher",)}), Permission.SUBMIT, "p2", "not_in_project"),
        (Grants(project_roles={"p1": ("researcher",)}), Permission.OVERRIDE_OWNERSHIP, "p1", "not_permitted"),
        (Grants(project_roles={"p1": ("project-admin",)}), Permission.GRANT_PROJECT_ROLES, "p1", None),
        (Grants(project_roles={"p1": ("project-admin",)}), Permission.MANAGE_PROJECTS, None, "not_permitted"),
        (Grants(tenant_roles=("researcher",)), Permission.SUBMIT, "p9", None),
        (Grants(tenant_roles=("viewer",)), Permission.OPERATE, "p9", "not_permitted"),
        (Grants(tenant_roles=("administrator",)), Permission.OVERRIDE_OWNERSHIP, "p9", None),
        (Grants(tenant_roles=("administrator",)), Permission.MANAGE_CLUSTERS, None, None),
    ],
)
def test_what_is_not_granted_is_refused(
    grants: Grants, permission: Permission, project_id: str | None, code: str | None
) -> None:
    """log.md section 6.2: default deny."""
    answer = authorize(grants, permission, project_id)
    assert (answer.code if answer else None) == code


def test_only_administrators_override_ownership_by_default() -> None:
    """C14."""
    assert [role for role, may in ROLE_PERMISSIONS.items() if Permission.OVERRIDE_OWNERSHIP in may] == ["administrator"]


def test_a_subject_reads_the_projects_it_has_a_role_in() -> None:
    assert Grants(project_roles={"p1": ("viewer",)}).readable_projects == {"p1"}
    assert Grants(tenant_roles=("viewer",)).readable_projects is None
    assert Grants().readable_projects == frozenset()


def test_a_command_is_about_one_aggregate_and_a_foreign_id_about_none() -> None:
    assert target(cluster.AddCluster(name="local", kind="local")) == ("cluster", cluster_key("local"))
    assert target(cluster.RemoveCluster(cluster_id=CLUSTER_ID)) == ("cluster", cluster_key("local"))
    assert target(DeleteWorkload(workload_id="nonsense")) is None
    training = CreateWorkload(
        kind="Training", name="n", requested_name="n", project_id="p", cluster_id="c", spec=TrainingSpec(image="i")
    )
    assert target(training) is not None


def test_a_commit_that_does_not_follow_the_last_one_is_noticed() -> None:
    chain = Chain(state=CLUSTER.initial)
    command = cluster.AddCluster(name="local", kind="local")
    events = cluster.decide(command, chain.state, context())
    assert not isinstance(events, Refusal)
    made = draft(CLUSTER, cluster_key("local"), chain, events, command_id="c", actor=ALICE, now=NOW)
    after = apply(CLUSTER, chain, made.committed(5))
    assert (after.version, after.remembered("c") is not None, after.remembered("d")) == (5, True, None)
    for step in (apply, advance):
        with pytest.raises(BrokenChainError, match="follows 0, but the last one seen is 5"):
            step(CLUSTER, after, made.committed(6))


def test_a_batch_is_whole_with_its_last_commit_and_not_before() -> None:
    events = (cluster.ClusterRemoved(at=NOW),)
    chain = Chain(state=CLUSTER.initial)
    made = draft(CLUSTER, cluster_key("local"), chain, events, command_id="c", actor=ALICE, now=NOW)
    assert made.committed(1).ends_batch, "it stands alone"
    parts = [made.in_batch(BatchPart(id="b", index=index, count=3)) for index in (1, 2, 3)]
    assert [part.committed(1).ends_batch for part in parts] == [False, False, True]
