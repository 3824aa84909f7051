"""The container `nats` of docker-compose: runs nats-server, and ends when that cannot write, so that both start again.

`python -m muster.embedded.nats_server CONFIG STORE [PORT]`. SIGHUP has the server read its configuration again.
Standard library, its neighbours and what the streams are declared to be; no other library.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Final

from muster.embedded.canary import Server, look_at, room_of
from muster.embedded.keeper import Down, Keeper
from muster.embedded.processes import describe_end, say
from services.runtime.nats.declared import LOG_MAX_BYTES, MAX_FILE_STORE, file_store_bytes
from services.runtime.trust import trusting

PROGRAM: Final = "nats-server"
PORT: Final = 4222
PUBLIC_KEY: Final = ".pub"
"""How the public half of a key is called, beside the passwords."""
STOP_SECONDS: Final = 8.0
"""Less than a container gets before it is killed; a server that is killed loses nothing."""


async def run(config: Path, store: Path, port: int) -> int:
    """Run the server until it ends, is told to, or cannot write; the exit code."""
    passwords = Path(os.environ["MUSTER_NATS_PASSWORD_DIR"])
    server = await asyncio.create_subprocess_exec(
        PROGRAM, "--config", str(config), env={**os.environ, **environment(passwords)}
    )
    cannot_write: asyncio.Future[Down] = asyncio.get_running_loop().create_future()

    async def end(down: Down) -> None:
        if not cannot_write.done():
            cannot_write.set_result(down)

    place = Server(
        port=port,
        password=(passwords / "keeper").read_text(),
        store=store,
        tls=trusting(Path(os.environ["MUSTER_NATS_CA_FILE"])),
        tls_name="localhost",
    )
    keeper = Keeper(
        look=lambda room: look_at(place, room), room=lambda: room_of(store), store=store, restart=end, say=say
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, _pass_on, server, number)
    ended = asyncio.create_task(server.wait())
    looking = asyncio.create_task(keeper.run())
    await asyncio.wait([ended, cannot_write, looking], return_when=asyncio.FIRST_COMPLETED)
    if not ended.done():
        _pass_on(server, signal.SIGTERM)
        await asyncio.wait([ended], timeout=STOP_SECONDS)
    looking.cancel()
    await asyncio.gather(looking, return_exceptions=True)
    if not ended.done():
        server.kill()
    code = await ended
    if cannot_write.done():
        cannot_write.result()()
    say(f"{PROGRAM} {describe_end(code)}")
    return 1 if cannot_write.done() or code else 0


def environment(passwords: Path) -> dict[str, str]:
    """The variables that the configuration names: one password each, the public halves of two keys, and how much of its
    disk the server may use.
    """
    log_max_bytes = int(os.environ.get("MUSTER_LOG_MAX_BYTES", LOG_MAX_BYTES))
    found = {MAX_FILE_STORE: str(file_store_bytes(log_max_bytes))}
    for file in passwords.glob("[a-z]*"):
        name = file.stem if file.suffix == PUBLIC_KEY else f"PASSWORD_{file.name}"
        found[f"MUSTER_NATS_{name.upper()}"] = file.read_text()
    return found


def _pass_on(server: asyncio.subprocess.Process, number: signal.Signals) -> None:
    if server.returncode is None:
        server.send_signal(number)


if __name__ == "__main__":
    sys.exit(asyncio.run(run(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]) if sys.argv[3:] else PORT)))
