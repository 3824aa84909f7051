"""The NATS server's whole configuration: accounts, what passes between them, and users.

Who may do what is said by the table of services; what the accounts let through follows from it. Pure text: nothing here
reads a file or the environment.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from events.subjects import ALL_AGENT_RECIPES, ALL_RECIPES, FEED_STREAM, SERVER_HEALTH
from events.subscriptions import DOMAIN
from services.runtime.nats.calls import PREFIX, STORE_PREFIX
from services.runtime.nats.declared import (
    DECLARED,
    LOG_MAX_BYTES,
    MAX_FILE_STORE,
    SERVER_CONNECTIONS,
    SERVER_REPORT_SUBJECT,
    SYNC_TAG,
    file_store_bytes,
    store_account,
)
from services.runtime.nats.inboxes import agent_user, exec_inbox, logs_inbox
from services.runtime.nats.permissions import SERVER_KICK, Permission, agent_permission
from services.runtime.services import SERVICES

_ASKED_OF_SERVERS: Final = {
    "$SYS.REQ.SERVER.PING.JSZ": SERVER_REPORT_SUBJECT,
    "$SYS.REQ.SERVER.PING.HEALTHZ": SERVER_HEALTH,
    "$SYS.REQ.SERVER.PING.CONNZ": SERVER_CONNECTIONS,
    "$SYS.REQ.SERVER.*.KICK": SERVER_KICK,
}
"""What is asked of the system account, and under which name: how every server says whether it syncs every write (asked
by every service at its start), whether it can write, and who is connected; and how one is told to cut somebody off."""

CALLOUT_SECONDS: Final = 2
"""How long a subscriber that signs in waits where nobody answers for it."""
SUBSCRIBER_CONNECTIONS: Final = 10_000
"""Of all subscribers together, on each server; a server takes 65,536, and services must find room."""
SUBSCRIBER_LIMITS: Final = {
    "max_connections": SUBSCRIBER_CONNECTIONS,
    # Of NATS, on one connection: clients have one or two for each reader. One with a long subject takes 30 KB.
    "max_subscriptions": 100,
    # They ask and acknowledge, in some hundred bytes.
    "max_payload": 64 * 1024,
}
"""Of the account. The server heeds what an answer of the callout says of users' rights, but not of such limits."""

AGENTS_FILE: Final = "agents.conf"
"""Beside `deploy/nats/nats.conf`: `users: [ … ]` of the account AGENTS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterMember:
    """One of the servers of a cluster."""

    name: str
    route_host: str
    route_port: int
    routes: tuple[str, ...]
    """`nats-route://host:port` of all members."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalloutKeys:
    """The public halves of two keys of the service `subscriptions`."""

    issuer: str
    """Of the account's key that it signs with."""
    responder: str
    """Of the user as whom it answers."""


DEPLOYED_CALLOUT: Final = CalloutKeys(issuer="$MUSTER_NATS_CALLOUT_ISSUER", responder="$MUSTER_NATS_CALLOUT_RESPONDER")
"""Variables of the server's environment."""


def render_nats_config(
    *,
    passwords: Mapping[str, str],
    callout: CalloutKeys,
    agents: Mapping[str, str] | None = None,
    agents_file: str = "",
    store_dir: str,
    host: str = "127.0.0.1",
    port: int = 4222,
    monitor_port: int | None = None,
    tls_dir: str = "",
    server_name: str = "muster",
    max_file_store: int | str = file_store_bytes(LOG_MAX_BYTES),
    max_memory_store: str = "1GB",
    member: ClusterMember | None = None,
    all_powerful: str | None = None,
) -> str:
    """The server's whole configuration file.

    `passwords` holds one per service, in clear, as a bcrypt hash, or as `$VARIABLE` of the server's environment, which
    `callout` may be, too; `all_powerful` names a user among them who may do everything in the account (tests only).
    `agents` holds one per cluster id that has an agent of its own; instead, `agents_file` names a file beside this one
    with their users. In `tls_dir` are server.crt and server.key; without one, connections are not encrypted.
    `max_file_store`: bytes, or text as the server reads it, `$VARIABLE` too.
    """
    users = [_user(name, service.rights, passwords[name]) for name, service in SERVICES.items()]
    if all_powerful is not None:
        users.append(f"      {{ user: {all_powerful}, password: {_text(passwords[all_powerful])} }}")
    of_services = _of_services(everybody=all_powerful is not None)
    return "\n".join(
        [
            "# Rendered by services/runtime/nats/nats_config.py; rights: services/runtime/services.py.",
            f"server_name: {_text(server_name)}",
            f"host: {_text(host)}",
            f"port: {port}",
            *([f'http: "127.0.0.1:{monitor_port}"'] if monitor_port is not None else []),
            *(_tls(tls_dir) if tls_dir else []),
            "max_payload: 1MB",
            "# Worn only by servers that sync every write; the log is placed on no other.",
            f'server_tags: ["{SYNC_TAG}"]',
            "jetstream {",
            f"  store_dir: {_text(store_dir)}",
            "  # Never an interval: with any other value, a power cut loses what was acknowledged.",
            "  sync_interval: always",
            f"  max_file_store: {max_file_store}",
            f"  max_memory_store: {max_memory_store}",
            "  strict: true",
            "  limits { batch { max_msgs: 1000, max_inflight_per_stream: 50, timeout: 10s } }",
            "}",
            *(_cluster(member) if member is not None else []),
            *_callout(callout),
            *_accounts(of_services, users, [*_agents_account(agents or {}, agents_file), *_subscribers(callout)]),
            "system_account: SYS",
            "",
        ]
    )


