"""Every filter operator over every kind of field, on real Postgres; and questions that have no answer (C21)."""

from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any, get_args

import asyncpg
import msgspec
import pytest

from events.actors import Person
from events.phases import PHASE_REASONS, Phase
from events.workload.evictions import EvictionReason
from projections.filters import FIELDS, OPERATORS, Filter, InvalidQueryError, WorkloadQuery, going_on_only
from projections.queries import Queries
from projections.row_json import WORKLOAD_COLUMNS, row_to_json
from projections.unanswered import QueryTimeoutError
from services.api.shown_rows import history_record, node_answer, pod_answer
from tests.projections.small_world import PROJECTS, WORLD
from tests.support.lives import BEGIN

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def queries(database: str) -> AsyncIterator[Queries]:
    queries = Queries(database).within(None)
    yield queries
    await queries.close()


async def names(queries: Queries, *filters: Filter, **query: Any) -> list[str]:
    query = {"projects": None, "filters": filters, "sort_by": "createdAt", "descending": False} | query
    asked = WorkloadQuery(**query)
    page = await queries.workloads(asked)
    assert (await queries.count(asked)).count == len(page.rows) + (0 if page.next is None else 1)
    return [row["name"] for row in page.rows]


EARLY = (BEGIN + timedelta(seconds=1)).isoformat()


