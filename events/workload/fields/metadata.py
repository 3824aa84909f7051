"""What people and programs write on a workload."""

from typing import Annotated, ClassVar

from events.fields.declare import About, Item, Section
from events.fields.values import Excluded, ItemName, Items, LongText, LongUrl, PoolWord


class Label(Item, frozen=True, kw_only=True, omit_defaults=True):
    """One label."""

    name: Annotated[ItemName, About(rows="S074 R36")]
    """A Kubernetes label key. Mandatory."""
    value: Annotated[str, About(rows="S074")] = ""
    """A Kubernetes label value. Default: empty."""
    exclude: Annotated[bool, About(rows="S074 R37")] = False
    """Whether to drop the label of this name that a template sets."""


class Annotation(Item, frozen=True, kw_only=True, omit_defaults=True):
    """One annotation."""

    name: Annotated[ItemName, About(rows="S073 R36")]
    """A Kubernetes annotation key. Mandatory."""
    value: Annotated[LongText, About(rows="S073")] = ""
    """Any text. Default: empty."""
    exclude: Annotated[Excluded, About(rows="S073 R37")] = False
    """Whether to drop the annotation of this name that a template sets."""


class RelatedUrl(Item, frozen=True, kw_only=True, omit_defaults=True):
    """An address elsewhere that belongs to the workload, such as that of its experiment."""

    url: Annotated[LongUrl | None, About(rows="S032 R13")] = None
    """Address, with http or https. Mandatory."""
    type: Annotated[PoolWord | None, About(rows="S032 R13")] = None
    """What is found there, such as wandb. Mandatory."""
    name: Annotated[PoolWord, About(rows="S032 R37")] = ""
    """Name for people, each once, by which exclude finds it. Default: the type."""
    exclude: Annotated[Excluded, About(rows="S032 R37")] = False
    """Whether to drop the address of this name that a template sets."""


class Metadata(Section, frozen=True, kw_only=True):
    """Labels, annotations, category."""

    TITLE: ClassVar[str] = "Labels and annotations"

    labels: Annotated[Items[Label], About(rows="S074", flag="--label", key="name", later=True)] = ()
    """Labels of the workload; at most 1000, each name once."""
    annotations: Annotated[Items[Annotation], About(rows="S073", flag="--annotation", key="name", later=True)] = ()
    """Annotations of the workload; at most 1000, each name once."""
    category: Annotated[str, About(rows="S051", flag="--category")] = ""
    """A word to group and filter workloads by; at most 253 characters."""
    related_urls: Annotated[Items[RelatedUrl], About(rows="S032 R13", flag="--related-url", key="name")] = ()
    """Addresses elsewhere that are shown with the workload; at most 1000."""