def _callout(keys: CalloutKeys) -> list[str]:
    """Whoever is no user here is asked about: `subscriptions` lets subscribers in."""
    return [
        "authorization {",
        f"  timeout: {CALLOUT_SECONDS}",
        "  auth_callout {",
        f"    issuer: {_text(keys.issuer)}",
        "    account: AUTH",
        f"    auth_users: [ {_text(keys.responder)} ]",
        "    allowed_accounts: [ SUBS, AUTH ]",
        "  }",
        "}",
    ]


def _accounts(of_services: "Sequence[_Passage]", users: list[str], others: list[str]) -> list[str]:
    """The accounts, and what passes between them."""
    return [
        "accounts {",
        "  SYS {",
        "    exports: [",
        *(f'      {{ service: "{asked}", response_type: stream, accounts: [MUSTER] }}' for asked in _ASKED_OF_SERVERS),
        "    ]",
        "  }",
        *_store_accounts(of_services),
        *others,
        "  MUSTER {",
        "    exports: [",
        *(f"      {{ {kind}: {_text(subject)}{options}, accounts: [AGENTS] }}" for kind, subject, options in _SHARED),
        "    ]",
        "    imports: [",
        *_store_imports(of_services),
        "      # What is asked of the servers themselves.",
        *(
            f'      {{ service: {{ account: SYS, subject: "{asked}" }}, to: "{name}" }}'
            for asked, name in _ASKED_OF_SERVERS.items()
        ),
        "    ]",
        "    users: [",
        *users,
        "    ]",
        "  }",
        "}",
    ]


@dataclass(frozen=True, slots=True)
class _Passage:
    """Something that may be asked of a stream's account, or published to it."""

    stream: str
    subject: str
    """In the stream's account."""
    options: str = ""

    @property
    def asked_on(self) -> str:
        """The subject in the accounts of services and agents that import it."""
        return self.subject.replace(STORE_PREFIX, PREFIX, 1)

    @property
    def asked_by_subscribers_on(self) -> str:
        """The subject in the account of subscribers. Not the same one: there the server answers for no streams."""
        return self.subject.replace(STORE_PREFIX, f"$JS.{DOMAIN}.API", 1)

    def serves(self, asked: Iterable[Sequence[str]]) -> bool:
        """Whether any of what is asked goes through here: subjects, which may hold wildcards, by their tokens."""
        pattern = self.asked_on.split(".")
        longer = pattern[-1] == ">"
        if longer:
            del pattern[-1]
        return any(
            (len(tokens) > len(pattern) if longer else len(tokens) == len(pattern))
            and all(wanted in ("*", token) for wanted, token in zip(pattern, tokens, strict=False))
            for tokens in asked
        )


