"""When a pod of a Kubernetes cluster saved its work last: the command that it is asked with, and what it may answer."""

import os
import subprocess
from pathlib import Path

import pytest

from services.agent.backends.kubernetes.read.checkpoints import SCRIPT, Answer, answer_of
from services.agent.backends.local.checkpoints import MOST_ENTRIES

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
