"""What each cluster should be told, and what its answers mean: pure, as tables."""

from datetime import datetime, timedelta

import pytest
from msgspec.structs import replace

from events.cluster import Cluster
from events.cluster_protocol import EnvironmentSource, ObservedCluster, ObservedPod, SettledPod, StartPod, StopPod
from events.ids import workload_key
from events.node import Node, Reservation
from events.phases import PodPhase
from events.project import Project
from events.subjects import wanted_subject
from events.workload.commands import DeleteWorkload, PodFactKind, PodWarning, SuspendWorkload
from events.workload.fields.metadata import Annotation
from events.workload.fields.process import ConfigMapKey, EnvironmentVariable, PodFieldReference, SecretKey
from events.workload.fields.sweep import SweepParameter, SweepSpec
from events.workload.pod import PodRef
from events.workload.spec import ComputeSpec
from events.workload.state import Workload
from services.cluster_sync.observe import (
    UNSAID_SECONDS,
    answer_to_stale,
    cluster_command,
    facts_of,
    is_newest_run,
    left_unsaid,
)
from services.cluster_sync.reconcile import Desired, Held, desired_pod, reconcile, run_pod
from tests.events.given import ID, NOW, Story, fact, ref
from tests.events.test_inference import running, scale

KEY = workload_key("p1", "train")
SUBJECT = wanted_subject("c1", f"{KEY}-main-0")


def desired(state: Workload, index: int = 0) -> Desired | None:
    pod = state.pods.get(("main", index))
    return (
        None
        if pod is None
        else desired_pod(KEY, ("main", index), state, pod, Project(name="nlp", pod_security="restricted"))
    )


def told(state: Workload, held: Held | None) -> list[type]:
    wanted = desired(state)
    words = reconcile([SUBJECT], {} if wanted is None else {SUBJECT: wanted}, {} if held is None else {SUBJECT: held})
    return [type(word) for _, word in words]


RUNNING = Story().created().bound().saw(fact("running"))
OUT_OF_SIGHT = Story().created().bound().saw(fact("running"), fact("unreachable", seconds=1))
TOKEN = RUNNING.state.pods["main", 0].token


def suspended() -> Workload:
    story = Story().created().bound().saw(fact("running"))
    story.when(SuspendWorkload(workload_id=ID))
    return story.state


@pytest.mark.parametrize(
    ("state", "held", "words"),
    [
        (RUNNING.state, None, [StartPod]),
        (RUNNING.state, Held(StartPod, TOKEN), []),
        (RUNNING.state, Held(StartPod, TOKEN - 1), [StartPod]),
        (RUNNING.state, Held(StopPod, TOKEN - 1), [StartPod]),
        (RUNNING.state, Held(StopPod, TOKEN + 5), []),
        (OUT_OF_SIGHT.state, Held(StartPod, TOKEN), []),
        (OUT_OF_SIGHT.state, None, [StartPod]),
        (suspended(), Held(StartPod, TOKEN), [StopPod]),
        (suspended(), Held(StopPod, TOKEN), []),
        (suspended(), None, [StopPod]),
        (Story().created().state, None, []),
        (Story().created().state, Held(StartPod, TOKEN), [SettledPod]),
        (Story().created().state, Held(StopPod, TOKEN), [SettledPod]),
        (Story().created().state, Held(SettledPod, TOKEN), []),
    ],
    ids=[
        "a run that nobody was told of",
        "already told",
        "an older run is told of",
        "the older run was stopped",
        "another instance is ahead",
        "out of sight, and already told to run",
        "out of sight, and WANTED was lost",
        "to be stopped",
        "already told to stop",
        "to be stopped, and WANTED was lost",
        "nothing to tell",
        "the run is over",
        "the stopped run is over",
        "already settled",
    ],
)
def test_wanted_is_made_to_say_what_is_desired(state: Workload, held: Held | None, words: list[type]) -> None:
    assert told(state, held) == words


def test_telling_what_was_just_told_tells_nothing() -> None:
    wanted = desired(RUNNING.state)
    assert wanted is not None
    ((subject, word),) = reconcile([SUBJECT], {SUBJECT: wanted}, {})
    assert reconcile([SUBJECT], {SUBJECT: wanted}, {subject: Held(type(word), word.token)}) == []


