"""What runs in the container `nats`: a server that is spoken to by TLS alone, and that ends when it cannot write."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from development.ports import free_port
from development.servers import EVERYTHING, listens
from development.streams import recreate_streams
from muster.embedded import first_secrets
from muster.embedded.providers import nats
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.log.store import Committed
from services.runtime.nats.connection import ConnectionLostError, connect
from services.runtime.nats.declared import MAX_FILE_STORE
from services.runtime.nats.nats_config import DEPLOYED_CALLOUT, render_nats_config
from services.runtime.process.settings import Settings
from services.runtime.services import SERVICES
from tests.support.drafts import grant
from tests.support.small_disk import SmallDisk, small_disk

pytestmark = pytest.mark.anyio


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", 24) as disk:
        yield disk


class Container:
    """The program of the container, with secrets of its own."""

    def __init__(self, folder: Path, store: Path) -> None:
        self._secrets, self._config, self._store = folder / "secrets", folder / "nats.conf", store
        first_secrets.main(self._secrets, ())
        self.passwords = self._secrets / "nats"
        (self.passwords / EVERYTHING).write_text("p-everything")
        self.port = free_port()
        names = (*SERVICES, EVERYTHING)
        text = render_nats_config(
            passwords={name: f"$MUSTER_NATS_PASSWORD_{name.upper()}" for name in names},
            callout=DEPLOYED_CALLOUT,
            store_dir=str(store / "js"),
            max_file_store=f"${MAX_FILE_STORE}",
            port=self.port,
            tls_dir=str(self._secrets / "tls"),
            all_powerful=EVERYTHING,
        )
        self._config.write_text(text)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> subprocess.Popen[bytes]:
        ca_file = self._secrets / "public" / "ca.crt"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "muster.embedded.nats_server", str(self._config), str(self._store), str(self.port)],
            env={
                "PATH": f"{nats.binary().parent}:{os.environ['PATH']}",
                "MUSTER_NATS_PASSWORD_DIR": str(self.passwords),
                "MUSTER_NATS_CA_FILE": str(ca_file),
            },
            cwd=Path(__file__).parents[2],
            stderr=subprocess.DEVNULL,
        )
        return self.process

    def settings(self, ca_file: Path | None = None) -> Settings:
        return Settings(
            nats_url=f"tls://localhost:{self.port}",
            nats_password_dir=self.passwords,
            nats_ca_file=ca_file or self._secrets / "public" / "ca.crt",
        )


@pytest.fixture
def container(tmp_path: Path, disk: SmallDisk) -> Iterator[Container]:
    made = Container(tmp_path, disk.path)
    made.start()
    yield made
    if made.process is not None:
        made.process.terminate()
        made.process.wait(60)


async def test_it_ends_when_it_cannot_write_and_writes_again_when_it_is_started_again(
    container: Container, disk: SmallDisk
) -> None:
    await until(lambda: listens(container.port))
    await recreate_streams(container.settings())
    commands = await connect(container.settings(), "commands")
    store = JetStreamEventStore(commands)
    assert await append(store, "first")
    disk.fill()
    keys = iter(range(1000))
    while await append(store, f"full-{next(keys)}"):
        pass
    process = container.process
    assert process is not None
    assert process.poll() is None, "while the disk is full, reads go on"
    disk.empty()
    assert await asyncio.to_thread(process.wait, 40) == 1

    container.start()
    async with asyncio.timeout(60):
        while not await append(store, f"again-{next(keys)}"):
            await asyncio.sleep(0.1)
    await commands.close()


async def test_nobody_is_spoken_to_without_tls_and_everybody_looks_at_the_certificate(
    container: Container, tmp_path: Path
) -> None:
    await until(lambda: listens(container.port))
    first_secrets.main(tmp_path / "others", ())
    for wrong in (
        container.settings(ca_file=tmp_path / "others" / "public" / "ca.crt"),
        container.settings().model_copy(update={"nats_url": f"nats://127.0.0.2:{container.port}"}),
    ):
        with pytest.raises((ConnectionLostError, TimeoutError)):
            async with asyncio.timeout(3):
                await connect(wrong, "commands")
    reader, writer = await asyncio.open_connection("127.0.0.1", container.port)
    assert b'"tls_required":true' in await reader.readline()
    writer.write(b'CONNECT {"user":"commands","pass":"x"}\r\nPING\r\n')
    async with asyncio.timeout(60):
        assert b"PONG" not in await reader.read()
    writer.close()


async def append(store: JetStreamEventStore, key: str) -> bool:
    return isinstance(await store.append(grant(key, 0, subject="s" * 600), deadline_seconds=0.5), Committed)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.05)
