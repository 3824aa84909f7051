"""Rules of volumes (R28 to R35, R37, C7, C9; S052, S055 to S060). Pure."""

import posixpath
import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol
from urllib.parse import urlsplit

from events.cluster import Cluster, ClusterKind, StorageClass, usual_class
from events.cluster_protocol import CREDENTIAL_SECRETS, SHARED_CLAIMS
from events.fields.at_once import Lines
from events.fields.values import MAX_LIST_ITEMS
from events.quantities import QuantityError, parse_bytes
from events.workload.fields.saving import DEFAULT_CHECKPOINT_PATH, CheckpointSpec
from events.workload.fields.storage import (
    MEMORY,
    ClaimInfo,
    GitSecretRef,
    GitVolume,
    PvcVolume,
    S3Volume,
    StorageSpec,
    git_login,
)
from events.workload.repositories import ssh_server
from events.workload.spec import TrainingSpec
from events.workload.volumes import within
from services.api.issues import Issue, fault, shown

OWN_FOLDERS: Final = ("/muster", "/proc", "/sys")
"""Nothing is laid there: Muster's own folders of a pod, and the kernel's, which no runtime lets anybody cover."""
MAX_LISTED: Final = 20
"""Storage classes, or attributes, in one sentence."""
_PLAIN_PATH: Final = re.compile(
    rf"(?!(?:{'|'.join([*OWN_FOLDERS, '/dev'])})(?:/|\Z))(?:/[A-Za-z0-9_-][A-Za-z0-9_.-]*+)++\Z"
)
"""As it is normed, and none of the system's. Others may be sound, too."""
_SHM: Final = "/dev/shm"  # noqa: S108 (of a pod)
_NAME_PATTERN: Final = r"(?!\S*?(?:[.-][.]|[.]-))[a-z0-9][a-z0-9.-]{0,252}+(?<=[a-z0-9])"
"""Parts between dots begin and end as the whole does."""
OBJECT_NAME_WORDS: Final = "small letters, digits, `-` and `.`, and a letter or digit on both sides of each `.`"
OBJECT_NAME: Final = re.compile(rf"{_NAME_PATTERN}\Z")
SECRET_NAMES: Final = Lines(rf"(?!{CREDENTIAL_SECRETS}){_NAME_PATTERN}")
"""Those with which `check_secret_name` finds nothing wrong."""
_ATTRIBUTE: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.-]*)?[A-Za-z0-9]\Z")
_REF: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]*\Z")
_KEY: Final = re.compile(r"[A-Za-z0-9._-]{1,253}\Z")
"""Of a Secret or a credential."""
_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]\Z")
"""Old buckets may have names that new ones cannot have."""
_PLAIN_ADDRESS: Final = re.compile(r"https?://[A-Za-z0-9.-]++(?::[1-9][0-9]{0,3}+)?(?:/[!-~]*+)?\Z")
"""Of a repository; others may be sound, too."""
_THIS_MACHINE: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_SERVER: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.:-]*[A-Za-z0-9])?\Z")


class _Asked(NamedTuple):
    """One volume, of whatever kind."""

    path: str
    """Of the item, such as `spec.storage.nfs[0]`."""
    name: str | None
    mount: str
    """The field that says where the pod finds it."""
    mount_path: str | None
    needed: dict[str, str | None]
    """Other fields that it must have, with what is given."""


_EXAMPLES: Final = {
    "bucket": "training-sets",
    "configMap": "settings",
    "id": "the one that `muster datasource data-volume list` shows with -o wide",
    "mountPath": "/data",
    "path": "/data",
    "repository": "https://git.example.com/team/code",
    "secret": "certificates",
    "server": "nfs.example.com",
}


_NONE: Final = StorageSpec()


