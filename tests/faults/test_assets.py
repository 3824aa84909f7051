"""Ten thousand environments: every page is whole, in order, and says where the next one begins."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from development.servers import NatsServer, PostgresServer
from events.aggregate import ASSET, TENANT, Aggregate, Chain, draft
from events.asset import CreateAsset, asset_key
from events.commit import Actor, Commit
from events.decision import Context
from events.ids import TENANT_KEY
from events.tenant import GrantTenantRole
from tests.support.api import serving

pytestmark = pytest.mark.faults

PAGE = 100
NOW, ADMIN = datetime(2026, 1, 1, tzinfo=UTC), Actor(id="admin")


def log_of(count: int) -> list[Commit]:
    """An administrator, and so many environments."""
    commits: list[Commit] = []

    def add(aggregate: Aggregate[Any], key: str, command: Any) -> None:
        command_id, chain = f"c{len(commits)}", Chain(state=aggregate.initial)
        events = aggregate.decide(command, chain.state, Context(now=NOW, actor=ADMIN, command_id=command_id))
        assert isinstance(events, tuple)
        made = draft(aggregate, key, chain, events, command_id=command_id, actor=ADMIN, now=NOW)
        commits.append(made.committed(len(commits) + 1))

    add(TENANT, TENANT_KEY, GrantTenantRole(subject="admin", role="administrator", actor="admin"))
    for number in range(count):
        name = f"torch-{number:05}"
        spec = {"image": "i", "environmentVariables": [{"name": f"V{n}", "value": "x" * 20} for n in range(20)]}
        key = asset_key("environment", "tenant", "", name)
        add(ASSET, key, CreateAsset(kind="environment", name=name, scope="tenant", spec=spec))
    return commits


def test_ten_thousand_are_listed_in_pages(
    nats_server: NatsServer, postgres_server: PostgresServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    count = 1_000 if request.config.option.short else 10_000
    with serving(nats_server, postgres_server, tmp_path, "", log_of(count)) as served, served.client() as admin:
        found: list[str] = []
        offset: int | None = 0
        while offset is not None:
            query = {"search": "TORCH", "offset": offset, "limit": PAGE, "min_seq": count + 1}
            answer = admin.get("/api/v1/asset/environment", params=query)
            assert answer.status_code == 200, answer.text
            page = [one["meta"]["name"] for one in answer.json()["environments"]]
            assert len(page) == min(PAGE, count - len(found))
            found += page
            offset = answer.json()["next"]
        assert found == [f"torch-{number:05}" for number in range(count)]
        one = admin.get("/api/v1/asset/environment", params={"name": found[-1]})
        assert len(one.json()["environments"]) == 1
