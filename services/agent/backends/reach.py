"""Whether a server answers that a data source names, as seen from where the agent runs.

No more than a connection is made, and nothing is said on it: people type these addresses, and nobody shall learn by
them what a server says. What is not known (a name server that is away) is nothing against a data source.
"""

import asyncio
import ipaddress
import socket
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final
from urllib.parse import urlsplit

from events.workload.repositories import ssh_server
from events.workload.volumes import BucketFolder, ClonedFolder, NfsFolder, Volume

CONNECT_SECONDS: Final = 3.0
MOST_ADDRESSES: Final = 2
"""Of one server that are tried."""
NFS_PORT: Final = 2049
MOST_NAMES: Final = 4
"""That are looked for at a time."""
_NAMES: Final = ThreadPoolExecutor(MOST_NAMES, thread_name_prefix="names")
"""Nothing ends the look for a name before the resolver gives it up, half a minute later where a name server does not
answer. People type these names: in the threads that all else runs in, theirs would hold up the agent.
"""
_NO_SUCH_HOST: Final = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})


def server_of(volume: Volume) -> tuple[str, int] | None:
    """(host, port) of the server that a volume needs; None where it needs none, or names none."""
    match volume:
        case NfsFolder(server=server):
            return server, NFS_PORT
        case ClonedFolder(repository=address) if (server := ssh_server(address)) is not None:
            return server.host, server.port
        case ClonedFolder(repository=address) | BucketFolder(url=address):
            try:
                parts = urlsplit(address)
                port = parts.port or {"https": 443, "http": 80}.get(parts.scheme)
            except ValueError:
                return None
            return (parts.hostname, port) if parts.hostname and port else None
        case _:
            return None


async def unreachable(host: str, port: int, *, own: bool) -> str:
    """Why nobody can connect there, in words; empty where somebody can, or where nothing is known.

    Args:
        own: whether addresses of this machine and its link count, such as 127.0.0.1. Of others that run pods they say
            nothing, and the agent shall not be sent there.
    """
    loop = asyncio.get_running_loop()
    try:
        found = await loop.run_in_executor(_NAMES, partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM))
    except socket.gaierror as error:
        return f"there is no host {host}" if error.errno in _NO_SUCH_HOST else ""
    except (OSError, UnicodeError):
        return ""
    addresses = list(dict.fromkeys(str(address[4][0]) for address in found))
    fit = [address for address in addresses if own or _is_elsewhere(address)][:MOST_ADDRESSES]
    refused = False
    for address in fit:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, writer = await asyncio.open_connection(address, port)
        except ConnectionRefusedError:
            refused = True
        except OSError:  # TimeoutError is one
            pass
        else:
            writer.close()
            return ""
    if not fit:
        return ""
    return f"{host} takes no connections on port {port}" if refused else f"{host} does not answer on port {port}"


def _is_elsewhere(address: str) -> bool:
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None) or found
    return not (
        mapped.is_loopback or mapped.is_link_local or mapped.is_unspecified or mapped.is_multicast or mapped.is_reserved
    )