def check_storage(spec: TrainingSpec) -> Iterator[Issue]:
    """R31, R32, R33, R35, R37, C9."""
    storage = spec.storage
    if storage == _NONE and spec.checkpoint is None:
        return
    asked = tuple(_asked(storage))
    for one in asked:
        for field, value in {one.mount: one.mount_path, **one.needed}.items():
            if not value:
                yield fault(f"{one.path}.{field}", f"is required, such as {_EXAMPLES[field]}", "required")
    yield from _names(asked)
    yield from _mount_paths((*asked, *_own_folder(spec.checkpoint)), large_shm=spec.compute.large_shm_request)
    yield from _empty_folders(storage)
    yield from _of_the_node(storage)
    yield from _nfs(storage)
    yield from _repositories(storage)
    yield from _buckets(storage)
    yield from _claims(storage)
    yield from _files(storage)


def _own_folder(checkpoint: CheckpointSpec | None) -> Iterator[_Asked]:
    """Where the checkpoint folder is, unless that is a place of Muster's."""
    if checkpoint is not None and checkpoint.path != DEFAULT_CHECKPOINT_PATH:
        yield _Asked("spec.checkpoint", None, "path", checkpoint.path, {})


def check_untaken(
    storage: StorageSpec, checkpoint: CheckpointSpec | None, folder: str, what: str, *, below: bool = False
) -> Iterator[Issue]:
    """That no volume, nor the checkpoint folder, is at the place of something of Muster's.

    Args:
        what: that is there, in words.
        below: nor in it.
    """
    for one in (*_asked(storage), *_own_folder(checkpoint)):
        if not one.mount_path:
            continue
        at = f"/{posixpath.normpath(one.mount_path).lstrip('/')}"
        if at == folder or (below and within(at, folder)):
            yield fault(f"{one.path}.{one.mount}", f"{folder} is taken by {what}; give another path", "locked")


class _Volume(Protocol):
    @property
    def exclude(self) -> bool: ...


def _kept[T: _Volume](items: Sequence[T]) -> Iterator[tuple[int, T]]:
    """With their places in the list; one that says exclude asks for nothing."""
    return ((index, one) for index, one in enumerate(items) if not one.exclude)


def _asked(storage: StorageSpec) -> Iterator[_Asked]:
    for index, one in _kept(storage.config_map_volume):
        path = f"spec.storage.configMapVolume[{index}]"
        yield _Asked(path, one.name, "mountPath", one.mount_path, {"configMap": one.config_map})
    for index, one in _kept(storage.data_volume):
        yield _Asked(f"spec.storage.dataVolume[{index}]", None, "mountPath", one.mount_path, {"id": one.id})
    for index, one in _kept(storage.empty_dir_volume):
        yield _Asked(f"spec.storage.emptyDirVolume[{index}]", one.name, "path", one.path, {})
    for index, one in _kept(storage.git):
        yield _Asked(f"spec.storage.git[{index}]", one.name, "path", one.path, {"repository": one.repository})
    for index, one in _kept(storage.host_path):
        yield _Asked(f"spec.storage.hostPath[{index}]", one.name, "mountPath", one.mount_path, {"path": one.path})
    for index, one in _kept(storage.nfs):
        needed = {"path": one.path, "server": one.server}
        yield _Asked(f"spec.storage.nfs[{index}]", one.name, "mountPath", one.mount_path, needed)
    for index, one in _kept(storage.pvc):
        yield _Asked(f"spec.storage.pvc[{index}]", one.name, "path", one.path, {})
    for index, one in _kept(storage.s3):
        yield _Asked(f"spec.storage.s3[{index}]", one.name, "path", one.path, {"bucket": one.bucket})
    for index, one in _kept(storage.secret_volume):
        path = f"spec.storage.secretVolume[{index}]"
        yield _Asked(path, one.name, "mountPath", one.mount_path, {"secret": one.secret})


def _names(asked: tuple[_Asked, ...]) -> Iterator[Issue]:
    """R37."""
    seen: dict[str, str] = {}
    for one in asked:
        if one.name is None:
            continue
        if one.name in seen:
            details = f"{shown(one.name)} is the name of {seen[one.name]}, too; each volume has its own"
            yield fault(f"{one.path}.name", details)
        seen.setdefault(one.name, one.path)


