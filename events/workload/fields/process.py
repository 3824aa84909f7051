"""The image, and the process that runs in it."""

from typing import Annotated, ClassVar, Literal

from events.fields.declare import About, Item, Section
from events.fields.values import (
    Digest,
    Excluded,
    FilePath,
    ImageName,
    ItemName,
    Items,
    LongName,
    LongText,
    ObjectName,
    PullSecretName,
    ShortText,
    Words,
)
from events.workload.fields.security import SecuritySpec


class SecretKey(Item, frozen=True, kw_only=True, omit_defaults=True):
    """One key of a Secret in the project's namespace."""

    name: Annotated[ObjectName, About(rows="S020 R9")]
    """Name of the Secret. Mandatory within secret."""
    key: Annotated[ItemName, About(rows="S020 R9")]
    """Key of the Secret. Mandatory within secret."""


class ConfigMapKey(Item, frozen=True, kw_only=True, omit_defaults=True):
    """One key of a ConfigMap in the project's namespace."""

    name: Annotated[ObjectName, About(rows="S020 R9")]
    """Name of the ConfigMap. Mandatory within configMap."""
    key: Annotated[ItemName, About(rows="S020 R9")]
    """Key of the ConfigMap. Mandatory within configMap."""


class PodFieldReference(Item, frozen=True, kw_only=True, omit_defaults=True):
    """A field of the pod itself, as Kubernetes' downward API names it."""

    path: Annotated[Words, About(rows="S020 R9")]
    """A path such as status.podIP or metadata.labels['team']. Mandatory within podFieldRef."""


class UserCredentialKey(Item, frozen=True, kw_only=True, omit_defaults=True):
    """One key of a credential of who submits."""

    name: Annotated[LongName, About(rows="S020 R9 R10")]
    """Name of the credential. Mandatory within userCredential."""
    key: Annotated[ItemName, About(rows="S020 R9")]
    """Key of the credential, such as password. Mandatory within userCredential."""


class EnvironmentVariable(Item, frozen=True, kw_only=True, omit_defaults=True):
    """One environment variable: its value, or where the cluster finds it; at most one of these (R8)."""

    name: Annotated[ItemName, About(rows="S020 R8")]
    """Name of the variable: any printable ASCII except `=`. Mandatory."""
    value: Annotated[LongText | None, About(rows="S020 R8")] = None
    """Plain text. It stays in the log for ever, so do not put a secret here. Default: empty."""
    secret: Annotated[SecretKey | None, About(rows="S020 R9")] = None
    """Take the value from a Secret in the project's namespace. Only on clusters of kind kubernetes."""
    config_map: Annotated[ConfigMapKey | None, About(rows="S020 R9")] = None
    """Take the value from a ConfigMap in the project's namespace. Only on clusters of kind kubernetes."""
    pod_field_ref: Annotated[PodFieldReference | None, About(rows="S020 R9")] = None
    """Take the value from the pod itself. Only on clusters of kind kubernetes."""
    user_credential: Annotated[UserCredentialKey | None, About(rows="S020 R9 R10")] = None
    """Take the value from a credential of who submits, as it is when the pod starts."""
    description: Annotated[ShortText | None, About(rows="S021")] = None
    """A note for people; the process does not see it."""
    exclude: Annotated[bool, About(rows="S020 R37")] = False
    """Whether to drop the variable of this name that a template or an environment sets."""


class ImagePullSecret(Item, frozen=True, kw_only=True, omit_defaults=True):
    """A Secret, or a credential, with which the cluster pulls the image."""

    name: Annotated[PullSecretName, About(rows="S018")]
    """Name of a Secret in the project's namespace, or of a credential. Mandatory."""
    user_credential: Annotated[bool | None, About(rows="S018 R10")] = None
    """Whether it is a credential of who submits, of kind docker-registry, as it is when the pod starts. Default: no, it
    is a Secret.
    """
    exclude: Annotated[Excluded, About(rows="S018 R37")] = False
    """Whether to drop the Secret of this name that a template or an environment sets."""


class Process(Section, frozen=True, kw_only=True):
    """What runs."""

    TITLE: ClassVar[str] = "Environment"

    image: Annotated[ImageName, About(rows="S016 R7", flag="--image", aliases=("-i",), example="python:3.13")]
    """Container image. Mandatory. The cluster local records it, but runs the command on this machine."""
    image_pull_policy: Annotated[
        Literal["Always", "Never", "IfNotPresent"] | None, About(rows="S017", flag="--image-pull-policy")
    ] = None
    """When the image is pulled. Default: Always for the tag latest, else IfNotPresent. Only on clusters of kind
    kubernetes.
    """
    image_pull_secrets: Annotated[
        Items[ImagePullSecret], About(rows="S018", flag="--image-pull-secret", key="name")
    ] = ()
    """Secrets and credentials to pull the image with; at most 1000. Only on clusters of kind kubernetes."""
    command: Annotated[Words | None, About(rows="S019", flag="--command")] = None
    """Command that replaces the image's entry point. It is split into words as a shell does, but no shell runs."""
    args: Annotated[Words | None, About(rows="S019", flag="--args")] = None
    """Arguments of the command, split into words as a shell does."""
    working_dir: Annotated[FilePath | None, About(rows="S025", flag="--working-dir")] = None
    """Absolute path of the folder in which the process starts. Default: that of the image; on the cluster local, the
    caller's, and the command line takes a path relative to it.
    """
    code: Annotated[Digest | None, About(rows="S025")] = None
    """SHA-256 of an archive that POST /code stored. Each run starts in its own folder with the content; there is no
    workingDir beside it.
    """
    environment_variables: Annotated[
        Items[EnvironmentVariable],
        About(rows="S020", flag="--environment", aliases=("-e", "--env"), key="name"),
    ] = ()
    """Environment variables of each pod; at most 1000."""
    create_home_dir: Annotated[bool, About(rows="S025", flag="--create-home-dir")] = False
    """Give each run an empty home folder of its own, named by the variable HOME. It is gone with the run."""
    stdin: Annotated[bool, About(rows="S024", flag="--stdin")] = False
    """Keep the standard input of the container open. Only on clusters of kind kubernetes."""
    tty: Annotated[bool, About(rows="S024 R20", flag="--tty", aliases=("-t",))] = False
    """Give the container a terminal. Needs stdin. Only on clusters of kind kubernetes."""
    security: Annotated[SecuritySpec, About(rows="S022 S023")] = SecuritySpec()
    """User, groups and rights of the process."""
