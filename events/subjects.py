"""Subjects of the log and of the streams beside it. No other module puts a subject together.

One aggregate is one concrete subject, and that subject is also its guard: JetStream compares guards as strings, so a
second spelling of the same aggregate would not protect it (log.md section 2.1).
"""

from typing import Final

from events.ids import KEY_PATTERN

EVENTS_STREAM: Final = "EVENTS"
WANTED_STREAM: Final = "WANTED"
OBSERVED_STREAM: Final = "OBSERVED"
AUDIT_STREAM: Final = "AUDIT"
SNAPSHOTS_STREAM: Final = "SNAPSHOTS"

ALL_EVENTS: Final = "ev.>"
ALL_WANTED: Final = "want.>"
ALL_OBSERVED: Final = "obs.>"
ALL_AUDIT: Final = "audit.>"
ALL_SNAPSHOTS: Final = "snap.>"


def aggregate_subject(aggregate: str, key: str) -> str:
    """Where the commits of one aggregate stand: its subject, and its only guard."""
    return f"ev.{_token(aggregate)}.{_token(key)}"


def aggregate_filter(aggregate: str) -> str:
    """All aggregates of one kind, for followers only; never a guard."""
    return f"ev.{_token(aggregate)}.*"


def split_aggregate_subject(subject: str) -> tuple[str, str]:
    """(aggregate, key) of a subject of the log; raises ValueError for any other."""
    match subject.split("."):
        case ["ev", aggregate, key]:
            return aggregate, key
        case _:
            raise ValueError(f"not a subject of the log: {subject!r}")


def wanted_subject(cluster_id: str, pod_key: str) -> str:
    return f"want.{_token(cluster_id)}.pod.{_token(pod_key)}"


def wanted_cluster_subject(cluster_id: str) -> str:
    """The cluster's own configuration, for its agent."""
    return f"want.{_token(cluster_id)}.cluster"


def wanted_filter(cluster_id: str) -> str:
    return f"want.{_token(cluster_id)}.>"


def observed_filter(cluster_id: str) -> str:
    return f"obs.{_token(cluster_id)}.>"


def observed_pod_subject(cluster_id: str, pod_key: str) -> str:
    return f"obs.{_token(cluster_id)}.pod.{_token(pod_key)}"


def observed_node_subject(cluster_id: str, node_key: str) -> str:
    return f"obs.{_token(cluster_id)}.node.{_token(node_key)}"


def observed_cluster_subject(cluster_id: str) -> str:
    """Heartbeat and settings that the cluster itself has."""
    return f"obs.{_token(cluster_id)}.cluster"


def usage_subject(cluster_id: str) -> str:
    """Usage samples of an agent: core NATS, kept nowhere but in an expiring table."""
    return f"usage.{_token(cluster_id)}"


def agent_logs_subject(cluster_id: str) -> str:
    return f"agent.{_token(cluster_id)}.logs"


def request_subject(command: str) -> str:
    return f"cmd.request.{_token(command)}"


def admitted_subject(command: str) -> str:
    return f"cmd.admitted.{_token(command)}"


def system_subject(service: str, command: str) -> str:
    return f"cmd.system.{_token(service)}.{_token(command)}"


def audit_subject(scope: str) -> str:
    return f"audit.{_token(scope)}"


def snapshot_subject(name: str, part: int) -> str:
    return f"snap.{_token(name)}.{part}"


def _token(text: str) -> str:
    if not KEY_PATTERN.match(text):
        raise ValueError(f"not fit for a subject: {text!r} (letters, digits, - and _, at most 64)")
    return text
