"""Subjects of the log and of the streams beside it. No other module puts a subject together.

One aggregate is one concrete subject, and that subject is also its guard: JetStream compares guards as strings, so a
second spelling of the same aggregate would not protect it (log.md section 2.1).
"""

import re
from functools import lru_cache
from typing import Final

from events.actors import share_of
from events.ids import KEY_PATTERN, name_key

_JUST_NAMED: Final = 4096
"""Subjects of aggregates that are remembered: each is asked for several times while a commit is written and read."""

EVENTS_STREAM: Final = "EVENTS"
WANTED_STREAM: Final = "WANTED"
OBSERVED_STREAM: Final = "OBSERVED"
AUDIT_STREAM: Final = "AUDIT"
REFUSALS_STREAM: Final = "REFUSALS"
SNAPSHOTS_STREAM: Final = "SNAPSHOTS"
KEYS_STREAM: Final = "KEYS"
ACTORS_STREAM: Final = "ACTORS"
CODE_STREAM: Final = "CODE"
FEED_STREAM: Final = "FEED"
WEBHOOKS_STREAM: Final = "WEBHOOKS"
CREDENTIALS_STREAM: Final = "CREDENTIALS"

ALL_EVENTS: Final = "ev.>"
ALL_WANTED: Final = "want.>"
ALL_OBSERVED: Final = "obs.>"
ALL_AUDIT: Final = "audit.>"
ALL_REFUSALS: Final = "refused.>"
ALL_SNAPSHOTS: Final = "snap.>"
ALL_KEYS: Final = "key.>"
ALL_ACTORS: Final = "actor.*.*"
ALL_RECIPES: Final = "recipes.*"
ALL_AGENT_RECIPES: Final = "agent.*.recipes"
ALL_CODE: Final = "code.>"
ALL_FEED: Final = "feed.>"
ALL_CREDENTIALS: Final = "credential.*.*"
ALL_LOADS: Final = "load.*"
WEBHOOKS_ASKED: Final = "webhooks.asked"
"""Below it the api asks the service `webhooks`; never stored."""
WHAT_IF: Final = "scheduler.asked"
"""Where the api asks where a workload would run; never stored."""
WHY: Final = "scheduler.why"
"""Where the api asks why a workload waits, or runs where it does; never stored."""
ALL_STANDS: Final = "stand.>"
"""Of the stream below. A pattern, as of every stream: to a subject that is imported as it is, the server delivers also
the answers that somebody asks to be sent there.
"""
WEBHOOKS_STAND: Final = "stand.webhooks"
"""How far public events were delivered to webhooks."""
NO_WORKLOAD: Final = "-"
"""In the place of a workload's id, where a public event is about none."""

ALL_CANARIES: Final = "snap.canary.*"
"""Small writes that show whether the log's server can store anything; beside the log, as nothing leaves that."""
ALL_ROOMS: Final = "muster.room.*"
LOG_STATE: Final = "muster.log"
"""Whether the log takes what is written, as `commands` says it a few times a minute."""
SERVER_HEALTH: Final = "muster.servers.health"
"""Where every server says whether its streams can be written; imported from the system account (nats_config.py)."""


_KEY: Final = KEY_PATTERN.pattern.removeprefix("^").removesuffix(r"\Z")
_AGGREGATE_SUBJECT: Final = re.compile(rf"ev\.({_KEY})\.({_KEY})\Z")


@lru_cache(_JUST_NAMED)
def aggregate_subject(aggregate: str, key: str) -> str:
    """Where the commits of one aggregate stand: its subject, and its only guard."""
    return f"ev.{_token(aggregate)}.{_token(key)}"


@lru_cache
def aggregate_filter(aggregate: str) -> str:
    """All aggregates of one kind, for followers only; never a guard."""
    return f"ev.{_token(aggregate)}.*"


def split_aggregate_subject(subject: str) -> tuple[str, str]:
    """(aggregate, key) of a subject of the log; raises ValueError for any other."""
    found = _AGGREGATE_SUBJECT.match(subject)
    if found is None:
        raise ValueError(f"not a subject of the log: {subject!r}")
    return found[1], found[2]


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


def load_subject(reporter: str) -> str:
    """What one who forwards requests says of the load of inferences: core NATS, kept nowhere."""
    return f"load.{_token(reporter)}"


def agent_logs_subject(cluster_id: str) -> str:
    return f"agent.{_token(cluster_id)}.logs"


def agent_exec_subject(cluster_id: str) -> str:
    """Where a cluster's agent is asked for ways into its pods, and is sent what goes into them."""
    return f"agent.{_token(cluster_id)}.exec"


def recipes_subject(cluster_id: str) -> str:
    """Where a cluster's agent asks what a run is made of: core NATS."""
    return f"recipes.{_token(cluster_id)}"


def agent_recipes_subject(cluster_id: str) -> str:
    """Where a cluster's agent is told what a run is made of: core NATS, kept nowhere."""
    return f"agent.{_token(cluster_id)}.recipes"


def request_subject(command: str) -> str:
    return f"cmd.request.{_token(command)}"


def admitted_subject(command: str) -> str:
    return f"cmd.admitted.{_token(command)}"


CREATE_WORKLOADS: Final = "CreateWorkloads"
"""Last token of the subjects on which parts of batches of creations go."""