def _mount_paths(asked: tuple[_Asked, ...], *, large_shm: bool) -> Iterator[Issue]:
    """Two volumes at one path would hide each other."""
    seen: dict[str, str] = {_SHM: "spec.compute.largeShmRequest"} if large_shm else {}
    for one in asked:
        if not one.mount_path:
            continue
        field = f"{one.path}.{one.mount}"
        if _PLAIN_PATH.match(one.mount_path) and one.mount_path not in seen:
            seen[one.mount_path] = field
            continue
        plain = f"/{posixpath.normpath(one.mount_path).lstrip('/')}"
        if wrong := _wrong_path(one.mount_path):
            yield fault(field, wrong)
        elif plain == "/" or ":" in plain:
            yield fault(field, f"{shown(one.mount_path)} is no place for a volume; give a folder without `:`, as /data")
        elif plain.startswith(tuple(f"{own}/" for own in OWN_FOLDERS)) or plain in {*OWN_FOLDERS, "/dev"}:
            details = f"{shown(one.mount_path)} belongs to the system of the pod; give another folder, such as /data"
            yield fault(field, details)
        elif plain in seen:
            yield fault(field, f"{shown(plain)} is taken by {seen[plain]}; give another path", None, seen[plain])
        else:
            seen[plain] = field


def _wrong_path(path: str) -> str:
    """Why it is no absolute path; empty where it is one."""
    if not path.isprintable():
        return f"{shown(path)} has control characters; leave them out"
    if not path.startswith("/"):
        return f"{shown(path)} is relative; write it from `/`"
    return f"{shown(path)} has a `..`; write it without" if ".." in path.split("/") else ""


def _empty_folders(storage: StorageSpec) -> Iterator[Issue]:
    for index, one in _kept(storage.empty_dir_volume):
        path = f"spec.storage.emptyDirVolume[{index}]"
        if one.medium not in {None, MEMORY}:
            details = f"{shown(one.medium)} is no medium; give {MEMORY}, or leave it out for a disk of the node"
            yield fault(f"{path}.medium", details, "options")
        if one.size_limit is not None:
            yield from check_size(f"{path}.sizeLimit", one.size_limit)


def check_size(field: str, text: str) -> Iterator[Issue]:
    """C9."""
    try:
        size = parse_bytes(text)
    except QuantityError as error:
        yield fault(field, str(error))
        return
    if size < 1:
        yield fault(field, f"is more than 0, got {shown(text)}", "min")


def _of_the_node(storage: StorageSpec) -> Iterator[Issue]:
    """R31."""
    first = next((one.mount_propagation for _, one in _kept(storage.host_path)), None)
    for index, one in _kept(storage.host_path):
        path = f"spec.storage.hostPath[{index}]"
        if one.path and (wrong := _wrong_path(one.path)):
            yield fault(f"{path}.path", wrong)
        if (one.mount_propagation or "None") != (first or "None"):
            details = f"is {one.mount_propagation or 'None'}, and that of the first host path {first or 'None'}"
            field = f"{path}.mountPropagation"
            yield fault(field, f"{details}; all host paths have the same", None, "spec.storage.hostPath[0]")


def _nfs(storage: StorageSpec) -> Iterator[Issue]:
    """R32."""
    for index, one in _kept(storage.nfs):
        path = f"spec.storage.nfs[{index}]"
        if one.path and (wrong := _wrong_path(one.path)):
            yield fault(f"{path}.path", wrong)
        if one.server and not _SERVER.match(one.server):
            details = f"{shown(one.server)} is no host name or address; write it as {_EXAMPLES['server']}"
            yield fault(f"{path}.server", details)