def test_a_run_is_told_with_all_that_an_agent_needs() -> None:
    story = Story().created(
        command="python train.py",
        args="--name 'a b'",
        working_dir="/w",
        environment_variables=(EnvironmentVariable(name="A", value="b"),),
        compute=ComputeSpec(cpu_core_request=0.5, cpu_core_limit=1, cpu_memory_limit="1Gi", gpu_devices_request=1),
        termination_grace_period_seconds=7,
        annotations=(Annotation(name="n", value="v"),),
    )
    wanted = desired(story.bound().state)
    assert wanted is not None
    word = run_pod(wanted)
    assert word.arguments == ("python", "train.py", "--name", "a b")
    assert (word.environment, word.annotations) == ({"A": "b"}, {"n": "v"})
    assert (word.cpu_milli, word.cpu_limit_milli, word.memory_limit_bytes) == (500, 1000, 1024**3)
    assert (word.grace_seconds, word.node_name, word.working_dir) == (7, "node-1", "/w")
    assert (word.project_id, word.project_name, word.pod_security, word.pods) == ("p1", "nlp", "restricted", 1)
    assert not word.privileged


def test_no_grace_at_all_is_told_as_that() -> None:
    story = Story().created(termination_grace_period_seconds=0).bound()
    running = desired(story.state)
    story.when(SuspendWorkload(workload_id=ID))
    stopping = desired(story.state)
    assert running is not None
    assert stopping is not None
    assert run_pod(running).grace_seconds == 0
    ((_, word),) = reconcile([SUBJECT], {SUBJECT: stopping}, {})
    assert isinstance(word, StopPod)
    assert word.grace_seconds == 0


def test_nobody_waits_longer_than_an_hour_for_a_pod_to_go() -> None:
    """A hundred years were possible once."""
    story = Story().created(termination_grace_period_seconds=10**9).bound()
    story.when(SuspendWorkload(workload_id=ID))
    stopping = desired(story.state)
    assert stopping is not None
    ((_, word),) = reconcile([SUBJECT], {SUBJECT: stopping}, {})
    assert isinstance(word, StopPod)
    assert word.grace_seconds == 3_600


@pytest.mark.parametrize(
    ("asked", "limits"),
    [
        (ComputeSpec(gpu_devices_request=1), (0, 0)),
        (ComputeSpec(gpu_request_type="portion", gpu_portion_request=0.2, gpu_portion_limit=0.3331), (334, 0)),
        (ComputeSpec(gpu_request_type="memory", gpu_memory_request="1Gi", gpu_memory_limit="3Gi"), (0, 3 * 1024**3)),
    ],
)
def test_limits_of_gpu_shares_are_told(asked: ComputeSpec, limits: tuple[int, int]) -> None:
    """S036 R4 R5."""
    wanted = desired(Story().created(compute=asked).bound().state)
    assert wanted is not None
    word = run_pod(wanted)
    assert (word.gpu_limit_milli, word.gpu_memory_limit_bytes) == limits


@pytest.mark.parametrize(("command", "keeps"), [("python train.py", False), (None, True)])
def test_arguments_without_a_command_leave_the_image_its_entry_point(command: str | None, keeps: bool) -> None:
    """S019."""
    wanted = desired(Story().created(command=command, args="--fast").bound().state)
    assert wanted is not None
    assert run_pod(wanted).keeps_entry_point is keeps


def test_variables_whose_values_only_the_cluster_knows_are_told_by_their_sources() -> None:
    """S020."""
    story = Story().created(
        environment_variables=(
            EnvironmentVariable(name="A", value="b"),
            EnvironmentVariable(name="S", secret=SecretKey(name="wandb", key="token")),
            EnvironmentVariable(name="C", config_map=ConfigMapKey(name="settings", key="rate")),
            EnvironmentVariable(name="F", pod_field_ref=PodFieldReference(path="status.podIP")),
        ),
    )
    wanted = desired(story.bound().state)
    assert wanted is not None
    word = run_pod(wanted)
    assert word.environment == {"A": "b"}
    assert word.environment_from == (
        EnvironmentSource(name="S", kind="secret", object_name="wandb", key="token"),
        EnvironmentSource(name="C", kind="config_map", object_name="settings", key="rate"),
        EnvironmentSource(name="F", kind="field", key="status.podIP"),
    )


