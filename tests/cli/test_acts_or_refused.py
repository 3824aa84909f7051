"""What is accepted acts: a flag that would do nothing is refused by its name, and nothing is sent."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.shapes import WORKLOAD_ID, Reply, ShapeServer

SUBMIT = ("training", "submit", "hello", "-i", "x", "-p", "default", "--cluster", "local")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((*SUBMIT, "--timeout", "5s"), "--timeout goes with --wait, --watch or --attach"),
        (("workload", "suspend", "hello", "--timeout", "5s"), "--timeout goes with --wait"),
        (("workload", "resume", "hello", "--timeout", "5s"), "--timeout goes with --wait"),
        (("training", "delete", "hello", "-y", "--timeout", "5s"), "--timeout goes with --wait"),
        (("cluster", "add", "a", "--kubernetes", "--gpu-model", "H100"), "--gpu-model goes with --simulated"),
        (("cluster", "add", "a", "--kubernetes", "--gpu-memory", "80Gi"), "--gpu-memory goes with --simulated"),
        (("cluster", "add", "a", "--kubeconfig", "f", "--cpu-cores", "8"), "--cpu-cores goes with --simulated"),
        (("cluster", "add", "a", "--nodes", "NODES", "--cpu-cores", "8"), "--cpu-cores goes with --simulated"),
        (("cluster", "add", "a", "--nodes", "NODES", "--memory", "8Gi"), "--memory goes with --simulated"),
        (("cluster", "add", "a", "--nodes", "NODES", "--gpu-model", "T4"), "--gpu-model goes with --simulated"),
        (("cluster", "add", "a", "--simulated", "1x0", "--gpu-model", "T4"), "--gpu-model needs nodes with GPUs"),
        (("cluster", "add", "a", "--simulated", "1x0", "--gpu-memory", "8Gi"), "--gpu-memory needs nodes with GPUs"),
        (("top", "--timeout", "5s"), "--timeout goes with --watch"),
        (("top", "users", "--sort-by", "quota"), "there is no column 'quota'"),
        (("top", "pool"), "did you mean 'pools'?"),
        (("log", "tail", "-n", "1", "--after", "3"), "--newest and --after cannot be used together"),
        (("workload", "logs", "hello", "--run", "1"), "--run needs --attempt"),
        (
            ("workload", "logs", "hello", "--previous", "--attempt", "1"),
            "--previous and --attempt cannot be used together",
        ),
        (("workload", "logs", "hello", "--follow", "--previous"), "--previous cannot be used with --follow"),
        (("workload", "logs", "hello", "-f", "--attempt", "1"), "--attempt cannot be used with --follow"),
        (("workload", "delete", "@latest", "-y", "--idempotency-key", "k"), "--idempotency-key does not go with"),
        (("workload", "set", "@latest", "--priority", "high", "--idempotency-key", "k"), "--idempotency-key does not"),
    ],
)
def test_a_flag_that_would_do_nothing_is_refused_by_name(
    api: ShapeServer, muster: Any, tmp_path: Path, arguments: tuple[str, ...], told: str
) -> None:
    nodes = tmp_path / "nodes.csv"
    nodes.write_text("sn,cpu_milli,memory_mib,gpu,model\nn-1,64000,1024,8,T4\n")
    for path in (f"/workloads/trainings/{WORKLOAD_ID}", "/clusters"):
        api.on("POST", path, Reply(202, {"id": "c-2", "name": "a"}))
    ran = muster(*(str(nodes) if word == "NODES" else word for word in arguments))
    assert (ran.code, ran.out) == (2, ""), ran.err
    assert told in ran.err
    assert all(request.method == "GET" for request in api.requests)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("name: a\nspec: {image: x}\nname: b\n", "line 3: 'name' stands there twice"),
        ("name: a\nspec:\n  image: x\n  args: y\n  image: z\n", "line 5: 'image' stands there twice"),
        ('{"name": "a",\n "name": "b"}', "line 2: 'name' stands there twice"),
    ],
)
def test_a_key_that_stands_twice_in_a_file_is_named_with_its_line(
    api: ShapeServer, muster: Any, tmp_path: Path, text: str, told: str
) -> None:
    file = tmp_path / "training.yaml"
    file.write_text(text)
    ran = muster("training", "submit", "-f", str(file))
    assert ran.code == 2
    assert told in ran.err
    assert api.requests == []


def test_a_file_may_merge_what_it_said_before_and_say_some_of_it_otherwise(
    api: ShapeServer, muster: Any, tmp_path: Path
) -> None:
    file = tmp_path / "training.yaml"
    file.write_text(
        "name: a\nspec:\n  compute: &c {cpuCoreRequest: 1}\n  annotations: []\n  <<: {image: x}\n  image: y\n"
    )
    assert muster("training", "submit", "-f", str(file), "-p", "default", "--cluster", "local").code == 0
    assert api.asked("POST", "/workloads/trainings")[0].body["spec"]["image"] == "y"