def _repositories(storage: StorageSpec) -> Iterator[Issue]:
    """R34."""
    for index, one in _kept(storage.git):
        path = f"spec.storage.git[{index}]"
        sound = one.repository and (_PLAIN_ADDRESS.match(one.repository) or ssh_server(one.repository))
        if one.repository and not sound and (wrong := _wrong_repository(one.repository)):
            yield fault(f"{path}.repository", wrong)
        for name, given in (("branch", one.branch), ("revision", one.revision)):
            if given is not None and (not _REF.match(given) or ".." in given or given.endswith((".", "/", ".lock"))):
                details = f"{shown(given)} is no name of a {name}: letters, digits, `-`, `_`, `.` and `/`"
                yield fault(f"{path}.{name}", details)
        yield from _older_login(path, one)
        login = git_login(one)
        if login is not None:
            yield from _login(path, one.repository or "", login, older=one.secret_ref is None)
        elif one.repository and ssh_server(one.repository):
            details = "is required where the repository is cloned over ssh: name what holds the key, with ssh-key"
            yield fault(f"{path}.secretRef", details, "required", f"{path}.repository")


def _buckets(storage: StorageSpec) -> Iterator[Issue]:
    """R33."""
    for index, one in _kept(storage.s3):
        path = f"spec.storage.s3[{index}]"
        if one.bucket and (not _BUCKET.match(one.bucket) or ".." in one.bucket):
            details = f"{shown(one.bucket)} is no name of a bucket: 3 to 255 letters, digits, `-`, `_` and `.`"
            yield fault(f"{path}.bucket", details)
        if one.url and (wrong := _wrong_store(one.url)):
            yield fault(f"{path}.url", wrong)
        yield from _access_key(path, one)
    if len(storage.s3) > MAX_LIST_ITEMS:
        details = f"has {len(storage.s3)} items; at most {MAX_LIST_ITEMS} are possible"
        yield fault("spec.storage.s3", details, "max")


def _access_key(path: str, given: S3Volume) -> Iterator[Issue]:
    """Which Secret or credential a bucket is read with, and under which keys."""
    beside = f"{path}.accessKeySecret"
    if not given.user_credential:
        yield from check_secret_name(beside, given.access_key_secret or "")
    of_keys = {
        "secretKeyOfAccessKeyId": given.secret_key_of_access_key_id,
        "secretKeyOfSecretKey": given.secret_key_of_secret_key,
    }
    for name, key in of_keys.items():
        if key is not None and not _KEY.match(key):
            yield fault(f"{path}.{name}", f"{shown(key)} is no key: use letters, digits, `-`, `_` and `.`")
    if given.access_key_secret is None:
        needing = {**of_keys, "userCredential": given.user_credential or None}
        for name, value in needing.items():
            if value is not None:
                details = "is only possible with accessKeySecret; name the Secret or credential, or leave it out"
                yield fault(f"{path}.{name}", details, "canAdd", beside)


def _wrong_store(address: str) -> str:
    """Why it is no address of an object store; empty where it is one. What was given with it may be a password."""
    try:
        parts = urlsplit(address)
        fit = address.startswith(("http://", "https://")) and bool(parts.hostname) and parts.port != 0
        secret = "@" in parts.netloc
    except ValueError:
        fit = secret = False
    if secret:
        return "has a name or password in it, which the log would keep for ever; name accessKeySecret instead"
    if not fit or not address.isascii() or not address.isprintable() or {"?", "#", " ", "\\", "%"} & {*address}:
        return f"{shown(address)} is no address of an object store; write it as https://host or https://host/path"
    return ""


def _older_login(path: str, given: GitVolume) -> Iterator[Issue]:
    """R34: fields that the contract has deprecated, in the place of secretRef and not beside it."""
    older = {
        "passwordSecret": given.password_secret,
        "secretKeyOfUser": given.secret_key_of_user,
        "secretKeyOfPassword": given.secret_key_of_password,
    }
    named = [name for name, value in older.items() if value is not None]
    if given.secret_ref is not None:
        for name in named:
            yield fault(f"{path}.{name}", "is said by secretRef here; leave it out", "canAdd", f"{path}.secretRef")
    elif named and given.password_secret is None:
        details = f"is required with {' and '.join(named)}; or give secretRef in their place"
        yield fault(f"{path}.passwordSecret", details, "required", *(f"{path}.{name}" for name in named))


