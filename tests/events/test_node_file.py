"""Files of nodes: what they may look like, and what is said of one that will not do. S043, S073."""

import itertools
import time
from typing import Final

import pytest
from msgspec.structs import replace

from events.node import Taint
from events.node_file import MOST_LABELS, NAME_WORDS, FileNode, Form, alike, form_of, read_nodes
from events.simulated import MOST_NODES

GIB: Final = 1024**3
WHOLE: Final = FileNode(
    name="a-0",
    line=1,
    cpu_milli=64_000,
    memory_bytes=512 * GIB,
    gpu_count=8,
    gpu_model="H100",
    gpu_memory_bytes=80 * GIB,
    labels={"zone": "a", "on": "yes"},
    taints=(Taint(key="team", value="x", effect="NoSchedule"), Taint(key="old", effect="NoExecute")),
    extended={"rdma/hca": 2},
    pool="fast",
)
YAML: Final = """\
- name: a-0
  cpu: 64
  memory: 512Gi
  gpus: 8
  gpuModel: H100
  gpuMemory: 80Gi
  labels: {zone: a, on: yes}
  taints: [{key: team, value: x, effect: NoSchedule}, "old:NoExecute"]
  extendedResources: {rdma/hca: 2}
  pool: fast
"""
CSV: Final = """\
name,cpu,memory,gpus,gpuModel,gpuMemory,labels,taints,extendedResources,pool
a-0,64,512Gi,8,H100,80Gi,zone=a;on=yes,team=x:NoSchedule; old:NoExecute,rdma/hca=2,fast
"""


@pytest.mark.parametrize("text", [YAML, "nodes:\n" + YAML])
def test_yaml_says_all_of_a_node(text: str) -> None:
    read = read_nodes(text, "yaml")
    assert not read.problems
    [node] = read.nodes
    assert replace(node, line=1) == WHOLE


def test_csv_says_all_of_a_node() -> None:
    read = read_nodes(CSV, "csv")
    assert not read.problems
    assert read.nodes == (replace(WHOLE, line=2),)


def test_columns_of_before_are_still_read() -> None:
    text = (
        "sn,cpu_milli,memory_mib,gpu,model,labels,taints,extended_resources\n"
        "n-0,64000,262144,2,P100,zone=a,,rdma/hca=2\nn-1,500,1,0,P100,,,\n"
    )
    read = read_nodes(text, "csv", gpu_memory_bytes=16 * GIB)
    assert not read.problems
    first, second = read.nodes
    assert (first.cpu_milli, first.memory_bytes, first.gpu_count, first.gpu_model) == (64_000, 256 * GIB, 2, "P100")
    assert (first.gpu_memory_bytes, first.extended) == (16 * GIB, {"rdma/hca": 2})
    assert (second.gpu_count, second.gpu_model, second.gpu_memory_bytes) == (0, "", 0)


def test_what_several_nodes_have_in_common_is_merged() -> None:
    text = "- &big {name: a, cpu: 1, memory: 1Gi, labels: {x: y}}\n- {<<: *big, name: b, cpu: 500m}\n"
    first, second = read_nodes(text, "yaml").nodes
    assert (second.name, second.cpu_milli, second.memory_bytes, second.labels) == ("b", 500, GIB, first.labels)


BOMB: Final = "- &a {name: n, cpu: 1, memory: 1Gi, labels: {x: y}}\n" + "".join(
    f"- &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in itertools.pairwise("abcdefgh")
)


@pytest.mark.parametrize(
    "text", [BOMB, BOMB + "- {<<: [*a, *a], labels: {x: *h}}\n", "- &a [*a, *a, *a, *a]\n", "- &a {<<: [*a, *a]}\n"]
)
def test_a_few_lines_that_stand_for_billions_of_values_are_refused_in_a_moment(text: str) -> None:
    assert len(text) < 700
    began = time.process_time()
    [problem] = read_nodes(text, "yaml").problems
    assert time.process_time() - began < 2
    assert "aliases (`*NAME`)" in problem.rule or "so deep in each other" in problem.rule


def test_as_many_nodes_as_a_cluster_may_have_are_merged_with_all_that_a_node_can_have() -> None:
    labels = ", ".join(f"l{number}: x" for number in range(MOST_LABELS))
    first = f"- &big {{name: a, cpu: 1, memory: 1Gi, labels: {{{labels}}}}}\n"
    text = first + "".join(f"- {{<<: *big, name: n{number}}}\n" for number in range(500))
    read = read_nodes(text, "yaml")
    assert not read.problems
    assert len(read.nodes) == 501


