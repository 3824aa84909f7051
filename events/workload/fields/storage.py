"""Volumes that pods find in their file system (S052, S055 to S060)."""

from typing import Annotated, ClassVar, Final, Literal

from events.fields.declare import About, Body, Item, Limits, Section
from events.fields.values import (
    MAX_LIST_ITEMS,
    Excluded,
    FilePath,
    ItemName,
    Items,
    LongName,
    ObjectName,
    Quantity,
    Uuid,
)

Switch = Annotated[bool, Limits(shows_default=True)]
FileMode = Annotated[str, Limits(shortest=4, longest=4, pattern="0[0-7]{3}")]
ClassName = Annotated[str, Limits(shortest=1, longest=63, pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$")]
Repository = Annotated[str, Limits(shortest=1, longest=2048)]
AttributeKey = Annotated[str, Limits(shortest=1, longest=63, pattern=r"^([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$")]
AttributeValue = Annotated[str, Limits(longest=10_000, pattern=".*", hides_default=True)]
AnyPath = Annotated[str, Limits(longest=4096, pattern=".*")]
SomeText = Annotated[str, Limits(shortest=1)]
SecretName = Annotated[str, Limits(shortest=1, pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$")]
GivenText = Annotated[str, Limits(shortest=1, not_null=True)]
AuthenticationMethod = Annotated[Literal["password", "ssh-key"], Limits(shortest=1, not_null=True)]
MEMORY: Final = "Memory"
_NO_INFERENCE: Final = ("Inference",)


class EmptyDirVolume(Item, frozen=True, kw_only=True, omit_defaults=True):
    """An empty folder of each pod, gone with the pod."""

    name: Annotated[ItemName | None, About(rows="S055 R37")] = None
    """Name of this item, unique among all volumes."""
    path: Annotated[FilePath | None, About(rows="S059 R35")] = None
    """Absolute path at which the pod finds it. Mandatory."""
    medium: Annotated[ItemName | None, About(rows="S059")] = None
    """Memory: in memory, and not on a disk. Default: on a disk of the node."""
    size_limit: Annotated[Quantity | None, About(rows="S059 C9", unit="bytes")] = None
    """Size that it cannot exceed, such as 2Gi. On the cluster local only with medium Memory. Default: none."""
    exclude: Annotated[Excluded, About(rows="S055 S075 R37")] = False
    """Whether to drop the volume at this path, or of this name, that a template or a data source sets."""


class HostPathVolume(Item, frozen=True, kw_only=True, omit_defaults=True):
    """A folder or file of the node."""

    name: Annotated[ItemName | None, About(rows="S055 R37")] = None
    """Name of this item, unique among all volumes."""
    path: Annotated[FilePath | None, About(rows="S059 R31")] = None
    """Absolute path on the node. Mandatory."""
    mount_path: Annotated[FilePath | None, About(rows="S059 R31")] = None
    """Absolute path at which the pod finds it. Mandatory."""
    read_only: Annotated[Switch, About(rows="S059 C7")] = True
    """Whether the pod cannot change it. Default: it cannot."""
    mount_propagation: Annotated[Literal["None", "HostToContainer"] | None, About(rows="S059 R31")] = None
    """HostToContainer: the pod sees what the node mounts below it later. The same for all host paths of a workload.
    Default: None. Not on clusters of kind local.
    """
    exclude: Annotated[Excluded, About(rows="S055 S075 R37")] = False
    """Whether to drop the volume at this path, or of this name, that a template or a data source sets."""


class GitSecretRef(Item, frozen=True, kw_only=True, omit_defaults=True):
    """With what a repository is cloned that not everybody may read."""

    name: Annotated[GivenText, About(rows="S057 R34")]
    """Name of a Secret in the project's namespace, or of a credential. Mandatory within secretRef."""
    user_credential: Annotated[bool | None, About(rows="S057 R10")] = None
    """Whether it is a credential of who submits, as it is when the pod starts. Default: no, it is a Secret, on
    clusters of kind kubernetes alone.
    """
    authentication_method: Annotated[AuthenticationMethod, About(rows="S057 R34")]
    """password: a user name with a password or an access token, over https. ssh-key: a private key without a
    passphrase, over ssh, and beside it, under the key known_hosts, the host keys of the server as OpenSSH has them.
    Mandatory within secretRef.
    """
    secret_key_of_user: Annotated[SomeText | None, About(rows="S057 R34")] = None
    """Key that holds the user name. Default: User of a Secret, username of a credential; where it has no such key, the
    user is called git. Not with ssh-key: there the address names the user.
    """
    secret_key_of_password: Annotated[SomeText | None, About(rows="S057 R34")] = None
    """Key that holds the password or token. Default: Password of a Secret, password of a credential. With ssh-key: key
    that holds the private key. Default: ssh-privatekey.
    """


class GitVolume(Item, frozen=True, kw_only=True, omit_defaults=True):
    """A repository that is cloned before each pod's program starts."""

    name: Annotated[ItemName | None, About(rows="S055 R37")] = None
    """Name of this item, unique among all volumes."""
    repository: Annotated[Repository | None, About(rows="S057 R34")] = None
    """Address of the repository, beginning with https:// or http://; with secretRef, with https://, or with an ssh-key
    such as ssh://git@host/team/code or git@host:team/code. Mandatory.
    """
    branch: Annotated[ItemName | None, About(rows="S057")] = None
    """Branch. Default: that of the repository."""
    revision: Annotated[ItemName | None, About(rows="S057")] = None
    """Commit or tag. Default: the newest commit of the branch."""
    path: Annotated[FilePath | None, About(rows="S057 R34")] = None
    """Absolute path at which the pod finds it. Mandatory."""
    secret_ref: Annotated[GitSecretRef | None, About(rows="S057 R34")] = None
    """With what it is cloned. Default: nothing, since everybody may read it."""
    password_secret: Annotated[SomeText | None, About(rows="S057 R34")] = None
    """Deprecated: name of a Secret in the project's namespace with a user name and a password; secretRef says the same.
    Default: none.
    """
    secret_key_of_user: Annotated[SomeText | None, About(rows="S057 R34")] = None
    """Deprecated, with passwordSecret: its key that holds the user name. Default: User."""
    secret_key_of_password: Annotated[SomeText | None, About(rows="S057 R34")] = None
    """Deprecated, likewise: its key that holds the password. Default: Password."""
    exclude: Annotated[Excluded, About(rows="S055 S075 R37")] = False
    """Whether to drop the volume at this path, or of this name, that a template or a data source sets."""


def git_login(volume: GitVolume) -> GitSecretRef | None:
    """With what it is cloned: secretRef, or what the older fields say instead."""
    if volume.secret_ref is not None or volume.password_secret is None:
        return volume.secret_ref
    return GitSecretRef(
        name=volume.password_secret,
        authentication_method="password",
        secret_key_of_user=volume.secret_key_of_user,
        secret_key_of_password=volume.secret_key_of_password,
    )


class S3Volume(Item, frozen=True, kw_only=True, omit_defaults=True):
    """What a bucket of an object store holds, fetched before each pod's program starts."""

    name: Annotated[ItemName | None, About(rows="S055 R37")] = None
    """Name of this item, unique among all volumes."""
    bucket: Annotated[SomeText | None, About(rows="S058 R33")] = None
    """Name of the bucket. Mandatory."""
    path: Annotated[SomeText | None, About(rows="S058 R33")] = None
    """Absolute path at which the pod finds what is in it. Mandatory."""
    url: Annotated[SomeText | None, About(rows="S058")] = None
    """Address of the object store, beginning with https:// or http://. Default: AWS S3."""
    access_key_secret: Annotated[SecretName | None, About(rows="S058 R33")] = None
    """Name of the Secret in the project's namespace that holds the access key, or of a credential. Default: none, since
    everybody may read the bucket.
    """
    user_credential: Annotated[bool | None, About(rows="S058 R10")] = None
    """Whether accessKeySecret is a credential of who submits, as it is when the pod starts. Default: no, it is a
    Secret.
    """
    secret_key_of_access_key_id: Annotated[SomeText | None, About(rows="S058 R33")] = None
    """Key that holds the id of the access key. Default: AccessKeyId of a Secret, accessKeyId of a credential."""
    secret_key_of_secret_key: Annotated[SomeText | None, About(rows="S058 R33")] = None
    """Key that holds the secret of the access key. Default: SecretKey of a Secret, accessKeySecret of a credential."""
    exclude: Annotated[Excluded, About(rows="S055 S075 R37")] = False
    """Whether to drop the volume at this path, or of this name, that a template or a data source sets."""


class NfsVolume(Item, frozen=True, kw_only=True, omit_defaults=True):
    """A folder of an NFS server."""

    name: Annotated[ItemName | None, About(rows="S055 R37")] = None
    """Name of this item, unique among all volumes."""
    path: Annotated[FilePath | None, About(rows="S059 R32")] = None
    """Absolute path on the server. Mandatory."""
    server: Annotated[LongName | None, About(rows="S059 R32")] = None
    """Host name or address of the server. Mandatory."""
    mount_path: Annotated[FilePath | None, About(rows="S059 R32")] = None
    """Absolute path at which the pod finds it. Mandatory."""
    read_only: Annotated[Switch, About(rows="S059")] = True
    """Whether the pod cannot change it. Default: it cannot."""
    exclude: Annotated[Excluded, About(rows="S055 S075 R37")] = False
    """Whether to drop the volume at this path, or of this name, that a template or a data source sets."""


class ConfigMapVolume(Item, frozen=True, kw_only=True, omit_defaults=True):
    """The keys of a ConfigMap in the project's namespace, as files."""

    name: Annotated[ItemName | None, About(rows="S055 R37")] = None
    """Name of this item, unique among all volumes."""
    config_map: Annotated[ObjectName | None, About(rows="S060 R35")] = None
    """Name of the ConfigMap. Mandatory."""
    mount_path: Annotated[FilePath | None, About(rows="S060 R35")] = None
    """Absolute path at which the pod finds the files. Mandatory."""
    sub_path: Annotated[FilePath | None, About(rows="S060")] = None
    """Only this key, as a file at the mount path. Default: all of them, in a folder there."""
    default_mode: Annotated[FileMode | None, About(rows="S060")] = None
    """Rights of the files in four octal digits. Default: 0644."""
    exclude: Annotated[Excluded, About(rows="S055 S075 R37")] = False
    """Whether to drop the volume at this path, or of this name, that a template or a data source sets."""


class DataVolume(Item, frozen=True, kw_only=True, omit_defaults=True):
    """A data volume: a claim that another project shares, which pods read and never change."""

    id: Annotated[Uuid | None, About(rows="S060 R35")] = None
    """Id of the data volume. Mandatory."""
    mount_path: Annotated[AnyPath | None, About(rows="S060 R35")] = None
    """Absolute path at which the pod finds it. Mandatory."""
    exclude: Annotated[Excluded, About(rows="S055 S075 R37")] = False
    """Whether to drop the data volume at this path that a template or a data source sets."""


class SecretVolume(Item, frozen=True, kw_only=True, omit_defaults=True):
    """The keys of a Secret in the project's namespace, as files."""

    name: Annotated[ItemName | None, About(rows="S055 R37")] = None
    """Name of this item, unique among all volumes."""
    secret: Annotated[SomeText | None, About(rows="S060 R35")] = None
    """Name of the Secret. Mandatory."""
    mount_path: Annotated[SomeText | None, About(rows="S060 R35")] = None
    """Absolute path at which the pod finds the files. Mandatory."""
    default_mode: Annotated[FileMode | None, About(rows="S060")] = None
    """Rights of the files in four octal digits. Default: 0644."""
    exclude: Annotated[Excluded, About(rows="S055 S075 R37")] = False
    """Whether to drop the volume at this path, or of this name, that a template or a data source sets."""


class PvcAccessModes(Section, frozen=True, kw_only=True):
    """How many nodes may use a new claim, and how; several are possible."""

    read_write_once: Annotated[Switch, About(rows="S052 S056")] = True
    """Pods of one node read and write it. Default: yes."""
    read_only_many: Annotated[Switch, About(rows="S052 S056")] = False
    """Pods of many nodes read it. Default: no."""
    read_write_many: Annotated[Switch, About(rows="S052 S056")] = False
    """Pods of many nodes read and write it. Default: no."""


class PvcAddedAttrValue(Body, frozen=True, kw_only=True, omit_defaults=True):
    """An attribute of a new claim, for those who make its volume."""

    key: Annotated[AttributeKey, About(rows="S056 R29")]
    """Key, one of those that the storage class allows. Mandatory."""
    value: Annotated[AttributeValue, About(rows="S056 R29")] = ""
    """Value. On Kubernetes the claim has it as an annotation."""


Attributes = Annotated[
    tuple[Annotated[PvcAddedAttrValue, Limits(not_null=True)], ...],
    Limits(longest=MAX_LIST_ITEMS, hides_default=True, not_null=True),
]


class ClaimInfo(Section, frozen=True, kw_only=True):
    """How a new claim is made."""

    size: Annotated[Quantity | None, About(rows="S052 R28 C9", unit="bytes")] = None
    """Size, such as 10Gi. Mandatory within claimInfo. The cluster local records it, and does not enforce it."""
    storage_class: Annotated[ClassName | None, About(rows="S052 R28")] = None
    """Storage class of the cluster, one of those that it reports. Default: the cluster's own default."""
    access_modes: Annotated[PvcAccessModes, About(rows="S052")] = PvcAccessModes()
    """How many nodes may use it, and how."""
    volume_mode: Annotated[Literal["Filesystem", "Block"] | None, About(rows="S052")] = None
    """Block: the pod finds a device and no folder; not on clusters of kind local. Default: Filesystem."""
    added_attr_values: Annotated[Attributes, About(rows="S056 R29", key="key")] = ()
    """Attributes of the claim, whose keys the storage class allows; at most 1000."""


class PvcVolume(Item, frozen=True, kw_only=True, omit_defaults=True):
    """A persistent volume claim: one that is there, or a new one, which all pods of the workload share."""

    name: Annotated[ItemName | None, About(rows="S055 R37")] = None
    """Name of this item, unique among all volumes."""
    path: Annotated[FilePath | None, About(rows="S052 R28 R30")] = None
    """Absolute path at which the pod finds it. Mandatory."""
    existing_pvc: Annotated[Switch, About(rows="S056 R28")] = False
    """Whether the claim is there already, in the project. Default: no, it is made."""
    claim_name: Annotated[ItemName | None, About(rows="S056 R28")] = None
    """Name of the claim. Mandatory with existingPvc. Default: a name is made."""
    read_only: Annotated[Switch, About(rows="S056")] = False
    """Whether the pod cannot change it. Default: it can."""
    ephemeral: Annotated[Switch, About(rows="S052 S056 R40", not_for=_NO_INFERENCE)] = False
    """Whether a new claim is deleted each time the workload stops, completes or fails. Default: no, it is deleted with
    the workload.
    """
    claim_info: Annotated[ClaimInfo | None, About(rows="S052 S056 R28")] = None
    """How the new claim is made. Mandatory without existingPvc."""
    exclude: Annotated[Excluded, About(rows="S055 S075 R37")] = False
    """Whether to drop the volume at this path, or of this name, that a template or a data source sets."""


class StorageSpec(Section, frozen=True, kw_only=True):
    """Volumes of each pod, by their kind."""

    TITLE: ClassVar[str] = "Storage"

    config_map_volume: Annotated[
        Items[ConfigMapVolume],
        About(rows="S055 S060", flag="--configmap-volume", aliases=("--configmap-map-volume",), key="mountPath"),
    ] = ()
    """ConfigMaps as files; at most 1000. On the cluster local they are folders of this machine."""
    data_volume: Annotated[
        Items[DataVolume], About(rows="S055 S060", flag="--data-volume", not_for=_NO_INFERENCE, key="mountPath")
    ] = ()
    """Volumes that other projects share, read-only; at most 1000. Not on clusters of kind local."""
    empty_dir_volume: Annotated[Items[EmptyDirVolume], About(rows="S055 S059", flag="--empty-dir", key="path")] = ()
    """Empty folders, gone with their pod; at most 1000."""
    git: Annotated[Items[GitVolume], About(rows="S055 S057", flag="--git-sync", key="path")] = ()
    """Repositories; at most 1000. The image needs git and timeout; on the cluster local, this machine does."""
    host_path: Annotated[
        Items[HostPathVolume], About(rows="S055 S059", flag="--host-path", not_for=_NO_INFERENCE, key="mountPath")
    ] = ()
    """Folders and files of the node; at most 1000. The project must be privileged."""
    nfs: Annotated[Items[NfsVolume], About(rows="S055 S059", flag="--nfs", not_for=_NO_INFERENCE, key="mountPath")] = ()
    """Folders of NFS servers; at most 1000. Not on clusters of kind local."""
    pvc: Annotated[
        Items[PvcVolume], About(rows="S052 S055 S056", flag="--pvc", aliases=("--new-pvc",), key="path")
    ] = ()
    """Persistent volume claims; at most 1000."""
    s3: Annotated[tuple[S3Volume, ...], About(rows="S055 S058", flag="--s3", not_for=_NO_INFERENCE, key="path")] = ()
    """Buckets of object stores; at most 1000. Not on clusters of kind local."""
    secret_volume: Annotated[
        tuple[SecretVolume, ...],
        About(rows="S055 S060", flag="--secret-volume", not_for=_NO_INFERENCE, key="mountPath"),
    ] = ()
    """Secrets as files; at most 1000. On the cluster local they are folders of this machine."""


class Storage(Section, frozen=True, kw_only=True):
    """The object that holds the volumes."""

    TITLE: ClassVar[str] = "Storage"

    storage: Annotated[StorageSpec, About(rows="S055")] = StorageSpec()
    """Volumes of each pod."""


class MasterStorage(Section, frozen=True, kw_only=True):
    """The volumes of a master that has its own."""

    TITLE: ClassVar[str] = "Storage"

    storage: Annotated[StorageSpec | None, About(rows="S055 S066")] = None
    """Volumes of the master, all of them: with this it has none of the workers'. Default: those of the workers."""
