"""Where nobody names a cluster: which clusters could run a creation, and what of it is found on one cluster alone."""

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from events.aggregate import CLUSTER
from events.cluster import Cluster
from events.workload.fields.creation import Creation, DistributedCreation
from events.workload.fields.storage import StorageSpec, git_login
from events.workload.spec import Distributed, TrainingSpec
from services.api.context import Call
from services.api.issues import Issue, fault
from services.api.master_volumes import of_master, own_volumes, storages
from services.api.rules import check_placed
from services.api.saving_rules import check_checkpoint_class
from services.api.storage_rules import check_classes

KNOWN_SECONDS: Final = 2.0
"""How long a creation waits until a cluster that was added a moment ago is known here."""
MOST_TOLD: Final = 3
"""Clusters of which a refusal tells why they cannot run it."""


async def clusters_for(call: Call, asked: Creation, but: Collection[str]) -> tuple[tuple[str, ...], Sequence[Issue]]:
    """(ids of the living clusters that could run it, in order; why none can be chosen, where that is so). What is found
    on one cluster alone is meant on this machine, where that could run it.

    Args:
        but: ids of clusters that are ruled out by data sources: where one cannot be used, or where policies impose one.
    """
    directory = call.api.directory
    newest = await call.api.store.last_seq(aggregates=(CLUSTER.name,))
    await directory.reached(newest, timeout_seconds=KNOWN_SECONDS)
    living = sorted((each for each in directory.clusters.values() if each.exists), key=lambda each: each.name)
    found: list[Cluster] = []
    wrong: list[str] = []
    not_here = ""
    for cluster in living:
        issue = next(placed(asked, cluster), None)
        if cluster.kind == "local" and issue is not None:
            not_here = f", and that is not {cluster.name}, which cannot run it ({issue.field}: {issue.details})"
        if cluster.cluster_id in but:
            wrong.append(f"{cluster.name}: a data source that it has, or must have there, does not allow it")
        elif issue is not None:
            wrong.append(f"{cluster.name}: {issue.field} {issue.details}")
        else:
            found.append(cluster)
    bound, here = bound_to_one(asked, not_here), [each.cluster_id for each in found if each.kind == "local"]
    if bound:
        return tuple(here), () if here else bound
    if not living:
        return (), (fault("clusterId", "there is no cluster yet"),)
    told = wrong[:MOST_TOLD] + ([f"and {len(wrong) - MOST_TOLD} more"] if len(wrong) > MOST_TOLD else [])
    nowhere = fault("clusterId", f"no cluster can run it as it is: {'; '.join(told)}")
    return tuple(sorted(each.cluster_id for each in found)), () if found else (nowhere,)


def placed(asked: Creation, cluster: Cluster) -> Iterator[Issue]:
    """What this cluster does not have of what a creation orders."""
    yield from check_placed(asked, cluster)
    yield from check_classes(asked.order()[0].storage, cluster)
    if (own := own_volumes(asked)) is not None:
        yield from of_master(check_classes(own, cluster), asked)
    yield from check_checkpoint_class(asked.order()[0], cluster)


def bound_to_one(asked: Creation, not_here: str) -> list[Issue]:
    """What of a creation is found on one cluster alone: nobody knows which, so a cluster cannot be chosen for it.

    Args:
        not_here: that it is none of this machine, and why.
    """
    spec, beside = asked.order()
    fields = [*_of_spec("spec", spec)]
    for path, storage in storages(asked):
        fields += _of_volumes(f"{path}.storage", storage)
    master = beside.master if isinstance(beside, Distributed) else None
    if isinstance(asked, DistributedCreation) and asked.master_spec and master is not None:
        fields += _of_spec("masterSpec", master)
    return [
        fault(field, f"{what} one cluster alone{not_here}; name that cluster (clusterId, --cluster)", None, "clusterId")
        for field, what in fields
    ]


def _of_spec(path: str, spec: TrainingSpec) -> Iterator[tuple[str, str]]:
    if spec.code and path == "spec":
        yield "spec.code", "code is sent to"
    for index, variable in enumerate(spec.environment_variables):
        if not variable.exclude:
            field = f"{path}.environmentVariables[{index}]"
            if variable.secret is not None:
                yield f"{field}.secret", "a Secret is found on"
            if variable.config_map is not None:
                yield f"{field}.configMap", "a ConfigMap is found on"
    for index, pull in enumerate(spec.image_pull_secrets):
        if not (pull.user_credential or pull.exclude):
            yield f"{path}.imagePullSecrets[{index}]", "a Secret is found on"
    if path == "spec":
        for index, port in enumerate(spec.ports):
            if port.external is not None:
                yield f"spec.ports[{index}].external", "a port that is chosen beforehand is free on"


def _of_volumes(path: str, storage: StorageSpec) -> Iterator[tuple[str, str]]:
    for index, claim in enumerate(storage.pvc):
        if not claim.exclude and (claim.existing_pvc or claim.claim_name):
            yield f"{path}.pvc[{index}]", "a claim that has a name is found on"
    for index, shared in enumerate(storage.data_volume):
        if not shared.exclude:
            yield f"{path}.dataVolume[{index}]", "a data volume is found on"
    for index, folder in enumerate(storage.host_path):
        if not folder.exclude:
            yield f"{path}.hostPath[{index}]", "a folder of nodes is found on"
    for index, config in enumerate(storage.config_map_volume):
        if not config.exclude:
            yield f"{path}.configMapVolume[{index}]", "a ConfigMap is found on"
    for index, secret in enumerate(storage.secret_volume):
        if not secret.exclude:
            yield f"{path}.secretVolume[{index}]", "a Secret is found on"
    for index, git in enumerate(storage.git):
        if not git.exclude and (login := git_login(git)) is not None and not login.user_credential:
            field = "passwordSecret" if git.secret_ref is None else "secretRef"
            yield f"{path}.git[{index}].{field}", "a Secret is found on"
    for index, bucket in enumerate(storage.s3):
        if not bucket.exclude and bucket.access_key_secret and not bucket.user_credential:
            yield f"{path}.s3[{index}].accessKeySecret", "a Secret is found on"
