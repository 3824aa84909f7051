"""Carries commands out: load, decide, append, and again where somebody else was first. Always answers, and truly.

What is decided stands in `decide.py` and in the aggregates; here are only the order of things, tries and deadlines.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any, Final, assert_never

import msgspec
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from prometheus_client import Counter

from events import subscriptions, webhooks
from events.aggregate import AGGREGATES, CLUSTER, DEPARTMENT, PRICES, PROJECT, WORKLOAD, Aggregate, Chain, Draft
from events.asset import ChangeAsset, ChangeCredential, CreateAsset, CreateCredential
from events.budgets import SetBudget, exhausted_refusal
from events.cluster import AddCluster, RemoveCluster, RemoveNodePool, local_taken
from events.codec import UNDECODABLE
from events.commands import named_workload, target
from events.commit import Commit, service_actor
from events.department import DeleteDepartment, Department, shown_as
from events.envelope import Accepted, AdmittedCommand, CommandReply, OutcomeUnknown, Refused
from events.ids import key_of_id, project_key
from events.policy import SetPolicy
from events.prices import PRICES_KEY
from events.project import ChangeProject, CreateProject, DeleteProject, MoveLostProject, Project
from events.refusal import Refusal
from events.subjects import aggregate_subject
from events.void import VoidMessage
from events.workload.commands import (
    ChangeWorkload,
    CreateWorkload,
    DeleteWorkload,
    OpenSession,
    ResumeWorkload,
    SuspendWorkload,
    TransferWorkload,
    UndoAct,
)
from events.workload.exposure import asked_labels
from services.commands.counts import Counts
from services.commands.decide import decide_on, fits_full_log, key_reused, not_for_service, refused, remembered
from services.commands.keys import Keys
from services.commands.limits import ACT_BYTES, Creation
from services.commands.pledge import Pledge, accepted
from services.commands.turns import Turns
from services.runtime.identity.directory import Directory
from services.runtime.log.jetstream import STREAM_FULL_CODE, TOO_LARGE_CODE
from services.runtime.log.store import Committed, Conflict, EventStore, Rejected, Unknown, UnreadableMessageError
from services.runtime.nats.bus import TOO_LARGE
from services.runtime.nats.jetstream_api import JetStreamError
from services.runtime.nats.request_server import reply
from services.runtime.nats.requests import UnansweredError

HANDLE_SECONDS: Final = 4.5
"""The api waits five seconds; who asks must hear that the outcome is unknown, not guess it from silence."""
MAX_TRIES: Final = 10
"""Appends per command (log.md 2.1). Within a process commands on one aggregate take turns, so that ten conflicts mean
ten commits of other writers in between."""
PAUSE_SECONDS: Final = 0.002
"""Twice the time of an append: the first pause after a conflict, doubled each time up to the longest."""
LONGEST_PAUSE_SECONDS: Final = 0.1
DIRECTORY_SECONDS: Final = 2.0
"""Its lag is milliseconds; after this the outcome is unknown."""
MOST_NAMED: Final = 5
"""Projects or workloads in one sentence."""
SYSTEM_PREFIX: Final = "cmd.system."
LIMIT_REACHED: Final = (
    "the log has nearly reached its limit; an operator must set MUSTER_LOG_MAX_BYTES higher and run the migration"
)

_DECODER: Final = msgspec.json.Decoder(AdmittedCommand)
_COMMANDS: Final = Counter("muster_commands", "Commands that were answered", ["command", "outcome"])

log = structlog.get_logger(__name__)


def utc_now() -> datetime:
    return datetime.now(UTC)


def serve(connection: Client, commands: "Commands") -> Callable[[Msg], Awaitable[None]]:
    """What answers a message of `cmd.admitted.>` or `cmd.system.<service>.>`."""

    async def handle(message: Msg) -> None:
        try:
            admitted = _DECODER.decode(message.data)
        except UNDECODABLE as error:
            log.warning("command_not_read", subject=message.subject, error=str(error))
            await reply(connection, message, refused("invalid", "the message is no command known here"))
            return
        answer = await commands.answer(message.subject, admitted)
        outcome = answer.refusal.code if isinstance(answer, Refused) else type(answer).__name__
        _COMMANDS.labels(type(admitted.command).__name__, outcome).inc()
        await reply(connection, message, answer)

    return handle


class Commands:
    """Everything a command needs to be carried out.

    Attributes:
        log_full: why what `fits_full_log` says no to is refused; empty while it is taken. The watch sets it.
    """

    def __init__(
        self,
        *,
        store: EventStore,
        keys: Keys,
        directory: Directory,
        counts: Counts,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self.log_full = ""
        self._store = store
        self._keys = keys
        self._directory = directory
        self._counts = counts
        self._clock = clock
        self._turns = Turns()

    async def answer(self, subject: str, admitted: AdmittedCommand) -> CommandReply:
        """Carry the command out, in HANDLE_SECONDS at most."""
        if subject.startswith(SYSTEM_PREFIX):
            # The server lets each service publish under its own name only: the subject tells who it is.
            service = subject.removeprefix(SYSTEM_PREFIX).partition(".")[0]
            if refusal := not_for_service(service, admitted.command):
                log.error("service_gave_foreign_command", service=service, refusal=refusal.message)
                return Refused(refusal=refusal)
            admitted = msgspec.structs.replace(admitted, actor=service_actor(service))
        try:
            async with asyncio.timeout(HANDLE_SECONDS):
                return await self._carry_out(admitted)
        except UnreadableMessageError as error:
            log.warning("command_without_facts", command_id=admitted.command_id, error=str(error))
            return refused("log_unreadable", f"{error}; an administrator must {error.todo}")
        except (UnansweredError, JetStreamError, TimeoutError) as error:
            log.warning("command_outcome_unknown", command_id=admitted.command_id, error=str(error) or "too slow")
            return OutcomeUnknown()

    async def _carry_out(self, admitted: AdmittedCommand) -> CommandReply:
        place = target(admitted.command)
        if place is None:
            return refused("not_found", "there is no such thing: the id is none that was ever given out")
        if isinstance(admitted.command, VoidMessage):
            examined = await self._examined(admitted.command)
            if isinstance(examined, Refused):
                return examined
            admitted = msgspec.structs.replace(admitted, command=examined)
        seq: int | None = None
        try:
            async with self._turns.of(aggregate_subject(*place)):
                answer = await self._decide_and_append(AGGREGATES[place[0]], place[1], admitted)
            seq = answer.seq if isinstance(answer, Accepted) else None
        finally:
            self._counts.end(admitted.command_id, seq)
        return answer

    async def _examined(self, command: VoidMessage) -> VoidMessage | Refused:
        """The command with what stands there, or why there is nothing to declare void."""
        try:
            found = await self._store.examine(command.seq)
        except KeyError:
            return refused("not_found", f"the log has no message {command.seq}", "sequence")
        return msgspec.structs.replace(command, found=found)

    async def _decide_and_append(self, aggregate: Aggregate[Any], key: str, admitted: AdmittedCommand) -> CommandReply:
        deadline = asyncio.get_running_loop().time() + HANDLE_SECONDS
        obstacle = await self._obstacle(admitted)
        # Most names are new: a creation is tried on an empty chain first, and its guard tells where that was wrong.
        new_name = isinstance(admitted.command, CreateWorkload) and admitted.expected_version is None
        optimistic = new_name and obstacle is None
        chain = Chain(state=aggregate.initial) if optimistic else await self._load(aggregate, key, admitted)
        pledge = self._pledge(aggregate, key, admitted)
        pause = PAUSE_SECONDS
        for _ in range(MAX_TRIES):
            if known := remembered(key, chain, admitted):
                return known
            decided = decide_on(aggregate, key, chain, admitted, self._clock())
            if obstacle is not None and isinstance(decided, Draft):
                # Only now: a creation that was carried out before is answered as it was then.
                decided = Refused(refusal=obstacle)
            if pledge is not None:
                decided = await pledge.settle(decided, chain)
            if not isinstance(decided, Draft):
                return decided
            left = deadline - asyncio.get_running_loop().time()
            outcome = await self._store.append(decided, deadline_seconds=max(left, 0.0))
            if not isinstance(outcome, Conflict):
                answer = _answer_of(outcome, admitted)
                if pledge is not None and isinstance(outcome, Rejected) and isinstance(answer, Refused):
                    await pledge.settle(answer, chain)  # so that the key is free again
                return answer
            if not optimistic:
                await asyncio.sleep(pause * random.random())  # noqa: S311 (jitter, so that two do not chase each other)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            optimistic = False
            chain = await self._load(aggregate, key, admitted)
        log.warning("command_lost_every_race", command_id=admitted.command_id, aggregate=aggregate.name, key=key)
        return OutcomeUnknown()

    async def _load(self, aggregate: Aggregate[Any], key: str, admitted: AdmittedCommand) -> Chain[Any]:
        """The chain to decide on. An older life of a name has one of its own, up to its end: all that happened to it
        stands there, and nothing can be added.
        """
        chain = await self._store.load(aggregate, key, min_seq=admitted.min_seq)
        workload_id = named_workload(admitted.command)
        if workload_id is not None and chain.state.workload_id != workload_id:
            return await self._store.load_at(aggregate, key, workload_id) or chain
        return chain

    def _pledge(self, aggregate: Aggregate[Any], key: str, admitted: AdmittedCommand) -> Pledge | None:
        """None where the command came without an Idempotency-Key, and so never comes again."""
        if not admitted.body_hash:
            return None

        async def find(after_seq: int, until_seq: int) -> Commit | None:
            async with aclosing(self._store.commits(aggregate, key, after_seq=after_seq, until_seq=until_seq)) as pages:
                async for commits in pages:
                    for commit in commits:
                        if commit.record.command_id == admitted.command_id:
                            return commit
            return None

        return Pledge(self._keys, admitted, aggregate_subject(aggregate.name, key), find)

    async def _obstacle(self, admitted: AdmittedCommand) -> Refusal | None:
        """What stands in a command's way outside its own aggregate."""
        command = admitted.command
        if self.log_full and not fits_full_log(admitted):
            return log_full_refusal(self.log_full)
        if isinstance(command, AddCluster) and command.kind == "local":
            return await self._other_local(command.name)
        if isinstance(command, DeleteProject):
            return await self._not_empty(command.project_id)
        if isinstance(command, RemoveCluster):
            return None if command.force else await self._lived_on(command.cluster_id)
        if isinstance(command, CreateProject | ChangeProject):
            return None if command.department_id is None else await self._department_missing(command.department_id)
        if isinstance(command, RemoveNodePool):
            return await self._pool_in_use(command)
        if isinstance(command, DeleteDepartment):
            return await self._not_vacant(command.department_id)
        if isinstance(command, MoveLostProject):
            return await self._not_lost(command)
        if isinstance(command, subscriptions.CreateSubscription):
            full = len(self._directory.subscriptions) >= subscriptions.MAX_IN_ALL
            return subscriptions.too_many_in_all() if full else None
        if isinstance(command, webhooks.CreateWebhook):
            return webhooks.too_many_in_all() if len(self._directory.webhooks) >= webhooks.MAX_IN_ALL else None
        if isinstance(command, DeleteWorkload) and (command.project_deleted or command.cluster_removed):
            return await self._not_left_over(command)
        if isinstance(command, SetBudget):
            return await self._other_currency(command)
        if isinstance(command, SuspendWorkload | ResumeWorkload | TransferWorkload | UndoAct):
            return await self._act_obstacle(command, admitted)
        if isinstance(command, CreateCredential):
            command = command.asset
        if isinstance(command, CreateAsset | ChangeAsset | ChangeCredential | SetPolicy | ChangeWorkload | OpenSession):
            return await self._written_obstacle(command, admitted)
        return await self._creation_obstacle(command, admitted) if isinstance(command, CreateWorkload) else None

    async def _act_obstacle(
        self, command: SuspendWorkload | ResumeWorkload | TransferWorkload | UndoAct, admitted: AdmittedCommand
    ) -> Refusal | None:
        """Why this may not be done to a workload, which can be done again and again."""
        undone = command.act if isinstance(command, UndoAct) else None
        if isinstance(command, UndoAct) and undone == "WorkloadChanged":
            return await self._written_obstacle(command, admitted)
        if isinstance(command, ResumeWorkload) or undone == "WorkloadSuspended":
            exhausted = await self._exhausted(await self._project_of(command.workload_id))
            if exhausted is not None:
                return exhausted
        act = Creation("", admitted.actor.id, ACT_BYTES, count=0)
        return await self._counts.admit(admitted.command_id, act, self._clock())

    async def _written_obstacle(
        self,
        command: CreateAsset | ChangeAsset | ChangeCredential | SetPolicy | ChangeWorkload | UndoAct | OpenSession,
        admitted: AdmittedCommand,
    ) -> Refusal | None:
        """Why this may not be written, which holds as much as somebody gives."""
        if isinstance(command, ChangeWorkload | UndoAct | OpenSession):
            project = await self._project_of(command.workload_id)
            project_id = "" if project is None else project.project_id
        else:
            project_id = command.project_id or ""
        if isinstance(command, CreateAsset | SetPolicy):
            department_id = command.department_id
            if department_id is not None and (refusal := await self._department_missing(department_id)):
                return refusal
            cluster_id = command.cluster_id if isinstance(command, CreateAsset) else None
            if refusal := await self._place_missing(command.project_id, cluster_id):
                return refusal
        size = len(msgspec.json.encode(command)) + (ACT_BYTES if isinstance(command, OpenSession) else 0)
        asked = Creation(project_id, admitted.actor.id, size, count=0)
        return await self._counts.admit(admitted.command_id, asked, self._clock())

    async def _place_missing(self, project_id: str | None, cluster_id: str | None) -> Refusal | None:
        """Why nothing can be made for this project or cluster; None stands for neither."""
        if project_id is not None and await self._project(project_id) is None:
            return Refusal(code="unknown_project", field="projectId", message=f"there is no project {project_id!r}")
        if cluster_id is not None and not await self._cluster_exists(cluster_id):
            return Refusal(code="unknown_cluster", field="clusterId", message=f"there is no cluster {cluster_id!r}")
        return None

    async def _department_missing(self, department_id: str) -> Refusal | None:
        if await self._department(department_id) is not None:
            return None
        message = f"there is no department {department_id!r}"
        return Refusal(code="unknown_department", field="departmentId", message=message)

    async def _department(self, department_id: str) -> Department | None:
        """From the log's leader: into one that was deleted a moment ago, nothing moves."""
        key = key_of_id(department_id)
        return None if key is None else shown_as((await self._store.load(DEPARTMENT, key)).state, department_id)

    async def _not_vacant(self, department_id: str) -> Refusal | None:
        """Why a department cannot be deleted. A project that is decided in this moment elsewhere is not seen: it is
        moved into the default department by auto_deletion.
        """
        newest = await self._store.last_seq(aggregates=(PROJECT.name,))
        if not await self._directory.reached(newest, timeout_seconds=DIRECTORY_SECONDS):
            raise TimeoutError("the projects of a department are not known up to now")
        projects = [self._directory.projects[id_].name for id_ in self._directory.projects_in(department_id)]
        if not projects:
            return None
        stand = "1 project stands" if len(projects) == 1 else f"{len(projects)} projects stand"
        named = ", ".join(sorted(projects)[:MOST_NAMED]) + (", …" if len(projects) > MOST_NAMED else "")
        message = f"{stand} in the department ({named}); move them into another one first, or delete them"
        return Refusal(code="department_not_empty", message=message)

    async def _pool_in_use(self, command: RemoveNodePool) -> Refusal | None:
        """Why a node pool cannot be removed: somebody tries it, by its name, and no other cluster has one of this name.
        Who names it in this moment elsewhere is not seen; pools that no cluster has are passed over in such an order.
        """
        newest = await self._store.last_seq(aggregates=(PROJECT.name, DEPARTMENT.name))
        if not await self._directory.reached(newest, timeout_seconds=DIRECTORY_SECONDS):
            raise TimeoutError("who names a node pool is not known up to now")
        clusters = [*self._directory.clusters.values()]
        if any(command.name in each.node_pools for each in clusters if each.cluster_id != command.cluster_id):
            return None
        users = [
            f"department {each.name}"
            for each in self._directory.departments.values()
            if command.name in each.node_pools
        ]
        users += [
            f"project {each.name}" for each in self._directory.projects.values() if command.name in each.node_pools
        ]
        if not users:
            return None
        named = ", ".join(sorted(users)[:MOST_NAMED]) + (", …" if len(users) > MOST_NAMED else "")
        message = (
            f"{named} {'names' if len(users) == 1 else 'name'} the node pool {command.name!r}; take it out there first"
        )
        return Refusal(code="node_pool_in_use", message=message)

    async def _not_lost(self, command: MoveLostProject) -> Refusal | None:
        if await self._department(command.department_id) is None:
            return None
        return Refusal(code="not_permitted", message=f"department {command.department_id} was not deleted")

    async def _creation_obstacle(self, command: CreateWorkload, admitted: AdmittedCommand) -> Refusal | None:
        if refusal := await self.misplaced(command):
            return refusal
        size, labels = len(msgspec.json.encode(command.spec)), asked_labels(command.spec.exposed_urls)
        asked = Creation(command.project_id, admitted.actor.id, size, labels=labels)
        return await self._counts.admit(admitted.command_id, asked, self._clock())

    async def misplaced(self, command: CreateWorkload) -> Refusal | None:
        """Why nothing can be created in a creation's project or on its cluster; limits apart."""
        project = await self._project(command.project_id)
        if project is None:
            return Refusal(
                code="unknown_project", field="projectId", message=f"there is no project {command.project_id!r}"
            )
        if refusal := await self._cluster_missing(command):
            return refusal
        return await self._exhausted(project)

    async def _cluster_missing(self, command: CreateWorkload) -> Refusal | None:
        """Where the scheduler chooses, one of those among which it does is enough."""
        if command.cluster_id:
            return await self._place_missing(None, command.cluster_id)
        for cluster_id in command.among:
            if await self._cluster_exists(cluster_id):
                return None
        message = "none of the clusters that could run it is there"
        return Refusal(code="unknown_cluster", field="clusterId", message=message)

    async def _not_empty(self, project_id: str) -> Refusal | None:
        """Why a project cannot be deleted. A creation that is decided in this moment elsewhere is not seen: what it
        makes is deleted by auto_deletion, with the reason.
        """
        living = await self._counts.living(project_id)
        if not living:
            return None
        live = "1 workload lives" if living == 1 else f"{living} workloads live"
        return Refusal(
            code="project_not_empty", message=f"{live} in the project; delete them first, or wait until they have ended"
        )

    async def _lived_on(self, cluster_id: str) -> Refusal | None:
        """Why a cluster cannot be removed. A creation that is decided in this moment is not seen: what it makes is
        deleted by auto_deletion, with the reason.
        """
        living = await self._counts.living_on(cluster_id)
        if not living:
            return None
        some = [(await self._store.load(WORKLOAD, key)).state.name for key in sorted(living)[:MOST_NAMED]]
        named = ", ".join(sorted(some)) + (", …" if len(living) > MOST_NAMED else "")
        live = "1 workload lives" if len(living) == 1 else f"{len(living)} workloads live"
        return Refusal(
            code="cluster_not_empty",
            message=f"{live} on the cluster ({named}); delete them first, or wait until they have ended, or remove it "
            "with `force`: then they are deleted, and pods that its agent did not stop before run on unattended",
        )

    async def _not_left_over(self, command: DeleteWorkload) -> Refusal | None:
        gone = "project" if command.project_deleted else "cluster"
        key = key_of_id(command.workload_id)
        workload = None if key is None else (await self._store.load(WORKLOAD, key)).state
        if workload is None:
            return None
        if command.project_deleted:
            there = await self._project(workload.project_id) is not None
        else:
            there = await self._cluster_lives(workload.cluster_id)
        if not there:
            return None
        return Refusal(code="not_permitted", message=f"the {gone} of workload {command.workload_id} is there")

    async def _other_local(self, name: str) -> Refusal | None:
        """A living cluster of kind local with another name, from before they all had one name."""
        for cluster in [*self._directory.clusters.values()]:
            if cluster.kind == "local" and cluster.name != name and await self._cluster_lives(cluster.cluster_id):
                return local_taken(cluster.name)
        return None

    async def _project_of(self, workload_id: str) -> Project | None:
        key = key_of_id(workload_id)
        return None if key is None else await self._project((await self._store.load(WORKLOAD, key)).state.project_id)

    async def _exhausted(self, project: Project | None) -> Refusal | None:
        """Why nothing new runs in a project now."""
        now = self._clock()
        if project is None or exhausted_refusal(project.budget, project.name, now) is None:
            return None
        # The fold lags: perhaps the budget was raised a moment ago.
        newest = await self._store.load(PROJECT, project_key(project.name))
        return exhausted_refusal(newest.state.budget, project.name, now)

    async def _other_currency(self, command: SetBudget) -> Refusal | None:
        """Why a budget in money says nothing here."""
        if command.micros is None:
            return None
        currency = (await self._store.load(PRICES, PRICES_KEY)).state.currency
        if not currency:
            return Refusal(
                code="no_prices",
                message="there are no prices yet; set one first (`muster price set`), or give GPU hours",
            )
        if currency != command.currency:
            message = f"prices here are in {currency}, so a budget is, too; got {command.currency}"
            return Refusal(code="other_currency", field="currency", message=message)
        return None

    async def _project(self, project_id: str) -> Project | None:
        known = self._directory.project(project_id)
        if known is not None:
            return known
        # Made a moment ago, perhaps: the fold lags, the log does not.
        key = key_of_id(project_id)
        if key is None:
            return None
        project = (await self._store.load(PROJECT, key)).state
        return project if project.exists and project.project_id == project_id else None

    async def _cluster_exists(self, cluster_id: str) -> bool:
        return self._directory.cluster(cluster_id) is not None or await self._cluster_lives(cluster_id)

    async def _cluster_lives(self, cluster_id: str) -> bool:
        """As the log has it, which does not lag."""
        key = key_of_id(cluster_id)
        if key is None:
            return False
        cluster = (await self._store.load(CLUSTER, key)).state
        return cluster.exists and cluster.cluster_id == cluster_id


def _answer_of(outcome: Committed | Rejected | Unknown, admitted: AdmittedCommand) -> CommandReply:
    match outcome:
        case Committed():
            (commit,) = outcome.commits
            if commit.record.body_hash != admitted.body_hash:
                # The same key with another body was faster, perhaps in another replica.
                return key_reused()
            return accepted(commit, admitted)
        case Rejected(code=code) if code == STREAM_FULL_CODE:
            return Refused(refusal=log_full_refusal(LIMIT_REACHED))
        case Rejected(code=code) if code == TOO_LARGE_CODE:
            return TOO_LARGE
        case Rejected():
            log.error("append_rejected", command_id=admitted.command_id, code=outcome.code, reason=outcome.message)
            return OutcomeUnknown()
        case Unknown():
            log.warning("append_unknown", command_id=admitted.command_id, reason=outcome.message)
            return OutcomeUnknown()
        case _:
            assert_never(outcome)


def log_full_refusal(why: str) -> Refusal:
    return Refusal(
        code="log_full", message=f"{why}; deletions, revoking roles and commands of administrators still work"
    )
