"""What an agent's message says, where it is fit to be taken: decoded, within bounds, about what its subject names.

Pure. Whatever is not taken is named, with the rule and the value.
"""

from typing import Final, Literal

import msgspec

from events.agent_bounds import MAX_NODE_BYTES, refused, shown
from events.cluster import RefusedReport
from events.cluster_protocol import ObservedCluster, ObservedNode, ObservedPod, pod_key
from events.codec import UNDECODABLE
from events.ids import key_of_id, node_key

About = Literal["node", "pod", "cluster"]

_POD: Final = msgspec.json.Decoder(ObservedPod)
_NODE: Final = msgspec.json.Decoder(ObservedNode)
_CLUSTER: Final = msgspec.json.Decoder(ObservedCluster)


class NotTakenError(Exception):
    """An agent's message that is not taken."""

    def __init__(self, cluster_id: str, report: RefusedReport) -> None:
        what = " ".join(part for part in (report.about, report.name, report.field) if part)
        super().__init__(f"{what}: must be {report.rule}; is {report.value}")
        self.cluster_id = cluster_id
        self.report = report


class Heard(msgspec.Struct, frozen=True):
    cluster_id: str
    key: str
    """Of the pod or node; empty for the cluster."""
    said: ObservedPod | ObservedNode | ObservedCluster


def understand(subject: str, payload: bytes) -> Heard:
    """Raises NotTakenError."""
    match subject.split("."):
        case ["obs", cluster_id, "pod", key]:
            pod = _taken(cluster_id, "pod", key, _POD, payload)
            workload_key = key_of_id(pod.workload_id) or ""
            if not pod.pod_key == key == pod_key(workload_key, pod.pod.pod_set, pod.pod.index):
                rule = "the key that its subject names, of this workload and pod"
                raise _not_taken(cluster_id, "pod", key, rule, pod.pod_key, field="pod_key")
            return Heard(cluster_id, key, pod)
        case ["obs", cluster_id, "node", key]:
            if len(payload) > MAX_NODE_BYTES:
                rule = f"at most {MAX_NODE_BYTES:,} bytes in all"
                raise _not_taken(cluster_id, "node", key, rule, f"{len(payload):,} bytes")
            node = _taken(cluster_id, "node", key, _NODE, payload)
            if key != node_key(cluster_id, node.name):
                # Another cluster's node, for instance: who says it may speak of none but its own.
                rule = "the name that its subject is made from"
                raise _not_taken(cluster_id, "node", key, rule, node.name, field="name")
            return Heard(cluster_id, key, node)
        case ["obs", cluster_id, "cluster"]:
            return Heard(cluster_id, "", _taken(cluster_id, "cluster", "", _CLUSTER, payload))
        case ["obs", cluster_id, *rest]:
            rule = "said on obs.<cluster>.pod.<key>, .node.<key> or .cluster"
            raise _not_taken(cluster_id, "cluster", "", rule, ".".join(rest))
        case _:
            raise _not_taken("", "cluster", "", "said on a subject of OBSERVED", subject)


def _taken[Message: ObservedPod | ObservedNode | ObservedCluster](
    cluster_id: str, about: About, key: str, decoder: msgspec.json.Decoder[Message], payload: bytes
) -> Message:
    try:
        message = decoder.decode(payload)
    except UNDECODABLE as error:
        raise _not_taken(cluster_id, about, key, "a message of this form", str(error)) from error
    name = message.name if isinstance(message, ObservedNode) else key
    wrong = refused(message)
    if wrong is not None:
        raise _not_taken(cluster_id, about, name, wrong.rule, wrong.value, field=wrong.field)
    return message


def _not_taken(cluster_id: str, about: About, name: str, rule: str, value: str, *, field: str = "") -> NotTakenError:
    report = RefusedReport(about=about, name=shown(name), field=field, rule=rule, value=shown(value))
    return NotTakenError(cluster_id, report)
