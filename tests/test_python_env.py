"""tools/python-env on a small checkout: one package without dependencies that builds itself, so no index is asked.

Each checkout stands on a Python of its own, a tree of links to ours: what went into the wrong folder is seen there,
and our own Python stays as it is.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.lacking import lacking

TOOL = Path(__file__).parents[1] / "tools" / "python-env"

PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["tools"]
[project]
name = "muster"
version = "7.0"
requires-python = ">=3.12"
[project.scripts]
muster = "muster:main"
"""
LOCK = """version = 1
revision = 3
requires-python = ">=3.12"

[[package]]
name = "muster"
version = "7.0"
source = { editable = "." }
"""
PACKAGE = "import sys\n\ndef main() -> None:\n    print('muster 7.0', sys.prefix)\n"
BACKEND = """
import os, zipfile

def build_editable(folder, config_settings=None, metadata_directory=None):
    info, name = "muster-7.0.dist-info", "muster-7.0-py3-none-any.whl"
    files = {
        "muster.pth": os.getcwd() + "\\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\\nName: muster\\nVersion: 7.0\\nRequires-Python: >=3.12\\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\\nGenerator: backend\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
        f"{info}/entry_points.txt": "[console_scripts]\\nmuster = muster:main\\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\\n" for path in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
    return name
"""


def uv() -> Path:
    """The one of this checkout, or of the machine."""
    found = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if found is None or subprocess.run([found, "--version"], capture_output=True, check=False).returncode:
        lacking("needs uv, which `make venv` installs into .venv where the machine has none")
    return Path(found)


class Checkout:
    def __init__(self, folder: Path) -> None:
        self.root = folder / "first"
        self.base = folder / "base"
        self._home = folder
        linked(Path(sys.base_prefix), self.base)
        for package in ("events", "projections", "services", "muster", "tools"):
            (self.root / package).mkdir(parents=True)
        shutil.copy(TOOL, self.root / "tools")
        for name, text in (
            ("pyproject.toml", PROJECT),
            ("uv.lock", LOCK),
            ("muster/__init__.py", PACKAGE),
            ("tools/backend.py", BACKEND),
        ):
            (self.root / name).write_text(text)
        (folder / "bin").mkdir()
        shutil.copy(uv(), folder / "bin" / "uv")

    def run(self, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
        """As `make venv` does it, with nothing of this machine's but its shell."""
        environment = {
            "PATH": f"{self._home / 'bin'}:/usr/bin:/bin",
            "HOME": str(self._home),
            "PYENV_ROOT": str(self._home / "none"),
            "UV_CACHE_DIR": str(self._home / "cache"),
            "UV_OFFLINE": "1",
        }
        return subprocess.run(
            command, cwd=self.root, env=environment | more, capture_output=True, text=True, check=False, timeout=100
        )

    def make_venv(self) -> str:
        made = self.run("tools/python-env", MUSTER_PYTHON=str(self.base / "bin" / "python3"))
        assert made.returncode == 0, made.stderr
        return made.stderr

    def move(self, name: str) -> None:
        self.root = self.root.rename(self._home / name)

    def version(self) -> str:
        return self.run(".venv/bin/muster", "--version").stdout.strip()

    def installed_beneath(self) -> list[str]:
        return [str(path) for path in self.base.rglob("*muster*")]


def linked(python: Path, base: Path) -> None:
    """A Python of its own in `base`: its program copied, so that it finds itself there; its library in links."""
    (base / "bin").mkdir(parents=True)
    shutil.copy(Path(sys.executable).resolve(), base / "bin" / "python3")
    for library in python.glob("lib*"):
        (base / library.name).mkdir()
        for entry in library.iterdir():
            if entry.name.startswith("python3") and (entry / "site.py").exists():
                (base / library.name / entry.name).mkdir()
                for part in entry.iterdir():
                    if part.name not in ("site-packages", "dist-packages"):
                        (base / library.name / entry.name / part.name).symlink_to(part)
                (base / library.name / entry.name / "site-packages").mkdir()
            else:
                (base / library.name / entry.name).symlink_to(entry)


@pytest.fixture
def checkout(tmp_path: Path) -> Iterator[Checkout]:
    made = Checkout(tmp_path)
    alone = subprocess.run(
        [made.base / "bin" / "python3", "-I", "-c", "import sys, ssl; print(sys.prefix)"],
        capture_output=True,
        text=True,
        check=False,
    )
    if alone.stdout.strip() != str(made.base):
        lacking(f"this Python does not run from another folder: {alone.stderr or alone.stdout}")
    yield made
    assert made.installed_beneath() == []


def test_what_is_up_to_date_is_left_alone(checkout: Checkout) -> None:
    assert "making .venv" in checkout.make_venv()
    assert checkout.version() == f"muster 7.0 {checkout.root}/.venv"
    assert checkout.make_venv() == ""


def test_the_venv_of_a_moved_checkout_is_made_anew(checkout: Checkout) -> None:
    checkout.make_venv()
    checkout.move("second")
    said = checkout.make_venv()
    assert said.splitlines()[0] == (
        "muster: .venv was made in another folder, or not to its end: programs in it may not run"
    )
    assert "making .venv with Python 3" in said
    assert checkout.version() == f"muster 7.0 {checkout.root}/.venv"
    assert checkout.make_venv() == ""


def test_a_moved_venv_is_no_python_to_make_the_new_one_with(checkout: Checkout) -> None:
    """uv finds the Python of the `.venv` in the folder where it is asked, which is removed then."""
    checkout.make_venv()
    checkout.move("second")
    path = f"{checkout.root}/.venv/bin:{checkout.base.parent}/bin:{checkout.base}/bin:/usr/bin:/bin"
    made = checkout.run("tools/python-env", PATH=path)
    assert made.returncode == 0, made.stderr
    assert checkout.version() == f"muster 7.0 {checkout.root}/.venv"


def test_the_uv_that_stood_in_a_moved_venv_is_kept(checkout: Checkout) -> None:
    checkout.make_venv()
    (checkout.base.parent / "bin" / "uv").rename(checkout.root / ".venv" / "bin" / "uv")
    checkout.move("second")
    assert "no uv was found" not in checkout.make_venv()
    assert checkout.run(".venv/bin/uv", "--version").returncode == 0
    assert checkout.version() == f"muster 7.0 {checkout.root}/.venv"


def test_nothing_is_installed_beneath_where_uv_saw_the_venv_half_made(checkout: Checkout) -> None:
    half = checkout.root / ".venv" / "bin"
    half.mkdir(parents=True)
    (half / "python").symlink_to(checkout.base / "bin" / "python3")
    seen = checkout.run("uv", "pip", "list", "--python", ".venv/bin/python")
    assert str(checkout.base) in seen.stderr, "uv believes that this is the Python beneath, and remembers it"
    checkout.make_venv()
    assert checkout.version() == f"muster 7.0 {checkout.root}/.venv"
