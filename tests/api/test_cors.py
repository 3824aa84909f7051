"""Pages of other origins: none may read an answer unless a setting names its origin; cookies are never asked for."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from development.servers import NatsServer, PostgresServer
from services.api.application import build_application
from services.runtime.process.settings import Settings
from tests.support.api import Served, serving

OURS, THEIRS = "https://console.example.org", "https://console.example.org.evil.example"
PREFLIGHT = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}


@pytest.fixture(scope="module")
def named(
    nats_server: NatsServer, postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("cors")
    with serving(nats_server, postgres_server, folder, cors_origins=f"{OURS}, http://localhost:5173") as running:
        yield running


def allowed(answer: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name.startswith("access-control-allow")}


def test_an_origin_that_is_named_may_read_and_ask_before(named: Served) -> None:
    with named.client() as client:
        for path in ("/api/v1/me", "/nothing"):
            assert allowed(client.get(path, headers={"Origin": OURS})) == {"access-control-allow-origin": OURS}
        asked = client.options("/api/v1/workloads/trainings", headers={"Origin": OURS, **PREFLIGHT})
        assert asked.status_code == 200
        assert asked.headers["access-control-allow-origin"] == OURS
        assert "access-control-allow-credentials" not in asked.headers


@pytest.mark.parametrize("origin", [THEIRS, "null", "http://console.example.org", OURS + ":8443", "*"])
def test_any_other_origin_is_told_nothing(named: Served, origin: str) -> None:
    with named.client() as client:
        assert allowed(client.get("/api/v1/me", headers={"Origin": origin})).keys() <= set()
        asked = client.options("/api/v1/workloads/trainings", headers={"Origin": origin, **PREFLIGHT})
        assert asked.status_code == 400
        assert "access-control-allow-origin" not in asked.headers


def test_a_refusal_of_the_edge_can_be_read_by_the_page_that_caused_it(named: Served) -> None:
    with named.client() as client:
        headers = {"Origin": OURS, "Content-Type": "text/plain"}
        refused = client.post("/api/v1/workloads/trainings", content=b"x", headers=headers)
        assert refused.status_code == 415
        assert refused.headers["access-control-allow-origin"] == OURS


@pytest.mark.parametrize(
    "given", ["*", "https://*.example.org", "https://a.example/", "example.org", "https://A.example"]
)
def test_what_is_no_exact_origin_is_refused_at_the_start(given: str) -> None:
    with pytest.raises(ValidationError, match="is no origin"):
        Settings(cors_origins=given)


@pytest.mark.anyio
async def test_where_nothing_is_named_no_page_is_told_anything() -> None:
    nobody: Any = None
    transport = httpx.ASGITransport(build_application(nobody))
    async with httpx.AsyncClient(transport=transport, base_url="http://api") as client:
        assert allowed(await client.get("/healthz", headers={"Origin": OURS})) == {}
        assert (await client.options("/healthz", headers={"Origin": OURS, **PREFLIGHT})).status_code == 405
