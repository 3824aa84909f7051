"""The image, and the process that runs in it."""

from typing import Annotated, ClassVar

from events.fields.declare import About, Item, Section
from events.fields.values import Digest, FilePath, ImageName, ItemName, Items, LongText, ObjectName, ShortText, Words


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
    """Mandatory within podFieldRef; a path such as status.podIP or metadata.labels['team']."""


class EnvironmentVariable(Item, frozen=True, kw_only=True, omit_defaults=True):
    """One environment variable: its value, or where the cluster finds it; at most one of these (R8)."""

    name: Annotated[ItemName, About(rows="S020 R8")]
    """Mandatory; any printable ASCII but `=`."""
    value: Annotated[LongText | None, About(rows="S020 R8")] = None
    """Plain text, kept in the log for ever: no place for a secret. Default: empty."""
    secret: Annotated[SecretKey | None, About(rows="S020 R9")] = None
    """Takes the value from a Secret of the project's namespace; on clusters of kind kubernetes."""
    config_map: Annotated[ConfigMapKey | None, About(rows="S020 R9")] = None
    """Takes the value from a ConfigMap of the project's namespace; on clusters of kind kubernetes."""
    pod_field_ref: Annotated[PodFieldReference | None, About(rows="S020 R9")] = None
    """Takes the value from the pod itself; on clusters of kind kubernetes."""
    description: Annotated[ShortText | None, About(rows="S021")] = None
    """A note for people; the process does not see it."""


class Process(Section, frozen=True, kw_only=True):
    """What runs."""

    TITLE: ClassVar[str] = "Environment"

    image: Annotated[ImageName, About(rows="S016 R7", flag="--image", aliases=("-i",), example="python:3.13")]
    """Container image. Mandatory; the local cluster records it and runs the command on this machine."""
    command: Annotated[Words | None, About(rows="S019", flag="--command")] = None
    """Replaces the image's entry point; split into words as a shell does, without running one."""
    args: Annotated[Words | None, About(rows="S019", flag="--args")] = None
    """Words after the command; split as a shell does."""
    working_dir: Annotated[FilePath | None, About(rows="S025", flag="--working-dir")] = None
    """Where the process starts, from `/`. Default: the image's own; on this machine the caller's folder."""
    code: Annotated[Digest | None, About(rows="S025")] = None
    """SHA-256 of an archive that POST /code took: each run starts in a folder of its own that holds it."""
    environment_variables: Annotated[
        Items[EnvironmentVariable],
        About(rows="S020", flag="--environment", aliases=("-e", "--env"), key="name"),
    ] = ()
    """Name and value of each; at most 1000."""
