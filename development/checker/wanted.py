"""WANTED against what the log wants, once nothing moves any more."""

import json
from collections.abc import Iterable, Iterator

from development.checker.log import LogChecker
from development.checker.records import RawMessage

SETTLED = "SettledPod"


def check_wanted(messages: Iterable[RawMessage], log: LogChecker) -> list[str]:
    return list(_check(messages, log))


def _check(messages: Iterable[RawMessage], log: LogChecker) -> Iterator[str]:
    said = {message.subject: json.loads(message.payload) for message in messages if ".pod." in message.subject}
    for workload in log.workloads.values():
        for cluster_id, run in workload.left.values():
            pod = run.name.removeprefix(f"{workload.id}/").rpartition("/")[0]
            word = said.pop(f"want.{cluster_id}.pod.{workload.key}-{pod}", None)
            told = None if word is None else (word["type"], word["token"], word["workload_id"])
            if told != ("StopPod", run.token, workload.id):
                yield f"wanted: {run.name}, left on a lost cluster, is to be told to stop, and is told {told}"
        for (pod_set, index), run in workload.live.items():
            subject = f"want.{workload.cluster_id}.pod.{workload.key}-{pod_set}-{index}"
            word = said.pop(subject, None)
            kind = "StopPod" if run.phase == "stopping" else "StartPod"
            told = None if word is None else (word["type"], word["token"], word["workload_id"])
            if told != (kind, run.token, workload.id):
                yield f"wanted: {run.name} is to be told {kind} with token {run.token}, and is told {told}"
            elif word is not None and kind == "StartPod":
                there = (word["node_name"], word.get("devices", []))
                if there != (run.node_name, run.devices):
                    yield f"wanted: {run.name} is to run on {run.node_name} {run.devices}, and is told {there}"
    for subject, word in said.items():
        if word["type"] != SETTLED:
            yield f"wanted: {subject} says {word['type']} with token {word['token']}, and nothing lives there"