@pytest.mark.parametrize(
    ("field", "op", "value", "found"),
    [
        ("name", "==", "alpha", "alpha"),
        ("name", "==", "Alpha", ""),
        ("name", "!=", "alpha", "beta gamma_50%"),
        ("name", "<=", "beta", "alpha beta"),
        ("name", ">=", "beta", "beta gamma_50%"),
        ("name", "=@", "ET", "beta"),
        ("name", "!@", "et", "alpha gamma_50%"),
        ("name", "=^", "al", "alpha"),
        ("name", "=$", "A", "alpha beta"),
        ("name", "=@", "_50%", "gamma_50%"),
        ("name", "=@", "%", "gamma_50%"),
        ("name", "=@", "_", "gamma_50%"),
        ("name", "=^", "%", ""),
        ("category", "=$", "e\\d", "gamma_50%"),
        ("category", "==", "Explore\\d", "gamma_50%"),
        ("image", "=^", "repo/", "alpha"),
        ("projectName", "==", "other", "gamma_50%"),
        ("projectName", "!=", "other", "alpha beta"),
        ("projectName", "!@", "other", "alpha beta"),
        ("clusterName", "=@", "loc", "alpha beta gamma_50%"),
        ("projectId", "==", PROJECTS["other"], "gamma_50%"),
        ("submittedBy", "==", "alice", "alpha beta gamma_50%"),
        ("type", "==", "Training", "alpha beta gamma_50%"),
        ("type", "==", "trainingworkload", "alpha beta gamma_50%"),
        ("type", "!=", "InteractiveWorkload", "alpha beta gamma_50%"),
        ("phase", "==", "Running", "alpha"),
        ("phase", "==", "Completed", "beta"),
        ("phase", "==", "cOMPLETED", "beta"),
        ("phase", "!=", "completed", "alpha gamma_50%"),
        ("priorityClassName", "==", "High", "alpha"),
        ("phase", "!=", "Completed", "alpha gamma_50%"),
        ("phase", "=@", "e", "beta gamma_50%"),
        ("desiredPhase", "==", "Running", "alpha beta gamma_50%"),
        ("phaseReason", "==", "insufficient_gpu", "gamma_50%"),
        ("priority", "==", "5", "alpha"),
        ("priority", "<=", "4", "beta gamma_50%"),
        ("priorityClassName", "==", "high", "alpha"),
        ("preemptibility", "==", "non-preemptible", "alpha"),
        ("createdAt", "<=", EARLY, "alpha"),
        ("createdAt", ">=", EARLY, "beta gamma_50%"),
        ("createdAt", "==", BEGIN.isoformat(), "alpha"),
        ("createdAt", "!=", BEGIN.isoformat().replace("+00:00", "Z"), "beta gamma_50%"),
        ("completedAt", ">=", "2026-01-01", "beta"),
        ("completedAt", "!=", "2026-01-01", "alpha beta gamma_50%"),
        ("startedAt", ">=", BEGIN.isoformat(), "alpha beta"),
        ("gpuRequest", "==", "2", "alpha"),
        ("gpuRequest", "!=", "2.0", "beta gamma_50%"),
        ("allocatedGPU", ">=", "0.5", "alpha"),
        ("gpuAllocated", "<=", "0", "beta gamma_50%"),
        ("cpuRequestCores", "==", "0.5", "alpha"),
        ("cpuMemoryRequestBytes", ">=", str(2**30), "alpha"),
        ("exitCode", "==", "0", "beta"),
        ("exitCode", "!=", "0", "alpha gamma_50%"),
        ("attempt", "==", "1", "alpha beta gamma_50%"),
        ("totalRunningTimeSeconds", ">=", "1", "alpha beta"),
        ("totalPendingTimeSeconds", ">=", "1", "alpha beta gamma_50%"),
        ("nodePools", "==", "fast", "beta"),
        ("nodePools", "!=", "fast", "alpha gamma_50%"),
        ("nodePools", "=@", "AS", "beta"),
        ("nodePools", "!@", "as", "alpha gamma_50%"),
        ("nodePools", "=^", "sl", "beta"),
        ("nodePools", "=$", "ow", "beta"),
        ("nodepool", "==", "default", "alpha"),
        ("currentNodes", "==", "node-1", "alpha"),
        ("connections", "==", "board=ClusterIP", "beta"),
        ("connections", "=$", "ExternalUrl", "beta"),
        ("dataSources", "==", "corpus=pvc", "beta"),
        ("dataSources", "==", "/shared=nfs", "beta"),
        ("dataSources", "=@", "scratch", ""),
        ("environment", "!=", "torch", "alpha beta gamma_50%"),
        ("architecture", "==", "standard", "alpha beta gamma_50%"),
        ("guaranteedTimeLeft", "==", "unlimited", "alpha"),
        ("workAtRisk", ">=", "0.001", "alpha"),
        ("workAtRisk", "==", "0", "beta gamma_50%"),
        ("checkpointAt", ">=", EARLY, ""),
        ("lostGpuHours", "==", "0", "alpha beta gamma_50%"),
        ("guaranteedTimeLeft", "==", "none", "beta gamma_50%"),
        ("requestedRuns", "==", "1", "alpha beta gamma_50%"),
        ("gpuMemoryAllocatedBytes", "==", str(80 * 2**30), "alpha"),
        ("idleGpus", "==", "0", "beta gamma_50%"),
    ],
)
async def test_filters(queries: Queries, field: str, op: str, value: str, found: str) -> None:
    assert await names(queries, Filter(field=field, op=op, value=value)) == found.split()


@pytest.mark.parametrize("reason", get_args(EvictionReason))
async def test_what_waits_again_is_asked_for_by_whatever_it_was_evicted_for(queries: Queries, reason: str) -> None:
    assert reason in PHASE_REASONS
    assert await names(queries, Filter(field="phaseReason", op="==", value=reason)) == []


