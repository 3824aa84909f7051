"""docker-compose.yml and its overlay for production, as documents: who sees which secret, and what each container may.

Where docker-compose is installed, in either version, it merges them itself. That they start is tried by hand, with an
engine.
"""

import os
import re
import shutil
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
from services.runtime.identity.authentication import authenticator
from services.runtime.process.settings import Settings
from services.runtime.services import SERVER_UID, of_group
from services.runtime.services import SERVICES as TABLE

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.load((ROOT / "docker-compose.yml").read_text(), yaml.CSafeLoader)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
PRODUCTION: dict[str, Any] = yaml.load((ROOT / "docker-compose.production.yml").read_text(), yaml.CSafeLoader)
OVERLAID: dict[str, dict[str, Any]] = PRODUCTION["services"]
FILES = ("docker-compose.yml", "docker-compose.production.yml", "docker-compose.agents.yml")
HEALTHY = {name for name, service in SERVICES.items() if "8081" in str(service.get("healthcheck", ""))}
"""Those that serve health and figures."""


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
        ("signing-key", {"setup", "cli", "backup", "restore"}),
        ("authority", {"secrets"}),
        ("postgres-password", {"secrets", "postgres", "operator", *users_of("database_url") - {"api"}}),
        ("postgres-reader-password", {"secrets", "operator", *users_of("reader_url")}),
        ("nats-data", {"nats"}),
        ("callout-keys", {"secrets", "subscriptions"}),
        ("webhook-key", {"secrets", "webhooks", "backup", "restore"}),
    ],
)
def test_a_secret_is_mounted_by_those_who_need_it_alone(volume: str, services: set[str]) -> None:
    assert sees(volume) == services


def test_every_service_runs_as_the_user_whose_password_it_reads() -> None:
    runs_as = {name: str(service.get("user", "")).partition(":")[0] for name, service in SERVICES.items()}
    for user in TABLE.keys() - {"keeper"}:
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


def test_the_example_of_a_subscriber_sees_no_secret_of_ours_and_is_not_started_by_itself() -> None:
    service = SERVICES["subscriber"]
    assert service["profiles"] == ["examples"]
    assert [str(volume).partition(":")[0] for volume in service["volumes"]] == ["public", "./subscription.json"]
    program = (ROOT / service["build"]["context"] / "subscriber.py").read_text()
    assert [name for name in service["environment"] if f'"{name}"' not in program] == []
    assert str(service["user"]).partition(":")[0] not in {str(one.uid) for one in TABLE.values()} | {str(SERVER_UID)}
    assert (ROOT / service["build"]["context"] / "Dockerfile").exists()


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
    given(tmp_path / "tls")
    first_secrets.main(tmp_path, ())
    assert (tmp_path / "tls" / "server.key").read_text() == "server.key"
    assert (tmp_path / "public" / "ca.crt").read_text() == "ca.crt"
    assert not (tmp_path / "authority").exists()


def given(folder: Path) -> None:
    folder.mkdir()
    for name in ("server.crt", "server.key", "ca.crt"):
        (folder / name).write_text(name)


def test_the_api_has_a_certificate_where_a_folder_for_it_is_there(tmp_path: Path) -> None:
    first_secrets.main(tmp_path, ())
    assert not (tmp_path / "api-tls").exists()
    assert not (tmp_path / "public" / "api-ca.crt").exists()

    (tmp_path / "api-tls").mkdir()
    first_secrets.main(tmp_path, (), "muster.example.org")
    names = x509.load_pem_x509_certificate((tmp_path / "api-tls" / "server.crt").read_bytes()).extensions
    alternative = names.get_extension_for_class(x509.SubjectAlternativeName).value
    assert alternative.get_values_for_type(x509.DNSName) == ["api", "localhost", "muster.example.org"]
    assert (tmp_path / "public" / "api-ca.crt").read_bytes() == (tmp_path / "authority" / "ca.crt").read_bytes()
    status = (tmp_path / "api-tls" / "server.key").stat()
    assert stat.S_IMODE(status.st_mode) == 0o400
    if os.geteuid() == 0:
        assert status.st_uid == TABLE["api"].uid


def test_a_certificate_that_the_api_was_given_stays_beside_those_that_are_made(tmp_path: Path) -> None:
    given(tmp_path / "api-tls")
    for _ in range(2):
        first_secrets.main(tmp_path, ())
        assert (tmp_path / "api-tls" / "server.key").read_text() == "server.key"
        assert (tmp_path / "public" / "api-ca.crt").read_text() == "ca.crt"
        ssl.create_default_context(cafile=str(tmp_path / "public" / "ca.crt"))


@pytest.mark.parametrize("missing", ["server.crt", "server.key", "ca.crt"])
def test_a_certificate_that_was_given_in_part_is_refused_and_stays(tmp_path: Path, missing: str) -> None:
    given(tmp_path / "api-tls")
    (tmp_path / "api-tls" / missing).unlink()
    with pytest.raises(SystemExit, match=rf"a certificate of yours, but no {re.escape(missing)}: add the "):
        first_secrets.main(tmp_path, ())
    assert {file.name: file.read_text() for file in (tmp_path / "api-tls").iterdir()} == {
        name: name for name in ("server.crt", "server.key", "ca.crt") if name != missing
    }


def test_the_name_of_the_api_cannot_be_localhost(tmp_path: Path) -> None:
    """The container `cli` calls the API by that name."""
    (tmp_path / "api-tls").mkdir()
    with pytest.raises(SystemExit, match=r"MUSTER_HTTP_NAME: .* Leave it empty"):
        first_secrets.main(tmp_path, (), "localhost")


# -- in production -----------------------------------------------------------------------------------------------------


