"""What the processes of `muster up` import decides what they weigh and how fast they start."""

import subprocess
import sys

import pytest

LOADED = """
import sys
from muster.embedded.process import load
load({group!r})
print(*sorted({{name.partition(".")[0] for name in sys.modules}}))
"""


@pytest.mark.parametrize("group", ["control", "workers"])
def test_no_process_without_a_kubernetes_cluster_loads_its_library(group: str) -> None:
    program = LOADED.format(group=group)
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert "nats" in ran.stdout.split()
    assert "kubernetes_asyncio" not in ran.stdout.split()
