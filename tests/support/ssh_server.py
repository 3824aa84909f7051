"""An SSH server on loopback that gives repositories of a folder, and lets in one key."""

import asyncio
import contextlib
import shlex
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import asyncssh

USER = "git"


@dataclass(kw_only=True)
class SshServer:
    """`port`, and what it saw of those who came."""

    port: int
    host_key: str
    """Its public half, as OpenSSH writes it."""
    offered: list[str] = field(default_factory=list[str])
    """Public keys that were offered, by whomever."""
    commands: list[str] = field(default_factory=list[str])

    @property
    def known(self) -> str:
        """The line of `known_hosts` by which it is believed."""
        return f"[127.0.0.1]:{self.port} {self.host_key}\n"

    def address(self, folder: Path) -> str:
        return f"ssh://{USER}@127.0.0.1:{self.port}{folder}"


class _Door(asyncssh.SSHServer):
    def __init__(self, told: SshServer, let_in: str) -> None:
        self._told = told
        self._let_in = let_in

    def begin_auth(self, username: str) -> bool:
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        public = " ".join(key.export_public_key().decode().split()[:2])
        self._told.offered.append(public)
        return username == USER and public == self._let_in


@contextlib.asynccontextmanager
async def serving_ssh(let_in: str) -> AsyncGenerator[SshServer]:
    """Until the block ends. `let_in`: the public key of who may read repositories, all that this machine has."""
    host = asyncssh.generate_private_key("ssh-ed25519")
    told = SshServer(port=0, host_key=" ".join(host.export_public_key().decode().split()[:2]))

    async def serve(process: asyncssh.SSHServerProcess[bytes]) -> None:
        words = shlex.split(process.command or "")
        told.commands.append(process.command or "")
        if not words or words[0] != "git-upload-pack":
            process.exit(1)
            return
        git = await asyncio.create_subprocess_exec(
            *("git", "-c", "safe.directory=*", "upload-pack", *words[1:]),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert git.stdin is not None
        assert git.stdout is not None
        await asyncio.gather(_copy(process.stdin, git.stdin), _copy(git.stdout, process.stdout))
        with contextlib.suppress(OSError):
            process.exit(await git.wait())  # who has what they asked for may have gone

    server = await asyncssh.listen(
        "127.0.0.1",
        0,
        server_host_keys=[host],
        server_factory=lambda: _Door(told, let_in),
        process_factory=serve,
        encoding=None,
    )
    told.port = server.get_port()
    try:
        yield told
    finally:
        server.close()
        await server.wait_closed()


class _Reads(Protocol):
    async def read(self, n: int, /) -> bytes: ...


class _Writes(Protocol):
    def write(self, data: bytes, /) -> None: ...
    async def drain(self) -> None: ...
    def write_eof(self) -> None: ...


async def _copy(reader: _Reads, writer: _Writes) -> None:
    # A pipe whose reader has ended: uvloop has an exception of its own for it.
    with contextlib.suppress(OSError, RuntimeError):
        while chunk := await reader.read(65_536):
            writer.write(chunk)
            await writer.drain()
        writer.write_eof()


def pair() -> tuple[str, str]:
    """(private key, public key) as `ssh-keygen` writes them; the public one without a comment."""
    made = asyncssh.generate_private_key("ssh-ed25519")
    return made.export_private_key().decode(), " ".join(made.export_public_key().decode().split()[:2])