def test_in_production_every_container_is_confined_and_limited() -> None:
    assert OVERLAID.keys() == SERVICES.keys()
    for name, service in OVERLAID.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["mem_limit"], name
        assert service["pids_limit"], name
        assert service["logging"]["options"] == {"max-size": "10m", "max-file": "5"}, name
        assert ("cpus" in service) is ("restart" in SERVICES[name]), name
    # Those who become, or write for, another user.
    assert {name for name, service in OVERLAID.items() if "cap_add" in service} == {"secrets", "postgres"}


def test_in_production_the_memory_that_nats_may_use_fits_its_limit() -> None:
    default = str(SERVICES["nats"]["environment"]["GOMEMLIMIT"]).partition(":-")[2].removesuffix("MiB}")
    assert int(default) < int(OVERLAID["nats"]["mem_limit"].removesuffix("m")) * 3 / 4


def test_in_production_the_api_is_published_and_serves_https_and_nats_for_subscribers_and_the_proxy() -> None:
    assert [name for name, service in SERVICES.items() if "ports" in service] == ["nats", "api", "proxy"]
    assert all("ADDRESS:-127.0.0.1}" in str(service["ports"]) for service in SERVICES.values() if "ports" in service)
    assert not [name for name, service in OVERLAID.items() if "ports" in service]
    assert OVERLAID["api"]["environment"].keys() >= {"MUSTER_HTTP_CERTIFICATE_FILE", "MUSTER_HTTP_KEY_FILE"}
    assert OVERLAID["cli"]["environment"]["MUSTER_URL"].startswith("https://")
    key = {
        name for name, one in OVERLAID.items() if any("/run/muster/api-tls" in str(v) for v in one.get("volumes", ()))
    }
    assert key == {"secrets", "api"}


def test_in_production_what_leads_outside_is_the_api_who_asks_the_issuer_who_posts_webhooks_and_the_proxy() -> None:
    networks = {name: set(service.get("networks", ["default"])) for name, service in OVERLAID.items()}
    outside = {name for name, joined in networks.items() if "outside" in joined}
    assert outside == {"api", "ownership", "operator", "webhooks", "proxy"}
    assert PRODUCTION["networks"]["default"] == PRODUCTION["networks"]["monitoring"] == {"internal": True}
    # A scraper meets neither NATS nor Postgres.
    assert {name for name, joined in networks.items() if "monitoring" in joined} == HEALTHY
    assert {name for name in OVERLAID if "default" not in networks[name]} == set()


def test_prometheus_scrapes_every_service_that_has_figures() -> None:
    (job,) = yaml.safe_load((ROOT / "deploy" / "prometheus.yml").read_text())["scrape_configs"]
    (targets,) = job["static_configs"]
    assert set(targets["targets"]) == {f"{name}:8081" for name in HEALTHY}
    for name in HEALTHY:
        assert OVERLAID[name]["environment"]["MUSTER_HEALTH_HOST"] == "0.0.0.0", name
        assert OVERLAID[name]["environment"]["MUSTER_METRICS"] == "true", name


COMMANDS = [
    pytest.param(command, marks=pytest.mark.skipif(shutil.which(command[0]) is None, reason="it is not installed"))
    for command in (("docker-compose",), ("docker", "compose"))
]


def merge(command: tuple[str, ...], count: int, **given: str) -> dict[str, dict[str, Any]]:
    """Services, as the program sees them with the first so many files, and with these variables alone."""
    files = [word for file in FILES[:count] for word in ("-f", file)]
    asked = subprocess.run(
        [*command, *files, "--profile", "cli", "--profile", "migrate", "--profile", "examples", "config"],
        cwd=ROOT,
        env={key: value for key, value in os.environ.items() if not key.startswith(("MUSTER_", "COMPOSE_"))} | given,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if "is not a docker command" in asked.stderr or "unknown" in asked.stderr:
        pytest.skip("this engine's program has no compose")
    assert asked.returncode == 0, asked.stderr
    return yaml.safe_load(asked.stdout)["services"]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_docker_compose_merges_the_files(command: tuple[str, ...], count: int) -> None:
    merged = merge(command, count)
    assert merged.keys() == SERVICES.keys()
    published = {name for name, service in merged.items() if service.get("ports")}
    assert published == {"api", "nats", "proxy"}
    assert len(merged["nats"]["ports"]) == 1
    api = merged["api"]
    assert len(api["ports"]) == 1
    # What the first file says stays, beside what the second adds.
    assert api["environment"]["MUSTER_HTTP_HOST"] == "0.0.0.0"
    assert ("MUSTER_HTTP_KEY_FILE" in api["environment"]) is (count > 1)
    assert len(api["volumes"]) == (4 if count == 1 else 5)
    networks = ("default", "subscribers", "agents")[:count]
    assert set(merged["nats"].get("networks") or {"default"}) == set(networks)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize(
    ("given", "url", "file"),
    [
        ({}, "", Path("/run/muster/public/jwks.json")),
        (
            {"MUSTER_JWKS_URL": "https://issuer.example.org/keys", "MUSTER_JWKS_FILE": ""},
            "https://issuer.example.org/keys",
            None,
        ),
    ],
)
def test_in_production_tokens_are_of_the_issuer_that_is_named(
    command: tuple[str, ...], given: dict[str, str], url: str, file: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    merged = merge(command, 2, **given)
    for name in ("api", "ownership"):
        for variable, value in merged[name]["environment"].items():
            monkeypatch.setenv(variable, str(value))
        settings = Settings()
        assert (settings.jwks_url, settings.jwks_file) == (url, file)
        authenticator(settings)  # refuses both, and neither


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
            assert (asking.wait(60) == 0) is healthy