def test_every_problem_of_a_file_is_told_with_line_field_rule_and_what_was_given() -> None:
    text = "- name: a b\n  cpu: many\n  memory: 1Gi\n- cpu: 1\n  memory: 1TB\n  gpu_modell: x\n- 7\n"
    told = [str(problem) for problem in read_nodes(text, "yaml").problems]
    assert told[0].startswith("line 1, name: must be letters, digits")
    assert told[0].endswith("; given 'a b'")
    assert told[1] == "line 2, cpu: must be CPU cores, 0.001 to 100,000, such as 64 or 500m; given 'many'"
    assert told[2] == "line 4, name: is required: a word, such as gpu-1"
    assert told[3] == "line 5, memory: must be a size of at most 1Ei, such as 512Gi; given '1TB'"
    assert told[4].startswith("line 6, gpu_modell: must be left out: nodes have no such field; did you mean")
    assert told[5] == "line 7: must be a node with the fields name, cpu and memory; given '7'"
    assert len(told) == 6


def told_of(text: str, form: Form) -> list[str]:
    return [str(problem).partition("; ")[0] for problem in read_nodes(text, form).problems]


def test_all_problems_of_a_table_are_told_at_once_also_beside_those_of_its_first_line() -> None:
    text = "name,cpu,nmae,cpu\na,many,x,1\na,1,x,1,9\nb c,1,x\n"
    assert told_of(text, "csv") == [
        "line 1, nmae: must be left out: nodes have no such column",
        "line 1, cpu: must be one column only",
        "line 1, memory: is required as a column: a size, such as 512Gi",
        "line 2, cpu: must be CPU cores, 0.001 to 100,000, such as 64 or 500m",
        "line 3: must have 4 values, one for each column of the first line, perhaps empty ones",
        "line 3, name: must be unique",
        "line 4: must have 4 values, one for each column of the first line, perhaps empty ones",
        f"line 4, name: {NAME_WORDS}, 253 characters at most",
    ]
    assert told_of('name,cpu,memory\na,many,1Gi\nb,1,"1Gi\n', "csv")[0].startswith("line 2, cpu")


def test_all_problems_of_yaml_are_told_at_once_also_beside_names_and_fields_that_stand_there_twice() -> None:
    text = "- {name: a, cpu: many, memory: 1Gi}\n- {name: a, cpu: 0, cpu: 1, memory: 1Gi}\n- {<<: 7, name: a}\n"
    assert told_of(text, "yaml") == [
        "line 1, cpu: must be CPU cores, 0.001 to 100,000, such as 64 or 500m",
        "line 2, cpu: must stand there once",
        "line 2, cpu: must be CPU cores, 0.001 to 100,000, such as 64 or 500m",
        "line 2, name: must be unique",
        "line 3, <<: must merge mappings",
        "line 3, cpu: is required: CPU cores, such as 64 or 500m",
        "line 3, memory: is required: a size, such as 512Gi",
        "line 3, name: must be unique",
    ]


def test_names_are_unique_also_within_a_line() -> None:
    node = "{name: a, cpu: 1, memory: 1Gi}"
    assert told_of(f"[{node}, {node}]", "yaml") == ["line 1, name: must be unique"]


