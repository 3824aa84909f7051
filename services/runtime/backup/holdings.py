"""What a backup holds: one line for each stream, table and file that Muster keeps anything in.

A new one takes part by its line alone, and a test fails while it has none. Pure.
"""

from dataclasses import dataclass
from typing import Final, Literal

from events.subjects import (
    ACTORS_STREAM,
    AUDIT_STREAM,
    CODE_STREAM,
    CREDENTIALS_STREAM,
    EVENTS_STREAM,
    FEED_STREAM,
    KEYS_STREAM,
    OBSERVED_STREAM,
    REFUSALS_STREAM,
    SNAPSHOTS_STREAM,
    WANTED_STREAM,
    WEBHOOKS_STREAM,
)

type Kind = Literal["stream", "table", "file"]
type Treatment = Literal["log", "kept", "derived", "left out"]
"""`log`: in plain text, under the chain of hashes. `kept`: encrypted, as it is at the time. `derived`: made again from
the log. `left out`: lost with the installation, or made anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """One thing that is kept somewhere, and what a backup does with it."""

    kind: Kind
    name: str
    """Of a file: its path in the data folder of `muster up`; `*` stands for any name."""
    treatment: Treatment
    reason: str
    """Why. Of what is left out, people read it after every backup."""
    before_log: bool = False
    """Of a stream that is kept: whether it is read before the end of the log is fixed, and not after it."""


def _stream(name: str, treatment: Treatment, reason: str, *, before_log: bool = False) -> Holding:
    return Holding(kind="stream", name=name, treatment=treatment, reason=reason, before_log=before_log)


def _table(name: str, treatment: Treatment, reason: str) -> Holding:
    return Holding(kind="table", name=name, treatment=treatment, reason=reason)


def _file(name: str, treatment: Treatment, reason: str) -> Holding:
    return Holding(kind="file", name=name, treatment=treatment, reason=reason)


HOLDINGS: Final = (
    _stream(EVENTS_STREAM, "log", "it is the truth"),
    # An id is made before the first commit that names it, so all of a log are there once its end is fixed.
    _stream(ACTORS_STREAM, "kept", "nothing else says whom the ids in the log mean"),
    # Likewise code is stored before the commit that names it.
    _stream(CODE_STREAM, "kept", "workloads that start again need it"),
    # And a value of a credential before the commit that speaks of it. One that was replaced stays for an hour.
    _stream(CREDENTIALS_STREAM, "kept", "nothing else has the values of credentials"),
    _stream(AUDIT_STREAM, "kept", "nothing else says who used a special right"),
    # A key pledges that a commit can only stand behind a place in the log. Read later, that could be a place that the
    # backup does not have, and the repeated request would not find its commit.
    _stream(
        KEYS_STREAM, "kept", "a repeated request of the last day is then answered as the first time", before_log=True
    ),
    # It says what was delivered of events in the log. Read later, it could say so of what the backup does not have.
    _stream(
        WEBHOOKS_STREAM, "kept", "webhooks are told again of what was not delivered to them by then", before_log=True
    ),
    _stream(REFUSALS_STREAM, "left out", "refused requests changed nothing, and the oldest expire"),
    _stream(WANTED_STREAM, "derived", "cluster_sync makes it again from the log"),
    _stream(OBSERVED_STREAM, "derived", "agents say it again"),
    _stream(SNAPSHOTS_STREAM, "derived", "services make them again from the log"),
    _stream(FEED_STREAM, "derived", "the feed makes it again from the log"),
    _table("projections", "derived", "the projector makes them again from the log"),
    _table("current_projection", "derived", "it names the schema of the projections"),
    _table("usage_samples", "left out", "measured use of pods expires after 14 days"),
    _table("webhook_position", "derived", "the stream WEBHOOKS says it, too"),
    _table("webhook_deliveries", "left out", "what waits is made again from the log, without its tries so far"),
    _file("keys/local.json", "kept", "tokens that were signed with it stay valid"),
    _file("keys/jwks.json", "derived", "setup makes it again from the signing key"),
    _file("keys/webhooks", "kept", "receivers of webhooks check signatures with keys derived from it"),
    _file("keys/credentials", "kept", "it opens the values of credentials"),
    _file("keys/credentials.lock", "left out", "made anew"),
    _file("keys/credentials-public", "derived", "it is the public half of the key beside it"),
    _file("clusters/*", "kept", "credentials of connected Kubernetes clusters"),
    _file("secrets/nats/agent-*", "kept", "passwords of agents that run elsewhere"),
    _file("secrets/nats/*", "left out", "passwords of the services on NATS are made anew"),
    _file("secrets/*", "left out", "passwords of Postgres, and the administrator's last token, are made anew"),
    _file("nats/*", "derived", "its streams stand above"),
    _file("postgres/*", "derived", "its tables stand above"),
    _file("local/*", "left out", "folders and logs of the local cluster's pods stay on the machine"),
    _file("logs/*", "left out", "what processes said for operators"),
    _file("certificates", "left out", "of docker-compose and servers: keep your own copy, or have them made anew"),
    _file("agents.conf", "left out", "of docker-compose and servers: it is a file of yours"),
    *(_file(name, "left out", "made anew") for name in ("version", "muster.lock", "ports.json")),
)


def kept_streams(*, before_log: bool) -> tuple[str, ...]:
    return tuple(
        one.name
        for one in HOLDINGS
        if one.kind == "stream" and one.treatment == "kept" and one.before_log is before_log
    )


def kept_files() -> tuple[str, ...]:
    """Patterns of paths in a data folder."""
    return tuple(one.name for one in HOLDINGS if one.kind == "file" and one.treatment == "kept")


def left_out() -> tuple[Holding, ...]:
    """What people are told of: not what is of no use elsewhere."""
    return tuple(one for one in HOLDINGS if one.treatment == "left out" and one.reason != "made anew")
