"""The Python client as its users have it: a wheel, in an environment with what the wheel asks for and nothing else."""

import importlib.metadata
import subprocess
import sys
import zipfile
from pathlib import Path

from packaging.requirements import Requirement

UV = str(Path(sys.executable).parent / "uv")
SOURCE = Path(__file__).parents[2] / "clients" / "python"


def wheel(folder: Path) -> Path:
    """Built, without a network."""
    done = subprocess.run(
        [UV, "build", "--offline", "--wheel", "--no-config", "--out-dir", str(folder), str(SOURCE)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built


def installed(folder: Path, *more: str) -> Path:
    """The Python of a new environment with the wheel; what the wheel needs, and `more`, is that of this one's."""
    built = wheel(folder)
    packages = folder / "environment" / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "environment")], check=True)
    with zipfile.ZipFile(built) as content:
        content.extractall(packages)
    (needs,) = [one for one in importlib.metadata.distributions(path=[str(packages)]) if one.name == "muster-client"]
    for name in _closure([*(needs.requires or ()), *more]):
        for top in _tops(name):
            if not (packages / top.name).exists():
                (packages / top.name).symlink_to(top)
    return folder / "environment" / "bin" / "python"


def _closure(requirements: list[str]) -> set[str]:
    """Names of all distributions that these lead to, without what only an extra asks for."""
    found: set[str] = set()
    while requirements:
        asked = Requirement(requirements.pop())
        if asked.name not in found and (asked.marker is None or asked.marker.evaluate({"extra": ""})):
            found.add(asked.name)
            requirements += importlib.metadata.requires(asked.name) or []
    return found


def _tops(name: str) -> set[Path]:
    """The files and folders of a distribution that stand in site-packages themselves."""
    files = [file for file in importlib.metadata.files(name) or [] if file.parts[0] not in {"..", "__pycache__"}]
    return {Path(str(file.locate())).parents[len(file.parts) - 1] / file.parts[0] for file in files}
