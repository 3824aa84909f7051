"""What is wrong with a creation because of what there is: its project, its cluster, its name.

Only reads. The deciders have the last word: here is what lets a person mend everything at once.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, cast

from events.aggregate import ASSET, CLUSTER, WORKLOAD
from events.asset import Asset, credential_keys
from events.asset_specs import CredentialKind
from events.department import NEVER_CHANGED
from events.ids import ANY_CLUSTER, KEY_PATTERN, incarnation_id, key_of_id, workload_key
from events.workload.decide import final_name
from events.workload.fields.creation import Creation, DistributedCreation
from events.workload.fields.inference import DEFAULT_MODEL_KEY
from events.workload.fields.storage import StorageSpec
from events.workload.refusals import name_taken
from events.workload.repositories import KNOWN_HOSTS, PRIVATE_KEY
from events.workload.spec import Distributed, Inference, TrainingSpec
from events.workload.volumes import access_key_names
from services.api.any_cluster import placed
from services.api.code import is_kept
from services.api.context import Call
from services.api.data_volumes import misfits_of
from services.api.issues import Issue, shown
from services.api.master_volumes import storages
from services.api.places import find_cluster, find_department, find_project
from services.api.rules import check_within
from services.runtime.code.kept import Code


async def misfits(
    call: Call, asked: Creation, command_id: str, *, faulty: bool, nowhere: Sequence[Issue]
) -> list[Issue]:
    """What does not go together with what there is.

    Args:
        asked: an empty text in it stands for a field that is missing or wrong; nothing is said of those.
        nowhere: where nobody names a cluster, why none can be chosen for it.
        faulty: whether it is wrong in itself. Then a taken name is told beside that; alone, the decider tells it.
    """
    issues = [*await _of_project(call, asked), *await _of_cluster(call, asked, nowhere)]
    issues += await _of_code(call, asked)
    issues += await _of_credentials(call, asked)
    issues += await misfits_of(call, asked)
    if not (issues or faulty) or not asked.name or not call.may_read(asked.project_id):
        return issues
    name = final_name(asked.name, as_prefix=asked.use_given_name_as_prefix, command_id=command_id)
    key = workload_key(asked.project_id, name)
    wanted = incarnation_id(key, command_id)
    chain = await call.api.store.load(WORKLOAD, key)
    if chain.version and not faulty and await call.api.store.load_at(WORKLOAD, key, wanted) is not None:
        return []  # this very command was carried out, when all of it was there: it is answered as it was then
    if chain.state.living and chain.state.workload_id != wanted:
        issues.append(Issue(field="name", details=name_taken(name).message))
    return issues


async def _of_project(call: Call, asked: Creation) -> list[Issue]:
    """C21, and what this project does not allow. Whoever may not submit there learns nothing of it."""
    project_id = asked.project_id
    if not project_id:
        return []
    project = await find_project(call, project_id)
    if project is None:
        return [Issue(field="projectId", details=f"there is no project {shown(project_id)}")]
    if not call.may_submit(project_id):
        return []
    # One that was deleted a moment ago asks for nothing: the project is moved out of it.
    department = await find_department(call, project.department_id) or NEVER_CHANGED
    return [*check_within(asked, project, department)]


MOST_CREDENTIALS: Final = 100
"""Of one workload: each is read when it is submitted, and when a pod of it starts."""


class _Credential(NamedTuple):
    kind: str
    keys: tuple[str, ...]


class Named(NamedTuple):
    """A credential that a creation names."""

    field: str
    """That names it, such as `spec.imagePullSecrets[0].name`."""
    name: str
    keys: tuple[tuple[str, str], ...] = ()
    """Keys that it must have, each with the field that says so."""
    kind: CredentialKind | None = None
    """Which it must be; None: any."""


def credentials_of(asked: Creation) -> frozenset[Named]:
    """What it needs of credentials."""
    return frozenset(_named_credentials(asked))


def _named_credentials(asked: Creation) -> Iterator[Named]:
    spec, beside = asked.order()
    yield from _named_in("spec", spec)
    for path, storage in storages(asked):
        yield from _named_by_volumes(path, storage)
    master = beside.master if isinstance(beside, Distributed) else None
    if isinstance(asked, DistributedCreation) and asked.master_spec and master:
        yield from _named_in("masterSpec", master)
    model = beside.serving.model if isinstance(beside, Inference) else None
    if model is not None and (named := model.credential) is not None:
        field = "spec.model.credential"
        yield Named(f"{field}.name", named.name, ((named.key or DEFAULT_MODEL_KEY, f"{field}.key"),))


def _named_in(path: str, spec: TrainingSpec) -> Iterator[Named]:
    for index, variable in enumerate(spec.environment_variables):
        if (named := variable.user_credential) is not None and not variable.exclude:
            field = f"{path}.environmentVariables[{index}].userCredential"
            yield Named(f"{field}.name", named.name, ((named.key, f"{field}.key"),))
    for index, secret in enumerate(spec.image_pull_secrets):
        if secret.user_credential and not secret.exclude:
            yield Named(f"{path}.imagePullSecrets[{index}].name", secret.name, kind="docker-registry")


def _named_by_volumes(path: str, storage: StorageSpec) -> Iterator[Named]:
    for index, volume in enumerate(storage.git):
        if (login := volume.secret_ref) is not None and login.user_credential and not volume.exclude:
            field = f"{path}.storage.git[{index}].secretRef"
            usual = PRIVATE_KEY if login.authentication_method == "ssh-key" else "password"
            keys = [(login.secret_key_of_password or usual, f"{field}.secretKeyOfPassword")]
            if login.authentication_method == "ssh-key":
                keys.append((KNOWN_HOSTS, f"{field}.name"))
            elif login.secret_key_of_user:
                keys.append((login.secret_key_of_user, f"{field}.secretKeyOfUser"))
            yield Named(f"{field}.name", login.name, tuple(keys))
    for index, bucket in enumerate(storage.s3):
        if bucket.user_credential and bucket.access_key_secret and not bucket.exclude:
            field = f"{path}.storage.s3[{index}]"
            fields = (f"{field}.secretKeyOfAccessKeyId", f"{field}.secretKeyOfSecretKey")
            keys = tuple(zip(access_key_names(bucket), fields, strict=True))
            yield Named(f"{field}.accessKeySecret", bucket.access_key_secret, keys)


async def _of_credentials(call: Call, asked: Creation) -> list[Issue]:
    """R10: each is the caller's own. Whoever may not submit there learns nothing."""
    needs = list(_named_credentials(asked))
    if not (needs and asked.project_id and asked.cluster_id) or not call.may_submit(asked.project_id):
        return []
    if not (KEY_PATTERN.match(asked.project_id) and KEY_PATTERN.match(asked.cluster_id)):
        return []
    names = dict.fromkeys(one.name for one in needs if one.name)
    if len(names) > MOST_CREDENTIALS:
        details = f"{len(names)} credentials are named; at most {MOST_CREDENTIALS} are possible in a workload"
        return [Issue(field="spec.environmentVariables", details=details, rule="max")]
    held = {name: await _own_credential(call, asked, name) for name in names}
    return [issue for one in needs if one.name for issue in _unfit(one, held[one.name])]


