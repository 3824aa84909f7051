"""What is taken of an agent's words, as tables: bounds of every field, and subjects that mean what is said on them."""

from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.agent_bounds import BOUNDS, MAX_NODE_BYTES
from events.cluster import RefusedReport
from events.cluster_protocol import ObservedCluster, ObservedNode, ObservedPod, SourcesRequest, UsageReport, pod_key
from events.ids import cluster_key, incarnation_id, node_key, workload_key
from events.node import NodeFacts, Taint
from events.subjects import observed_cluster_subject, observed_node_subject, observed_pod_subject
from services.cluster_sync.hear import NotTakenError, understand
from services.cluster_sync.refusals import EXPIRE_SECONDS, MOST_SHOWN, Refusals
from tests.events.given import ID, ref

CLUSTER = incarnation_id(cluster_key("c"), "add-c")
OTHER = incarnation_id(cluster_key("other"), "add-other")
POD = pod_key(workload_key("p1", "train"), "main", 0)
AT = "2026-01-01T00:00:00Z"
POD_FIELDS: dict[str, Any] = {
    "pod_key": POD,
    "token": 7,
    "workload_id": ID,
    "pod": msgspec.to_builtins(ref()),
    "kind": "running",
    "at": AT,
}
NODE_SUBJECT = observed_node_subject(CLUSTER, node_key(CLUSTER, "n1"))
POD_SUBJECT = observed_pod_subject(CLUSTER, POD)
BEAT_SUBJECT = observed_cluster_subject(CLUSTER)


def node(name: str = "n1", **facts: Any) -> dict[str, Any]:
    return {"name": name, "facts": {"cpu_milli": 1, "memory_bytes": 1} | facts}


def pod(**fields: Any) -> dict[str, Any]:
    return POD_FIELDS | fields


def beat(**fields: Any) -> dict[str, Any]:
    return {"at": AT} | fields


def not_taken(subject: str, said: dict[str, Any]) -> RefusedReport:
    with pytest.raises(NotTakenError) as refusal:
        understand(subject, msgspec.json.encode(said))
    return refusal.value.report


def understood(subject: str, payload: bytes) -> msgspec.Struct:
    """What was said, or why it is not taken."""
    try:
        return understand(subject, payload).said
    except NotTakenError as error:
        return error.report