def _login(path: str, repository: str, given: GitSecretRef, *, older: bool) -> Iterator[Issue]:
    """R34, of those that not everybody may read. Args: older, whether it was not said by secretRef."""
    field = path if older else f"{path}.secretRef"
    if older and ssh_server(repository) is not None:
        details = "is for https; give secretRef with ssh-key, or the repository's address that begins with https://"
        yield fault(f"{path}.passwordSecret", details, "options", f"{path}.repository")
        return
    over_ssh, key = ssh_server(repository) is not None, given.authentication_method == "ssh-key"
    if over_ssh and not key:
        details = "password is for https; give ssh-key, or the repository's address that begins with https://"
        yield fault(f"{field}.authenticationMethod", details, "options", f"{path}.repository")
    if key and repository.startswith(("http://", "https://")):
        details = "ssh-key is for an address of ssh, such as ssh://git@host/team/code; give that, or password"
        yield fault(f"{field}.authenticationMethod", details, "options", f"{path}.repository")
    if key and given.secret_key_of_user is not None:
        details = "is not possible with ssh-key: the address names the user, as in ssh://git@host; leave it out"
        yield fault(f"{field}.secretKeyOfUser", details, "canAdd", f"{field}.authenticationMethod")
    if not key and repository.startswith("http://") and urlsplit(repository).hostname not in _THIS_MACHINE:
        details = "would tell the password to everybody on the way; write it as https://"
        yield fault(f"{path}.repository", details, None, f"{path}.passwordSecret" if older else field)
    if not given.user_credential:
        yield from check_secret_name(f"{path}.passwordSecret" if older else f"{field}.name", given.name)
    for name, key in (
        ("secretKeyOfUser", given.secret_key_of_user),
        ("secretKeyOfPassword", given.secret_key_of_password),
    ):
        if key is not None and not _KEY.match(key):
            yield fault(f"{field}.{name}", f"{shown(key)} is no key: use letters, digits, `-`, `_` and `.`")


def check_secret_name(field: str, name: str) -> Iterator[Issue]:
    """Of a Secret in the project's namespace, where other people's are, too."""
    if not name:
        return
    if not OBJECT_NAME.match(name):
        yield fault(field, f"{shown(name)} is no name of a Secret: {OBJECT_NAME_WORDS}")
    elif name.startswith(CREDENTIAL_SECRETS):
        details = (
            f"{shown(name)} holds values of somebody's credentials; name a credential of your own (userCredential)"
        )
        yield fault(field, details, "options")


def _wrong_repository(address: str) -> str:
    """Why it cannot be cloned; empty where it may be. What it was given with it is not told: it may be a password."""
    try:
        parts = urlsplit(address)
        # In small letters: git knows no `HTTPS`.
        fit = address.startswith(("http://", "https://")) and bool(parts.hostname) and parts.port != 0
        secret = bool(parts.password or (parts.username and parts.scheme != "ssh"))
    except ValueError:
        fit = secret = False
    if secret:
        return "has a name or password in it, which the log would keep for ever; name a credential with it instead"
    if not fit or not address.isprintable() or " " in address:
        return f"{shown(address)} is no address of a repository; write it as https://host/path or ssh://git@host/path"
    return ""


def _claims(storage: StorageSpec) -> Iterator[Issue]:
    """R28."""
    made: dict[str, str] = {}
    for index, one in _kept(storage.pvc):
        path, name = f"spec.storage.pvc[{index}]", one.claim_name
        if name is not None and not OBJECT_NAME.match(name):
            details = f"{shown(name)} is no name of a claim: {OBJECT_NAME_WORDS}"
            yield fault(f"{path}.claimName", details)
        elif name is not None and name.startswith(SHARED_CLAIMS):
            details = f"{shown(name)} is a claim of a data volume; name the data volume (storage.dataVolume) by its id"
            yield fault(f"{path}.claimName", details, "options")
        if one.existing_pvc:
            yield from _existing(path, one)
            continue
        if name is not None and name in made:
            details = f"{shown(name)} is made by {made[name]}, too; give each new claim a name of its own"
            yield fault(f"{path}.claimName", details)
        made |= {} if name is None else {name: path}
        yield from _new(f"{path}.claimInfo", one.claim_info)


