"""A test that hangs is ended, with the stack of what it waited for."""

import subprocess
import sys
from pathlib import Path

CONFTEST = Path(__file__).with_name("conftest.py")
HANGS = """
import asyncio, pytest

@pytest.mark.anyio
async def test_waits():
    await asyncio.Event().wait()  # for ever
"""


def test_an_async_test_that_hangs_ends_at_its_limit_and_says_what_it_waited_for(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text())
    (tmp_path / "test_hang.py").write_text(HANGS)
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:schemathesis",
            "--timeout",
            "0.5",
            "--rootdir",
            str(tmp_path),
            str(tmp_path),
        ],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ran.returncode == 1, ran.stdout
    assert "Timeout (>0.5s)" in ran.stdout
    assert "await asyncio.Event().wait()  # for ever" in ran.stdout
