"""One request through the gate: verify the token, gather the facts, decide, then forward or refuse.

What took a special right goes to AUDIT, what is refused to REFUSALS. A token never goes further than this.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec
import structlog
from msgspec.structs import replace
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import MaxPayloadError

from events.actors import STRANGER, fit_account, fit_subject, is_account
from events.aggregate import CLUSTER, PROJECT, TENANT, WORKLOAD
from events.audit import TENANT_SCOPE, AuditRecord, Speaker
from events.authorize import Grants
from events.codec import UNDECODABLE
from events.commands import COMMANDS, UserCommand, named_workload
from events.commit import About, Actor
from events.envelope import (
    AdmittedBatch,
    AdmittedCommand,
    BatchItem,
    BatchRequest,
    CommandRequest,
    ItemReply,
    OutcomeUnknown,
    Refused,
    packed,
    unpacked,
)
from events.ids import KEY_PATTERN, TENANT_KEY, item_command_id, key_of_id
from events.project import GrantProjectRole, RevokeProjectRole
from events.refusal import Refusal
from events.subjects import (
    CREATE_WORKLOADS,
    admitted_subject,
    aggregate_subject,
    audit_subject,
    refusal_subject,
    request_subject,
)
from events.tenant import GrantTenantRole, RevokeTenantRole
from events.void import VoidMessage
from events.workload.commands import TransferWorkload
from services.ownership.decide import Admission, Facts, decide
from services.runtime.identity.actors import Actors, ActorsAwayError
from services.runtime.identity.authentication import Identity
from services.runtime.identity.directory import Directory, grants_of
from services.runtime.identity.identities import Identities
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.log.store import EventStore, UnreadableMessageError
from services.runtime.nats.bus import TOO_LARGE
from services.runtime.nats.jetstream_api import JetStreamError, decode_ack
from services.runtime.nats.request_server import reply
from services.runtime.nats.requests import Requests, UnansweredError
from services.runtime.process.buckets import Buckets

HANDLE_SECONDS: Final = 4.0
"""The api waits five seconds: commands needs the rest, and a refusal must still arrive."""
READ_SECONDS: Final = 2.0
"""One read from the log's leader; a healthy one takes less than a millisecond."""
AUDIT_SECONDS: Final = 1.0
"""A refusal is told even where it could not be audited; then the service's own log has it."""
MAX_TARGET_LENGTH: Final = 256
"""Of what the audit repeats of a request: names are at most 100 characters, and strangers may send more."""

NEW_PEOPLE_PER_HOUR: Final = 100
"""Whom one person who is no administrator may give their first role, at each gate. The stream ACTORS holds some hundred
thousand people."""
_GIVES_ROLE: Final = (GrantProjectRole, GrantTenantRole)
_NAMES_PERSON: Final = (*_GIVES_ROLE, RevokeProjectRole, RevokeTenantRole, TransferWorkload)

_REQUEST_DECODER: Final = msgspec.json.Decoder(CommandRequest)
_BATCH_DECODER: Final = msgspec.json.Decoder(BatchRequest)
_BATCH_SUBJECT: Final = request_subject(CREATE_WORKLOADS)
_ENCODER: Final = msgspec.json.Encoder()

log = structlog.get_logger(__name__)


class _Last(msgspec.Struct, frozen=True):
    """Of a commit record only what the gate decides from, and what tells it from anything else."""

    commit_id: str
    about: About = About()


_LAST_DECODER: Final = msgspec.json.Decoder(_Last)

type ReadAbout = Callable[[str, int], Awaitable[About | None]]
"""`about` of the last commit of the workload with this key, from the log's leader and with all up to a sequence; None
where there is none."""


def about_reader(store: JetStreamEventStore) -> ReadAbout:
    """Reads from the leader: a lagging view would let somebody act on what was just deleted, or given to another."""

    async def read(key: str, min_seq: int) -> About | None:
        subject = aggregate_subject("workload", key)
        message = await store.floors.newest(subject, min_seq=min_seq, seconds=READ_SECONDS)
        if message is None:
            return None
        about = None
        if not await store.voids.honours(message.seq):
            with contextlib.suppress(*UNDECODABLE):
                about = _LAST_DECODER.decode(message.data).about
        if about is None or about.id is None:
            # No commit of a workload: where it was declared void, the state before it holds, and else nobody knows.
            return WORKLOAD.about((await store.load(WORKLOAD, key)).state)
        return about

    return read