def _existing(path: str, claim: PvcVolume) -> Iterator[Issue]:
    beside = f"{path}.existingPvc"
    if claim.claim_name is None:
        details = "is required with existingPvc true: the name of the claim that is there"
        yield fault(f"{path}.claimName", details, "required", beside)
    if claim.claim_info is not None:
        details = "is for new claims; leave it out with existingPvc true"
        yield fault(f"{path}.claimInfo", details, "canAdd", beside)
    if claim.ephemeral:
        details = "is for new claims: one that was there before is never deleted; leave it out with existingPvc true"
        yield fault(f"{path}.ephemeral", details, "canAdd", beside)


def _new(path: str, info: ClaimInfo | None) -> Iterator[Issue]:
    size = f"{path}.size"
    if info is None or not info.size:
        yield fault(
            size,
            "is required for a new claim, such as 10Gi; or name one that is there, and existingPvc true",
            "required",
        )
        return
    yield from check_size(size, info.size)
    modes = info.access_modes
    if not (modes.read_write_once or modes.read_only_many or modes.read_write_many):
        yield fault(f"{path}.accessModes", "has none; give at least one, such as readWriteOnce", "required")
    yield from check_class_name(f"{path}.storageClass", info.storage_class)
    seen: dict[str, str] = {}
    for index, one in enumerate(info.added_attr_values):
        field = f"{path}.addedAttrValues[{index}].key"
        if not _ATTRIBUTE.match(one.key):
            details = f"{shown(one.key)} is no key: letters, digits, `-`, `_`, `.`, ending in one of the first two"
            yield fault(field, details)
        elif one.key in seen:
            yield fault(field, f"{shown(one.key)} is given twice; each key has one value", None, seen[one.key])
        seen.setdefault(one.key, field)


def check_class_name(field: str, name: str | None) -> Iterator[Issue]:
    if name is not None and not OBJECT_NAME.match(name):
        yield fault(field, f"{shown(name)} is no name of a storage class: small letters, digits and `-`")


def _files(storage: StorageSpec) -> Iterator[Issue]:
    """R35. The contract's own pattern of the mode lets more through than it means; it gives no bound of Secrets."""
    for kind, items in (("configMapVolume", storage.config_map_volume), ("secretVolume", storage.secret_volume)):
        for index, one in enumerate(items):
            mode = one.default_mode
            if mode is not None and not re.fullmatch(r"0[0-7]{3}", mode):
                details = f"{shown(mode)} is no mode; give four octal digits from 0000 to 0777, such as 0644"
                yield fault(f"spec.storage.{kind}[{index}].defaultMode", details)
    for index, one in _kept(storage.config_map_volume):
        wrong = one.sub_path is not None and (
            one.sub_path.startswith("/") or ".." in one.sub_path.split("/") or not one.sub_path.isprintable()
        )
        if wrong:
            details = f"{shown(one.sub_path)} is no key of a ConfigMap; write it without `/` in front and without `..`"
            yield fault(f"spec.storage.configMapVolume[{index}].subPath", details)
    for index, one in _kept(storage.secret_volume):
        yield from check_secret_name(f"spec.storage.secretVolume[{index}].secret", one.secret or "")
    if len(storage.secret_volume) > MAX_LIST_ITEMS:
        count = len(storage.secret_volume)
        yield fault("spec.storage.secretVolume", f"has {count} items; at most {MAX_LIST_ITEMS} are possible", "max")