@pytest.mark.parametrize(
    ("subject", "said", "field", "rule", "value"),
    [
        (NODE_SUBJECT, node(cpu_milli=2**63), "facts.cpu_milli", "0 to 100,000,000", "9223372036854775808"),
        (NODE_SUBJECT, node(cpu_milli=-(10**30)), "facts.cpu_milli", "0 to 100,000,000", f"-1{'0' * 30}"),
        (NODE_SUBJECT, node(memory_bytes=2**60 + 1), "facts.memory_bytes", f"0 to {2**60:,}", str(2**60 + 1)),
        (NODE_SUBJECT, node(gpu_count=5_000_000), "facts.gpu_count", "0 to 1,024", "5000000"),
        (NODE_SUBJECT, node(foreign_gpus=-1), "facts.foreign_gpus", "0 to 1,024", "-1"),
        (NODE_SUBJECT, node(max_pods=10_001), "facts.max_pods", "0 to 10,000", "10001"),
        (
            NODE_SUBJECT,
            node(labels={str(n): "" for n in range(1001)}),
            "facts.labels",
            "at most 1,000 entries",
            "1,001 entries",
        ),
        (NODE_SUBJECT, node(labels={"a": "x" * 64}), "facts.labels[a]", "at most 63 characters", "x" * 64),
        (NODE_SUBJECT, node(labels={"x" * 318: ""}), "facts.labels", "at most 317 characters", f"{'x' * 80}…"),
        (NODE_SUBJECT, node(taints=[{"key": "k"}] * 101), "facts.taints", "at most 100 entries", "101 entries"),
        (
            NODE_SUBJECT,
            node(taints=[{"key": "k", "effect": "e" * 64}]),
            "facts.taints[0].effect",
            "at most 63 characters",
            "e" * 64,
        ),
        (NODE_SUBJECT, node(name="n2"), "name", "the name that its subject is made from", "n2"),
        (POD_SUBJECT, pod(token=2**53 + 1), "token", f"0 to {2**53:,}", str(2**53 + 1)),
        (POD_SUBJECT, pod(exit_code=2**32), "exit_code", "-2,147,483,648 to 4,294,967,295", str(2**32)),
        (POD_SUBJECT, pod(message="m" * 4097), "message", "at most 4,096 characters", f"{'m' * 80}…"),
        (POD_SUBJECT, pod(at="2026-01-01T00:00:00"), "at", "a time with its zone, 1970 to 2199", "2026-01-01 00:00:00"),
        (
            POD_SUBJECT,
            pod(started_at="9999-12-31T23:59:59Z"),
            "started_at",
            "a time with its zone, 1970 to 2199",
            "9999-12-31 23:59:59+00:00",
        ),
        (
            POD_SUBJECT,
            pod(node_name="n\x00" * 200),
            "node_name",
            "at most 253 characters",
            "n\N{REPLACEMENT CHARACTER}" * 40 + "…",
        ),
        (
            POD_SUBJECT,
            pod(workload_id=OTHER),
            "pod_key",
            "the key that its subject names, of this workload and pod",
            POD,
        ),
        (BEAT_SUBJECT, beat(orphans=["x"] * 101), "orphans", "at most 100 entries", "101 entries"),
        (BEAT_SUBJECT, beat(agent_version="v" * 64), "agent_version", "at most 63 characters", "v" * 64),
        (f"obs.{CLUSTER}.surprise", {}, "", "said on obs.<cluster>.pod.<key>, .node.<key> or .cluster", "surprise"),
    ],
)
def test_what_is_out_of_its_bounds_is_refused_with_the_rule_and_the_value(
    subject: str, said: dict[str, Any], field: str, rule: str, value: str
) -> None:
    report = not_taken(subject, said)
    assert (report.field, report.rule, report.value) == (field, rule, value)


def test_an_agent_speaks_of_no_node_but_its_own_clusters() -> None:
    theirs = observed_node_subject(CLUSTER, node_key(OTHER, "n1"))
    assert not_taken(theirs, node("n1", gpu_count=0)).field == "name"
    assert not_taken(theirs, node("n1") | {"gone": True}).field == "name"