_ANSWERS: Final = ", response_type: stream"
_CALLS: Final = {
    # Call of a stream: options of its export.
    "STREAM.INFO.{}": "",
    "STREAM.CREATE.{}": "",
    "STREAM.UPDATE.{}": "",
    "STREAM.MSG.GET.{}": "",
    "STREAM.MSG.DELETE.{}": "",
    # The server remembers for so long where the messages of an answer go.
    "DIRECT.GET.{}": f'{_ANSWERS}, response_threshold: "15s"',
    "DIRECT.GET.{}.>": "",
    "STREAM.PURGE.{}": "",
    "STREAM.DELETE.{}": "",
    "CONSUMER.CREATE.{}.*": "",
    "CONSUMER.CREATE.{}.*.>": "",
    "CONSUMER.MSG.NEXT.{}.*": f'{_ANSWERS}, response_threshold: "60s"',
    "CONSUMER.INFO.{}.*": "",
    "CONSUMER.DELETE.{}.*": "",
    "CONSUMER.LIST.{}": "",
    "CONSUMER.RESET.{}.*": "",
}
_OF_SUBSCRIBERS: Final = {
    **{
        f"{STORE_PREFIX}.{form.format(FEED_STREAM)}": _CALLS[form]
        for form in ("CONSUMER.MSG.NEXT.{}.*", "CONSUMER.INFO.{}.*", "CONSUMER.RESET.{}.*")
    },
    # What is no acknowledgement is not answered, and remembered for so long.
    f"$JS.ACK.{FEED_STREAM}.>": ', response_threshold: "5s"',
}
"""All that goes from the account of subscribers to a stream's, with the options of the exports; each user there may ask
for its own consumer only."""
_CALLS_OF_EVERYBODY: Final = ("CONSUMER.NAMES.{}", "CONSUMER.DURABLE.CREATE.{}.*")
"""What else the user of tests may ask."""


def _passages(calls: Mapping[str, str]) -> list[_Passage]:
    """All there are. No two overlap: what two imports matched would be asked, or stored, twice."""
    return [
        passage
        for declared in DECLARED
        for passage in (
            *(_Passage(declared.name, subject) for subject in declared.subjects),
            *(
                _Passage(declared.name, subject, options)
                for form, options in calls.items()
                for subject in (f"{STORE_PREFIX}.{form.format(declared.name)}",)
            ),
        )
    ]


def _needed(permissions: Iterable[Permission]) -> list[_Passage]:
    """Exactly those that these permissions use."""
    published = {tuple(subject.split(".")) for permission in permissions for subject in permission.publish}
    return [passage for passage in _passages(_CALLS) if passage.serves(published)]


def _of_services(*, everybody: bool) -> list[_Passage]:
    if everybody:
        return _passages(_CALLS | dict.fromkeys(_CALLS_OF_EVERYBODY, ""))
    return _needed(service.rights for service in SERVICES.values())


def _of_agents() -> list[_Passage]:
    return _needed((agent_permission("any"),))


def _of_subscribers() -> list[_Passage]:
    return [_Passage(FEED_STREAM, subject, options) for subject, options in _OF_SUBSCRIBERS.items()]


def _store_accounts(of_services: Sequence[_Passage]) -> list[str]:
    """One account for each stream, and no user in it. Where an answer goes, what a consumer is pushed to, what a stream
    repeats elsewhere: whoever asks may say that, and needs no right for it. Here nothing listens but this one stream.
    """
    of_subscribers = _of_subscribers()
    users = {"MUSTER": set(of_services), "AGENTS": set(_of_agents()), "SUBS": set(of_subscribers)}
    lines = ["  # Each stream in an account of its own, that no user is in."]
    for declared in DECLARED:
        lines += [f"  {store_account(declared.name)} {{", "    jetstream: enabled", "    exports: ["]
        for passage in dict.fromkeys((*of_services, *of_subscribers)):
            if passage.stream == declared.name:
                accounts = ", ".join(account for account, passages in users.items() if passage in passages)
                subject = _text(passage.subject)
                lines.append(f"      {{ service: {subject}{passage.options}, accounts: [{accounts}] }}")
        lines += ["    ]", "  }"]
    return lines


def _store_imports(passages: Iterable[_Passage]) -> list[str]:
    return [
        f"      {{ service: {{ account: {store_account(passage.stream)}, subject: {_text(passage.subject)} }}, "
        f"to: {_text(passage.asked_on)} }}"
        for passage in passages
    ]


_SHARED: Final = (
    # kind, subject, options of the export
    ("stream", "agent.*.logs", ""),
    ("stream", "agent.*.exec", ""),
    ("stream", ALL_AGENT_RECIPES, ""),
    ("service", "usage.*", ""),
    # Answered on the subject above, and never where a request says.
    ("service", ALL_RECIPES, ""),
    # Answered only where the reader of logs is gone; the server need not remember for long where to send that.
    ("service", f"{logs_inbox('*')}.*", ', response_threshold: "5s"'),
    ("service", f"{exec_inbox('*')}.*", ', response_threshold: "5s"'),
)
"""All that passes between the services' account and the agents'."""


