"""A sum over all processes of an MPI training, and how `mpirun` starts them: with nothing but sockets, so that it runs
where there is no MPI.

As the launcher it reads the host file, and starts a process for each slot of each worker with the agent that Muster
names (ssh, where it names none). The processes tell it where they listen, are told of all others, and add up their
numbers in a ring.

muster training mpi submit -f examples/mpi.yaml --code examples/mpi --wait
muster training mpi logs ring
"""

# ruff: noqa: SIM112
# Open MPI writes its variables so.

import json
import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path

SECONDS = 60
"""For which processes wait for each other."""


def slots(hostfile: str) -> list[str]:
    """A host for each process: lines are `worker-0 slots=2`."""
    found: list[str] = []
    for line in Path(hostfile).read_text(encoding="utf-8").splitlines():
        host, _, count = line.partition(" slots=")
        found += [host] * int(count)
    return found


def launch() -> int:
    """As mpirun: start a process in each slot, and tell each where the others are; the worst of their exit codes."""
    hosts = slots(os.environ["OMPI_MCA_orte_default_hostfile"])
    agent = shlex.split(os.environ.get("OMPI_MCA_plm_rsh_agent", "ssh"))
    service = os.environ.get("MUSTER_SERVICE")
    own = f"master-0.{service}" if service else "127.0.0.1"
    with socket.create_server(("" if service else own, 0)) as server:
        server.settimeout(SECONDS)
        address = f"{own}:{server.getsockname()[1]}"
        # The launcher's folder is the same in every pod.
        program = f"cd {shlex.quote(str(Path.cwd()))} && exec python3 {shlex.quote(Path(__file__).name)}"
        started = [
            subprocess.Popen([*agent, host, f"{program} {address} {rank} {len(hosts)}"], stdin=subprocess.DEVNULL)
            for rank, host in enumerate(hosts)
        ]
        met = dict(introduced(server) for _ in hosts)
    for connection, _ in met.values():
        connection.sendall(json.dumps([met[rank][1] for rank in sorted(met)]).encode() + b"\n")
    codes = [each.wait(SECONDS) for each in started]
    print(f"launcher: {len(hosts)} processes on {len(set(hosts))} workers ended with {sorted(set(codes))}")
    return max(codes)


def introduced(server: socket.socket) -> tuple[int, tuple[socket.socket, tuple[str, int]]]:
    """(rank, (its connection, where it listens)), of whichever process comes next."""
    connection, (host, _) = server.accept()
    connection.settimeout(SECONDS)
    rank, port = json.loads(connection.makefile().readline())
    return rank, (connection, (host, port))


def take_part(launcher: str, rank: int, size: int) -> None:
    """As a process: the sum goes once around, and its total once more."""
    host, port = launcher.rsplit(":", 1)
    with socket.create_server(("", 0)) as server, socket.create_connection((host, int(port)), timeout=SECONDS) as told:
        server.settimeout(SECONDS)
        told.sendall(json.dumps([rank, server.getsockname()[1]]).encode() + b"\n")
        addresses = json.loads(told.makefile().readline())
        right = socket.create_connection(tuple(addresses[(rank + 1) % size]), timeout=SECONDS)
        left = server.accept()[0].makefile()
        # Once around, everybody adds what is theirs; the second time the total goes to all.
        total = rank + 1 + (int(left.readline()) if rank else 0)
        right.sendall(f"{total}\n".encode())
        total = int(left.readline())
        if rank < size - 1:
            right.sendall(f"{total}\n".encode())
    pod = f"{os.environ['MUSTER_POD_SET']}-{os.environ['MUSTER_POD_INDEX']}"
    # In one piece: the ranks write to the same place.
    sys.stdout.write(f"rank {rank} of {size} on {pod}: the sum is {total}\n")


if len(sys.argv) > 1:
    take_part(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
else:
    sys.exit(launch())
