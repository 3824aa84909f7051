"""What the five operations of every kind of workload share: submitting one, reading one, acting on one."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from msgspec.structs import replace

from events.aggregate import WORKLOAD, Chain
from events.commands import UserCommand
from events.envelope import Accepted
from events.ids import ANY_CLUSTER, key_of_id, workload_key
from events.phases import DesiredPhase, Phase
from events.workload.commands import CreateWorkload
from events.workload.decide import final_name
from events.workload.fields.creation import Creation
from events.workload.fields.inference import serving_url
from events.workload.kinds import KINDS
from events.workload.kinds.distributed import shown_master
from events.workload.kinds.kind import Kind
from events.workload.spec import Beside, Distributed, Inference, TrainingSpec, beside_with_defaults
from events.workload.state import Workload
from projections.found import Moment
from services.api.answers import AnyWorkload, HttpResponse
from services.api.any_cluster import clusters_for
from services.api.check import FaultyCreation, check_creation
from services.api.code import keep_for
from services.api.connection_rules import check_exposed, check_groups
from services.api.context import MAX_WAIT_SECONDS, Call, Look, rfc3339, sequence_headers
from services.api.creation import code_of, misfits
from services.api.errors import ApiError, bad_request, not_found
from services.api.explain import explained
from services.api.issues import MAX_ISSUES, Issue, fault
from services.api.made_from import Made, made
from services.api.merge import Json
from services.api.moments import moment_headers, moment_of
from services.api.not_yet import not_yet_in_force
from services.api.operations import Answer, Query
from services.api.places import department_of
from services.api.token_user import with_token_user
from services.runtime.log.chains import READ_SECONDS
from services.runtime.log.floors import StaleLogError

EXPLAIN: Final = Query(
    name="explain",
    type="boolean",
    default=False,
    help="Whether to say in setBy who set each field of the spec: the request, a template or asset by its name, or a "
    "default.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A workload of any kind, as the contract's answers give it."""

    fields: dict[str, Any]
    """Those that every kind has, by their names in Python; with the spec in the form of its kind."""
    spec: TrainingSpec
    """As it is stored; likewise `beside`."""
    beside: Beside

    @property
    def of_master(self) -> dict[str, Any]:
        """Fields that only a distributed training has; none of another kind."""
        if not isinstance(self.beside, Distributed):
            return {}
        same, master = shown_master(self.spec, self.beside)
        return {"master_spec_same_as_worker": same, "master_spec": master}


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """A request to make a workload, before it is held against its project and its cluster."""

    kind: Kind
    made: Made
    checked: Creation
    """With what policies, a template, assets and the caller's token set; without its faults."""
    faults: Sequence[Issue]
    """What is wrong with it in itself, wherever it is sent."""
    unsuited: Sequence[Issue]
    """What does not go together with the caller's token, and what policies forbid."""
    among: tuple[str, ...] = ()
    """Where nobody names a cluster: ids of those that could run it."""
    nowhere: Sequence[Issue] = ()
    """Likewise: why none can be chosen for it."""
    like: CreateWorkload | None = None
    """The command of another one that differs from it in its name alone; None where none is known."""

    @property
    def faulty(self) -> bool:
        return bool(self.faults or self.unsuited or self.made.issues)

    def told(self, more: Sequence[Issue] = ()) -> list[Issue]:
        """All that is wrong, by the request's own paths."""
        return self.made.told([*self.faults, *self.unsuited, *more])[:MAX_ISSUES]

    def places(self, more: Sequence[Issue] = ()) -> list[str]:
        """Of each issue that `told` has, its field in the spec with all that others set."""
        own = (*self.made.issues, *self.faults, *self.unsuited, *more)
        return [issue.field for issue in own][:MAX_ISSUES]

    def command(self, command_id: str) -> CreateWorkload:
        checked = self.checked
        name = final_name(checked.name, as_prefix=checked.use_given_name_as_prefix, command_id=command_id)
        if self.like is not None:
            return replace(self.like, name=name, requested_name=checked.name)
        spec, beside = checked.order()
        return CreateWorkload(
            kind=self.kind.name,
            name=name,
            requested_name=checked.name,
            project_id=checked.project_id,
            cluster_id=named_cluster(checked),
            among=self.among,
            spec=spec,
            distributed=beside if isinstance(beside, Distributed) else None,
            inference=beside if isinstance(beside, Inference) else None,
            made_from=self.made.made_from(self.kind, self.kind.with_defaults(spec), beside_with_defaults(beside)),
        )


