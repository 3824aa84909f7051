"""What is kept of a kubeconfig: one context, that works wherever the file was."""

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from muster.embedded.kubeconfig import KubeconfigError, minified


def written(folder: Path, **changes: Any) -> Path:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "one",
        "contexts": [
            {"name": "one", "context": {"cluster": "c1", "user": "u1", "namespace": "n"}},
            {"name": "two", "context": {"cluster": "c2", "user": "u2"}},
            {"name": "broken", "context": {"cluster": "c3", "user": "u1"}},
        ],
        "clusters": [
            {"name": "c1", "cluster": {"server": "https://one", "certificate-authority": "pki/ca.crt"}},
            {"name": "c2", "cluster": {"server": "https://two", "certificate-authority-data": "Y2E="}},
        ],
        "users": [
            {"name": "u1", "user": {"client-certificate": "pki/ca.crt", "client-key": "../key", "tokenFile": "token"}},
            {"name": "u2", "user": {"exec": {"command": "./bin/login", "args": ["x"]}}},
            {"name": "u3", "user": {"exec": {"command": "aws", "args": ["eks"]}}},
        ],
        **changes,
    }
    (folder / "kube" / "pki").mkdir(parents=True)
    (folder / "kube" / "pki" / "ca.crt").write_text("ca")
    (folder / "key").write_text("key")
    file = folder / "kube" / "config"
    file.write_text(yaml.safe_dump(config))
    return file


def test_the_current_context_is_kept_alone_with_its_certificates_in_place(tmp_path: Path) -> None:
    kept = yaml.safe_load(minified(written(tmp_path)))
    assert kept["current-context"] == "one"
    assert [entry["name"] for kind in ("contexts", "clusters", "users") for entry in kept[kind]] == ["one", "c1", "u1"]
    assert kept["contexts"][0]["context"]["namespace"] == "n"
    assert kept["clusters"][0]["cluster"] == {
        "server": "https://one",
        "certificate-authority-data": base64.b64encode(b"ca").decode(),
    }
    assert kept["users"][0]["user"] == {
        "client-certificate-data": base64.b64encode(b"ca").decode(),
        "client-key-data": base64.b64encode(b"key").decode(),
        "tokenFile": str(tmp_path / "kube" / "token"),
    }


def test_a_named_context_is_taken_and_its_login_program_found_from_anywhere(tmp_path: Path) -> None:
    file = written(tmp_path)
    kept = yaml.safe_load(minified(file, "two"))
    assert kept["clusters"][0]["cluster"]["certificate-authority-data"] == "Y2E="
    assert kept["users"][0]["user"]["exec"] == {"command": str(tmp_path / "kube" / "bin" / "login"), "args": ["x"]}


def test_a_login_program_without_a_path_is_left_to_be_found_in_path(tmp_path: Path) -> None:
    contexts = [{"name": "one", "context": {"cluster": "c2", "user": "u3"}}]
    kept = yaml.safe_load(minified(written(tmp_path, contexts=contexts)))
    assert kept["users"][0]["user"]["exec"]["command"] == "aws"


@pytest.mark.parametrize(
    ("context", "changes", "said"),
    [
        ("three", {}, "no context three; there are: one, two, broken"),
        ("broken", {}, "no cluster c3; there are: c1, c2"),
        ("", {"current-context": ""}, "no context (none is named)"),
        ("", {"contexts": "x"}, "cannot be read"),
        ("", {"users": [{"name": "u1", "user": {"client-key": "missing"}}]}, "cannot be read: No such file"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, context: str, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(KubeconfigError) as refused:
        minified(written(tmp_path, **changes), context)
    assert said in str(refused.value)


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigError, match="nowhere cannot be read"):
        minified(tmp_path / "nowhere")
