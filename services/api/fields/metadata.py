"""Section "Labels and annotations": what people and programs write on a workload."""

from typing import Annotated

from pydantic import Field

from services.api.fields.about import About, FieldsModel, ItemName, ItemsOf

SECTION = "Labels and annotations"


class LabelFields(FieldsModel):
    """One label."""

    name: Annotated[
        ItemName | None,
        About(label="Label name", help="Mandatory; a Kubernetes label key.", section=SECTION, row="S074 R36"),
    ] = None
    value: Annotated[
        str | None,
        About(label="Label value", help="A Kubernetes label value. Default: empty.", section=SECTION, row="S074"),
    ] = None


class AnnotationFields(FieldsModel):
    """One annotation."""

    name: Annotated[
        ItemName | None,
        About(label="Annotation name", help="Mandatory; a Kubernetes annotation key.", section=SECTION, row="S073 R36"),
    ] = None
    value: Annotated[
        Annotated[str, Field(max_length=10_000)] | None,
        About(label="Annotation value", help="Any text. Default: empty.", section=SECTION, row="S073"),
    ] = None


class MetadataFields(FieldsModel):
    """Labels, annotations, category."""

    labels: Annotated[
        ItemsOf[LabelFields] | None,
        About(label="Labels", help="At most 1000, each name once.", section=SECTION, row="S074", flag="--label"),
    ] = None
    annotations: Annotated[
        ItemsOf[AnnotationFields] | None,
        About(
            label="Annotations", help="At most 1000, each name once.", section=SECTION, row="S073", flag="--annotation"
        ),
    ] = None
    category: Annotated[
        str | None,
        About(
            label="Category",
            help="A word to group and filter workloads by; at most 253 characters.",
            section=SECTION,
            row="S051",
            flag="--category",
        ),
    ] = None