@pytest.mark.parametrize(("completions", "parallelism", "pods"), [(5, 2, 2), (2, 2, 2), (1, 1, 1), (3, 9, 3)])
def test_an_agent_knows_how_many_pods_of_a_set_may_live_at_once(completions: int, parallelism: int, pods: int) -> None:
    wanted = desired(Story().created(completions=completions, parallelism=parallelism).bound().state)
    assert wanted is not None
    assert run_pod(wanted).pods == pods


def test_the_reason_of_a_stop_is_what_happened_to_the_workload() -> None:
    story = Story().created().bound()
    story.when(DeleteWorkload(workload_id=ID))
    wanted = desired(story.state)
    assert wanted is not None
    ((_, word),) = reconcile([SUBJECT], {SUBJECT: wanted}, {})
    assert isinstance(word, StopPod)
    assert word.reason == "deleted"


def observed(kind: PodFactKind, pod: PodRef | None = None, started_at: datetime | None = None) -> ObservedPod:
    return ObservedPod(
        pod_key=f"{KEY}-main-0", token=TOKEN, workload_id=ID, pod=pod or ref(), kind=kind, at=NOW, started_at=started_at
    )


def test_only_the_newest_run_of_this_incarnation_is_listened_to() -> None:
    assert is_newest_run(observed("running"), RUNNING.state)
    assert not is_newest_run(observed("running", ref(attempt=0)), RUNNING.state)
    assert not is_newest_run(observed("running"), None)
    again = Story().created().bound().saw(fact("failed", exit_code=1))
    assert not is_newest_run(observed("failed"), again.state), "that run's end stands in the log"


def test_an_agent_that_speaks_of_a_run_that_is_over_is_told_to_end_or_to_forget_it() -> None:
    assert isinstance(answer_to_stale(observed("running")), StopPod)
    assert isinstance(answer_to_stale(observed("succeeded")), SettledPod)


def test_what_an_agent_warned_of_comes_with_the_first_fact() -> None:
    bound = Story().created().bound().state.pods["main", 0]
    warnings = (PodWarning(reason="image_pull", message="m", at=NOW),)
    seen = replace(observed("failed", started_at=NOW - timedelta(seconds=3)), warnings=warnings)
    assert [(f.kind, f.warnings) for f in facts_of(seen, bound)] == [("running", warnings), ("failed", warnings)]


def test_a_run_that_is_not_ready_yet_still_starts() -> None:
    """R21: its workload is Initializing until the probe succeeds, and says so once."""
    bound = Story().created().bound().state.pods["main", 0]
    unready = replace(observed("running"), ready=False)
    assert [fact.kind for fact in facts_of(unready, bound)] == ["starting"]
    assert [fact.kind for fact in facts_of(observed("running"), bound)] == ["running"]


def test_the_end_of_what_was_out_of_sight_makes_up_no_second_start() -> None:
    pod = OUT_OF_SIGHT.state.pods["main", 0]
    seen = observed("interrupted", started_at=NOW - timedelta(seconds=3))
    assert [f.kind for f in facts_of(seen, pod)] == ["interrupted"]


def test_an_agent_that_cannot_work_with_its_cluster_counts_as_away_at_once_and_one_not_heard_as_silent() -> None:
    cluster = Cluster(cluster_id="c1", connected=True)
    broken = ObservedCluster(at=NOW, problem="the API server is away")
    told = cluster_command(cluster, broken, 1, 30)
    assert (told.connected, told.problem, told.silent_seconds) == (False, "the API server is away", 0)
    silent = cluster_command(cluster, broken, 31, 30)
    assert (silent.connected, silent.problem, silent.silent_seconds) == (False, "", 31)
    assert cluster_command(cluster, ObservedCluster(at=NOW), 1, 30).connected


