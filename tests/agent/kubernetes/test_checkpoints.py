"""When a pod of a Kubernetes cluster saved its work last: the command that it is asked with, and what it may answer."""

import os
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace
from websockets.asyncio.server import ServerConnection

from events.channels import STATUS, STDERR
from services.agent.backends.kubernetes.act.objects import OurAnnotations, OurLabels
from services.agent.backends.kubernetes.read import turns
from services.agent.backends.kubernetes.read.checkpoints import SCRIPT, Answer, Checkpoints, answer_of
from services.agent.backends.kubernetes.read.nodes import Readiness
from services.agent.backends.kubernetes.read.view import View
from services.agent.backends.local.checkpoints import MOST_ENTRIES
from tests.agent.kubernetes.test_ways import CHUNK, POD, Api, api, failure

OLD, NEW = 1_500_000_000, 1_600_000_000


def file(path: Path, at: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.utime(path, (at, at))


def asked(folder: Path, *, path: str = os.defpath) -> Answer:
    """What a pod with the programs of this machine, or of `path`, answers."""
    words = ["/bin/sh", "-c", SCRIPT, "sh", str(folder)]
    return answer_of(subprocess.run(words, capture_output=True, check=True, timeout=120, env={"PATH": path}).stdout)


def test_it_is_the_newest_plain_file_at_any_depth_whatever_its_name(tmp_path: Path) -> None:
    assert asked(tmp_path / "none") == asked(tmp_path) == Answer()
    file(tmp_path / "a", OLD)
    file(tmp_path / "x" / "y" / "step 7 \"'\\ $(exit) ; *é", NEW)
    assert asked(tmp_path) == Answer(at=NEW)


def test_no_link_is_followed(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    file(outside / "newer", NEW)
    file(folder / "a", OLD)
    (folder / "loop").symlink_to(folder)
    (folder / "out").symlink_to(outside)
    (folder / "to-file").symlink_to(outside / "newer")
    assert asked(folder) == Answer(at=OLD)


def test_of_very_many_files_it_is_said_that_not_all_were_looked_at(tmp_path: Path) -> None:
    for number in range(MOST_ENTRIES + 5):
        (tmp_path / str(number)).touch()
    assert asked(tmp_path).whole is False
    for number in range(5):
        (tmp_path / str(number)).unlink()
    assert asked(tmp_path).whole is True


def test_an_image_without_the_programs_says_which_one_it_lacks(tmp_path: Path) -> None:
    assert asked(tmp_path, path=str(tmp_path)) == Answer(lacks="find")


@pytest.mark.parametrize(
    "said",
    [b"", b"\n", b"\xff\xfe", b"-5\n", b"1e9\n", "٣\n".encode(), b"99999999999\n", b"1600000000 x\n", b"9" * 10_000],
)
def test_what_is_no_answer_says_nothing(said: bytes) -> None:
    assert answer_of(said) == Answer()


def checkpoints_of(made: Api) -> tuple[View, Checkpoints]:
    """Of a cluster with one pod that has a checkpoint folder."""
    labels = OurLabels(workload="w", pod_set="main", pod_key="w", token="1")
    meta = replace(POD.metadata, labels=labels, annotations=OurAnnotations(checkpoint_dir="/c"))
    readiness = Readiness(not_ready_seconds=5, lost_seconds=5)
    view = View("c", fence=lambda _: 0, readiness=readiness, is_place=lambda _: True)
    view.pods["w"] = replace(POD, metadata=meta)
    return view, Checkpoints(made.place.client, view, acts=lambda: True, other=lambda: "")


@pytest.mark.anyio
async def test_an_image_without_a_shell_is_not_asked_again_when_its_pod_runs_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Given that its container is between two runs for a moment."""
    monkeypatch.setattr(turns, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(turns, "IDLE_SHARE", 0.0)

    async def serves(socket: ServerConnection) -> None:
        await socket.send(bytes((STATUS,)) + failure('exec: "/bin/sh": executable file not found in $PATH'))

    async with api(serves) as made:
        view, checkpoints = checkpoints_of(made)
        assert await checkpoints.look()
        running = view.pods["w"]
        view.pods["w"] = replace(running, status=replace(running.status, container_statuses=()))
        await checkpoints.look()
        view.pods["w"] = running
        await checkpoints.look()
        assert len(made.asked) == 1


@pytest.mark.anyio
async def test_a_pod_that_writes_without_end_is_not_read_on_whatever_channel_it_takes() -> None:
    taken = 0

    async def serves(socket: ServerConnection) -> None:
        nonlocal taken
        while taken < 2000:
            await socket.send(bytes((STDERR,)) + b"x" * CHUNK)
            taken += 1

    async with api(serves) as made:
        await checkpoints_of(made)[1].look()
    assert taken < 2000
