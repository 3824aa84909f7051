"""The table of services: what it says of the folders, and a service that is registered there and nowhere else."""

import asyncio
import re
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from development.servers import EVERYTHING, NatsServer
from muster.embedded import process
from services.runtime.nats.connection import connect
from services.runtime.nats.permissions import permission
from services.runtime.process.host import Health
from services.runtime.process.settings import Settings
from services.runtime.services import SERVICES, Service, of_group
from tests.support.refusals import raw, refused, settle

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
PROGRAMS = {*of_group("control"), *of_group("workers"), *of_group("setup")}


def test_every_service_has_a_folder_and_stands_in_the_import_contract() -> None:
    assert {path.parent.name for path in (ROOT / "services").glob("*/__main__.py")} == PROGRAMS
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["id"] == "services")
    assert set(re.findall(r"\w+", layers[0])) == PROGRAMS


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_a_service_reads_the_settings_of_its_line(name: str) -> None:
    sources = "".join(path.read_text() for path in (ROOT / "services" / name).rglob("*.py"))
    known = {name for name in dir(Settings) if not name.startswith("_")} | set(Settings.model_fields)
    read = known & set(re.findall(r"\bsettings\.(\w+)", sources)) - {"password_of"}  # a way, and no setting
    assert read == set(SERVICES[name].settings)


def test_nobody_but_the_server_has_the_user_of_another() -> None:
    """But for what an operator runs once, which reads the signing key as setup does."""
    borrowed = {"keeper", "backup", "restore", "erase", "rotate"}
    uids = [service.uid for name, service in SERVICES.items() if name not in borrowed]
    assert len(set(uids)) == len(uids)


async def test_a_new_service_has_its_user_and_its_rights_and_runs_with_the_others(
    server_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(settings: Settings, health: Health, stop: asyncio.Event) -> None:
        connection = await connect(settings, "greeter")
        health.ready()
        await connection.publish("greetings.all", b"hello")
        await stop.wait()
        await connection.close()

    line = Service(rights=permission("greeter", "greetings.>"), group="workers", uid=10099)
    monkeypatch.setitem(SERVICES, "greeter", line)
    monkeypatch.setitem(sys.modules, "services.greeter", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "services.greeter.service", SimpleNamespace(run=run))

    server = NatsServer(server_folder / "nats-with-a-greeter")
    server.start()
    try:
        hearing = await connect(server.settings(EVERYTHING), EVERYTHING)
        heard = await hearing.subscribe("greetings.*")
        await hearing.flush()
        health, stop = Health("greeter"), asyncio.Event()
        running = asyncio.ensure_future(process.load("workers")["greeter"](server.settings("greeter"), health, stop))
        assert (await heard.next_msg(timeout=60)).data == b"hello"
        async with raw(server, "greeter") as (greeter, refusals):
            await greeter.publish("ev.workload.k", b"")
            await settle(greeter)
        assert refused(refusals, "ev.workload.k")
        stop.set()
        await running
        await hearing.close()
    finally:
        server.stop()