@pytest.mark.parametrize(
    ("measured", "idle"),
    [
        ({}, None),
        ({0: 0, 150: 0, 310: 0}, 1),
        ({0: 0, 150: 0}, 0),
        ({200: 0, 310: 0, 350: 0}, None),
        ({0: 0, 150: 3, 310: 0}, 0),
        ({0: 0, 310: 3, 400: 3}, 1),
        ({0: 3, 310: 0}, 0),
        ({0: None, 310: None}, None),
    ],
    ids=["not measured", "idle", "for too short", "no more", "busy since", "busy before", "busy again", "no GPU seen"],
)
async def test_a_gpu_is_idle_that_was_seen_to_compute_nothing_for_five_minutes(
    queries: Queries, database: str, measured: dict[int, int | None], idle: int | None
) -> None:
    """S076. Measured: how busy it was, by seconds ago."""
    alpha = (await queries.workloads(asked("name", "alpha"))).rows[0]
    owner = await asyncpg.connect(database)
    try:
        await owner.executemany(
            "INSERT INTO muster.usage_samples VALUES ($1, $2, 'main', 0, 1, 0, now() - $3 * interval '1 s', 1, 1, $4)",
            [(alpha["cluster_id"], alpha["id"], ago, percent) for ago, percent in measured.items()],
        )
        found = {row["name"]: row["idle_gpus"] for row in (await queries.workloads(asked("type", "Training"))).rows}
    finally:
        await owner.execute("DELETE FROM muster.usage_samples")
        await owner.close()
    assert found == {"alpha": idle, "beta": 0, "gamma_50%": 0}


@pytest.mark.parametrize(("saved_hours_ago", "hours"), [(1, 1), (10**6, None)])
async def test_work_at_risk_is_counted_from_the_checkpoint_or_from_the_start(
    queries: Queries, database: str, saved_hours_ago: int, hours: int | None
) -> None:
    """Issue 14, section 2. Given a file that is newer than the run, and one that is older."""
    began = (await queries.workloads(asked("name", "alpha"))).rows[0]
    owner = await asyncpg.connect(database)
    set_ = "UPDATE muster_v1.workloads SET checkpoint_at = now() - $1 * interval '1 hour' WHERE name = 'alpha'"
    try:
        await owner.execute(set_, float(min(saved_hours_ago, 200_000)))
        (row,) = (await queries.workloads(asked("name", "alpha"))).rows
    finally:
        await owner.execute("UPDATE muster_v1.workloads SET checkpoint_at = NULL")
        await owner.close()
    expected = began["work_at_risk"] if hours is None else hours * row["gpu_allocated_milli"] / 1000
    assert row["work_at_risk"] == pytest.approx(expected, rel=0.01)


def asked(field: str, value: str) -> WorkloadQuery:
    return WorkloadQuery(projects=None, filters=(Filter(field=field, op="==", value=value),))


async def test_all_filters_hold_together(queries: Queries) -> None:
    both = (Filter(field="name", op="=@", value="a"), Filter(field="phase", op="==", value="Running"))
    assert await names(queries, *both) == ["alpha"]


@pytest.mark.parametrize("descending", [True, False])
async def test_every_field_sorts(queries: Queries, descending: bool) -> None:
    for field in sorted(FIELDS):
        page = await queries.workloads(WorkloadQuery(projects=None, sort_by=field, descending=descending))
        assert sorted(row["name"] for row in page.rows) == ["alpha", "beta", "gamma_50%"], field


@pytest.mark.parametrize(
    ("given", "descending", "same_as"),
    [
        ("name", False, "alpha beta gamma_50%"),
        ("-name", False, "gamma_50% beta alpha"),
        ("-name", True, "alpha beta gamma_50%"),
        ("type,name", False, "alpha beta gamma_50%"),
        ("type, -name", False, "gamma_50% beta alpha"),
        ("-projectName,-name", False, "gamma_50% beta alpha"),
        ("projectName,-name", True, "gamma_50% alpha beta"),
    ],
)
async def test_several_fields_sort_one_after_the_other(
    queries: Queries, given: str, descending: bool, same_as: str
) -> None:
    assert await names(queries, sort_by=given, descending=descending) == same_as.split()


