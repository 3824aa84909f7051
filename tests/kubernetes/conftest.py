"""A real Kubernetes control plane, one per session. Where its programs are missing, tests fail: none skips.

`--short`, for CI: one in ONE_IN of the tests of each file.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from development.kubernetes.control_plane import ControlPlane
from tests.support.sample import keep_some

ONE_IN = 3
MARKERS = {"kubernetes", "kubernetes_faults"}


def pytest_addoption(parser: pytest.Parser) -> None:
    with contextlib.suppress(ValueError):  # where tests/faults is run along, it is there already
        parser.addoption("--short", action="store_true", help="for CI: a part of it")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.short:
        keep_some(config, items, lambda item: ONE_IN if MARKERS & {mark.name for mark in item.iter_markers()} else 1)


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """API server, etcd, controller manager and kwok, without nodes: each test adds its own, under names of its own."""
    plane = ControlPlane(Path(tmp_path_factory.mktemp("control-plane")), ways=True)
    plane.start()
    yield plane
    plane.stop()
