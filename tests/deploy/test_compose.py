"""docker-compose.yml, as a document: who sees which secret. That it starts is tried by hand, with an engine."""

import os
import socket
import ssl
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509

from muster.embedded import first_secrets
from services.runtime.services import SERVER_UID, of_group
from services.runtime.services import SERVICES as TABLE

COMPOSE: dict[str, Any] = yaml.safe_load((Path(__file__).parents[2] / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def sees(volume: str) -> set[str]:
    """Which services mount a volume."""
    return {
        name
        for name, service in SERVICES.items()
        if any(str(mounted).startswith(f"{volume}:") for mounted in service.get("volumes", []))
    }


def users_of(setting: str) -> set[str]:
    return {name for name, service in TABLE.items() if setting in service.settings}


@pytest.mark.parametrize(
    ("volume", "services"),
    [
        ("signing-key", {"setup", "cli"}),
        ("authority", {"secrets"}),
        ("postgres-password", {"secrets", "postgres", *users_of("database_url") - {"api"}}),
        ("postgres-reader-password", {"secrets", *users_of("reader_url")}),
        ("nats-data", {"nats"}),
    ],
)
def test_a_secret_is_mounted_by_those_who_need_it_alone(volume: str, services: set[str]) -> None:
    assert sees(volume) == services


def test_every_service_runs_as_the_user_whose_password_it_reads() -> None:
    runs_as = {name: str(service.get("user", "")).partition(":")[0] for name, service in SERVICES.items()}
    for user in TABLE.keys() - {"operator", "keeper"}:
        assert runs_as[user] == str(TABLE[user].uid), user
    assert runs_as["nats"] == str(SERVER_UID)
    # The group that may read all of them is nobody else's.
    groups = {name: str(service.get("user", "")).partition(":")[2] for name, service in SERVICES.items()}
    assert [name for name, group in groups.items() if group == str(SERVER_UID)] == ["nats"]


def test_every_service_runs_in_a_container_of_its_own() -> None:
    programs = {str(service.get("command", [""])[0]): name for name, service in SERVICES.items() if name != "migrate"}
    services = (*of_group("control"), *of_group("workers"), *of_group("setup"))
    assert {program: name for program, name in programs.items() if program.startswith("services.")} == {
        f"services.{name}": name for name in services
    }


def test_the_api_reads_postgres_as_a_role_of_its_own_that_setup_makes() -> None:
    for service in ("api", "setup"):
        assert "muster_api@" in SERVICES[service]["environment"]["MUSTER_POSTGRES_READER_URL"]
    assert "MUSTER_POSTGRES_URL" not in SERVICES["api"]["environment"]


def test_no_password_stands_in_the_document_and_no_pod_runs_beside_the_services() -> None:
    for name, service in SERVICES.items():
        environment: dict[str, str] = service.get("environment", {})
        assert not [key for key in environment if key.endswith("PASSWORD")], name
    assert SERVICES["agent"]["environment"]["MUSTER_AGENT_KINDS"] == "simulated"
    assert SERVICES["setup"]["environment"]["MUSTER_FIRST_CLUSTER"]


def test_secrets_are_made_once_and_for_one_user_each(tmp_path: Path) -> None:
    first_secrets.main(tmp_path, ("nats.example.com", "10.0.0.7"))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    passwords = {(tmp_path / "nats" / user).read_text() for user in TABLE}
    assert len(passwords) == len(TABLE)
    assert all(word[0].isalpha() and len(word) > 40 for word in passwords)
    for user, service in TABLE.items():
        status = (tmp_path / "nats" / user).stat()
        assert stat.S_IMODE(status.st_mode) == 0o440
        if os.geteuid() == 0:
            assert (status.st_uid, status.st_gid) == (service.uid, SERVER_UID)

    first_secrets.main(tmp_path, ("other.example.com",))
    after = {path: path.read_bytes() for path in before}
    changed = {path.name for path in before if before[path] != after[path]}
    assert changed == {"server.crt", "server.key"}, "only names in the certificate may change"
    certificate = x509.load_pem_x509_certificate(after[tmp_path / "tls" / "server.crt"])
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["nats", "localhost", "other.example.com"]
    ssl.create_default_context(cafile=str(tmp_path / "public" / "ca.crt"))


def test_certificates_that_were_given_stay(tmp_path: Path) -> None:
    (tmp_path / "tls").mkdir()
    for name in ("server.crt", "server.key", "ca.crt"):
        (tmp_path / "tls" / name).write_text(name)
    first_secrets.main(tmp_path, ())
    assert (tmp_path / "tls" / "server.key").read_text() == "server.key"
    assert (tmp_path / "public" / "ca.crt").read_text() == "ca.crt"
    assert not (tmp_path / "authority").exists()


@pytest.mark.parametrize(("answer", "healthy"), [("200 OK", True), ("503 Service Unavailable", False), (None, False)])
def test_the_health_check_of_a_container_tells_what_readyz_says(answer: str | None, healthy: bool) -> None:
    check = [str(word).replace("$$", "$") for word in SERVICES["scheduler"]["healthcheck"]["test"]]
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        if answer is None:
            server.close()
        program = [word.replace("8081", port) for word in check[1:]]
        with subprocess.Popen(program, stderr=subprocess.DEVNULL) as asking:
            if answer is not None:
                connection = server.accept()[0]
                with connection:
                    asked = b""
                    # It may come in pieces: the shell writes a line at a time.
                    while b"\r\n\r\n" not in asked and (piece := connection.recv(1024)):
                        asked += piece
                    assert asked.startswith(b"GET /readyz HTTP/1.0\r\n\r\n")
                    connection.sendall(f"HTTP/1.1 {answer}\r\nConnection: close\r\n\r\n{{}}".encode())
            assert (asking.wait(30) == 0) is healthy