@pytest.mark.parametrize("op", OPERATORS)
async def test_every_field_takes_an_operator_or_says_which_it_takes(queries: Queries, op: str) -> None:
    for name, field in FIELDS.items():
        value = {"time": "2026-03-02T09:00:00Z", "integer": "3", "number": "0.5"}.get(field.kind, "Running")
        value = next(iter(field.values), value)
        try:
            await queries.workloads(WorkloadQuery(projects=None, filters=(Filter(field=name, op=op, value=value),)))
        except InvalidQueryError as error:
            assert error.rule == "operator", error  # noqa: PT017 (either outcome is right for some fields)
            assert field.kind != "text", name


@pytest.mark.parametrize(
    ("search", "found"),
    [
        ("ALPH", "alpha"),
        ("other", "gamma_50%"),
        ("%", "gamma_50%"),
        ("complet", "beta"),
        ("nothing", ""),
        ("repo/t", "alpha"),
    ],
)
async def test_search_looks_into_what_a_person_sees(queries: Queries, search: str, found: str) -> None:
    assert await names(queries, search=search) == found.split()


@pytest.mark.parametrize(
    ("op", "value", "whether"),
    [
        ("==", "Ann", True),
        ("==", "ann", False),
        ("==", "alice", False),
        ("!=", "Ann", False),
        ("=@", "NN", True),
        ("!@", "nn", False),
        ("=^", "an", True),
        ("=$", "lice", False),
        (">=", "Ann", True),
        ("<=", "Anm", False),
    ],
)
async def test_who_submitted_is_asked_for_by_the_name_that_people_know(
    queries: Queries, op: str, value: str, whether: bool
) -> None:
    found = await names(
        queries, Filter(field="submittedBy", op=op, value=value), subjects={"alice": "Ann", "x": "Xaver"}
    )
    assert bool(found) == whether


async def test_search_and_order_go_by_the_name_that_people_know(queries: Queries) -> None:
    called: dict[str, Any] = {"subjects": {"alice": "Ann"}, "sort_by": "submittedBy"}
    assert sorted(await names(queries, search="Ann", **called)) == ["alpha", "beta", "gamma_50%"]
    assert await names(queries, search="alice", **called) == []
    assert (await queries.count(WorkloadQuery(projects=None, search="Ann", subjects={"alice": "Ann"}))).count == 3


async def test_deleted_ones_are_listed_apart_and_projects_bound_what_is_seen(queries: Queries) -> None:
    assert await names(queries, deleted=True) == ["old"]
    assert await names(queries, projects=frozenset({PROJECTS["other"]})) == ["gamma_50%"]
    assert await names(queries, projects=frozenset()) == []


async def test_pages_neither_repeat_nor_skip(queries: Queries) -> None:
    seen: list[str] = []
    offset: int | None = 0
    while offset is not None:
        page = await queries.workloads(WorkloadQuery(projects=None, sort_by="submittedBy", offset=offset, limit=1))
        seen += [row["name"] for row in page.rows]
        offset = page.next
    assert sorted(seen) == ["alpha", "beta", "gamma_50%"]


