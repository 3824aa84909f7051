"""`muster apply`: the workloads of files, made where they are not there, and changed where they may be."""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from events.nearest import did_you_mean
from muster.cli.anywhere import Placing, any_cluster
from muster.cli.command import Session, command
from muster.cli.exits import ExitCode, Problem, exit_code_of, usage
from muster.cli.names import LAG_SECONDS, check_new_name, default_project, find_project
from muster.cli.options import ProjectOption, RunsOnOption
from muster.cli.output import Column
from muster.cli.references import References
from muster.cli.resubmit import difference
from muster.cli.units import check_units
from muster.cli.values import Json, Row, number_of, row_of, rows_of, text_of

if TYPE_CHECKING:
    from events.workload.kinds.kind import Kind

ENDINGS: Final = (".yaml", ".yml", ".json")
"""Of the files of a folder that are read."""
MOST_ITEMS: Final = 1_000
MOST_BYTES: Final = 8 * 1024 * 1024
"""Of one batch as it is sent; the API takes twice as much."""
CHANGEABLE: Final = ("priorityClass", "autoDeletionTimeAfterCompletionSeconds", "labels", "annotations")
"""Fields of a spec that the API changes while a workload lives."""
COLUMNS: Final = (
    Column("NAME", "name"),
    Column("KIND", "kind"),
    Column("RESULT", "result"),
    Column("ID", "id", wide=True),
    Column("FILE", "file", wide=True),
    Column("WHY", "why", rest=True, wraps=True),
)
FilesOption = Annotated[
    list[str],
    typer.Option(
        "--file",
        "-f",
        metavar="FILE|DIR|-",
        help="Read workloads from this file, of YAML (one document for each) or JSON, or from those of a folder.",
    ),
]


@dataclass(slots=True, kw_only=True)
class Wanted:
    """One workload as a file says it, and what became of it."""

    file: str
    """With the number of the document."""
    kind: str
    request: Row
    result: str = ""
    why: str = ""
    id: str = ""
    code: ExitCode = ExitCode.OK
    changes: Row = field(default_factory=dict[str, Json])

    @property
    def name(self) -> str:
        return text_of(self.request, "name")

    @property
    def place(self) -> tuple[str, str]:
        return text_of(self.request, "projectId"), self.name

    @property
    def merged(self) -> bool:
        """Whether more goes into its spec than its file says."""
        return any(self.request.get(field) for field in ("templateId", "assets"))

    def refuse(self, why: str, code: ExitCode) -> None:
        self.result, self.why, self.code = "refused", why, code

    @property
    def row(self) -> Row:
        return {
            "name": self.name,
            "kind": self.kind,
            "result": self.result,
            "id": self.id or None,
            "file": self.file,
            "why": self.why or None,
        }


def add_apply(root: typer.Typer) -> None:
    """Declares `muster apply`."""

    @command(
        root,
        "apply",
        examples="""
        muster apply -f workloads/
        muster apply -f many.yaml --dry-run
        muster apply -f training.yaml -f workspace.yaml -p vision
        generate.py | muster apply -f - -o json
        """,
        columns=COLUMNS,
    )
    def apply(
        session: Session,
        *,
        files: FilesOption,
        project: ProjectOption = None,
        cluster: RunsOnOption = None,
        dry_run: Annotated[
            bool, typer.Option("--dry-run", help="Check every request and show what would be done, and do nothing.")
        ] = False,
        all_or_nothing: Annotated[
            bool, typer.Option("--all-or-nothing", help="Create nothing unless all that is new can be created.")
        ] = False,
    ) -> int:
        """Create the workloads of files or folders, of any kinds, or change them where they may be changed.

        What exists already stays as it is where its spec is the same; what cannot be changed is refused by name. A
        document is what `submit -f` takes, with its kind: Training, Distributed, Workspace or Inference. The kind may
        be left out where there are fields that only one kind has. Where a field says an id (projectId, clusterId,
        templateId, assets), a name does, too.
        """
        wanted = read_workloads(files)
        if not wanted:
            raise usage("these files hold no workload", todo="a document needs kind, name and spec")
        place_all(session, wanted, project, cluster)
        try:
            if dry_run:
                _rehearse(session, wanted)
            else:
                _carry_out(session, wanted, all_or_nothing=all_or_nothing)
        except Problem:
            # A part may have been carried out: the same command again finds it, and does what is left.
            if any(one.result for one in wanted):
                for one in wanted:
                    one.result = "unknown" if one.result in {"", "exists"} else one.result
                session.out.rows([one.row for one in wanted], COLUMNS)
            raise
        session.out.rows([one.row for one in wanted], COLUMNS)
        if dry_run:
            session.out.talk("dry run: nothing was done")
        return next((one.code for one in wanted if one.code), ExitCode.OK)