async def examined(call: Call, kind: Kind, data: Json, command_id: str) -> Examined:
    """Every creation, alone or in a batch, is looked at here."""
    request = await made(call, kind, data, command_id)
    checked = check_creation(kind.creation, request.data)
    faults, asked = (checked.issues, checked.sound) if isinstance(checked, FaultyCreation) else ([], checked)
    asked, of_token = with_token_user(asked, call.identity.user)
    spec, beside = asked.order()
    of_token += check_exposed(spec, call.api.proxy, call.identity.member)
    if isinstance(beside, Inference):
        url = serving_url(beside.serving.serving_port)
        of_token += check_groups("spec.servingPort", url, call.identity.member)
    broken = request.broken_rules(kind, asked, [*faults, *of_token])
    if broken and not call.may_read(asked.project_id):
        # Whoever may not read there learns nothing of its policies.
        broken = [fault("projectId", "is of a project where you may not submit; choose another")]
    among, nowhere = (), ()
    if asked.cluster_id == ANY_CLUSTER and call.may_submit(asked.project_id):
        among, nowhere = await clusters_for(call, asked, request.not_on)
    return Examined(
        kind=kind,
        made=request,
        checked=asked,
        faults=faults,
        unsuited=[*of_token, *broken],
        among=among,
        nowhere=nowhere,
    )


def named_cluster(asked: Creation) -> str:
    """Id of the cluster that it names; empty where the scheduler is to choose one."""
    return "" if asked.cluster_id == ANY_CLUSTER else asked.cluster_id


async def submit(call: Call, kind: Kind) -> tuple[Shown, dict[str, str]]:
    """Submit a workload; (it as its event has it, without reading it back, headers): the same whenever the request is
    repeated. Raises ApiError.
    """
    command_id = call.command_id()
    asked = await examined(call, kind, call.json_object(), command_id)
    more = await misfits(call, asked.checked, command_id, faulty=asked.faulty, nowhere=asked.nowhere)
    if issues := asked.told(more):
        raise bad_request(issues)
    command = asked.command(command_id)
    if (code := code_of(asked.checked)) is not None and call.may_submit(command.project_id):
        await keep_for(call, code, workload_key(command.project_id, command.name))
    reply = await call.send(command, command_id=command_id, creation=True)
    made = _created(call, kind, command, reply)
    made.fields["department_id"] = await department_of(call, command.project_id)
    return made, sequence_headers(reply.seq)


def _created(call: Call, kind: Kind, command: CreateWorkload, reply: Accepted) -> Shown:
    assert reply.at is not None, "a creation is answered with its time"
    spec, beside = kind.with_defaults(command.spec), beside_with_defaults(command.beside)
    fields = {
        "name": command.name,
        "requested_name": command.requested_name,
        "workload_id": reply.id,
        "project_id": command.project_id,
        "cluster_id": command.cluster_id or ANY_CLUSTER,
        "created_by": call.identity.sub,
        "created_at": reply.at,
        "desired_phase": DesiredPhase.RUNNING,
        "actual_phase": Phase.CREATING,
        "spec": kind.shown(spec, beside),
        "not_yet_in_force": not_yet_in_force(spec),
    }
    return Shown(fields=fields, spec=spec, beside=beside)


async def read(call: Look, kind: Kind) -> tuple[Shown, dict[str, str]]:
    """(a workload of this kind, in its newest state or as of a moment, headers). Raises 404, also where it is of
    another kind.
    """
    moment = await moment_of(call)
    if moment is None:
        chain, headers = await newest_workload(call)
    else:
        chain, headers = await workload_at(call, moment), moment_headers(moment)
    if chain.state.kind != kind.name:
        where = KINDS[chain.state.kind].collection
        raise not_found(f"workload {call.id} is of kind {chain.state.kind}: ask for /workloads/{where}/{call.id}")
    shown = await _shown(call, chain.state, at=None if moment is None else moment.seq)
    return shown, sequence_headers(chain.version) | headers