def check_storage_kind(spec: TrainingSpec, kind: ClusterKind) -> Iterator[Issue]:
    """What this machine does not have, or cannot hold pods to. A simulated cluster runs nothing, and takes it all."""
    if kind != "local":
        return
    storage = spec.storage
    lists = {
        "dataVolume": storage.data_volume,
        "nfs": storage.nfs,
        "s3": storage.s3,
    }
    for index, one in _kept(storage.git):
        if (login := git_login(one)) is not None and not login.user_credential:
            details = f"is a Secret; on one of kind {kind} name a credential in secretRef, and userCredential true"
            field = "passwordSecret" if one.secret_ref is None else "secretRef.name"
            yield fault(f"spec.storage.git[{index}].{field}", details, "canAdd", "clusterId")
    for name, items in lists.items():
        for index, _ in _kept(items):
            details = f"is for clusters of kind kubernetes; one of kind {kind} has nothing to take it from"
            yield fault(f"spec.storage.{name}[{index}]", details, "canAdd", "clusterId")
    for index, one in _kept(storage.empty_dir_volume):
        if one.size_limit is not None and one.medium != MEMORY:
            details = f"acts only with medium {MEMORY} on a cluster of kind {kind}; give it, or leave the limit out"
            field = f"spec.storage.emptyDirVolume[{index}]"
            yield fault(f"{field}.sizeLimit", details, "canAdd", "clusterId", f"{field}.medium")
    for index, one in _kept(storage.host_path):
        if one.mount_propagation == "HostToContainer":
            details = f"is for clusters of kind kubernetes; pods of one of kind {kind} do not see later mounts"
            yield fault(f"spec.storage.hostPath[{index}].mountPropagation", details, "canAdd", "clusterId")
    for index, claim in _kept(storage.pvc):
        info = claim.claim_info or ClaimInfo()
        given = {"volumeMode": info.volume_mode == "Block"}
        for name, is_given in given.items():
            if is_given:
                details = (
                    f"is for clusters of kind kubernetes; on one of kind {kind} a claim is a folder, so leave it out"
                )
                yield fault(f"spec.storage.pvc[{index}].claimInfo.{name}", details, "canAdd", "clusterId")


def check_classes(storage: StorageSpec, cluster: Cluster) -> Iterator[Issue]:
    """R29: what the storage classes of this cluster do not have, or do not allow. A simulated one runs nothing."""
    if cluster.kind == "simulated":
        return
    for index, claim in _kept(storage.pvc):
        info = claim.claim_info
        if info is None or claim.existing_pvc:
            continue
        path, classes = f"spec.storage.pvc[{index}].claimInfo", cluster.storage_classes
        if classes is None:
            if info.added_attr_values:
                details = f"cluster {cluster.name} has not told what its storage classes allow; leave it out"
                yield fault(f"{path}.addedAttrValues", details, "options", "clusterId")
            continue
        if unknown := [*check_class(f"{path}.storageClass", info.storage_class, cluster)]:
            yield from unknown
            continue
        named = next((one for one in classes if one.name == info.storage_class), None)
        yield from _attributes(path, info, named or usual_class(classes))


def check_class(field: str, name: str | None, cluster: Cluster) -> Iterator[Issue]:
    """That the cluster has a storage class of this name, or a usual one where none is named (R28). Where it has told
    which ones it has: one that has none may have volumes of no class.
    """
    classes = cluster.storage_classes
    if not classes and name is None:
        return
    if classes is None or cluster.kind == "simulated" or any(one.name == name for one in classes):
        return
    has = _listed([one.name for one in classes])
    if name is None:
        if usual_class(classes) is None:
            details = f"is required: cluster {cluster.name} has no default storage class; it has {has}"
            yield fault(field, details, "required", "clusterId")
        return
    details = f"cluster {cluster.name} has no storage class {shown(name)}; it has {has}"
    yield fault(field, details, "options", "clusterId")


def _attributes(path: str, info: ClaimInfo, of: StorageClass | None) -> Iterator[Issue]:
    allowed = () if of is None else of.attributes
    what = "the cluster has no default class, so a claim without one" if of is None else f"class {of.name}"
    for number, one in enumerate(info.added_attr_values):
        if one.key not in allowed:
            details = f"{what} allows no attribute {shown(one.key)}; it allows {_listed(allowed)}"
            beside = f"{path}.storageClass"
            yield fault(f"{path}.addedAttrValues[{number}].key", details, "options", "clusterId", beside)


def _listed(names: Sequence[str]) -> str:
    more = len(names) - MAX_LISTED
    return ", ".join(names[:MAX_LISTED]) + (f" and {more} more" if more > 0 else "") or "none"
