"""People who are forgotten while they work, by runs of which some are killed: nothing that Muster wrote names them."""

import json
import random
import subprocess
import time
from pathlib import Path
from uuid import uuid4

import pytest

from development.stack import Stack
from services.runtime.backup.check import read_manifest
from services.runtime.backup.place import Place
from services.runtime.backup.seal import sealer_of

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600)]

SECONDS = 150
PASSPHRASE = "a passphrase of tests\n"
LONGEST_LIFE = 2.0
"""Seconds after which a run of `muster user erase` is killed, at most: starting it takes a half."""


def said(stack: Stack, *words: str, token: str = "", code: int | None = 0) -> str:
    ran = stack.muster(*(("--token", token) if token else ()), *words, timeout_seconds=SECONDS)
    assert code is None or ran.returncode == code, (words, ran.stdout, ran.stderr)
    return ran.stdout


def live(stack: Stack, name: str) -> None:
    """Come as a stranger, get a role, work, be looked for, be refused."""
    token = said(stack, "token", "create", "--user", name).strip()
    said(stack, "project", "create", f"x{uuid4().hex[:8]}", token=token, code=None)
    said(stack, "role", "grant", name, "researcher", "--project", "default")
    workload = f"w{uuid4().hex[:8]}"
    said(
        stack,
        "training",
        "submit",
        workload,
        "-i",
        "busybox",
        "-p",
        "default",
        "--cluster",
        "local",
        "--",
        "sleep",
        "60",
        token=token,
    )
    said(stack, "workload", "list", "--search", name)
    said(stack, "workload", "describe", workload)
    said(stack, "role", "grant", name, "administrator", "--everywhere", token=token, code=None)
    said(stack, "workload", "suspend", workload, token=token)
    assert name in said(stack, "role", "list")
    assert name in said(stack, "audit", "list", "-o", "json")


def erase(stack: Stack, name: str, life: float) -> None:
    """Kill a run of it, and have the next finish."""
    process = subprocess.Popen(
        [stack.python, "-P", "-m", "muster.cli.main", "user", "erase", name, "--yes"],
        env=stack.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    time.sleep(life)
    process.kill()
    process.wait(timeout=10)
    said(stack, "user", "erase", name, "--yes", code=None)
    said(stack, "user", "erase", name, "--yes", code=3)  # there is nothing more to erase


def naming(folder: Path, names: list[str]) -> list[str]:
    """Files that hold one of the names."""
    found: list[str] = []
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
            found += [f"{path}: {name}" for name in names if name.encode() in content]
    return found


def in_backup(folder: Path, names: list[str]) -> list[str]:
    place = Place(str(folder))
    manifest = read_manifest(place)
    sealer = sealer_of(manifest.sealing, PASSPHRASE.strip().encode())
    opened = [sealer.unseal(part.sealed_as, place.read(part.file)) for part in manifest.kept]
    return [name for name in names for content in opened if name.encode() in content]


def test_people_who_are_forgotten_are_named_in_nothing_that_was_written(
    server_folder: Path, tmp_path: Path, rounds: int, chance: random.Random
) -> None:
    stack = Stack(server_folder / f"erase-{uuid4().hex[:6]}")
    (tmp_path / "key").write_text(PASSPHRASE)
    names: list[str] = []
    try:
        stack.start()
        for _ in range(rounds):
            names.append(f"canary-{uuid4().hex[:12]}@example.com")
            live(stack, names[-1])
            erase(stack, names[-1], chance.uniform(0, LONGEST_LIFE))
            assert not [one for one in json.loads(said(stack, "user", "list", "-o", "json")) if names[-1] in str(one)]
        said(stack, "projections", "rebuild")
        assert "no difference" in stack.muster("log", "verify", timeout_seconds=SECONDS).stderr
        said(stack, "backup", str(tmp_path / "backup"), "--key-file", str(tmp_path / "key"))
        assert in_backup(tmp_path / "backup", names) == []
        stack.stop()
        assert naming(stack.data_dir, names) == []
    finally:
        stack.close()
