"""A sum over all pods of a distributed training, with nothing but sockets: rank 0 adds up what every rank has, and
tells all. It finds the others by what each framework reads from the environment.

muster training pytorch submit sum -i python:3.13 --workers 3 --code examples/all-reduce --command -- \
    python3 all_reduce.py
muster training logs sum
"""

import json
import os
import socket
import time

SECONDS = 60
"""For which ranks wait for each other."""


def meeting() -> tuple[str, int, int, int]:
    """(host and port of rank 0, this rank, how many there are), of whichever framework it is."""
    found = os.environ
    if "TF_CONFIG" in found:
        config = json.loads(found["TF_CONFIG"])
        # The chief is rank 0; without one the first worker is.
        members = [(role, index) for role, hosts in sorted(config["cluster"].items()) for index in range(len(hosts))]
        host, port = config["cluster"][members[0][0]][0].rsplit(":", 1)
        rank = members.index((config["task"]["type"], config["task"]["index"]))
        return host, int(port), rank, len(members)
    if "JAX_PROCESS_ID" in found:
        host, port = found["JAX_COORDINATOR_ADDRESS"].rsplit(":", 1)
        return host, int(port), int(found["JAX_PROCESS_ID"]), int(found["JAX_NUM_PROCESSES"])
    if "DMLC_TRACKER_URI" in found:
        host, port = found["DMLC_TRACKER_URI"], int(found["DMLC_TRACKER_PORT"])
        return host, port, int(found["DMLC_TASK_ID"]), int(found["DMLC_NUM_WORKER"])
    return found["MASTER_ADDR"], int(found["MASTER_PORT"]), int(found["RANK"]), int(found["WORLD_SIZE"])


def gather(host: str, port: int, size: int, own: float) -> float:
    """As rank 0: the sum, once every other rank has said its number and was told."""
    with socket.create_server((host, port)) as server:
        server.settimeout(SECONDS)
        others = [server.accept()[0] for _ in range(size - 1)]
        numbers = [float(each.makefile().readline()) for each in others]
        total = own + sum(numbers)
        for each in others:
            each.sendall(f"{total}\n".encode())
            each.close()
    return total


def tell(host: str, port: int, own: float) -> float:
    """As any other rank: say the number, and read the sum. Rank 0 may begin later."""
    give_up = time.monotonic() + SECONDS
    while True:
        try:
            with socket.create_connection((host, port), timeout=SECONDS) as connection:
                connection.sendall(f"{own}\n".encode())
                return float(connection.makefile().readline())
        except OSError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.1)


host, port, rank, size = meeting()
total = gather(host, port, size, rank + 1.0) if rank == 0 else tell(host, port, rank + 1.0)
print(f"rank {rank} of {size}: the sum is {total:g}")