def system_subject(service: str, command: str) -> str:
    return f"cmd.system.{_token(service)}.{_token(command)}"


def audit_subject(scope: str) -> str:
    """Where it is told which special right was used, and by whom."""
    return f"audit.{_token(scope)}"


def refusal_subject(scope: str) -> str:
    """Where it is told what was refused; apart, since anybody may have very much refused."""
    return f"refused.{_token(scope)}"


def key_subject(command_id: str) -> str:
    """What an Idempotency-Key stands for; also the guard of that."""
    return f"key.{_token(command_id)}"


FORGOTTEN: Final = "forgotten"
"""Instead of a key, in the subject of a blank record: not even the hash of who it was stays."""


def actor_subject(key: str, actor: str) -> str:
    """The record of an actor id, under the key of its issuer and subject (events/actors.py)."""
    return f"actor.{_token(key)}.{_token(actor)}"


def actors_of_key(key: str) -> str:
    """All records of one issuer and subject, and the only guard of each: of several, the newest counts."""
    return f"actor.{_token(key)}.*"


def record_of_actor(actor: str) -> str:
    return f"actor.*.{_token(actor)}"


def actor_of_subject(subject: str) -> str:
    """The id whose record stands there; raises ValueError for any other subject."""
    match subject.split("."):
        case ["actor", key, actor] if KEY_PATTERN.match(key) and KEY_PATTERN.match(actor):
            return actor
        case _:
            raise ValueError(f"not a subject of an actor: {subject!r}")


def chain_snapshot(aggregate: str, key: str) -> str:
    """Name of the snapshot of one aggregate's chain; the kind stands in it for the sake of permissions."""
    return f"chain.{_token(aggregate)}.{_token(key)}"


def chain_snapshots_filter(aggregate: str) -> str:
    return f"snap.chain.{_token(aggregate)}.>"


def fold_snapshot(service: str) -> str:
    """Name of the snapshot of a service's own fold."""
    return f"fold.{_token(service)}"


def fold_snapshots_filter(service: str) -> str:
    return f"snap.fold.{_token(service)}.>"


def snapshot_subject(name: str, part: int) -> str:
    """Where one part of a snapshot stands; its name may have several tokens."""
    return f"snap.{'.'.join(map(_token, name.split('.')))}.{part}"


def code_filter(cluster_id: str) -> str:
    """All code that workloads of one cluster may run: what its agent may read."""
    return f"code.{_token(cluster_id)}.>"


def code_of(cluster_id: str, project_id: str, digest: str) -> str:
    """Where one archive of a project stands, for one cluster; the rest of the subject follows a dot."""
    return f"code.{_token(cluster_id)}.{_token(project_id)}.{_token(digest)}"


def code_sizes_filter(project_id: str) -> str:
    """How large the code of a project is, on any cluster."""
    return f"code.*.{_token(project_id)}.*.size.*"


def credential_subject(owner: str, value_id: str) -> str:
    """Where a value of a credential stands, sealed. Args: owner, an actor id, of whatever characters."""
    return f"credential.{name_key('owner', share_of(owner))}.{_token(value_id)}"


def credentials_of(owner: str) -> str:
    """All values of one owner's, or of all service accounts of a project: whoever makes a hundred of them has no more
    than with one.
    """
    return f"credential.{name_key('owner', share_of(owner))}.*"


def credential_value_id(subject: str) -> str:
    """Of the value that stands there; raises ValueError for any other subject."""
    match subject.split("."):
        case ["credential", owner, value_id] if KEY_PATTERN.match(owner) and KEY_PATTERN.match(value_id):
            return value_id
        case _:
            raise ValueError(f"not a subject of a credential: {subject!r}")


def feed_subject(project_id: str, workload_id: str, event: str) -> str:
    """Where a public event stands; `workload_id` is empty where it is about no workload."""
    return f"feed.{_token(project_id)}.{_token(workload_id or NO_WORKLOAD)}.{_token(event)}"


def feed_filter(project_id: str, *, workload_id: str = "*", event: str = "*") -> str:
    """Public events of one project, or with `*` of all: all of them, or those of one workload or one type."""
    tokens = (given if given == "*" else _token(given) for given in (project_id, workload_id, event))
    return ".".join(("feed", *tokens))


def split_feed_subject(subject: str) -> tuple[str, str, str]:
    """(project id, workload id or empty, type) of a subject of FEED; raises ValueError for any other."""
    match subject.split("."):
        case ["feed", project_id, workload_id, event] if all(map(KEY_PATTERN.match, (project_id, workload_id, event))):
            return project_id, "" if workload_id == NO_WORKLOAD else workload_id, event
        case _:
            raise ValueError(f"not a subject of the feed: {subject!r}")


def canary_subject(writer: str) -> str:
    return f"snap.canary.{_token(writer)}"


def room_subject(server: str) -> str:
    """Where a server's keeper says how much room the server's disk has."""
    return f"muster.room.{_token(server)}"


@lru_cache(_JUST_NAMED)
def _token(text: str) -> str:
    if not KEY_PATTERN.match(text):
        raise ValueError(f"not fit for a subject: {text!r} (letters, digits, - and _, at most 64)")
    return text