def _unfit(named: Named, found: _Credential | str) -> Iterator[Issue]:
    about = frozenset({"projectId", "clusterId"})
    if isinstance(found, str):
        yield Issue(field=named.field, details=found, involves=about)
    elif named.kind is not None and found.kind != named.kind:
        details = f"credential {shown(named.name)} is of kind {found.kind}; here it is one of kind {named.kind}"
        yield Issue(field=named.field, details=details, rule="options", involves=about)
    else:
        for key, field in named.keys:
            if key and key not in found.keys:
                details = f"credential {shown(named.name)} has no key {shown(key)}; it has {', '.join(found.keys)}"
                yield Issue(field=field, details=details, rule="options", involves=about)


async def _own_credential(call: Call, asked: Creation, name: str) -> _Credential | str:
    """A credential of the caller's, or why there is none."""
    others = False
    for key in credential_keys(name, project_id=asked.project_id, cluster_id=asked.cluster_id):
        asset: Asset = (await call.api.store.load(ASSET, key)).state
        if not asset.exists:
            continue
        if asset.created_by == call.actor:
            kept: dict[str, Any] = asset.spec.get("credential") or {}
            return _Credential(kept.get("kind") or "", tuple(cast("Sequence[str]", kept.get("keys") or ())))
        others = True
    if others:
        return f"{shown(name)} is a credential of somebody else, who alone can use it; create one of your own"
    return f"you have no credential {shown(name)} here; create it first (muster credentials create)"


def code_of(asked: Creation) -> Code | None:
    """The code that it shall run; None where it names none, or a project or cluster that can have none."""
    digest = asked.order()[0].code
    if asked.cluster_id == ANY_CLUSTER or not (
        digest and KEY_PATTERN.match(asked.project_id) and KEY_PATTERN.match(asked.cluster_id)
    ):
        return None
    return Code(cluster_id=asked.cluster_id, project_id=asked.project_id, digest=digest)


async def _of_code(call: Call, asked: Creation) -> list[Issue]:
    """It must have been sent, for this project and this cluster. Whoever may not submit there learns nothing."""
    code = code_of(asked)
    if code is None or not call.may_submit(code.project_id) or await is_kept(call, code):
        return []
    details = f"code {shown(code.digest)} is not kept for this project and cluster; send it first"
    return [Issue(field="spec.code", details=details, involves=frozenset({"projectId", "clusterId"}))]


async def _of_cluster(call: Call, asked: Creation, nowhere: Sequence[Issue]) -> list[Issue]:
    """C21, and what this cluster does not have. `nowhere`: as of `misfits`."""
    cluster_id = asked.cluster_id
    if not cluster_id:
        return []
    if cluster_id == ANY_CLUSTER:
        return [*nowhere]
    cluster = await find_cluster(call, cluster_id)
    if cluster is None:
        return [Issue(field="clusterId", details=f"there is no cluster {shown(cluster_id)}")]
    issues = [*placed(asked, cluster)]
    key = key_of_id(cluster_id)
    if issues and key is not None:
        # The fold lags: what was added to the cluster a moment ago counts before a refusal.
        issues = [*placed(asked, (await call.api.store.load(CLUSTER, key)).state)]
    return issues