async def shown_workload(call: Look, state: Workload) -> AnyWorkload:
    """A workload of whatever kind, with the fields that only some kinds have."""
    found = await _shown(call, state)
    return AnyWorkload(**found.fields, **found.of_master, kubernetes_type=KINDS[state.kind].kubernetes_name)


async def _shown(call: Look, state: Workload, *, at: int | None = None) -> Shown:
    """Args: at, sequence of the moment that is asked for; None: now."""
    creators = await call.api.actors.subjects_of((state.created_by,))
    assert state.created_at is not None, "a workload that was loaded was created"
    fields: dict[str, Any] = {
        "name": state.name,
        "requested_name": state.requested_name,
        "workload_id": state.workload_id,
        "project_id": state.project_id,
        "department_id": await department_of(call, state.project_id, at=at),
        "cluster_id": state.cluster_id or ANY_CLUSTER,
        "created_by": creators[state.created_by],
        "created_at": state.created_at,
        "deleted_at": state.deleted_at,
        "desired_phase": state.desired,
        "actual_phase": state.phase,
        "spec": KINDS[state.kind].shown(state.spec, state.beside),
        "not_yet_in_force": not_yet_in_force(state.spec),
    }
    if call.values.get(EXPLAIN.name):
        fields["set_by"] = explained(KINDS[state.kind], state.spec, state.beside, state.made_from)
    return Shown(fields=fields, spec=state.spec, beside=state.beside)


async def act(call: Call, command: UserCommand, done: str, already: str) -> Answer[HttpResponse]:
    """A command on one workload, answered as the contract says. Its id says which: under the path of whatever kind."""
    if key_of_id(call.id) is None:
        raise _no_workload(call.id)
    reply = await call.send(command)
    return call.accepted(reply, f"workload {call.id} {done if reply.changed else already}")


async def newest_workload(call: Look) -> tuple[Chain[Workload], dict[str, str]]:
    """The workload's fold with all up to `min_seq`, where it was asked for; headers as `Call.fresh`. Raises 404."""
    wanted = call.min_seq
    if wanted:
        with contextlib.suppress(StaleLogError):
            return await load_workload(call, call.id, min_seq=wanted, seconds=MAX_WAIT_SECONDS), {}
    return await load_workload(call, call.id), {"X-Log-Stale": "true"} if wanted else {}


async def load_workload(
    call: Look, workload_id: str, *, creation: bool = False, min_seq: int = 0, seconds: float = READ_SECONDS
) -> Chain[Workload]:
    """The workload's fold, from the log. Raises 404 also where the caller may not see it.

    Args:
        creation: the caller was allowed to see it when the request began, and that shall do.
    """
    key = key_of_id(workload_id)
    if key is None:
        raise _no_workload(workload_id)
    chain: Chain[Workload] | None = await call.api.store.load(WORKLOAD, key, min_seq=min_seq, seconds=seconds)
    # All that bore a name stand in one project: whoever may not read there makes us look for none of them.
    if not chain.version or not (creation or call.may_read(chain.state.project_id)):
        raise _no_workload(workload_id)
    if chain.state.workload_id != workload_id:
        chain = await call.api.store.load_at(WORKLOAD, key, workload_id)
    if chain is None:
        raise _no_workload(workload_id)
    return chain


async def workload_at(call: Look, moment: Moment) -> Chain[Workload]:
    """The workload's fold as of a moment, also where it was deleted since. Raises 404 where there was none yet."""
    newest = await load_workload(call, call.id)
    if newest.version <= moment.seq:
        return newest
    chain = await call.api.store.load(WORKLOAD, key_of_id(call.id) or "", moment.seq)
    if chain.state.workload_id == call.id:
        return chain
    raise not_found(f"there was no workload {call.id} then: it was submitted at {rfc3339(newest.state.created_at)}")


def _no_workload(workload_id: str) -> ApiError:
    return not_found(f"there is no workload {workload_id}")
