"""What a pod runs before its own program: here by shells of this machine, on what the ConfigMaps hold."""

import base64
import hashlib
import io
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from services.agent.backends.kubernetes.act.code_manifests import (
    CODE_FOLDER,
    IS_CHANGED,
    KEY,
    LACKS_PROGRAM,
    MAP_BYTES,
    code_map_manifest,
    unpack_command,
)
from services.agent.backends.kubernetes.act.objects import CODE_CONTAINER
from services.runtime.code.archive import unpack, write_archive
from tests.agent.kubernetes.cases import coded, pod

SHELLS = [shell for shell in ("dash", "bash", "busybox") if shutil.which(shell)]
LARGE = 2 * MAP_BYTES + 1000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    code = tmp_path / "code"
    (code / "src" / ("deep" * 20) / ("er" * 40)).mkdir(parents=True)
    (code / "train.py").write_text("print('hello')\n")
    (code / "run me.sh").write_text("#!/bin/sh\necho ran\n")
    (code / "run me.sh").chmod(0o755)
    (code / "-rf").write_text("a name like a flag")
    (code / "ünïcode").write_text("x")
    (code / "empty").touch()
    (code / "src" / ("deep" * 20) / ("er" * 40) / "long").write_text("a path of two fields")
    (code / "src" / "link").symlink_to("../train.py")
    (code / "large").write_bytes(os.urandom(LARGE))
    return code


def archived(folder: Path) -> bytes:
    paths = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_symlink() or path.is_file()]
    out = io.BytesIO()
    write_archive(folder, paths, out)
    return out.getvalue()


def mounted(place: Path, archive: bytes) -> Path:
    """As a node shows a projected volume: links to files in a hidden folder."""
    (place / "..data").mkdir(parents=True)
    for number, at in enumerate(range(0, len(archive), MAP_BYTES)):
        made = code_map_manifest(
            archive[at : at + MAP_BYTES], cluster_id="c", namespace="n", digest="d", number=number, labels={}
        )
        (place / "..data" / f"{number:03}").write_bytes(base64.b64decode(made["binaryData"][KEY]))
        (place / f"{number:03}").symlink_to(f"..data/{number:03}")
    return place


def run(command: list[str], shell: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    assert command[0] == "sh"
    program = shutil.which(shell) or shell
    with tempfile.TemporaryDirectory() as folder:
        if shell == "busybox":  # all four programs are its own, as in small images
            for name in ("cat", "sha256sum", "tar"):
                (Path(folder) / name).symlink_to(program)
        usual = folder if shell == "busybox" else os.defpath
        return subprocess.run(
            [program, *(["sh"] if shell == "busybox" else []), *command[1:]],
            env={"PATH": usual if path is None else path},
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )


def tree(folder: Path) -> dict[str, tuple[str, bytes]]:
    """What is there: of a link where it leads, of a file its content and whether it can be run."""
    found: dict[str, tuple[str, bytes]] = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = ("link", os.fsencode(path.readlink()))
        elif path.is_file():
            found[name] = ("x" if path.stat().st_mode & stat.S_IXUSR else "-", path.read_bytes())
    return found


def test_the_pod_runs_what_is_tested_here() -> None:
    (container,) = pod(coded(), code_maps=1)["spec"]["initContainers"]
    assert container["command"] == unpack_command(coded().code)
    assert container["command"][-2:] == [each["mountPath"] for each in container["volumeMounts"]][::-1]
    assert container["command"][-1] == CODE_FOLDER
    assert container["name"] == CODE_CONTAINER
    assert "$(" not in container["command"][2], "Kubernetes would put a variable in its place"


@pytest.mark.parametrize("shell", SHELLS)
def test_what_is_unpacked_in_a_pod_is_what_a_local_cluster_unpacks(folder: Path, tmp_path: Path, shell: str) -> None:
    archive = archived(folder)
    parts, target, local = mounted(tmp_path / "parts", archive), tmp_path / "in-pod", tmp_path / "local"
    for place in (target, local):
        place.mkdir()
    ran = run(unpack_command(hashlib.sha256(archive).hexdigest(), str(parts), str(target)), shell)
    assert (ran.returncode, ran.stderr) == (0, "")
    (tmp_path / "archive").write_bytes(archive)
    unpack(tmp_path / "archive", local)
    assert tree(target) == tree(local) == tree(folder)
    assert (target / "train.py").stat().st_uid == os.getuid()
    assert len(list((tmp_path / "parts").glob("0*"))) == 3


def _change(parts: Path) -> None:
    file = parts / "..data" / "001"
    first, *others = file.read_bytes()
    file.write_bytes(bytes([first ^ 1, *others]))


def _remove(parts: Path) -> None:
    (parts / "002").unlink()


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("harm", [_change, _remove])
def test_what_is_not_what_was_sent_is_not_unpacked(
    folder: Path, tmp_path: Path, shell: str, harm: Callable[[Path], None]
) -> None:
    archive = archived(folder)
    parts, target = mounted(tmp_path / "parts", archive), tmp_path / "in-pod"
    target.mkdir()
    harm(parts)
    ran = run(unpack_command(hashlib.sha256(archive).hexdigest(), str(parts), str(target)), shell)
    assert (ran.returncode, ran.stderr) == (IS_CHANGED, "it is not what its digest says\n")
    assert list(target.iterdir()) == []


@pytest.mark.parametrize("shell", [shell for shell in SHELLS if shell != "busybox"])
@pytest.mark.parametrize("missing", ["cat", "sha256sum", "tar"])
def test_an_image_that_lacks_a_program_says_which(tmp_path: Path, shell: str, missing: str) -> None:
    programs, target = tmp_path / "bin", tmp_path / "in-pod"
    programs.mkdir()
    target.mkdir()
    for program in {"cat", "sha256sum", "tar"} - {missing}:
        (programs / program).symlink_to(shutil.which(program) or program)
    ran = run(unpack_command("d", str(tmp_path), str(target)), shell, path=str(programs))
    assert (ran.returncode, ran.stderr) == (LACKS_PROGRAM, f"the image has no {missing}\n")


def test_a_shell_is_there() -> None:
    """The tests above mean little without one."""
    assert SHELLS
