"""The volumes of a pod as agents are told of them, made from a workload's storage. Pure.

Here ends what a person may leave out: every path is there, every size is a number.
"""

import posixpath
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from events.quantities import parse_bytes
from events.workload.fields.saving import CheckpointSpec
from events.workload.fields.storage import (
    MEMORY,
    ClaimInfo,
    GitSecretRef,
    PvcVolume,
    S3Volume,
    StorageSpec,
    git_login,
)
from events.workload.repositories import ssh_server

DEFAULT_FILE_MODE: Final = 0o644
"""Of files that are made from a ConfigMap or a Secret, as Kubernetes has it."""


AWS_S3: Final = "https://s3.amazonaws.com"
"""The object store of a bucket that names none."""
_KEYS_OF_SECRETS: Final = ("AccessKeyId", "SecretKey")
"""Of a Secret that says no others (R33): the id and the secret of an access key."""
_KEYS_OF_CREDENTIALS: Final = ("accessKeyId", "accessKeySecret")
"""Likewise of a credential, which are those of the kind access-key."""

LOCAL_CLASS: Final = "local"
"""The one storage class of a cluster of kind local: folders of the machine."""


class _Volume(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    mount_path: str
    """Where the pod finds it, from `/`."""


class EmptyFolder(_Volume, frozen=True, kw_only=True):
    """Empty at first, and gone with the pod."""

    in_memory: bool = False
    most_bytes: int = 0
    """0: no limit."""


class NodeFolder(_Volume, frozen=True, kw_only=True):
    """A path of the node."""

    path: str
    read_only: bool = True
    propagation: str = ""
    """As Kubernetes names it; empty: none."""


class NfsFolder(_Volume, frozen=True, kw_only=True):
    server: str
    path: str
    read_only: bool = True


class ConfigFiles(_Volume, frozen=True, kw_only=True):
    """The keys of a ConfigMap, or of a Secret, as files."""

    object_name: str
    secret: bool = False
    only_key: str = ""
    """A file of this key alone, instead of a folder with all of them."""
    mode: int = DEFAULT_FILE_MODE


class NewClaim(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a claim is made that is not there yet."""

    size_bytes: int
    storage_class: str = ""
    """Empty: the cluster's default."""
    modes: tuple[str, ...] = ()
    """Access modes, as Kubernetes names them."""
    block: bool = False
    """A device instead of a folder."""
    ephemeral: bool = False
    """Deleted each time the workload stops or ends."""
    attributes: dict[str, str] = {}
    """Annotations of the claim."""


class ClaimedFolder(_Volume, frozen=True, kw_only=True):
    """A persistent volume claim of the project."""

    claim: str = ""
    """Its name; empty: one is made of the workload's id and the number."""
    number: int = 0
    """Among those of the workload."""
    new: NewClaim | None = None
    """None: it is there already."""
    read_only: bool = False
    checkpoint: bool = False
    """Whether it is the workload's own folder for what outlives its pods: they are told where it is, and it is looked
    at for its newest file.
    """


class SharedFolder(_Volume, frozen=True, kw_only=True):
    """A data volume: a claim that a project shares with others, which the pod reads and never changes."""

    data_volume: str = ""
    """Its id."""
    claim: str = ""
    """The claim behind it, with the next two; empty until the pod is to start: which it is then counts."""
    project_id: str = ""
    """Whose claim it is."""
    project_name: str = ""


class FolderLogin(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a user name and a password for a repository are, a private key for one over ssh, or an access key and its
    secret for a bucket.
    """

    name: str
    """Of a credential of the workload's owner, or of a Secret in the project's namespace."""
    credential: bool = False
    user_key: str = ""
    """Empty: the usual one, or git where there is none."""
    password_key: str = ""
    """Of the password, or of the private key for ssh. Empty: the usual one."""


class ClonedFolder(_Volume, frozen=True, kw_only=True):
    """What a repository holds. Each pod has its own copy, and may change it."""

    repository: str
    branch: str = ""
    """Empty: the repository's own."""
    revision: str = ""
    """Empty: the newest."""
    login: FolderLogin | None = None
    """None: everybody may read it."""

    @property
    def over_ssh(self) -> bool:
        """Whether its login is a key for ssh. A repository that everybody may read is never asked for so."""
        return self.login is not None and ssh_server(self.repository) is not None


class BucketFolder(_Volume, frozen=True, kw_only=True):
    """What a bucket holds. Each pod has its own copy, and may change it."""

    bucket: str
    url: str = AWS_S3
    """Of the object store."""
    login: FolderLogin | None = None
    """None: everybody may read it. Its keys are there."""


FetchedFolder = ClonedFolder | BucketFolder
"""Filled before the pod's program starts."""
Volume = BucketFolder | ClonedFolder | EmptyFolder | NodeFolder | NfsFolder | ConfigFiles | ClaimedFolder | SharedFolder


_NONE: Final = StorageSpec()
"""As nearly every workload has it."""


def volumes(storage: StorageSpec, workers: StorageSpec | None = None) -> tuple[Volume, ...]:
    """Every volume, in the order of the fields. What the rules refuse has empty texts here. Args: workers, of a
    master's volumes those of its workers.
    """
    if storage == _NONE:
        return ()
    empty = (
        EmptyFolder(
            mount_path=one.path or "",
            in_memory=one.medium == MEMORY,
            most_bytes=parse_bytes(one.size_limit or "0"),
        )
        for one in storage.empty_dir_volume
    )
    of_nodes = (
        NodeFolder(
            mount_path=one.mount_path or "",
            path=one.path or "",
            read_only=one.read_only,
            propagation="" if one.mount_propagation in {None, "None"} else one.mount_propagation or "",
        )
        for one in storage.host_path
    )
    cloned = (
        ClonedFolder(
            mount_path=one.path or "",
            repository=one.repository or "",
            branch=one.branch or "",
            revision=one.revision or "",
            login=None if (login := git_login(one)) is None else _login(login),
        )
        for one in storage.git
    )
    nfs = (
        NfsFolder(
            mount_path=one.mount_path or "", server=one.server or "", path=one.path or "", read_only=one.read_only
        )
        for one in storage.nfs
    )
    config_maps = (
        ConfigFiles(
            mount_path=one.mount_path or "",
            object_name=one.config_map or "",
            only_key=one.sub_path or "",
            mode=file_mode(one.default_mode),
        )
        for one in storage.config_map_volume
    )
    secrets = (
        ConfigFiles(
            mount_path=one.mount_path or "",
            object_name=one.secret or "",
            secret=True,
            mode=file_mode(one.default_mode),
        )
        for one in storage.secret_volume
    )
    shared = (
        SharedFolder(mount_path=one.mount_path or "", data_volume=(one.id or "").lower()) for one in storage.data_volume
    )
    claims = map(_claim, _numbers(storage.pvc, storage.pvc if workers is None else workers.pvc), storage.pvc)
    mounted = (*config_maps, *empty, *cloned, *of_nodes, *nfs, *claims, *secrets)
    return (*mounted, *map(_bucket, storage.s3), *shared)


def _login(given: GitSecretRef) -> FolderLogin:
    return FolderLogin(
        name=given.name,
        credential=bool(given.user_credential),
        user_key=given.secret_key_of_user or "",
        password_key=given.secret_key_of_password or "",
    )


def _bucket(given: S3Volume) -> BucketFolder:
    return BucketFolder(
        mount_path=given.path or "",
        bucket=given.bucket or "",
        url=given.url or AWS_S3,
        login=None if given.access_key_secret is None else _access_key(given, given.access_key_secret),
    )


def _access_key(given: S3Volume, name: str) -> FolderLogin:
    id_key, secret_key = access_key_names(given)
    return FolderLogin(name=name, credential=bool(given.user_credential), user_key=id_key, password_key=secret_key)


def access_key_names(given: S3Volume) -> tuple[str, str]:
    """Under which keys the id and the secret of its access key are (R33)."""
    usual = _KEYS_OF_CREDENTIALS if given.user_credential else _KEYS_OF_SECRETS
    return given.secret_key_of_access_key_id or usual[0], given.secret_key_of_secret_key or usual[1]


def _numbers(claims: Sequence[PvcVolume], workers: Sequence[PvcVolume]) -> Iterator[int]:
    """A claim of the master that is asked for as one of the workers is that one, wherever each pod finds it. Others
    have numbers behind that of the checkpoint folder. Where pods find a claim may change: it tells none apart.
    """
    if claims == workers:
        yield from range(len(claims))
        return
    free = [*enumerate(map(claim_itself, workers))]
    for index, one in enumerate(map(claim_itself, claims)):
        shared = next((place for place in free if place[1] == one), None)
        if shared is not None:
            free.remove(shared)
        yield len(workers) + 1 + index if shared is None else shared[0]


def claim_itself(pvc: PvcVolume) -> PvcVolume:
    """What is asked for of the claim, and nothing of how pods have it."""
    return replace(pvc, name=None, path=None, read_only=False)


def _claim(number: int, pvc: PvcVolume) -> ClaimedFolder:
    info = pvc.claim_info or ClaimInfo()
    allowed = info.access_modes
    modes = {
        "ReadWriteOnce": allowed.read_write_once,
        "ReadOnlyMany": allowed.read_only_many,
        "ReadWriteMany": allowed.read_write_many,
    }
    new = NewClaim(
        size_bytes=parse_bytes(info.size or "0"),
        storage_class=info.storage_class or "",
        modes=tuple(name for name, is_allowed in modes.items() if is_allowed),
        block=info.volume_mode == "Block",
        ephemeral=pvc.ephemeral,
        attributes={one.key: one.value for one in info.added_attr_values},
    )
    return ClaimedFolder(
        mount_path=pvc.path or "",
        claim=pvc.claim_name or "",
        number=number,
        new=None if pvc.existing_pvc else new,
        read_only=pvc.read_only,
    )


def checkpoint_folder(spec: CheckpointSpec | None, storage: StorageSpec, pods: int) -> tuple[Volume, ...]:
    """What outlives the pods of a workload, of which so many are there at a time at most; nothing where it asks for
    none.
    """
    if spec is None:
        return ()
    new = NewClaim(
        size_bytes=parse_bytes(spec.size),
        storage_class=spec.storage_class or "",
        modes=("ReadWriteMany",) if pods > 1 else ("ReadWriteOnce",),
    )
    # Behind the claims of the spec, whose number never changes.
    return (ClaimedFolder(mount_path=spec.path, number=len(storage.pvc), new=new, checkpoint=True),)


def checkpoint_of(found: Iterable[Volume]) -> ClaimedFolder | None:
    """The one among these volumes that holds what outlives the pods."""
    return next((one for one in found if isinstance(one, ClaimedFolder) and one.checkpoint), None)


CHECKPOINT_DIR: Final = "MUSTER_CHECKPOINT_DIR"
"""Variable that says where that is."""


def checkpoint_variables(found: Iterable[Volume]) -> dict[str, str]:
    """What a pod with these volumes finds in its environment."""
    folder = checkpoint_of(found)
    return {} if folder is None else {CHECKPOINT_DIR: folder.mount_path}


def within(path: str, folder: str) -> bool:
    """Whether a path of a pod is this folder, or lies in it."""
    return f"/{posixpath.normpath(path).strip('/')}/".startswith(f"{folder}/")


def file_mode(text: str | None) -> int:
    """Rights that four octal digits say. Raises ValueError where they are none."""
    return DEFAULT_FILE_MODE if text is None else int(text, 8)


def check_volumes(storage: StorageSpec) -> None:
    """Raises ValueError where `volumes` would: a quantity or rights that are none."""
    volumes(storage)
