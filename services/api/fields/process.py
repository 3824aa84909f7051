"""Section "Environment": the image, and the process that runs in it."""

from typing import Annotated

from pydantic import Field

from services.api.fields.about import OBJECT_NAME_PATTERN, About, FieldsModel, ItemName, ItemsOf

SECTION = "Environment"


ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=OBJECT_NAME_PATTERN)]


class EnvironmentSecretFields(FieldsModel):
    """A value that a Secret of the project's namespace holds."""

    name: Annotated[
        ObjectName | None,
        About(label="Secret", help="Name of the Secret. Mandatory within secret.", section=SECTION, row="S020 R9"),
    ] = None
    key: Annotated[
        ItemName | None,
        About(label="Key of the Secret", help="Mandatory within secret.", section=SECTION, row="S020 R9"),
    ] = None


class EnvironmentConfigMapFields(FieldsModel):
    """A value that a ConfigMap of the project's namespace holds."""

    name: Annotated[
        ObjectName | None,
        About(
            label="ConfigMap", help="Name of the ConfigMap. Mandatory within configMap.", section=SECTION, row="S020 R9"
        ),
    ] = None
    key: Annotated[
        ItemName | None,
        About(label="Key of the ConfigMap", help="Mandatory within configMap.", section=SECTION, row="S020 R9"),
    ] = None


class EnvironmentPodFieldFields(FieldsModel):
    """A value that the pod itself has."""

    path: Annotated[
        Annotated[str, Field(min_length=1, max_length=10_000)] | None,
        About(
            label="Field of the pod",
            help="Mandatory within podFieldRef; a path such as status.podIP or metadata.labels['team'].",
            section=SECTION,
            row="S020 R9",
        ),
    ] = None


class EnvironmentVariableFields(FieldsModel):
    """One environment variable: its value, or where the cluster finds it."""

    name: Annotated[
        ItemName | None,
        About(label="Variable name", help="Mandatory; any printable ASCII but `=`.", section=SECTION, row="S020 R8"),
    ] = None
    value: Annotated[
        Annotated[str, Field(max_length=10_000)] | None,
        About(
            label="Value",
            help="Plain text, kept in the log for ever: no place for a secret. Default: empty.",
            section=SECTION,
            row="S020 R8",
        ),
    ] = None
    secret: EnvironmentSecretFields | None = None
    config_map: EnvironmentConfigMapFields | None = None
    pod_field_ref: EnvironmentPodFieldFields | None = None
    description: Annotated[
        Annotated[str, Field(max_length=250)] | None,
        About(label="Description", help="A note for people; the process does not see it.", section=SECTION, row="S021"),
    ] = None


class ProcessFields(FieldsModel):
    """What runs."""

    image: Annotated[
        Annotated[str, Field(min_length=1, max_length=253)] | None,
        About(
            label="Image",
            help="Container image. Mandatory; the local cluster records it and runs the command on this machine.",
            section=SECTION,
            row="S016 R7",
            flag="--image",
        ),
    ] = None
    command: Annotated[
        Annotated[str, Field(min_length=1, max_length=10_000)] | None,
        About(
            label="Command",
            help="Replaces the image's entry point; split into words as a shell does, without running one.",
            section=SECTION,
            row="S019",
            flag="--command",
        ),
    ] = None
    args: Annotated[
        Annotated[str, Field(min_length=1, max_length=10_000)] | None,
        About(
            label="Arguments",
            help="Words after the command; split as a shell does.",
            section=SECTION,
            row="S019",
            flag="--args",
        ),
    ] = None
    working_dir: Annotated[
        Annotated[str, Field(min_length=1, max_length=4096)] | None,
        About(
            label="Working directory",
            help="Where the process starts, from `/`. Default: the image's own; on this machine the caller's folder.",
            section=SECTION,
            row="S025",
            flag="--working-dir",
        ),
    ] = None
    code: Annotated[
        Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None,
        About(
            label="Code",
            help="SHA-256 of an archive that POST /code took: each run starts in a folder of its own that holds it.",
            section=SECTION,
            row="S025",
        ),
    ] = None
    environment_variables: Annotated[
        ItemsOf[EnvironmentVariableFields] | None,
        About(
            label="Environment variables",
            help="Name and value of each; at most 1000.",
            section=SECTION,
            row="S020",
            flag="--environment",
        ),
    ] = None
