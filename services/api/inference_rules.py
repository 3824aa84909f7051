"""Rules of inferences (S054, S067 to S069, R26, R28). Pure."""

from collections.abc import Iterator
from typing import Final

from events.load import LOAD_ANNOTATION, MILLISECONDS_ANNOTATION, steps, whole
from events.workload.fields.inference import (
    MOST_REPLICAS,
    RETENTIONS_SECONDS,
    Autoscaling,
    ServedModel,
    Serving,
    serving_url,
)
from events.workload.kinds.inference import MODEL_VARIABLE, PORT_VARIABLE, TOKEN_VARIABLE, variables
from events.workload.spec import TrainingSpec
from services.api.connection_rules import check_access
from services.api.issues import Issue, fault, shown

MOST_PORT: Final = 65_535
MOST_THRESHOLD: Final = 1_000_000_000
_AUTOSCALING: Final = "spec.autoscaling"


def check_inference(spec: TrainingSpec, serving: Serving) -> Iterator[Issue]:
    """What is wrong with what only an inference has, and with what an inference alone may not have."""
    port = serving.serving_port.container
    if not 1 <= port <= MOST_PORT:
        details = f"must be between 1 and {MOST_PORT}, got {port}"
        yield fault("spec.servingPort.container", details, "min" if port < 1 else "max")
    yield from check_access("spec.servingPort", serving_url(serving.serving_port))
    yield from _replicas(serving.autoscaling)
    yield from _scaling(serving.autoscaling)
    if serving.model is not None:
        yield from _model(serving.model)
    yield from _variables(spec, serving)
    yield from _volumes(spec)


STATED: Final = frozenset({LOAD_ANNOTATION, MILLISECONDS_ANNOTATION})
"""Annotations that `check_stated_load` has a word on."""


def check_stated_load(field: str, name: str, value: str) -> Iterator[Issue]:
    """What an annotation says of the load of an inference on a simulated cluster, where it is one of those."""
    try:
        if name == LOAD_ANNOTATION:
            steps(value)
        elif name == MILLISECONDS_ANNOTATION:
            whole(value)
    except ValueError as error:
        yield fault(field, f"{error}; {name} is such as {'340, or 0=340,60=0' if name == LOAD_ANNOTATION else '100'}")


def _replicas(given: Autoscaling) -> Iterator[Issue]:
    least, most, retention = given.min_replicas, given.max_replicas, given.scale_to_zero_retention_seconds
    field, to_zero = f"{_AUTOSCALING}.minReplicas", f"{_AUTOSCALING}.scaleToZeroRetentionSeconds"
    if least is not None and not 0 <= least <= MOST_REPLICAS:
        yield fault(field, f"must be between 0 and {MOST_REPLICAS}, got {least}", "min" if least < 0 else "max")
    elif least == 0 and retention is None:
        details = "is 0 only with scaleToZeroRetentionSeconds, which says when the last replica goes; give that, or 1"
        yield fault(field, details, "min", to_zero)
    elif least and retention is not None:
        details = f"is 0 with scaleToZeroRetentionSeconds, got {least}; leave one of them out"
        yield fault(field, details, "max", to_zero)
    needed = max(least or 0, 1)
    if most is not None and not needed <= most <= MOST_REPLICAS:
        details = f"must be between {needed} and {MOST_REPLICAS}, got {most}"
        yield fault(f"{_AUTOSCALING}.maxReplicas", details, "min" if most < needed else "max", field)


def _scaling(given: Autoscaling) -> Iterator[Issue]:
    threshold, retention = given.metric_threshold, given.scale_to_zero_retention_seconds
    if not 1 <= threshold <= MOST_THRESHOLD:
        details = f"must be between 1 and {MOST_THRESHOLD}, got {threshold}"
        yield fault(f"{_AUTOSCALING}.metricThreshold", details, "min" if threshold < 1 else "max")
    if retention is not None and retention not in RETENTIONS_SECONDS:
        known = ", ".join(map(str, RETENTIONS_SECONDS))
        details = f"{retention} is none of {known}; leave it out where the last replica is to stay"
        yield fault(f"{_AUTOSCALING}.scaleToZeroRetentionSeconds", details, "options")


def _model(model: ServedModel) -> Iterator[Issue]:
    if not model.name.isprintable() or " " in model.name:
        details = f"{shown(model.name)} has spaces or control characters; a model's name has none"
        yield fault("spec.model.name", details)


def _variables(spec: TrainingSpec, serving: Serving) -> Iterator[Issue]:
    """What says the same as a field would."""
    fields = {
        PORT_VARIABLE: "spec.servingPort",
        MODEL_VARIABLE: "spec.model",
        TOKEN_VARIABLE: "spec.model.credential",
    }
    has_token = serving.model is not None and serving.model.credential is not None
    taken = variables(serving).keys() | ({TOKEN_VARIABLE} if has_token else set[str]())
    for index, variable in enumerate(spec.environment_variables):
        if variable.name in taken and not variable.exclude:
            field = fields[variable.name]
            details = f"{variable.name} is set by Muster from {field.removeprefix('spec.')}; leave it out"
            yield fault(f"spec.environmentVariables[{index}].name", details, "locked", field)


def _volumes(spec: TrainingSpec) -> Iterator[Issue]:
    """S054, R28."""
    storage = spec.storage
    others = {
        "dataVolume": storage.data_volume,
        "hostPath": storage.host_path,
        "nfs": storage.nfs,
        "s3": storage.s3,
        "secretVolume": storage.secret_volume,
    }
    for name, given in others.items():
        if given:
            details = "is not possible for an inference; it takes pvc, git, configMapVolume and emptyDirVolume"
            yield fault(f"spec.storage.{name}", details, "canAdd")
    for index, claim in enumerate(storage.pvc):
        if claim.ephemeral:
            details = "is not possible for an inference, whose replicas come and go; leave it out"
            yield fault(f"spec.storage.pvc[{index}].ephemeral", details, "canAdd")
