"""Code of a run on this machine: fetched by its digest, checked, unpacked anew; what is wrong with it harms one run."""

import hashlib
import io
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from development.servers import NatsServer
from events.cluster_protocol import LogsRequest
from services.runtime.code.archive import write_archive
from services.runtime.code.kept import Code, KeptCode
from services.runtime.code.limits import PART_BYTES
from services.runtime.nats.requests import Requests
from tests.agent.control_plane import ControlPlane, RunningService, control_plane, running_service
from tests.agent.given import CLUSTER, KEY, WORKLOAD
from tests.agent.test_service import local, simulated

pytestmark = pytest.mark.anyio

PROJECT = "p1"
_CLUSTERS = itertools.count()


@pytest.fixture
async def plane(fresh_log: NatsServer) -> AsyncIterator[ControlPlane]:
    async with control_plane(fresh_log, f"{CLUSTER}c{next(_CLUSTERS)}") as plane:
        yield plane


@pytest.fixture
async def agent(fresh_log: NatsServer, tmp_path: Path) -> AsyncIterator[RunningService]:
    async with running_service(fresh_log, tmp_path / "data") as running:
        yield running


async def keep(plane: ControlPlane, data: bytes, *, project: str = PROJECT, missing: int | None = None) -> str:
    """As the api keeps it; then one part is lost."""
    kept = KeptCode(Requests(plane.nc))
    code = Code(cluster_id=plane.cluster, project_id=project, digest=hashlib.sha256(data).hexdigest())
    parts = [data[at : at + PART_BYTES] for at in range(0, len(data), PART_BYTES)]
    for number, part in enumerate(parts):
        await kept.put_part(code, number, part)
    await kept.complete(code, len(parts))
    if missing is not None:
        await kept.purge(f"{code.subject}.part.{missing}")
    return code.digest


def folder(place: Path, **files: str) -> bytes:
    place.mkdir()
    for name, text in files.items():
        (place / name).write_text(text)
    out = io.BytesIO()
    write_archive(place, list(files), out)
    return out.getvalue()


async def output(plane: ControlPlane) -> list[str]:
    request = LogsRequest(workload_id=WORKLOAD, pod_key=KEY)
    return [line.text async for chunk in plane.logs(request) for line in chunk.lines]


@pytest.mark.usefixtures("agent")
async def test_a_run_starts_in_a_copy_of_its_own(plane: ControlPlane, tmp_path: Path) -> None:
    """Of several parts; what the run before wrote and removed is as it was."""
    digest = await keep(plane, folder(tmp_path / "code", run="echo from the code; ls", data="x" * 700_000))
    await plane.want_cluster("local")
    for token in (1, 2):
        await plane.want(local(". ./run; touch left; rm data", token, code=digest))
        await plane.until_pod("succeeded", token)
        assert await output(plane) == ["from the code", "data", "run"]


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize(
    ("data", "project", "missing", "said"),
    [
        (b"no archive at all", PROJECT, None, "it ends too early"),
        (b"x" * 5000, PROJECT, None, "it is not an archive of code"),
        (b"x" * 5000, "another", None, "is no longer stored"),
        (b"x" * 700_000, PROJECT, 1, "part 2 of 3"),
    ],
)
async def test_code_that_cannot_be_used_fails_its_run_and_says_why_and_the_next_one_runs(
    plane: ControlPlane, data: bytes, project: str, missing: int | None, said: str
) -> None:
    digest = await keep(plane, data, project=project, missing=missing)
    await plane.want_cluster("local")
    await plane.want(local("echo never", code=digest))
    end = await plane.until_pod("failed")
    assert (end.reason, said in end.message) == ("bad_code", True), end.message
    await plane.want(local("echo next", 2))
    await plane.until_pod("succeeded", 2)


@pytest.mark.usefixtures("agent")
async def test_a_simulated_cluster_records_the_code(plane: ControlPlane) -> None:
    await plane.want_cluster()
    await plane.want(simulated(seconds=0.2, code="a" * 64))
    await plane.until_pod("succeeded")
    assert "so is code aaaaaaaaaaaa" in plane.said[0].message
