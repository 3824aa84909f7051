"""What a pod's volumes are on this machine. Pure.

Volumes that only other machines have are refused when a workload is submitted; what gets here all the same lets its run
fail by name.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, assert_never

from events.cluster_protocol import RunPod, SealedValues
from events.workload.volumes import (
    LOCAL_CLASS,
    BucketFolder,
    ClaimedFolder,
    ClonedFolder,
    ConfigFiles,
    EmptyFolder,
    FolderLogin,
    NfsFolder,
    NodeFolder,
    SharedFolder,
    Volume,
)
from services.agent.backends.clone import (
    CLONE_BYTES,
    CLONE_SECONDS,
    KEY,
    KNOWN_HOSTS,
    NOT_CLONED,
    PASSWORD,
    USER,
    clone_command,
    clone_environment,
)
from services.agent.backends.local.run_folder import LaidVolume, Preparation

_KEPT: Final = ("HOME", "LANG", "MUSTER_RUN_ID", "PATH")
"""Variables that whatever runs for a pod has: by the third it is found when nobody watches it any more."""
_CLASSES: Final = ("", LOCAL_CLASS)
FOLDER: Final = "volumes"
"""Of a run, with its empty folders by number."""


def impossible_volume(pod: RunPod, *, isolated: bool) -> str:
    """Why the run cannot have its volumes here, in words; empty where it can."""
    if pod.volumes and not isolated:
        return (
            "pods of this machine are not in namespaces of their own, and so no volume can be laid for one of them "
            "alone: start Muster where it can make namespaces"
        )
    for volume in pod.volumes:
        match volume:
            case NfsFolder():
                return f"a local cluster has nothing to lay at {volume.mount_path} from: it has no NFS"
            case SharedFolder():
                return f"a local cluster shares no claims between projects: it has none for {volume.mount_path}"
            case BucketFolder():
                return f"a local cluster fetches no bucket {volume.bucket} to {volume.mount_path}"
            case EmptyFolder(in_memory=False, most_bytes=most) if most:
                return f"the empty folder at {volume.mount_path} cannot be held to a size here"
            case NodeFolder(propagation=propagation) if propagation:
                return f"pods of this machine do not see what is mounted below {volume.path} later"
            case ClonedFolder(login=FolderLogin(credential=False, name=name)):
                return f"a local cluster has no Secret {name} to clone {volume.repository} with: name a credential"
            case ClaimedFolder(new=new) if new is not None and (new.block or new.storage_class not in _CLASSES):
                return f"the claim at {volume.mount_path} can only be a folder of the class {LOCAL_CLASS} here"
            case EmptyFolder() | ClonedFolder() | ConfigFiles() | NodeFolder() | ClaimedFolder():
                pass
            case _:
                assert_never(volume)
    return ""


def own_volumes(pod: RunPod) -> tuple[str, ...]:
    """Folders of the run that must be there before it starts, below its own."""
    return tuple(
        f"{FOLDER}/{number}"
        for number, volume in enumerate(pod.volumes)
        if isinstance(volume, ClonedFolder | ConfigFiles) or (isinstance(volume, EmptyFolder) and not volume.in_memory)
    )


def config_files(pod: RunPod, folder: Path) -> tuple[tuple[ConfigFiles, Path], ...]:
    """Each with the folder of the run that its keys are copied to. `folder`: the run's own."""
    return tuple(
        (volume, folder / FOLDER / str(number))
        for number, volume in enumerate(pod.volumes)
        if isinstance(volume, ConfigFiles)
    )


def laid_volumes(pod: RunPod, folder: Path, claim_of: Callable[[ClaimedFolder], Path]) -> tuple[LaidVolume, ...]:
    """How each is laid. `folder`: the run's own. Only of a run whose volumes are possible."""
    return tuple(_laid(volume, folder / FOLDER / str(number), claim_of) for number, volume in enumerate(pod.volumes))


def own_variables(pod: RunPod, values: SealedValues) -> tuple[dict[str, str], ...]:
    """Of each of the `preparations`, what no file may hold: the login of its repository, or its key."""
    return tuple(_secrets(volume.mount_path, values) for volume in pod.volumes if isinstance(volume, ClonedFolder))


def _secrets(path: str, values: SealedValues) -> dict[str, str]:
    if (login := values.logins.get(path)) is not None:
        return {USER: login.user, PASSWORD: login.password}
    if (key := values.keys.get(path)) is not None:
        return {KEY: key.private, KNOWN_HOSTS: key.known_hosts}
    return {}


def preparations(pod: RunPod, folder: Path, environment: Mapping[str, str]) -> tuple[Preparation, ...]:
    """What fills volumes before the pod's program starts. `environment`: of that program; the rest of it is its own."""
    return tuple(
        Preparation(
            arguments=clone_command(volume),
            environment={name: environment[name] for name in _KEPT if name in environment} | clone_environment(volume),
            working_dir="/",
            seconds=CLONE_SECONDS,
            folder=str(folder / FOLDER / str(number)),
            most_bytes=CLONE_BYTES,
            reason=NOT_CLONED,
            what=f"clone {volume.repository}",
        )
        for number, volume in enumerate(pod.volumes)
        if isinstance(volume, ClonedFolder)
    )


def untouched_folders(pod: RunPod, home: str) -> tuple[str, ...]:
    """Where people keep what is theirs, and programs make files: nothing there is laid out anew for a volume."""
    return tuple(path for path in (home, pod.working_dir, "/tmp") if path not in {"", "/"})  # noqa: S108 (its own)


def _laid(volume: Volume, own: Path, claim_of: Callable[[ClaimedFolder], Path]) -> LaidVolume:
    match volume:
        case ClaimedFolder():
            source = str(claim_of(volume))
            return LaidVolume(kind="own", target=volume.mount_path, source=source, read_only=volume.read_only)
        case EmptyFolder(in_memory=True):
            return LaidVolume(kind="memory", target=volume.mount_path, most_bytes=volume.most_bytes)
        case EmptyFolder() | ClonedFolder():
            return LaidVolume(kind="own", target=volume.mount_path, source=str(own))
        case ConfigFiles():
            source = str(own / volume.only_key)
            return LaidVolume(kind="own", target=volume.mount_path, source=source, read_only=True)
        case NodeFolder():
            return LaidVolume(kind="node", target=volume.mount_path, source=volume.path, read_only=volume.read_only)
        case NfsFolder() | BucketFolder() | SharedFolder():
            raise ValueError(f"{volume.mount_path}: a local cluster has no such volume")
        case _:
            assert_never(volume)