def _carry_out(session: Session, wanted: Sequence[Wanted], *, all_or_nothing: bool) -> None:
    """Raises Problem; results say how far it came."""
    for batch in _batches(wanted, all_or_nothing=all_or_nothing):
        _create(session, batch, all_or_nothing=all_or_nothing)
    for one in wanted:
        if one.result == "exists":
            _compare(session, one)
        if one.changes:
            _change(session, one)


# -- from files to requests --------------------------------------------------------------------------------------------


def read_workloads(files: Sequence[str], *, usual_kind: str | None = None, or_else: str = "") -> list[Wanted]:
    """The workloads of files and folders. One that names no kind is of the only kind that has its fields. Raises
    Problem (usage).

    Args:
        usual_kind: that of documents that name none.
        or_else: what else than a kind in the document can be given, as the end of a sentence.
    """
    found = [one for given in files for one in _documents(given)]
    told: list[Json] = []
    unknown: list[tuple[str, list[str]]] = []
    for where, document in found:
        whole = document
        if isinstance(document, dict) and document.get("kind") is None:
            from muster.cli.request_file import fitting_kinds

            fitting = [usual_kind] if usual_kind else fitting_kinds(document)
            unknown += [] if len(fitting) == 1 else [(where, fitting)]
            whole = {**document, "kind": fitting[0] if fitting else None}
        told.append(whole)
    if unknown:
        raise _of_no_kind(unknown, or_else)
    return [_wanted(document, where) for (where, _), document in zip(found, told, strict=True)]


def _documents(given: str) -> Iterator[tuple[str, Json]]:
    """(where it stands, what it is) of each document of a file or folder. Raises Problem (usage)."""
    from muster.cli.request_file import read_documents

    path = Path(given)
    if given != "-" and path.is_dir():
        found = sorted(one for one in path.iterdir() if one.suffix in ENDINGS and one.is_file())
        if not found:
            raise usage(f"--file: the folder {given} has no file that ends with {', '.join(ENDINGS)}")
        names = [str(one) for one in found]
    else:
        names = [given]
    for name in names:
        documents = read_documents(name)
        for number, document in enumerate(documents, start=1):
            yield name if len(documents) == 1 else f"{name} (document {number})", document


def _of_no_kind(unknown: Sequence[tuple[str, list[str]]], or_else: str) -> Problem:
    """Of all documents that name no kind, and whose fields do not say it: where each stands, the kinds that fit."""
    from events.workload.kinds import KINDS

    said = [(where, " or ".join(f"`kind: {kind}`" for kind in fitting or KINDS)) for where, fitting in unknown]
    if len(said) == 1:
        ((where, kinds),) = said
        return usage(
            f"--file: {where} has no kind, and its fields do not say which it is",
            todo=f"write {kinds} into it{or_else}",
        )
    return Problem(
        f"--file: {len(said)} workloads have no kind, and their fields do not say which it is",
        why=tuple(f"{where}: {kinds}" for where, kinds in said),
        todo=f"write its kind into each{or_else}",
        code=ExitCode.USAGE,
    )


def _wanted(document: Json, where: str) -> Wanted:
    """Raises Problem (usage)."""
    from events.workload.kinds import KINDS

    if not isinstance(document, dict):
        raise usage(f"--file: {where} is no workload", todo="it needs the fields kind, name and spec")
    kind = document.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        hint = did_you_mean(kind, KINDS) if isinstance(kind, str) else None
        raise usage(
            f"--file: {where} has the kind {kind!r}, which does not exist", todo=hint or f"kinds: {', '.join(KINDS)}"
        )
    request: Row = {key: value for key, value in document.items() if key != "kind"}
    known = KINDS[kind].creation.__struct_encode_fields__
    for key in request:
        if key not in known:
            todo = did_you_mean(str(key), known) or f"a {kind} has: kind, {', '.join(known)}"
            raise usage(f"--file: {where}: unknown field {key!r}", todo=todo)
    if not text_of(request, "name"):
        raise usage(f"--file: {where} has no name", todo="give it one: by its name it is found again")
    if request.get("useGivenNameAsPrefix"):
        raise usage(
            f"--file: {where}: useGivenNameAsPrefix makes another workload each time",
            todo="leave it out, or use `submit -f`",
        )
    check_new_name(text_of(request, "name"))
    check_units(request, where)
    return Wanted(file=where, kind=kind, request=request)