@pytest.mark.parametrize(
    ("query", "field", "rule"),
    [
        ({"filters": (Filter(field="nose", op="==", value="x"),)}, "filterBy", "known_field"),
        ({"filters": (Filter(field="name", op="~~", value="x"),)}, "filterBy", "operator"),
        ({"filters": (Filter(field="createdAt", op="=@", value="x"),)}, "filterBy", "operator"),
        ({"filters": (Filter(field="createdAt", op="==", value="yesterday"),)}, "filterBy", "time"),
        ({"filters": (Filter(field="createdAt", op="==", value="0000-01-01"),)}, "filterBy", "time"),
        ({"filters": (Filter(field="createdAt", op="==", value="0001-01-01T00:00:00+23:00"),)}, "filterBy", "time"),
        ({"filters": (Filter(field="priority", op="==", value="1.5"),)}, "filterBy", "integer"),
        ({"filters": (Filter(field="priority", op="==", value=str(2**63)),)}, "filterBy", "integer"),
        ({"filters": (Filter(field="priority", op="==", value="9" * 900),)}, "filterBy", "integer"),
        ({"filters": (Filter(field="gpuRequest", op="==", value="nan"),)}, "filterBy", "number"),
        ({"filters": (Filter(field="gpuRequest", op="==", value="1e999"),)}, "filterBy", "number"),
        ({"filters": (Filter(field="phase", op="==", value="Asleep"),)}, "filterBy", "known_value"),
        ({"filters": (Filter(field="name", op="==", value="a\x00"),)}, "filterBy", "text"),
        ({"filters": (Filter(field="nodePools", op="=@", value="\ud800"),)}, "filterBy", "text"),
        ({"filters": (Filter(field="name", op="==", value="x" * 1001),)}, "filterBy", "max_length"),
        ({"filters": (Filter(field="name", op="==", value="x"),) * 33}, "filterBy", "max_items"),
        ({"search": "\x00"}, "search", "text"),
        ({"sort_by": "nose"}, "sortBy", "known_field"),
        ({"sort_by": "phase,-nose"}, "sortBy", "known_field"),
        ({"sort_by": "phase,"}, "sortBy", "known_field"),
        ({"sort_by": "--phase"}, "sortBy", "known_field"),
        ({"sort_by": "name,id,phase,type,createdAt,priority"}, "sortBy", "max_items"),
        ({"limit": 0}, "limit", "range"),
        ({"limit": 501}, "limit", "range"),
        ({"offset": -1}, "offset", "range"),
        ({"offset": 10**30}, "offset", "range"),
    ],
)
async def test_a_question_without_an_answer_names_what_would_do(
    queries: Queries, query: dict[str, Any], field: str, rule: str
) -> None:
    with pytest.raises(InvalidQueryError) as refused:
        await queries.workloads(WorkloadQuery(projects=None, **query))
    assert (refused.value.field, refused.value.rule) == (field, rule)
    assert len(str(refused.value)) > 20


@pytest.mark.parametrize(
    ("query", "hint"),
    [
        ({"filters": (Filter(field="pahse", op="==", value="x"),)}, "did you mean 'phase'?"),
        ({"filters": (Filter(field="PHASE", op="==", value="x"),)}, "did you mean 'phase'?"),
        ({"filters": (Filter(field="phase", op="==", value="runing"),)}, "did you mean 'Running'"),
        ({"sort_by": "createdat"}, "did you mean 'createdAt'?"),
    ],
)
async def test_a_typing_error_leads_to_the_nearest_word(queries: Queries, query: dict[str, Any], hint: str) -> None:
    with pytest.raises(InvalidQueryError, match="'") as refused:
        await queries.workloads(WorkloadQuery(projects=None, **query))
    assert hint in str(refused.value)


async def test_numbers_at_the_edge_of_a_bigint_are_taken(queries: Queries) -> None:
    assert await names(queries, Filter(field="priority", op="<=", value=str(2**63 - 1))) != []
    assert await names(queries, Filter(field="priority", op=">=", value=str(2**63 - 1))) == []


