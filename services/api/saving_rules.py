"""Rules of what happens before a pod is ended, and of where it keeps its work (S049)."""

import shlex
from collections.abc import Iterator
from typing import Final

from events.cluster import Cluster
from events.workload.spec import TrainingSpec
from events.workload.volumes import CHECKPOINT_DIR
from services.api.issues import Issue, fault
from services.api.storage_rules import check_class, check_class_name, check_size

_STOP: Final = "spec.preStop"
_FOLDER: Final = "spec.checkpoint"


def check_saving(spec: TrainingSpec) -> Iterator[Issue]:
    yield from _pre_stop(spec)
    yield from _checkpoint(spec)


def _pre_stop(spec: TrainingSpec) -> Iterator[Issue]:
    given, grace = spec.pre_stop, "spec.terminationGracePeriodSeconds"
    if given is None:
        return
    signal, command = f"{_STOP}.signal", f"{_STOP}.command"
    if given.signal is not None and given.command is not None:
        details = "is given beside signal; a pod is told to end by one of them"
        yield fault(command, details, "canAdd", signal)
    if given.signal is None and given.command is None:
        details = "says neither signal nor command; give one, such as SIGUSR1, or leave preStop out"
        yield fault(_STOP, details, "required", signal, command)
    if given.command is not None:
        yield from _command(command, given.command)
    if spec.termination_grace_period_seconds == 0:
        details = "needs a grace period: with 0 seconds a pod is killed at once; give some, or leave preStop out"
        yield fault(_STOP, details, "canAdd", grace)


def _command(field: str, text: str) -> Iterator[Issue]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        reason = str(error).lower()
        yield fault(field, f"cannot be split into words as a shell does: {reason}; close or escape it")
        return
    if not words or not words[0]:
        yield fault(field, "has no words; give a program and its arguments", "required")
    elif "\0" in text:
        yield fault(field, "has a character of number 0, which no program takes")


def _checkpoint(spec: TrainingSpec) -> Iterator[Issue]:
    given = spec.checkpoint
    if given is None:
        return
    yield from check_size(f"{_FOLDER}.size", given.size)
    yield from check_class_name(f"{_FOLDER}.storageClass", given.storage_class)
    swept = () if spec.sweep is None else spec.sweep.parameters
    named = {
        f"spec.environmentVariables[{index}].name": one.name
        for index, one in enumerate(spec.environment_variables)
        if not one.exclude
    } | {f"spec.sweep.parameters[{index}].name": one.name for index, one in enumerate(swept)}
    for field, name in named.items():
        if name == CHECKPOINT_DIR:
            details = f"{name} is set by Muster, as the workload has a checkpoint folder; choose another name"
            yield fault(field, details, "locked", _FOLDER)


def check_checkpoint_class(spec: TrainingSpec, cluster: Cluster) -> Iterator[Issue]:
    """That the cluster has its storage class."""
    if spec.checkpoint is not None:
        yield from check_class(f"{_FOLDER}.storageClass", spec.checkpoint.storage_class, cluster)
