"""Ports of loopback for the servers of tests.

They lie below those that the system gives to connections going out: none is taken by a client between the choice and
the start of its server, or while a test has its server down. Every process of a run chooses from a range of its own.
"""

import itertools
import os
import random
import socket

FIRST, PER_PROCESS, PROCESSES = 12_000, 1_250, 16
"""Up to 32,000; Linux takes ports for connections from 32,768 on."""


def _range() -> range:
    """That of this process: pytest-xdist numbers its workers gw0, gw1…"""
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % PROCESSES
    return range(FIRST + number * PER_PROCESS, FIRST + (number + 1) * PER_PROCESS)


def _shuffled(ports: range) -> list[int]:
    return random.Random().sample(ports, len(ports))


_ports = itertools.cycle(_shuffled(_range()))


def free_port() -> int:
    """One that nobody has, and that this process was not given lately."""
    for port in itertools.islice(_ports, PER_PROCESS):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError(f"no port of {_range()} is free")