def place_all(session: Session, wanted: Sequence[Wanted], project: str | None, cluster: str | None) -> None:
    """Gives each its project and cluster, where it names none, and ids where it has names. Raises Problem."""
    if project or any("projectId" not in one.request for one in wanted):
        found = find_project(session.api, project) if project else default_project(session, None)
        for one in wanted:
            if project or "projectId" not in one.request:
                one.request["projectId"] = text_of(found, "id")
    if cluster or any("clusterId" not in one.request for one in wanted):
        placing = Placing(session, cluster)
        for one in wanted:
            if cluster or "clusterId" not in one.request:
                placing.place(one.request)
    references = References(session)
    seen: dict[tuple[str, str], str] = {}
    for one in wanted:
        references.resolve(one.request, one.file)
        if one.place in seen:
            raise usage(
                f"--file: {one.file} and {seen[one.place]} have one name, {one.name!r}", todo="give each its own"
            )
        seen[one.place] = one.file


# -- creating ----------------------------------------------------------------------------------------------------------


def _batches(wanted: Sequence[Wanted], *, all_or_nothing: bool) -> Iterator[list[Wanted]]:
    """Raises Problem (usage) where all shall be one batch, and are too many."""
    batch: list[Wanted] = []
    size = 0
    for one in wanted:
        bytes_ = len(json.dumps(one.request))
        if batch and (len(batch) == MOST_ITEMS or size + bytes_ > MOST_BYTES):
            if all_or_nothing:
                raise usage(f"--all-or-nothing is for at most {MOST_ITEMS:,} workloads of {MOST_BYTES:,} bytes in all")
            yield batch
            batch, size = [], 0
        batch.append(one)
        size += bytes_
    yield batch


def _create(session: Session, batch: Sequence[Wanted], *, all_or_nothing: bool) -> None:
    """Raises Problem where a request is wrong in itself: then none of the batch was created."""
    if all_or_nothing:
        # What is there already must not keep the others from being created.
        batch = _missing(session, batch)
        if not batch:
            return
    items: list[Json] = [{"kind": one.kind, **one.request} for one in batch]
    body: Row = {"items": items}
    if all_or_nothing:
        body["allOrNothing"] = True
    try:
        answer = session.api.mutate("POST", "/workloads:batch", body).body
    except Problem as problem:
        raise _in_files(problem, batch) from problem
    for one, outcome in zip(batch, rows_of(answer, "items"), strict=True):
        if identifier := text_of(outcome, "id"):
            one.result, one.id = "created", identifier
        elif text_of(outcome, "details") == "name_taken":
            one.result = "exists"
        else:
            issues = rows_of(outcome, "complianceIssues")
            why = "; ".join(f"{text_of(issue, 'field')}: {text_of(issue, 'details')}" for issue in issues)
            one.refuse(why or text_of(outcome, "message"), exit_code_of(int(number_of(outcome, "code"))))


def _in_files(problem: Problem, batch: Sequence[Wanted]) -> Problem:
    """The same, with files in the place of numbers of items."""

    def told(text: str) -> str:
        for index in range(len(batch) - 1, -1, -1):
            text = text.replace(f"items[{index}].", f"{batch[index].file}: ")
            text = text.replace(f"items[{index}]", batch[index].file)
        return text

    return Problem(
        told(problem.what),
        why=tuple(map(told, problem.why)),
        todo=problem.todo,
        code=problem.code,
        request_id=problem.request_id,
        refusal=problem.refusal,
    )


# -- what is there -----------------------------------------------------------------------------------------------------


def _found(session: Session, one: Wanted) -> str:
    """The id of the living workload of this name; empty where there is none."""
    project, name = one.place
    same: list[tuple[str, str | int]] = [("filterBy", f"projectId=={project}"), ("filterBy", f"name=={name}")]
    rows = rows_of(session.api.get("/workloads", same), "workloads")
    return text_of(rows[0], "id") if rows else ""


def _missing(session: Session, wanted: Sequence[Wanted]) -> list[Wanted]:
    """Those that are not there; the others are marked."""
    for one in wanted:
        if _found(session, one):
            one.result = "exists"
    return [one for one in wanted if one.result != "exists"]