def test_a_node_whose_report_is_very_long_is_refused_as_a_whole() -> None:
    long = {f"{number:0100d}/name": "v" * 63 for number in range(MAX_NODE_BYTES // 150)}
    assert not_taken(NODE_SUBJECT, node(labels=long)).rule == "at most 65,536 bytes in all"


@pytest.mark.parametrize(
    "payload",
    [b"", b"{nonsense", b"[]", b'{"x":' * 100_000, b'{"at":' + b"9" * 9_999 + b"}", b"\xff\xfe"],
)
def test_what_cannot_be_read_is_refused_and_stops_nobody(payload: bytes) -> None:
    for subject in (NODE_SUBJECT, POD_SUBJECT, BEAT_SUBJECT, f"obs.{CLUSTER}"):
        with pytest.raises(NotTakenError):
            understand(subject, payload)


def test_large_but_real_clusters_are_taken() -> None:
    labels = {f"feature.node.kubernetes.io/cpu-cpuid.{number}": "true" for number in range(400)}
    facts = node(
        cpu_milli=1_920_000,
        memory_bytes=64 * 2**40,
        gpu_count=72,
        gpu_memory_bytes=288 * 2**30,
        max_pods=1_000,
        labels=labels,
        taints=[msgspec.to_builtins(Taint(key="nvidia.com/gpu"))] * 5,
    )
    assert isinstance(understand(NODE_SUBJECT, msgspec.json.encode(facts)).said, ObservedNode)
    failed = pod(kind="failed", exit_code=-1, message="m" * 1_200, reason="out_of_memory", started_at=AT)
    assert isinstance(understand(POD_SUBJECT, msgspec.json.encode(failed)).said, ObservedPod)


def test_every_field_that_an_agent_fills_has_a_bound() -> None:
    def unbounded(owner: type[msgspec.Struct], seen: set[type]) -> list[str]:
        if owner in seen:
            return []
        seen.add(owner)
        lacking: list[str] = []
        for name, hint in get_type_hints(owner).items():
            kinds = [kind for kind in (get_args(hint) or (hint,)) if kind is not type(None)]
            lists = [kind for kind in kinds if get_origin(kind) is tuple]
            kinds += [one for kind in lists for one in get_args(kind)]
            if get_origin(hint) in (tuple, dict) or lists:
                kinds = [*(kind for kind in kinds if kind not in lists), tuple]  # its length
            for kind in kinds:
                if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
                    lacking += unbounded(kind, seen)
                elif kind not in (bool, Ellipsis) and get_origin(hint) is not Literal and name not in BOUNDS[owner]:
                    lacking.append(f"{owner.__name__}.{name}")
        return lacking

    seen: set[type] = set()
    for message in (ObservedPod, ObservedNode, ObservedCluster, SourcesRequest, UsageReport):
        assert unbounded(message, seen) == []
    assert seen == set(BOUNDS)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from([AT, "9999-12-31T23:59:59Z"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(
    name=st.sampled_from(["name", "facts", "gone", "at", "pod", "kind", "token", "warnings", "orphans", "exit_code"]),
    facts=st.dictionaries(st.sampled_from(NodeFacts.__struct_fields__), _JSON, max_size=4),
    value=_JSON,
)
def test_nothing_that_an_agent_says_does_more_than_be_refused(name: str, facts: dict[str, Any], value: Any) -> None:
    for subject, said in ((NODE_SUBJECT, node(**facts)), (POD_SUBJECT, pod()), (BEAT_SUBJECT, beat())):
        heard = understood(subject, msgspec.json.encode(said | {name: value}))
        assert len(msgspec.json.encode(heard)) < 4_096  # as a refusal it stands in a record


# -- what a cluster shows of it --------------------------------------------------------------------------------------


def report(field: str = "facts.cpu_milli", value: str = "-1") -> RefusedReport:
    return RefusedReport(about="node", name="n1", field=field, rule="0 to 1", value=value)


def test_a_broken_rule_is_shown_until_it_was_not_broken_for_a_while() -> None:
    refusals = Refusals()
    assert refusals.note("c", (), report(), 0)
    assert not refusals.note("c", (), report(value="-2"), 60), "the same rule, another value"
    assert refusals.current("c", (), 60 + EXPIRE_SECONDS) == (report(value="-2"),)
    assert refusals.current("d", (), 60) == ()
    assert refusals.current("c", (report(),), 61 + EXPIRE_SECONDS) == ()


def test_what_the_log_says_of_it_stands_for_a_while_after_a_restart() -> None:
    refusals = Refusals()
    assert refusals.current("c", (report(),), 0) == (report(),)
    assert refusals.current("c", (report(),), EXPIRE_SECONDS + 1) == ()


def test_an_agent_that_breaks_very_many_rules_shows_only_some() -> None:
    refusals = Refusals()
    for number in range(2 * MOST_SHOWN):
        refusals.note("c", (), report(field=f"f{number}"), 0)
    assert len(refusals.current("c", (), 0)) == MOST_SHOWN


def test_the_entry_of_a_list_is_no_other_rule() -> None:
    one, other = report(field="facts.labels[a]"), report(field="facts.labels[b]")
    assert one.kind == other.kind
