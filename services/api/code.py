"""Code that is sent with workloads: received in parts, checked, and kept while a living workload uses it."""

import asyncio
import base64
import binascii
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final, cast

import structlog

from events.aggregate import WORKLOAD
from events.authorize import Permission
from events.cluster import ClusterKind
from events.fields.declare import Body, Limits
from events.fields.values import Digest, NaturalInt32, Uuid
from events.subjects import ALL_CODE
from events.workload.state import Workload
from services.api import answers
from services.api.context import Api, Call
from services.api.errors import ApiError, bad_request
from services.api.issues import Issue, shown
from services.api.operations import Answer, Query, changes, reads
from services.api.paths import CODE
from services.api.places import find_cluster, find_project
from services.runtime.code.kept import Code, CodeError, CodeFullError, KeptCode
from services.runtime.code.limits import PART_BYTES, most_bytes
from services.runtime.log.store import LogUnavailableError

TIDY_SECONDS: Final = 3600.0
"""How often code that nobody uses is looked for."""
UNFINISHED_SECONDS: Final = 3600.0
"""How long an archive of which not all parts came keeps the room that was taken for it, from its first part on."""
CREATION_SECONDS: Final = 600.0
"""How long a creation may take after its code was marked as used."""
_MOST_CHARACTERS: Final = -(-PART_BYTES // 3) * 4
MAX_PARTS: Final = 8192
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")

log = structlog.get_logger(__name__)

LIMITS: Final = (
    Query(name="projectId", help="Project that the workload is for."),
    Query(name="clusterId", help="Cluster that the workload will run on."),
    Query(name="digest", help="SHA-256 of an archive, in hexadecimal digits: whether it is kept already."),
)


class CodePart(Body, frozen=True, kw_only=True):
    """One part of an archive."""

    project_id: Uuid
    """Project that may use it. Users who may read workloads there may read it."""
    cluster_id: Uuid
    """Cluster whose agent may fetch it."""
    digest: Digest
    """SHA-256 of the whole archive, in hexadecimal digits."""
    part: NaturalInt32
    """Number of this part, from 0. Send the parts in order."""
    parts: NaturalInt32
    """Number of parts, the same in each request."""
    data: Annotated[str, Limits(longest=_MOST_CHARACTERS)]
    """The part in Base64. Each part but the last has `partBytes` bytes."""


@reads(
    CODE,
    tag="Trainings",
    summary="Get the size limits of code, and whether an archive is stored already",
    query=LIMITS,
    errors=(403,),
)
async def code_limits(call: Call) -> Answer[answers.CodeLimits]:
    code, kind = await _code(call, *(call.values[name] or "" for name in ("projectId", "clusterId", "digest")))
    kept = bool(code.digest) and await KeptCode(call.api.requests).whole(code) is not None
    most = most_bytes(kind, call.api.code.max_bytes)
    return Answer(answers.CodeLimits(max_bytes=most, part_bytes=PART_BYTES, kept=kept))


@changes(
    "POST",
    CODE,
    tag="Trainings",
    summary="Upload a part of an archive of code that workloads can run",
    body=CodePart,
    example={
        "projectId": "8f3b1c52-7d0e-8a61-b1f4-0a5c9e2d7713",
        "clusterId": "46f10f9e-1d49-8cef-8c71-367b76619123",
        "digest": "5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef",
        "part": 0,
        "parts": 1,
        "data": "AAAA",
    },
    errors=(403,),
)
async def put_code(call: Call) -> Answer[answers.HttpResponse]:
    """One part; with the last one the whole is checked. Sent again, nothing changes."""
    given = call.fields(CodePart, lambda part: _part_rules(call.api, part))
    code, kind = await _code(call, given.project_id, given.cluster_id, given.digest)
    if issues := [*_too_many(given.parts, most_bytes(kind, call.api.code.max_bytes), f" by clusters of kind {kind}")]:
        raise bad_request(issues)
    kept = KeptCode(call.api.requests)
    if await kept.whole(code) is None:
        try:
            await _take_room(call, kept, code, given)
            await kept.put_part(code, given.part, base64.b64decode(given.data))
            if given.part == given.parts - 1:
                await kept.complete(code, given.parts)
        except CodeFullError:
            raise ApiError(503, "the storage for code is full; ask an administrator", details="code_full") from None
        except CodeError as error:
            await kept.purge(f"{code.subject}.>")
            raise bad_request([Issue(field="digest", details=f"{error}; send all parts again")]) from None
    told = answers.HttpResponse(code=202, message=f"part {given.part + 1} of {given.parts} is kept")
    return Answer(told, status=202)


async def _code(call: Call, project_id: str, cluster_id: str, digest: str) -> tuple[Code, ClusterKind]:
    """And the kind of cluster that it is for. Raises 400, 403."""
    given = {"projectId": project_id, "clusterId": cluster_id}
    if missing := [
        Issue(field=name, details="is required", rule="required") for name, text in given.items() if not text
    ]:
        raise bad_request(missing)
    issues: list[Issue] = []
    if await find_project(call, project_id) is None:
        issues.append(Issue(field="projectId", details=f"there is no project {shown(project_id)}"))
    if (cluster := await find_cluster(call, cluster_id)) is None:
        issues.append(Issue(field="clusterId", details=f"there is no cluster {shown(cluster_id)}"))
    call.require(Permission.SUBMIT, project_id)
    if digest and not _DIGEST.fullmatch(digest):
        issues.append(Issue(field="digest", details="is no SHA-256 in hexadecimal digits"))
    if issues or cluster is None:
        raise bad_request(issues)
    return Code(cluster_id=cluster_id, project_id=project_id, digest=digest), cluster.kind


def _part_rules(api: Api, part: CodePart) -> Iterator[Issue]:
    if "" in cast("tuple[object, object]", (part.part, part.parts)):
        return  # stands for a number that is missing or wrong
    if wrong := [*_too_many(part.parts, api.code.max_bytes)]:
        yield from wrong
    elif part.part >= part.parts:
        yield Issue(field="part", details=f"there are {part.parts}, counted from 0, got {part.part}")
    try:
        size = len(base64.b64decode(part.data, validate=True))
    except (binascii.Error, ValueError):
        yield Issue(field="data", details="is not base64")
    else:
        last = part.part == part.parts - 1
        if not (0 < size <= PART_BYTES if last else size == PART_BYTES):
            yield Issue(field="data", details=f"has {size} bytes; each part but the last has {PART_BYTES}")


def _too_many(parts: int, most_bytes: int, where: str = "") -> Iterator[Issue]:
    most = min(-(-most_bytes // PART_BYTES), MAX_PARTS)
    if not 1 <= parts <= most:
        details = f"at most {most_bytes} bytes are taken{where}, which is {most} parts, got {parts}"
        yield Issue(field="parts", details=details, rule="max")


async def _take_room(call: Call, kept: KeptCode, code: Code, given: CodePart) -> None:
    """At the first part, for all of them. Raises 403 where the project has none, 400 where nothing was begun."""
    if given.part:
        if not await kept.begun(code, given.parts):
            raise bad_request([Issue(field="part", details="send part 0 first, with the same number of parts")])
        return
    most = call.api.code.project_max_bytes // PART_BYTES
    taken = await kept.begin(code, given.parts, most)
    if taken > most:
        raise ApiError(
            403,
            f"the project keeps {(taken - given.parts) * PART_BYTES} bytes of code, and may keep {most * PART_BYTES}: "
            "delete workloads that use old code, and wait until it is removed, or send less",
            details="code_quota",
        )


async def keep_for(call: Call, code: Code, key: str) -> None:
    """Mark it as used by a workload that is about to be created."""
    try:
        await KeptCode(call.api.requests).use(code, key)
    except CodeFullError:
        raise ApiError(503, "the storage for code is full; ask an administrator", details="code_full") from None


async def is_kept(call: Call, code: Code) -> bool:
    return await KeptCode(call.api.requests).whole(code) is not None


# -- what nobody uses --------------------------------------------------------------------------------------------------


async def tidy(api: Api) -> None:
    """Remove, for ever, code that no living workload has used for the time that the settings say."""
    while True:
        try:
            removed = await remove_unused(api, datetime.now(UTC))
        except LogUnavailableError as error:
            log.warning("code_not_tidied", reason=str(error))
        else:
            if removed:
                log.info("old_code_removed", archives=removed)
        await asyncio.sleep(TIDY_SECONDS)


async def remove_unused(api: Api, now: datetime) -> int:
    """How many archives were removed; old marks of names that use none any more go, too. Raises LogUnavailableError."""
    kept, removed = KeptCode(api.requests), 0
    retention = timedelta(hours=api.code.retention_hours)
    archives: dict[str, list[str]] = {}
    for subject in await kept.subjects(ALL_CODE):
        archives.setdefault(".".join(subject.split(".")[:4]), []).append(subject)
    for archive, subjects in archives.items():
        digest = archive.rsplit(".", 1)[-1]
        used = False
        newest = datetime.fromtimestamp(0, UTC)
        for subject in subjects:
            if ".use." not in subject:
                continue
            state = (await api.store.load(WORKLOAD, subject.rsplit(".", 1)[-1])).state
            written = await kept.written_at(subject)
            if _uses(state, digest) or now - written < timedelta(seconds=CREATION_SECONDS):
                used = True
            elif now - written >= retention:
                await kept.purge(subject)
            newest = max(newest, written)
        marks = [subject for subject in subjects if subject.endswith(".whole") or ".size." in subject]
        for subject in marks:
            newest = max(newest, await kept.written_at(subject))
        whole = any(subject.endswith(".whole") for subject in subjects)
        if not used and now - newest >= (retention if whole else timedelta(seconds=UNFINISHED_SECONDS)):
            await kept.purge(f"{archive}.>")
            removed += 1
    return removed


def _uses(state: Workload, digest: str) -> bool:
    return state.living and state.spec.code == digest