def _compare(session: Session, one: Wanted) -> None:
    """What is to be changed of a workload that is there, or why that cannot be."""
    one.id = _found(session, one)
    if not one.id:
        # Lists lag the log by some milliseconds.
        time.sleep(LAG_SECONDS)
        one.id = _found(session, one)
    if not one.id:
        one.refuse("its name was taken a moment ago, and it is not there now; try again", ExitCode.CONFLICT)
        return
    answer = session.api.read(f"/workloads/{one.id}", [("explain", "true")])
    there = answer.body
    if text_of(there, "type") not in {"", one.kind}:
        one.refuse(f"there is a {text_of(there, 'type')} of this name", ExitCode.CONFLICT)
        return
    if one.merged:
        one.refuse(
            "it is there, and its file names a template or assets: only the API knows what they make of it; change it "
            "with `muster workload set` or `label`, or give this one another name",
            ExitCode.CONFLICT,
        )
        return
    of_policies = set_by_policies(there)
    want = _effective(one, of_policies)
    if want is None:
        return
    differing = _differing(one, want, there, of_policies)
    if not differing:
        one.result = "unchanged"
        return
    places = {
        "spec.storage": _new_places(row_of(row_of(there, "spec"), "storage"), row_of(row_of(want, "spec"), "storage")),
        "masterSpec": _masters_new_places(row_of(there, "masterSpec"), row_of(want, "masterSpec")),
    }
    fixed = [name for name in differing if name.removeprefix("spec.") not in CHANGEABLE and not places.get(name)]
    if fixed:
        told = "; ".join(told for name in fixed for told in difference(_only(there, name), _only(want, name)))
        one.refuse(
            f"{told or ', '.join(fixed)}: cannot be changed; delete it first, or give this one another name",
            ExitCode.CONFLICT,
        )
        return
    spec = row_of(want, "spec")
    one.result = "changed"
    one.why = "; ".join(told for name in differing for told in difference(_only(there, name), _only(want, name)))
    one.changes = {
        name.removeprefix("spec."): places[name] if name in places else spec[name.removeprefix("spec.")]
        for name in differing
    }


def _new_places(there: Row, want: Row) -> Row:
    """The change that finds claims and Secrets elsewhere; empty where anything else of the volumes differs."""
    places: Row = {}
    for kind, movable in (("pvc", ("path",)), ("secretVolume", ("mountPath", "defaultMode"))):
        before, after = rows_of(there, kind), rows_of(want, kind)
        fixed = [[{k: v for k, v in one.items() if k not in movable} for one in volumes] for volumes in (before, after)]
        if fixed[0] != fixed[1]:
            return {}
        changed: list[Json] = [
            {"mountedAt": was[movable[0]], **{name: now[name] for name in movable if now.get(name) is not None}}
            for was, now in zip(before, after, strict=True)
            if was != now
        ]
        places |= {kind: changed} if changed else {}
    others = ({k: v for k, v in storage.items() if k not in {"pvc", "secretVolume"}} for storage in (there, want))
    return places if next(others) == next(others) else {}


def _masters_new_places(there: Row, want: Row) -> Row:
    """Likewise of a master that has volumes of its own, before and after; empty where anything else of it differs."""
    others = ({name: value for name, value in one.items() if name != "storage"} for one in (there, want))
    if next(others) != next(others) or not (there.get("storage") and want.get("storage")):
        return {}
    places = _new_places(row_of(there, "storage"), row_of(want, "storage"))
    return {"storage": places} if places else {}


_POLICIES: Final = frozenset({"tenant policy", "department policy", "project policy"})


def set_by_policies(there: Row) -> Row:
    """What policies set of a workload's spec when it was made, as a spec: it keeps that, though its file says nothing
    of it.
    """
    has = row_of(there, "spec")
    found: Row = {}
    for path, source in row_of(there, "setBy").items():
        if source not in _POLICIES:
            continue
        holder, _, index = path.removeprefix("spec.").partition("[")
        *above, name = holder.split(".")
        to, value = found, has
        for step in above:
            to, value = cast("Row", to.setdefault(step, {})), row_of(value, step)
        if index:
            cast("list[Json]", to.setdefault(name, [])).append(rows_of(value, name)[int(index.rstrip("]"))])
        else:
            to[name] = value.get(name)
    return found