class Audit:
    """Writes audit records; one that cannot be stored is told to the service's log, loudly."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    async def write(self, record: AuditRecord) -> None:
        scope = record.project_id if record.project_id and KEY_PATTERN.match(record.project_id) else TENANT_SCOPE
        try:
            payload = _ENCODER.encode(record)
            subject = refusal_subject(scope) if record.outcome == "refused" else audit_subject(scope)
            answer = await self._requests.ask(subject, payload, seconds=AUDIT_SECONDS)
            error = decode_ack(answer).error
            failure = None if error is None else error.description
        except UnansweredError as unanswered:
            failure = str(unanswered)
        if failure is not None:
            # Not whom it names: logs are kept by others, and nobody could be forgotten there.
            unnamed = {name: getattr(record, name) for name in ("at", "outcome", "command", "command_id", "code")}
            log.error("audit_not_stored", failure=failure, **unnamed)


class Gate:
    """Everything a request needs on its way through."""

    def __init__(
        self,
        *,
        connection: Client,
        identities: Identities,
        actors: Actors,
        directory: Directory,
        store: EventStore,
        read_about: ReadAbout,
        audit: Audit,
        refuse_roles_while_local: bool,
    ) -> None:
        self._connection = connection
        self._identities = identities
        self._actors = actors
        self._directory = directory
        self._store = store
        self._read_about = read_about
        self._audit = audit
        self._refuse_roles_while_local = refuse_roles_while_local
        self._new_people = Buckets(size=NEW_PEOPLE_PER_HOUR, per_second=NEW_PEOPLE_PER_HOUR / 3600)

    async def handle(self, message: Msg) -> None:
        """Answer a request, or forward it so that `commands` does."""
        is_batch = message.subject == _BATCH_SUBJECT
        try:
            request = (_BATCH_DECODER if is_batch else _REQUEST_DECODER).decode(message.data)
            items = unpacked(request.packed) if isinstance(request, BatchRequest) else ()
        except UNDECODABLE as error:
            log.warning("request_not_read", subject=message.subject, error=str(error))
            return await self._refuse(message, Refusal(code="invalid", message="the request is not a known command"))
        command_id = request.batch_id if isinstance(request, BatchRequest) else request.command_id
        if not KEY_PATTERN.match(command_id):
            # It becomes part of a header of the log.
            return await self._refuse(message, Refusal(code="invalid", message="the command id is not valid"))
        command = None if isinstance(request, BatchRequest) else request.command
        named = command.subject if isinstance(command, _NAMES_PERSON) else None
        if named is not None and not fit_subject(named) and not fit_account(named):
            return await self._refuse(
                message, Refusal(code="invalid", message="this subject is not valid: no token can have it")
            )
        try:
            async with asyncio.timeout(HANDLE_SECONDS):
                if isinstance(request, BatchRequest):
                    await self._pass_batch(message, request, items)
                else:
                    await self._pass(message, request)
        except UnreadableMessageError as error:
            log.warning("request_without_facts", command_id=command_id, error=str(error))
            refusal = Refusal(code="log_unreadable", message=f"{error}; an administrator must {error.todo}")
            await self._refuse(message, refusal)
        except ActorsAwayError as error:
            log.warning("request_of_unknown_actor", command_id=command_id, error=str(error))
            text = f"nobody can say now who this is, or whom it names: {error}; nothing was done, try again"
            await self._refuse(message, Refusal(code="actors_away", message=text))
        except (UnansweredError, JetStreamError, TimeoutError) as error:
            # Fail closed: without the facts nobody gets through.
            log.warning("request_without_facts", command_id=command_id, error=str(error) or "too slow")
            await reply(self._connection, message, OutcomeUnknown())

    async def _pass(self, message: Msg, request: CommandRequest) -> None:
        if not await self._knows_roles(request.min_roles):
            raise TimeoutError(f"the fold of roles has not come to {request.min_roles}")
        # After it: the tokens of service accounts stand there, too.
        identity = await self._identities.verify(request.token)
        if isinstance(identity, Refusal):
            await self._audit.write(_record(request, identity, None, None))
            return await self._refuse(message, identity)
        speaker = Speaker(iss=identity.iss, sub=identity.sub)
        actor = await self._identities.actor(identity)
        about = await self._about(request, actor)
        command = await self._naming(request.command, identity, make=False)
        verdict = await self._judge(command, actor, about)
        if isinstance(verdict, Refusal):
            await self._audit.write(_record(request, verdict, speaker, about))
            return await self._refuse(message, verdict)
        if refusal := self._too_many_new(command, actor):
            await self._audit.write(_record(request, refusal, speaker, about))
            return await self._refuse(message, refusal)
        command = await self._naming(command, identity, make=True)
        if verdict.special_right is not None:
            await self._audit.write(_record(request, verdict, speaker, about))
        return await self._forward(message, replace(request, command=command), Actor(id=actor), verdict)

    async def _pass_batch(self, message: Msg, request: BatchRequest, items: Sequence[BatchItem]) -> None:
        """Creations stand on roles in their project alone: one decision for each project."""
        if not await self._knows_roles(request.min_roles):
            raise TimeoutError(f"the fold of roles has not come to {request.min_roles}")
        identity = await self._identities.verify(request.token)
        if isinstance(identity, Refusal):
            if items:
                await self._audit.write(_record(_one_of(request, items[0]), identity, None, None))
            return await self._refuse(message, identity)
        actor = await self._identities.actor(identity)
        verdicts: dict[str, Admission | Refusal] = {}
        for item in items:
            project_id = item.command.project_id
            if project_id in verdicts:
                continue
            verdict = verdicts[project_id] = await self._judge(item.command, actor, None)
            if isinstance(verdict, Refusal):
                speaker = Speaker(iss=identity.iss, sub=identity.sub)
                await self._audit.write(_record(_one_of(request, item), verdict, speaker, None))
        judged = [(item, verdicts[item.command.project_id]) for item in items]
        passed = [item for item, verdict in judged if isinstance(verdict, Admission)]
        admitted = AdmittedBatch(
            batch_id=request.batch_id,
            actor=Actor(id=actor),
            packed=request.packed if len(passed) == len(items) else packed(passed),
            refused=tuple(
                ItemReply(index=item.index, reply=Refused(refusal=verdict))
                for item, verdict in judged
                if isinstance(verdict, Refusal)
            ),
            all_or_nothing=request.all_or_nothing,
            body_hash=request.body_hash,
            correlation_id=request.correlation_id,
            min_seq=request.min_seq,
        )
        return await self._connection.publish(
            admitted_subject(CREATE_WORKLOADS), _ENCODER.encode(admitted), reply=message.reply
        )

    async def _naming(self, command: UserCommand, identity: Identity, *, make: bool) -> UserCommand:
        """The command with the id of the person whom it names, who has tokens of the same issuer. An id is made only
        where an admitted command gives a role: so nobody who has none can fill the stream.
        """
        if not isinstance(command, _NAMES_PERSON):
            return command
        if is_account(command.subject):
            return replace(command, actor=command.subject)
        if make and isinstance(command, _GIVES_ROLE):
            return replace(command, actor=await self._actors.find_or_make(identity.iss, command.subject))
        return replace(command, actor=await self._actors.find(identity.iss, command.subject) or STRANGER)

    def _too_many_new(self, command: UserCommand, actor: str) -> Refusal | None:
        """Why this person may not have a further id made; None where they may, and it is counted. Ids are never made
        again nor taken away, in a stream that all projects share: one project's administrator shall not fill it.
        """
        if not isinstance(command, _GIVES_ROLE) or command.actor != STRANGER:
            return None
        if self._directory.grants(actor).allows(COMMANDS[GrantTenantRole].permission, None):
            return None
        now = time.monotonic()
        wait = math.ceil(self._new_people.wait_seconds(actor, now))
        if wait:
            return Refusal(
                code="too_many_new_people",
                message=f"you have given {NEW_PEOPLE_PER_HOUR} people their first role within 60 minutes; you may give "
                f"the next in {wait} s, and an administrator may at once",
                retry_seconds=wait,
            )
        self._new_people.take(actor, 1, now)
        return None

    async def _knows_roles(self, seq: int) -> bool:
        """Whether the fold has what the api knows of: a role that was revoked there must not count here. A fold that
        stands before what it cannot read is not asked for roles, but for the repair.
        """
        directory = self._directory
        known = directory.seq >= seq or await directory.reached(seq, timeout_seconds=READ_SECONDS)
        return known or directory.unreadable is not None

    async def _about(self, request: CommandRequest, actor: str) -> About | None:
        """Of the workload that the command names: mostly the newest of its name, but an older one counts as any."""
        workload_id = named_workload(request.command)
        if workload_id is None:
            return None
        key = key_of_id(workload_id)
        about = None if key is None else await self._read_about(key, request.min_seq)
        if key is None or about is None or about.id == workload_id:
            return about
        if not self._directory.grants(actor).roles_in(about.project_id):
            return about  # all of a name stand in one project: for strangers no chain is searched
        older = await self._store.load_at(WORKLOAD, key, workload_id)
        return about if older is None else WORKLOAD.about(older.state)

    async def _judge(self, command: UserCommand, actor: str, about: About | None) -> Admission | Refusal:
        """Decide from the live fold; where its lag could make the difference, once more from the log's leader.

        A refusal may come too early for a role that was just given, and somebody else's workload may have come under
        protection a moment ago. What else is admitted stands on roles that are at most milliseconds old; where the fold
        stands before a message that it cannot read, on the leader's. Only the repair of the log goes by the roles from
        before that message: it may be the one that gave or took them.
        """
        cluster = self._directory.cluster(about.cluster_id) if about is not None and about.cluster_id else None
        protection = None if cluster is None else cluster.ownership_protection
        facts = Facts(
            grants=self._directory.grants(actor),
            about=about,
            owner=await self._owner(about),
            heir=self._directory.grants(command.actor) if isinstance(command, TransferWorkload) else Grants(),
            protection=protection,
            shared_pods=self._shared_pods(),
        )
        verdict = decide(command, actor, facts)
        stands = self._directory.unreadable is not None
        if stands and isinstance(command, VoidMessage):
            return verdict
        if isinstance(verdict, Admission) and not verdict.others_unprotected and not stands:
            return verdict
        workload_id = named_workload(command)
        if workload_id is not None and (about is None or about.id != workload_id):
            return verdict
        return decide(command, actor, await self._facts_of_leader(command, actor, about))

    async def _owner(self, about: About | None) -> str:
        if about is None or about.owner is None:
            return ""
        return (await self._actors.subjects_of((about.owner,)))[about.owner]

    async def _facts_of_leader(self, command: UserCommand, actor: str, about: About | None) -> Facts:
        project_id = _project_of(command, about)
        tenant = await self._store.load(TENANT, TENANT_KEY)
        heir = command.actor if isinstance(command, TransferWorkload) else STRANGER
        grants, of_heir = grants_of(actor, tenant.state, {}), grants_of(heir, tenant.state, {})
        project_key = None if project_id is None else key_of_id(project_id)
        if project_id is not None and project_key is not None:
            project = (await self._store.load(PROJECT, project_key)).state
            if project.project_id == project_id:
                grants = grants_of(actor, tenant.state, {project_id: project})
                of_heir = grants_of(heir, tenant.state, {project_id: project})
        protection = await self._protection_of_leader(about)
        owner = await self._owner(about)
        return Facts(
            grants=grants,
            about=about,
            owner=owner,
            heir=of_heir,
            protection=protection,
            shared_pods=self._shared_pods(),
        )

    def _shared_pods(self) -> bool:
        clusters = self._directory.clusters.values()
        return self._refuse_roles_while_local and any(cluster.kind == "local" for cluster in clusters)

    async def _protection_of_leader(self, about: About | None) -> bool | None:
        key = None if about is None or about.cluster_id is None else key_of_id(about.cluster_id)
        if about is None or key is None:
            return None
        cluster = (await self._store.load(CLUSTER, key)).state
        return cluster.ownership_protection if cluster.cluster_id == about.cluster_id else None

    async def _forward(self, message: Msg, request: CommandRequest, actor: Actor, admission: Admission) -> None:
        admitted = AdmittedCommand(
            command_id=request.command_id,
            actor=actor,
            command=request.command,
            body_hash=request.body_hash,
            expected_version=request.expected_version,
            correlation_id=request.correlation_id,
            protected=admission.protected,
            override=admission.override,
            min_seq=request.min_seq,
        )
        subject = admitted_subject(type(request.command).__name__)
        try:
            await self._connection.publish(subject, _ENCODER.encode(admitted), reply=message.reply)
        except MaxPayloadError:
            await reply(self._connection, message, TOO_LARGE)

    async def _refuse(self, message: Msg, refusal: Refusal) -> None:
        await reply(self._connection, message, Refused(refusal=refusal))


def _project_of(command: UserCommand, about: About | None) -> str | None:
    if about is not None:
        return about.project_id
    return getattr(command, "project_id", None)


def _one_of(request: BatchRequest, item: BatchItem) -> CommandRequest:
    """One creation of a batch as a request of its own, for the audit."""
    return CommandRequest(
        command_id=item_command_id(request.batch_id, item.index),
        token="",
        command=item.command,
        correlation_id=request.correlation_id,
    )


def _record(
    request: CommandRequest, verdict: Admission | Refusal, speaker: Speaker | None, about: About | None
) -> AuditRecord:
    command = request.command
    refused = isinstance(verdict, Refusal)
    project_id = _project_of(command, about)
    return AuditRecord(
        at=datetime.now(UTC),
        outcome="refused" if refused else "admitted",
        command=type(command).__name__,
        command_id=request.command_id,
        actor=speaker,
        target=COMMANDS[type(command)].target(command)[:MAX_TARGET_LENGTH],
        project_id=None if project_id is None else project_id[:MAX_TARGET_LENGTH],
        code=verdict.code if refused else str(verdict.special_right or ""),
        message=verdict.message if refused else "",
        correlation_id=request.correlation_id[:MAX_TARGET_LENGTH],
    )