def test_a_start_that_was_never_reported_comes_before_the_end() -> None:
    bound = Story().created().bound().state.pods["main", 0]
    started = NOW - timedelta(seconds=3)
    facts = facts_of(observed("succeeded", started_at=started), bound)
    assert [(f.kind, f.at) for f in facts] == [("running", started), ("succeeded", NOW)]
    running = RUNNING.state.pods["main", 0]
    assert running.phase is PodPhase.RUNNING
    assert [f.kind for f in facts_of(observed("succeeded", started_at=started), running)] == ["succeeded"]


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("starting", [("starting", "other Python")]),
        ("running", [("starting", "other Python"), ("running", "")]),
        ("succeeded", [("starting", "other Python"), ("running", ""), ("succeeded", "")]),
    ],
)
def test_what_is_noted_of_a_run_is_told_with_its_start_however_short_it_was(
    kind: PodFactKind, told: list[tuple[str, str]]
) -> None:
    """Given a run of which only its newest word was heard; where its start is known, nothing is told again."""
    bound = Story().created().bound().state.pods["main", 0]
    seen = replace(observed(kind, started_at=NOW), note="other Python")
    assert [(fact.kind, fact.message) for fact in facts_of(seen, bound)] == told
    if kind != "starting":
        running = RUNNING.state.pods["main", 0]
        assert [(fact.kind, fact.message) for fact in facts_of(seen, running)] == [(kind, "")]


IDLE = Node(cluster_id="c1", name="n", present=True)
BUSY = replace(IDLE, reservations={"r": Reservation(id="r", workload_id="w", workload_key="k")})


@pytest.mark.parametrize(
    ("node", "heard", "counted", "problem", "gone"),
    [
        (IDLE, {"b": 0.0}, 1, "", ("a",)),
        (IDLE, {"a": -UNSAID_SECONDS - 1, "b": 0.0}, 1, "", ("a",)),
        (IDLE, {"a": -UNSAID_SECONDS, "b": 0.0}, 2, "", ()),
        (BUSY, {"b": 0.0}, 1, "", ()),
        (IDLE, {"b": 0.0}, 2, "", ()),
        (IDLE, {}, 0, "", ()),
        (IDLE, {"b": 0.0}, 1, "the API server is away", ()),
        (replace(IDLE, present=False), {"b": 0.0}, 1, "", ()),
    ],
    ids=[
        "never spoken of",
        "not spoken of for long",
        "spoken of not so long ago",
        "holds runs: its agent knows more of them",
        "not all that the agent counts were heard of",
        "the agent knows none yet",
        "the agent cannot work with its cluster",
        "known to be gone",
    ],
)
def test_a_node_that_its_agent_speaks_of_no_more_is_gone_where_that_costs_nothing(
    node: Node, heard: dict[str, float], counted: int, problem: str, gone: tuple[str, ...]
) -> None:
    beat = ObservedCluster(at=NOW, nodes=counted, problem=problem)
    assert left_unsaid({"a": node, "b": IDLE}, heard, beat, 0.0) == gone


def test_a_replica_that_is_too_many_is_told_to_go_and_the_others_are_left_alone() -> None:
    story = running(3)
    before = {index: replica_desired(story.state, index) for index in range(3)}
    story.when(scale(2, 3))
    words: list[tuple[str, str]] = []
    for index in range(3):
        was, now = before[index], replica_desired(story.state, index)
        held = Held(StartPod, was.token)
        told = reconcile([SUBJECT], {SUBJECT: now}, {SUBJECT: held})
        words += [(f"replica-{index}", word.reason) for _, word in told if isinstance(word, StopPod)]
        assert len(told) == (index == 2)
    assert words == [("replica-2", "scaled_down")]
    recipe = run_pod(replica_desired(story.state, 0))
    assert (recipe.endless, recipe.pods) == (True, 1), "replicas need not find each other, however many there are"
    assert recipe.environment == {"PORT": "8000"}
    assert [(port.container, port.variable) for port in recipe.ports] == [(8000, "PORT")]


def replica_desired(state: Workload, index: int) -> Desired:
    place = ("replica", index)
    found = desired_pod(KEY, place, state, state.pods[place], Project(name="nlp"))
    assert found is not None
    return found


def test_each_run_of_a_sweep_has_its_values_in_its_environment() -> None:
    sweep = SweepSpec(
        parameters=(SweepParameter(name="lr", values=("0.1", "0.2")), SweepParameter(name="seed", values=("1", "2")))
    )
    variables = (EnvironmentVariable(name="same", value="x"),)
    state = Story().created(completions=4, parallelism=4, sweep=sweep, environment_variables=variables).bound().state
    found = [run_pod(wanted).environment for index in range(4) if (wanted := desired(state, index)) is not None]
    assert found == [
        {"same": "x", "lr": lr, "seed": seed} for lr, seed in (("0.1", "1"), ("0.1", "2"), ("0.2", "1"), ("0.2", "2"))
    ]