def _effective(one: Wanted, of_policies: Row) -> Row | None:
    """The workload as it would be created, with every default; None where the request is wrong in itself, and the
    reason is told.

    Args:
        of_policies: what stands below the file.
    """
    from events.asset_specs import spec_node
    from events.workload.kinds import KINDS
    from services.api.check import FaultyCreation, check_creation
    from services.api.merge import Layer, merged
    from services.api.policies_in_force import master_layers, master_node, within

    kind, request = KINDS[one.kind], dict(one.request)
    if of_policies:
        below = Layer(source="project policy", name="", spec=of_policies)
        for name in ("spec", "masterSpec"):
            if isinstance(own := request.get(name), dict):
                of = spec_node(kind.name) if name == "spec" else master_node(kind)
                layers = [within(below, of)] if name == "spec" else master_layers([below], of, own)
                request[name] = merged(of, [*layers, Layer(source="request", name="", spec=own)]).spec
    checked = check_creation(kind.creation, request)
    if isinstance(checked, FaultyCreation):
        one.refuse("; ".join(f"{issue.field}: {issue.details}" for issue in checked.issues), ExitCode.REJECTED)
        return None
    return _shown(kind, checked)


def _shown(kind: "Kind", checked: Any) -> Row:
    from events.workload.kinds.distributed import shown_master
    from events.workload.spec import Distributed, beside_with_defaults

    spec, beside = checked.order()
    spec, beside = kind.with_defaults(spec), beside_with_defaults(beside)
    shown: Row = {"spec": _as_json(kind.shown(spec, beside))}
    if checked.cluster_id != any_cluster():
        # Where the scheduler chooses, whichever it chose is the right one.
        shown["clusterId"] = checked.cluster_id
    if isinstance(beside, Distributed):
        same, master = shown_master(spec, beside)
        shown |= {"masterSpecSameAsWorker": same, "masterSpec": _as_json(master)}
    return shown


def _as_json(value: object) -> Json:
    """As an answer of the API has it."""
    import msgspec

    return json.loads(msgspec.json.encode(value))


def _differing(one: Wanted, want: Row, there: Row, of_policies: Row) -> list[str]:
    """Fields of which the file says another thing than the workload has, such as `spec.image`."""
    plain_master = _master_without_token
    found = [name for name in want if name != "spec" and plain_master(want[name]) != plain_master(there.get(name))]
    given, has = row_of(one.request, "spec"), row_of(there, "spec")
    for name, value in row_of(want, "spec").items():
        # It follows the priority that a workload was created with, where nobody names one.
        follows = name == "preemptibility" and given.get(name) is None
        plain = _without_token if name == "security" else _as_it_is
        if isinstance(of_policies.get(name), list):
            # An item of the file took the place of one of a policy, which is not told any more.
            plain = _in_any_order
        if plain(value) != plain(has.get(name)) and not follows:
            found.append(f"spec.{name}")
    return found


def _as_it_is(value: Json) -> Json:
    return value


def _in_any_order(value: Json) -> Json:
    return sorted(value, key=json.dumps) if isinstance(value, list) else value


def _without_token(security: Json) -> Json:
    """Without the user and groups that the API took from a token: a file names none then."""
    if not isinstance(security, dict) or security.get("uidGidSource") != "fromIdpToken":
        return security
    of_token = {"runAsUid", "runAsGid", "supplementalGroups"}
    return {key: value for key, value in security.items() if key not in of_token}


def _master_without_token(value: Json) -> Json:
    """Of another field than masterSpec nothing is left out."""
    return value | {"security": _without_token(value.get("security"))} if isinstance(value, dict) else value


def _only(row: Row, name: str) -> Row:
    """One field of a workload, under its own name."""
    if not name.startswith("spec."):
        return {name: row.get(name)}
    return {name: row_of(row, "spec").get(name.removeprefix("spec."))}


def _change(session: Session, one: Wanted) -> None:
    try:
        session.api.mutate("PATCH", f"/workloads/{one.id}", one.changes)
    except Problem as problem:
        one.refuse("; ".join((problem.what, *problem.why)), problem.code)


def _issues(session: Session, one: Wanted) -> str:
    """Why it would not be created; empty where it would be. Policies, templates and assets only the API knows."""
    from events.workload.kinds import KINDS

    found = session.api.examine(f"/workloads/{KINDS[one.kind].collection}:evaluate", one.request)
    return "; ".join(f"{text_of(issue, 'field')}: {text_of(issue, 'details')}" for issue in rows_of(found, "issues"))


def _rehearse(session: Session, wanted: Sequence[Wanted]) -> None:
    """What would be done, as far as can be said without doing it."""
    for one in wanted:
        if _found(session, one):
            _compare(session, one)
        elif issues := _issues(session, one):
            one.refuse(issues, ExitCode.REJECTED)
        else:
            one.result = "created"
    for one in wanted:
        one.changes = {}