def _agents_account(agents: Mapping[str, str], agents_file: str) -> list[str]:
    users = [agent_user_block(cluster_id, password) for cluster_id, password in sorted(agents.items())]
    return [
        "  # Agents with a cluster of their own, apart from the services.",
        "  AGENTS {",
        "    imports: [",
        *_store_imports(_of_agents()),
        *(
            f"      {{ {kind}: {{ account: MUSTER, subject: {_text(subject)} }}, to: {_text(subject)} }}"
            for kind, subject, _ in _SHARED
        ),
        "    ]",
        *([f"    include {_text(agents_file)}"] if agents_file else ["    users: [", *users, "    ]"]),
        "  }",
    ]


def _subscribers(keys: CalloutKeys) -> list[str]:
    """The account of subscribers, whose users the callout makes, and that of who answers it."""
    imports = (
        f"      {{ service: {{ account: {store_account(passage.stream)}, subject: {_text(passage.subject)} }}, "
        f"to: {_text(passage.asked_by_subscribers_on)} }}"
        for passage in _of_subscribers()
    )
    return [
        "  # Other people's programs, apart from everything else.",
        "  SUBS {",
        "    limits { " + ", ".join(f"{name}: {limit}" for name, limit in SUBSCRIBER_LIMITS.items()) + " }",
        "    imports: [",
        *imports,
        "    ]",
        "  }",
        "  # Who says whether somebody is let in, and nothing else. It has a key: the server lets others sign with one",
        "  # only where some user here does.",
        "  AUTH {",
        f"    users: [ {{ nkey: {_text(keys.responder)}, permissions: {{",
        '      publish: { allow: ["$SYS._INBOX.>"] }',
        '      subscribe: { allow: ["$SYS.REQ.USER.AUTH"] }',
        "    } } ]",
        "  }",
    ]


def agent_user_block(cluster_id: str, password: str) -> str:
    """The entry of one agent in the list of users."""
    return _user(agent_user(cluster_id), agent_permission(cluster_id), password)


def _tls(folder: str) -> list[str]:
    return [
        "# Nobody gets in otherwise, and everybody looks at the certificate.",
        f"tls {{ cert_file: {_text(folder + '/server.crt')}, key_file: {_text(folder + '/server.key')} }}",
    ]


def _cluster(member: ClusterMember) -> list[str]:
    return [
        "cluster {",
        "  name: muster",
        f"  host: {_text(member.route_host)}",
        f"  port: {member.route_port}",
        f"  routes: [{', '.join(_text(route) for route in member.routes)}]",
        "}",
    ]


def _user(service: str, permission: Permission, password: str) -> str:
    lines = [
        f"      {{ user: {service}, password: {_text(password)}, permissions: {{",
        "        publish: { allow: [",
        *(f"          {_text(subject)}" for subject in permission.publish),
        "        ] }",
        "        subscribe: { allow: [",
        *(f"          {_text(subject)}" for subject in permission.subscribe),
        "        ] }",
        "      } }",
    ]
    return "\n".join(lines)


def _text(value: str) -> str:
    """A quoted string of the configuration language; a `$VARIABLE` stays one."""
    if value.startswith("$MUSTER_"):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def deployed_nats_config() -> str:
    """`deploy/nats/nats.conf`, for compose and for one server elsewhere. The server takes the passwords from its
    environment; each must begin with a letter, since the server reads a value like `12e4` as a number. The users of
    agents stand in a file that its operator writes (`muster cluster agent`). So does it take MAX_FILE_STORE, in bytes,
    and the public halves of the two keys of `subscriptions`.
    """
    passwords = {service: f"$MUSTER_NATS_PASSWORD_{service.upper()}" for service in SERVICES}
    return render_nats_config(
        passwords=passwords,
        callout=DEPLOYED_CALLOUT,
        agents_file=AGENTS_FILE,
        store_dir="/data",
        max_file_store=f"${MAX_FILE_STORE}",
        host="0.0.0.0",  # noqa: S104
        tls_dir="/run/muster/tls",
    )


if __name__ == "__main__":
    sys.stdout.write(deployed_nats_config())