async def test_rows_become_the_json_of_the_api(queries: Queries) -> None:
    page = await queries.workloads(
        WorkloadQuery(projects=None, filters=(Filter(field="name", op="==", value="alpha"),))
    )
    row = row_to_json(page.rows[0])
    assert tuple(row) == WORKLOAD_COLUMNS
    assert row["phase"] == Phase.RUNNING
    assert (row["gpuRequest"], row["gpuAllocated"], row["cpuRequestCores"]) == (2.0, 1.0, 0.5)
    assert row["currentNodes"] == ["node-1"]
    assert row["createdAt"] == "2026-03-02T09:00:00Z"
    assert row["projectName"] == "default"
    assert row["phaseReason"] is None
    pods = await queries.pods(row["id"])
    assert as_json(pod_answer(pods.rows[0], {}))["devices"] == [{"device": 0, "milli": 1000}]
    history = await queries.history(row["id"])
    alice = Person(issuer="https://idp", subject="Alice")
    created = as_json(history_record(history.rows[0], lambda _: alice))
    assert created["actor"] == {"iss": "https://idp", "sub": "Alice", "kind": "user"}
    assert created["details"]["owner"] == "Alice"
    assert created["message"].startswith("submitted by Alice: ")
    keys = {key for record in history.rows for key in keys_in(as_json(history_record(record, lambda _: alice)))}
    assert {"workloadId", "requestedName", "nodeName", "podSet"} <= keys
    assert not [key for key in keys if "_" in key]
    node = as_json(node_answer((await queries.nodes()).rows[0], lambda _: alice))
    assert node["devices"][0] == {"device": 0, "reservedMilli": 1000}
    assert node["reserved"]["pods"] == 2
    lost = dict((await queries.nodes()).rows[0]) | {"gpu_count": 0, "used_device_milli": [500, 0, 0]}
    assert as_json(node_answer(lost, lambda _: alice))["devices"] == [{"device": 0, "reservedMilli": 500}]
    tainted = dict((await queries.nodes()).rows[0]) | {"taints": [{"key": "a"}, {"key": "b", "effect": "NoExecute"}]}
    assert as_json(node_answer(tainted, lambda _: alice))["taints"] == [
        {"key": "a", "value": "", "effect": "NoSchedule"},
        {"key": "b", "value": "", "effect": "NoExecute"},
    ]
    use = (await queries.project_use(frozenset({row["projectId"]}))).projects[row["projectId"]]
    assert use.phases == {"Running": 1, "Completed": 1}
    assert (use.gpu_milli, use.non_preemptible_gpu_milli, use.pods) == (1000, 1000, 1)


def test_every_column_can_be_asked_for_by_its_own_name_and_by_the_known_ones() -> None:
    """public-api.md; the tests above ask for each of FIELDS."""
    assert {
        *WORKLOAD_COLUMNS,
        "priority",
        "nodepool",
        "allocatedGPU",
        "requestedRuns",
        "idleAllocatedGpus",
    } == FIELDS.keys()


def as_json(answer: msgspec.Struct) -> Any:
    return msgspec.json.decode(msgspec.json.encode(answer))


def keys_in(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield str(key)
            yield from keys_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys_in(inner)


async def test_an_export_streams_every_row(queries: Queries) -> None:
    async with queries.stream(WorkloadQuery(projects=None, limit=1)) as stream:
        assert stream.seq == len(WORLD.commits)
        assert len([row async for row in stream.rows]) == 3


async def test_waiting_for_a_sequence_ends(queries: Queries) -> None:
    assert await queries.wait_for(len(WORLD.commits), 0)
    assert not await queries.wait_for(len(WORLD.commits) + 1, 0.05)


async def test_a_query_that_takes_too_long_is_cut_off(database: str) -> None:
    queries = Queries(database, statement_timeout_seconds=0.2)
    connection = await asyncpg.connect(database)
    try:
        async with connection.transaction():
            await connection.execute("LOCK TABLE muster_v1.workloads IN ACCESS EXCLUSIVE MODE")
            with pytest.raises(QueryTimeoutError):
                await queries.workloads(WorkloadQuery(projects=None))
    finally:
        await connection.close()
        await queries.close()


def test_only_phases_that_nothing_ended_is_in_are_looked_for_among_what_goes_on() -> None:
    """A Failed workload that is deleted while pods of it still stop is Deleting, and has ended: it was not listed."""

    def is_narrowed(phase: Phase) -> bool:
        query = WorkloadQuery(projects=None, filters=(Filter(field="phase", op="==", value=phase.value),))
        return "completed_at" in str(going_on_only(query))

    assert {phase for phase in Phase if not is_narrowed(phase)} == {Phase.COMPLETED, Phase.FAILED, Phase.DELETING}
