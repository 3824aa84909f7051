"""What the processes of `muster up` import decides what they weigh and how fast they start."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from muster.embedded.process import NOT_BEGUN

LOADED = """
import sys
from muster.embedded.process import load
load({group!r})
print(*sorted({{name.partition(".")[0] for name, module in sys.modules.items() if module}}))
"""


SERVICES = sorted(path.parent.name for path in Path("services").glob("*/__main__.py"))


def loaded(program: str) -> set[str]:
    """What a program has imported when it prints."""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    return set(ran.stdout.split())


@pytest.mark.parametrize("group", ["control", "workers"])
def test_no_process_loads_libraries_that_only_others_would_use(group: str) -> None:
    """Kubernetes' where there is no cluster of it; and, a third of a start: aiohttp for websockets, rich and httpx for
    terminals and issuers that are not there.
    """
    there = loaded(LOADED.format(group=group))
    assert "nats" in there
    assert there.isdisjoint({"kubernetes_asyncio", "aiohttp", "rich", "httpx", "pygments"})


def test_a_process_that_is_never_told_to_begin_says_so_and_does_not_end_as_if_all_were_well() -> None:
    """Given standard input that has ended, as that of a process in the background has."""
    program = [sys.executable, "-m", "muster.embedded.process", "workers"]
    ran = subprocess.run(program, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == NOT_BEGUN
    assert "not_begun" in ran.stderr
    assert "write `go` to it" in ran.stderr


@pytest.mark.parametrize("service", SERVICES)
def test_every_program_keeps_them_out_before_it_imports_anything_else(service: str) -> None:
    program = ast.parse((Path("services") / service / "__main__.py").read_text())
    imports = [node for node in program.body if isinstance(node, ast.Import | ast.ImportFrom)]
    ours = next(node for node in imports if ast.unparse(node) != "import sys")
    assert ast.unparse(ours) == "import services.runtime.process.lean"


def test_the_agent_of_a_kubernetes_cluster_has_its_library_all_the_same() -> None:
    there = loaded(
        "import services.runtime.process.lean, services.agent.backends.kubernetes.connect, sys; print(*sys.modules)"
    )
    assert {"aiohttp", "kubernetes_asyncio"} <= there