def test_a_size_without_a_unit_is_a_few_bytes_which_nobody_means() -> None:
    [problem] = read_nodes("[{name: a, cpu: 1, memory: 512}]", "yaml").problems
    assert str(problem) == (
        "line 1, memory: must be a size of at least 1Mi, such as 512Gi; this is 512 bytes: 512Gi or 512Mi?; given '512'"
    )
    assert not read_nodes("- {name: a, cpu: 1, memory: 1048576}", "yaml").problems


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "line 1: must hold at least one node; it holds none"),
        ("a: [", "must be YAML: did not find expected"),
        ("nodes: {a: b}", "line 1: must be a list of nodes"),
        ("- {name: a, name: b, cpu: 1, memory: 1}", "line 1, name: must stand there once"),
        ("- {name: a, cpu: 1, memory: 1}\n---\n- {name: b, cpu: 1, memory: 1}", "line 3: must be one document"),
        ("- {name: a, cpu: 1, memory: 1}\n- {name: a, cpu: 1, memory: 1}", "line 2, name: must be unique; line 1 has"),
        ("- {name: a, cpu: 0, memory: 1}", "line 1, cpu: must be CPU cores"),
        ("- {name: a, cpu: [1], memory: 1}", "line 1, cpu: must be one value"),
        ("- {name: a, cpu: 1, memory: 1, gpus: 1025}", "line 1, gpus: must be a whole number of 0 to 1,024"),
        ("- {name: a, cpu: 1, memory: 1, gpuModel: x}", "line 1, gpuModel: must be left out of a node without GPUs"),
        ("- {name: a, cpu: 1, memory: 1, labels: {a b: c}}", "line 1, labels: must have Kubernetes keys"),
        ("- {name: a, cpu: 1, memory: 1, labels: {a: b c}}", "line 1, labels: must have Kubernetes label values"),
        ("- {name: a, cpu: 1, memory: 1, taints: [a:Never]}", "line 1, taints: must have one of the effects"),
        ("- {name: a, cpu: 1, memory: 1, taints: [{keys: a}]}", "line 1, taints: must have key, value and effect"),
        (
            "- {name: a, cpu: 1, memory: 1, extendedResources: {hca: 1}}",
            "line 1, extendedResources: must name",
        ),
        ("- {name: a, cpu: 1, memory: 1, extendedResources: {nvidia.com/gpu: 1}}", "must not name nvidia.com/gpu"),
        ("- {name: a, cpu: 1, memory: 1, extendedResources: {a/b: 0}}", "line 1, extendedResources: must be a whole"),
        ("- {name: a, cpu: 1, memory: 1, pool: a b}", "line 1, pool: must be letters, digits"),
        ("- {name: a, sn: a, cpu: 1, memory: 1}", "line 1, sn: must be left out where name is given"),
    ],
)
def test_yaml_that_will_not_do(text: str, told: str) -> None:
    problems = [str(problem) for problem in read_nodes(text, "yaml").problems]
    assert any(told in one for one in problems), problems


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("name,cpu\n", "line 1, memory: is required as a column"),
        ("sn,gpu\nn,1\n", "line 1, cpu_milli: is required as a column"),
        ("name,cpu,memory,cpus\n", "line 1, cpus: must be left out: nodes have no such column; did you mean"),
        ("name,cpu,memory,sn\n", "line 1, sn: must be left out where name is there"),
        ("name,cpu,memory\na,1,1Gi,7\n", "line 2: must have 3 values"),
        ("name,cpu,memory\na,1\n", "line 2: must have 3 values"),
        ("name,cpu,memory\na,1,1\n\na,1,1\n", "line 4, name: must be unique; line 2 has"),
        ('name,cpu,memory\n"a,1,1\n', "must be CSV"),
        ("name,cpu,memory,labels\na,1,1,zone\n", "line 2, labels: must be KEY=VALUE, such as zone=a"),
        ("name,cpu,memory,taints\na,1,1,team=x\n", "line 2, taints: must be KEY=VALUE:EFFECT or KEY:EFFECT"),
        ("name,cpu,memory,extendedResources\na,1,1,a/b=many\n", "line 2, extendedResources: must be a whole number"),
    ],
)
def test_csv_that_will_not_do(text: str, told: str) -> None:
    problems = [str(problem) for problem in read_nodes(text, "csv").problems]
    assert any(told in one for one in problems), problems


def test_as_many_nodes_as_a_cluster_may_have_and_no_more() -> None:
    lines = [f"n-{number},64,512Gi,8,H100" for number in range(MOST_NODES + 1)]
    header = "name,cpu,memory,gpus,gpuModel"
    assert not read_nodes("\n".join([header, *lines[:MOST_NODES]]), "csv").problems
    [problem] = read_nodes("\n".join([header, *lines]), "csv").problems
    assert str(problem) == "line 10002: must hold at most 10,000 nodes; it holds 10,001"


def test_the_form_is_told_by_the_end_of_the_name() -> None:
    assert [form_of(name) for name in ("a.csv", "A.CSV", "a.yaml", "a.json", "-")] == ["csv", "csv"] + 3 * ["yaml"]


def test_nodes_that_are_alike_are_one_entry() -> None:
    text = "name,cpu,memory,pool\na,1,1Gi,x\nb,1,1Gi,\nc,1,1Gi,x\n"
    found = alike(read_nodes(text, "csv").nodes)
    assert [(entry.names, pool) for entry, pool in found] == [
        (("a", "c"), "x"),
        (("b",), ""),
    ]
