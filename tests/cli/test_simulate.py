"""`muster simulate`: what it takes, what it refuses and how, and what it prints and draws."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import msgspec
import psutil
import pytest

from events.codec import REGISTRY, encode_commit, encode_event
from muster.cli.exits import ExitCode
from muster.cli.simulate_change import asked
from muster.cli.simulate_picture import picture
from muster.cli.simulate_show import Shown
from muster.cli.simulate_source import commits_of_backup
from muster.cli.simulate_trace import read_trace
from services.api.shown_events import shown_data, stored_event
from services.runtime.backup.archive import NO_HASH, Manifest, Message, Sealing, SegmentWriter, encode_manifest
from services.scheduler.simulation.change import Bounds, PolicyChange, PoolBounds
from services.scheduler.simulation.engine import Simulation
from services.scheduler.simulation.past import PastReader
from services.scheduler.simulation.script import Job, Settings
from services.scheduler.simulation.trace import script_of
from tests.scheduler.test_simulation import a_day
from tests.support.openb import rows
from tests.support.shapes import Reply, ShapeServer

EXAMPLES = Path("examples/simulate")
TRACE = EXAMPLES / "trace.yaml"


@pytest.fixture
def written(tmp_path: Path) -> Any:
    def write(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


# -- what is to be otherwise -------------------------------------------------------------------------------------------


def test_what_is_set_becomes_a_change() -> None:
    sets = ("quota.vision=16", "limit.vision/h100=none", "weight.speech=2.5", "minimumRuntime.speech=10m")
    policy = (
        "policy.reserveAfter=never",
        "policy.takeBack=off",
        "policy.scores=free_gpus,free_cpu",
        "policy.headStart=6h",
    )
    found = asked((*sets, *policy), None, None).change(("vision", "speech"), (), lambda: "c", ("default", "h100"))
    assert found.projects == {
        "vision": Bounds(gpu_quota_milli=16_000, pools={"h100": PoolBounds(gpu_limit_milli=None)}),
        "speech": Bounds(over_quota_weight=2.5, minimum_runtime_seconds=600),
    }
    assert found.policy == PolicyChange(
        reserve_after_seconds=None, head_start_seconds=6 * 3600, take_back=False, scores=("free_gpus", "free_cpu")
    )


def test_a_file_of_changes_says_the_same_and_more(written: Any) -> None:
    text = "projects: {a: {quota: 4, nodePools: [x, y], pools: {x: {weight: 3}}}}\n"
    text += "departments: {d: {limit: none}}\npolicy: {takeBack: off, keptAfterEviction: 5m}\nnodes: nodes.yaml\n"
    written("nodes.yaml", "- {name: n1, cpu: 8, memory: 64Gi, gpus: 2, pool: x}\n")
    found = asked((), Path(written("change.yaml", text)), None).change(("a",), ("d",), lambda: "c", ("x", "y"))
    assert found.projects["a"].node_pools == ("x", "y")
    assert found.projects["a"].pools == {"x": PoolBounds(over_quota_weight=3.0)}
    assert found.departments == {"d": Bounds(gpu_limit_milli=None)}
    assert found.policy == PolicyChange(take_back=False, kept_after_eviction_seconds=300)
    ((node,),) = found.nodes.values()
    assert (node.name, node.facts.pool, node.facts.gpu_count) == ("n1", "x", 2)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("quota=3", "--set: 'quota=3' is not WHAT.NAME=VALUE"),
        ("quoat.vision=3", "there is no setting 'quoat'\n  → did you mean 'quota'?"),
        ("quota.visoin=3", "there is no project 'visoin'\n  → did you mean 'vision'?"),
        (
            "quota.vision=-1",
            "quota: must be GPUs, such as 16 or 0.5, or none for no bound, from 0 to 10,000,000; given '-1'",
        ),
        ("quota.vision/nosuchpool=3", "there is no node pool 'nosuchpool'\n  → there are: default"),
        ("quota.vision/defualt=3", "there is no node pool 'defualt'\n  → did you mean 'default'?"),
        ("nodePools.vision=default,nosuch", "there is no node pool 'nosuch'\n  → there are: default"),
        ("policy.reserveAfter=soon", "reserveAfter: must be a time, such as 30s, 10m or 2h, or never; given 'soon'"),
        ("weight.vision=heavy", "weight: must be a weight, such as 2, or none for the usual one"),
        ("minimumRuntime.vision=soon", "minimumRuntime: must be a time, such as 30s, 10m or 2h, or none; given 'soon'"),
        ("minimumRuntime.vision/h100=5m", "there is no setting 'minimumRuntime' of a node pool"),
        ("policy.reserve=5m", "there is no setting 'reserve'"),
        ("policy.takeBack=maybe", "takeBack: must be on or off; given 'maybe'"),
        ("policy.scores=best", "scores: must be some of soft_taints, gpu_price, node_value"),
    ],
)
def test_what_cannot_be_set_is_refused_by_name_rule_and_what_would_do(muster: Any, given: str, told: str) -> None:
    ran = muster("simulate", "--trace", str(TRACE), "--set", given)
    assert (ran.code, ran.out) == (ExitCode.USAGE, "")
    assert told in ran.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--trace", "no.csv", "--from", "2h"), "--trace is played in place of a log"),
        (("--trace-nodes", "n.yaml"), "--trace-nodes belongs to --trace"),
        (("--cluster", "x"), "--cluster says whose nodes are changed"),
        (("--plot", "x.gif"), "--plot: x.gif must end with .png or .svg"),
        (("--plot", "nowhere/x.png"), "--plot: there is no folder nowhere"),
        (("--from", "yesterday"), "--from: 'yesterday' is no moment"),
        (("--backup", "nowhere"), "the backup nowhere cannot be read"),
        (("--change", "no.yaml"), "--change: no.yaml cannot be read"),
        (("--trace", "no.csv"), "--trace: no.csv cannot be read"),
    ],
)
def test_flags_that_do_not_go_together_or_lead_nowhere_are_refused(
    muster: Any, words: tuple[str, ...], told: str
) -> None:
    ran = muster("simulate", *words)
    assert ran.code in {ExitCode.USAGE, ExitCode.FAILURE}
    assert told in ran.err


# -- traces ------------------------------------------------------------------------------------------------------------


def test_every_problem_of_a_trace_is_told_with_its_place(muster: Any, written: Any) -> None:
    text = "name,arrival,runtime,gpus,portion,memory,priority,gang\na,0,10,1,,1Gi,low,1\na,0,10,1,,1Gi,low,1\n"
    text += "b,soon,10,1,,1Gi,low,1\nc,0,10,1.5,,1Gi,low,1\nd,0,10,0,0.5,1Gi,low,1\ne,0,10,1,2,1Gi,low,1\n"
    text += "f,0,10,1,,lots,low,1\ng,0,10,1,,1Gi,urgent,1\n"
    ran = muster("simulate", "--trace", written("trace.csv", text), "--trace-nodes", str(EXAMPLES / "nodes.yaml"))
    assert ran.code == ExitCode.USAGE
    for told in (
        "7 problems",
        "line 3, name: must be unique; 'a' stands there twice",
        "line 4, arrival: must be seconds or a time such as 90s or 2h since the beginning",
        "line 5, gpus: must be a whole number of 0 to 1,024; given '1.5'",
        "line 6, portion: needs gpus of at least 1",
        "line 7, portion: must be a number of 0.001 to 1; given '2'",
        "and 2 more",
    ):
        assert told in ran.err, ran.err


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("name,num_gpu\na,1\n", "has no column 'cpu_milli'\n  → a list without times cannot be played"),
        ("name,arival\na,1\n", "has no column 'arrival'"),
        ("name,arrival,gpu\na,1,1\n", "workloads have no column 'gpu'\n  → did you mean 'gpus' or 'cpu'?"),
        ("name,arrival\n", "it holds no workload"),
    ],
)
def test_a_trace_without_its_columns_is_refused(muster: Any, written: Any, text: str, told: str) -> None:
    assert told in muster("simulate", "--trace", written("t.csv", text)).err


def test_a_trace_needs_nodes(muster: Any, written: Any) -> None:
    ran = muster("simulate", "--trace", written("t.csv", "name,arrival\na,0\n"))
    assert "says nothing of nodes\n  → give them with --trace-nodes FILE" in ran.err


def test_a_list_of_openb_is_a_trace(tmp_path: Path) -> None:
    """The first two hundred of the published list, on every fortieth of its nodes."""
    pods, nodes = rows("openb_pod_list_default")[:200], rows("openb_node_list_gpu_node")[::40]
    for name, of in (("pods.csv", pods), ("nodes.csv", nodes)):
        with (tmp_path / name).open("w", newline="") as file:
            writer = csv.DictWriter(file, of[0].keys())
            writer.writeheader()
            writer.writerows(of)
    trace = read_trace(tmp_path / "pods.csv", tmp_path / "nodes.csv")
    first = next(each for each in trace.workloads if each.name == "openb-pod-0001")
    assert (first.gpus, first.portion, first.runtime) == (1, 0.46, 12902960 - 427061)
    script, assumed = script_of(trace.workloads, trace.nodes, settings=Settings())
    figures = Simulation(Job(script=script)).run()
    assert assumed == sum(not row["scheduled_time"] for row in pods)
    assert figures.count("started") + figures.count("waits") == 200


# -- what is printed ---------------------------------------------------------------------------------------------------


def test_the_example_is_played_side_by_side_and_the_same_each_time(muster: Any, tmp_path: Path) -> None:
    words = ("simulate", "--trace", str(TRACE), "--change", str(EXAMPLES / "change.yaml"))
    first = muster(*words, "-o", "json", "--plot", str(tmp_path / "outcome.png"))
    assert first.code == 0, first.err
    found = {(row["measure"], row["of"]): row for row in json.loads(first.out)}
    again = list(csv.DictReader(muster(*words, "-o", "csv").out.splitlines()))
    assert [(row["measure"], row["of"]) for row in again] == list(found)
    for row in again:
        told = found[row["measure"], row["of"]]
        assert {key: row[key] for key in COMPARED} == {key: as_in_csv(told.get(key)) for key in COMPARED}
    assert found["workloads", "all"]["unchanged"] == found["started", "all"]["changed"] == 10
    waits = found["waiting p50", "5-8 GPUs"]
    assert waits["difference"] == pytest.approx(waits["changed"] - waits["unchanged"])
    assert {"GPUs in use", "share error", "evictions", "GPU hours lost", "waiting p99"} <= {of for of, _ in found}
    assert re.search(r"days a minute|times as fast", first.err)
    assert (tmp_path / "outcome.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".outcome")] == []


COMPARED: Final = ("unchanged", "changed", "difference")


def as_in_csv(value: object) -> str:
    return "" if value is None else str(value)


def test_a_table_shows_what_is_played_up_to_a_moment(muster: Any) -> None:
    table = muster("simulate", "--trace", str(TRACE), "--to", "30m", "--set", "policy.takeBack=off").out
    head, *told_rows = [re.split(r"\s{2,}", line.strip()) for line in table.splitlines()]
    assert head == ["MEASURE", "OF", "UNCHANGED", "CHANGED", "DIFFERENCE"]
    told = {row[0]: row for row in told_rows}
    assert told["workloads"][3] == "8"
    assert told["time"][2] == "30m"


HEARS_CTRL_C: Final = """
import signal
from muster.cli.main import main
signal.signal(signal.SIGINT, signal.default_int_handler)
main()
"""
"""Also where the tests run in the background of a shell, which has all that it starts there ignore the signal."""


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    trace = tmp_path / "long.csv"
    trace.write_text("name,arrival,runtime,gpus\n" + "".join(f"w{n},{n},5000,{1 + n % 4}\n" for n in range(3000)))
    words = ("--trace", str(trace), "--trace-nodes", str(EXAMPLES / "nodes.yaml"), "--plot", str(tmp_path / "x.svg"))
    process = subprocess.Popen(
        [sys.executable, "-c", HEARS_CTRL_C, "simulate", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(Path.cwd())},
        text=True,
    )
    while not (children := psutil.Process(process.pid).children()):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (ExitCode.INTERRUPTED, "")
    assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["long.csv"]


def test_the_same_outcome_is_the_same_picture() -> None:
    trace = read_trace(TRACE, None)
    script, _ = script_of(trace.workloads, trace.nodes, settings=Settings())
    figures = Simulation(Job(script=script)).run()
    shown = [Shown(key, figures) for key in ("log", "unchanged", "changed")]
    drawn = [picture(shown, "a title", "svg") for _ in range(2)]
    assert drawn[0] == drawn[1]
    for text in (b"waiting time (seconds)", b"GPUs in use (%)", b"share error (% of the GPUs)", b"unchanged"):
        assert text in drawn[0]


# -- the log -----------------------------------------------------------------------------------------------------------


def test_an_event_that_the_api_shows_is_the_one_of_the_log_again() -> None:
    """Every event of a day of a log; what has a hash or the like is of no use here."""
    lives = a_day()
    seen: set[str] = set()
    for commit in lives.world.commits:
        cluster_id = commit.record.about.cluster_id or ""
        for event in commit.events:
            data = json.loads(msgspec.json.encode(shown_data(event)))
            assert stored_event(type(event).__name__, data, cluster_id=cluster_id) == event
            seen.add(type(event).__name__)
    assert {"PodsBound", "PodsReserved", "WorkloadCreated", "PodFailed", "ReservationsReleased"} <= seen
    assert seen <= {name for name, _ in REGISTRY}


def test_the_log_is_read_from_the_api_page_by_page(muster: Any, api: ShapeServer) -> None:
    lives = a_day()
    commits = lives.world.commits
    shown: list[dict[str, Any]] = [
        {
            "sequence": commit.seq,
            "at": commit.record.occurred_at.isoformat(),
            "aggregate": commit.aggregate,
            "id": commit.record.about.id,
            "clusterId": commit.record.about.cluster_id,
            "node": lives.world.chain("node", commit.key).state.name if commit.aggregate == "node" else None,
            "actor": {"iss": "i", "sub": "ann"},
            "commandId": commit.record.command_id,
            "batch": msgspec.to_builtins(commit.record.batch),
            "events": [
                {
                    "type": type(event).__name__,
                    "version": encode_event(event).version,
                    "data": json.loads(msgspec.json.encode(shown_data(event))),
                }
                for event in commit.events
            ],
        }
        for commit in commits
    ]
    half = len(shown) // 2

    def page(request: Any) -> Reply:
        if request.query.get("order") == ["desc"]:
            return Reply(body={"events": shown[-1:], "next": None})
        after = int(request.query["after"][0])
        rest = [row for row in shown if row["sequence"] > after][:half]
        more = bool(rest) and rest[-1]["sequence"] < shown[-1]["sequence"]
        return Reply(body={"events": rest, "next": rest[-1]["sequence"] if more else None})

    api.on("GET", "/events", page)
    ran = muster("simulate", "-o", "json")
    assert ran.code == 0, ran.err
    found = {(row["measure"], row["of"]): row for row in json.loads(ran.out)}
    past = lives.read()
    assert found["workloads", "all"]["log"] == len(past.figures.waits)
    assert found["replay error p50", "starts"]["unchanged"] == 0
    assert "UNCHANGED against the LOG: starts differ by 0.0s in the median" in ran.err
    assert "nothing is changed" in ran.err
    refused = muster("simulate", "--from", str(commits[-1].seq))
    assert refused.code == ExitCode.USAGE
    assert "the log has nothing behind" in refused.err


def test_a_log_in_a_backup_is_read_without_a_server(tmp_path: Path) -> None:
    lives = a_day()
    writer = SegmentWriter(NO_HASH)
    for commit in lives.world.commits:
        subject = f"ev.{commit.aggregate}.{commit.key}"
        at = commit.record.occurred_at.isoformat()
        writer.add(Message(commit.seq, subject, at, {}, encode_commit(commit.record)))
    segment, data = writer.finish("a")
    (tmp_path / "events").mkdir()
    (tmp_path / segment.file).write_bytes(data)
    manifest = Manifest(
        format=1,
        made_at=lives.world.now,
        muster="0",
        first=1,
        seq=lives.world.commits[-1].seq,
        chain=segment.chain,
        segments=(segment,),
        kept=(),
        sealing=Sealing(salt="", n=1, r=1, p=1, check=""),
    )
    (tmp_path / "manifest.json").write_bytes(encode_manifest(manifest))
    reader = PastReader(None, None, newest=lives.world.now)
    for commit in commits_of_backup(str(tmp_path), lambda _done, _total: None):
        reader.take(commit)
    assert reader.finish() == lives.read()
