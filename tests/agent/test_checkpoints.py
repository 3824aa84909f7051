"""The newest file of a folder in which anything may be."""

import os
import time
from pathlib import Path

from services.agent.backends.local.checkpoints import MOST_DEPTH, Newest, newest_file

OLD, NEW = 1_500_000_000.0, 1_600_000_000.0


def file(path: Path, at: float) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.utime(path, (at, at))
    return path


def test_it_is_the_newest_plain_file_at_any_depth(tmp_path: Path) -> None:
    assert newest_file(tmp_path / "none") == newest_file(tmp_path) == Newest(None, whole=True)
    file(tmp_path / "a", OLD)
    file(tmp_path / "x" / "y" / "z" / "b", NEW)
    assert newest_file(tmp_path) == Newest(NEW, whole=True)


def test_no_link_is_followed_and_what_is_no_plain_file_does_not_count(tmp_path: Path) -> None:
    """Given links to newer files, to folders outside and to itself, and a pipe that nobody writes to."""
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    file(outside / "newer", NEW + 10)
    file(folder / "a", OLD)
    (folder / "loop").symlink_to(folder)
    (folder / "out").symlink_to(outside)
    (folder / "to-file").symlink_to(outside / "newer")
    (folder / "gone").symlink_to(tmp_path / "no-such")
    os.mkfifo(folder / "pipe")
    assert newest_file(folder) == Newest(OLD, whole=True)
    (tmp_path / "link").symlink_to(folder)
    assert newest_file(tmp_path / "link") == Newest(None, whole=True)


def test_a_folder_that_nobody_may_read_hides_nothing_else(tmp_path: Path) -> None:
    file(tmp_path / "shut" / "b", NEW)
    file(tmp_path / "a", OLD)
    (tmp_path / "shut").chmod(0)
    try:
        found = newest_file(tmp_path)
        assert found.at == (NEW if os.geteuid() == 0 else OLD)
    finally:
        (tmp_path / "shut").chmod(0o700)


def test_of_very_many_files_some_are_looked_at_and_the_folders_that_changed_last_first(tmp_path: Path) -> None:
    for number in range(50):
        file(tmp_path / "old" / str(number), OLD)
    file(tmp_path / "new" / "b", NEW)
    os.utime(tmp_path / "old", (OLD, OLD))
    assert newest_file(tmp_path, entries=20) == Newest(NEW, whole=False)
    assert newest_file(tmp_path, entries=60) == Newest(NEW, whole=True)
    assert newest_file(tmp_path, seconds=-1.0).whole is False


def test_a_deep_tree_is_left_at_some_depth(tmp_path: Path) -> None:
    path = tmp_path
    for _ in range(MOST_DEPTH + 5):
        path /= "d"
    file(path / "b", NEW)
    file(tmp_path / "a", OLD)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    assert newest_file(tmp_path) == Newest(OLD, whole=False)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_a_look_at_many_files_costs_little(tmp_path: Path) -> None:
    for number in range(3_000):
        (tmp_path / str(number)).touch()
    began = time.process_time()
    assert newest_file(tmp_path).whole
    assert time.process_time() - began < 0.5
