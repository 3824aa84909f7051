"""Section "Workload": which workload this is and where it goes."""

from typing import Annotated

from pydantic import Field

from services.api.fields.about import About, FieldsModel, Uuid

SECTION = "Workload"


class WorkloadCreationMeta(FieldsModel):
    """Name, project and cluster of a new workload."""

    name: Annotated[
        str,
        Field(min_length=1),
        About(
            label="Name",
            help="Unique among the living workloads of the project; at most 253 characters.",
            section=SECTION,
            row="S010 R38",
            flag="--name",
        ),
    ]
    use_given_name_as_prefix: Annotated[
        bool,
        About(
            label="Use the name as a prefix",
            help="Adds a hyphen and six characters to the name, so that it is always free.",
            section=SECTION,
            row="S011 R38",
            flag="--name-prefix",
        ),
    ] = False
    project_id: Annotated[
        str,
        About(
            label="Project",
            help="Id of the project that it counts against.",
            section=SECTION,
            row="S008",
            flag="--project",
        ),
    ]
    cluster_id: Annotated[
        Uuid,
        About(label="Cluster", help="Id of the cluster that runs it.", section=SECTION, row="S007", flag="--cluster"),
    ]
