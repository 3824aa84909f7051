"""The Python client at work on a real API, with and without `await`: whole lists, waits that end, events that go on."""

import asyncio
import itertools
import json
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from muster_client import (
    NULL,
    AsyncMuster,
    Conflict,
    EventsLost,
    InferenceCreation,
    InferenceSpec,
    InvalidRequest,
    LogsCut,
    Muster,
    MusterError,
    NotAuthenticated,
    NotFound,
    RequestError,
    Told,
    TooManyRequests,
    TrainingCreation,
    TrainingSpec,
    Unavailable,
    WaitTimeoutError,
    WorkloadEnded,
    aio,
    models,
    operations,
    request,
    sync,
)
from muster_client.errors import error_of
from muster_client.request import Frames, Lines, StreamEndedError, event_of, path

from development.servers import NatsServer, PostgresServer
from tests.support.api import Served, serving

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@pytest.fixture(scope="module")
def served(
    nats_server: NatsServer, postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("python-client")
    with serving(nats_server, postgres_server, folder, "feed", event_stream_heartbeat_seconds=1) as running:
        yield running


@pytest.fixture
def muster(served: Served) -> Iterator[Muster]:
    with Muster(served.url, served.token("admin")) as muster:
        yield muster


@pytest.fixture
async def amuster(served: Served) -> AsyncIterator[AsyncMuster]:
    async with AsyncMuster(served.url, lambda: served.token("admin")) as muster:
        yield muster


def creation(served: Served, **more: str) -> TrainingCreation:
    given = served.training(**more)
    return TrainingCreation(
        name=given["name"], project_id=served.project, cluster_id=served.cluster, spec=TrainingSpec(image="python:3.13")
    )


def test_what_was_submitted_is_in_the_next_list_and_every_page_is_of_one_moment(
    served: Served, muster: Muster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "PAGE", 2)
    ids = [muster.submit(creation(served)).id for _ in range(5)]
    listed = muster.workloads(f"projectId=={served.project}")
    first = next(listed)
    later = muster.submit(creation(served)).id
    seen = [first.id, *(row.id for row in listed)]
    assert set(ids) <= set(seen)
    assert len(seen) == len(set(seen))
    assert later not in seen
    assert later in [row.id for row in muster.workloads(sort_by="name", descending=False)]


def test_an_inference_is_submitted_and_waited_for_until_it_runs(served: Served, muster: Muster) -> None:
    spec = InferenceSpec(image="server", serving_port=models.ServingPort(container=8000))
    name = served.training()["name"]
    made = muster.submit(InferenceCreation(name=name, project_id=served.project, cluster_id=served.cluster, spec=spec))
    assert made.type == "Inference"
    with pytest.raises(WaitTimeoutError):
        muster.wait(made.id, timeout_seconds=0)
    assert request.reached(msgspec.structs.replace(made, phase="Running"), ())


@pytest.mark.anyio
async def test_with_await_it_is_the_same(served: Served, amuster: AsyncMuster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aio, "PAGE", 1)
    made = await amuster.submit(creation(served))
    assert (await amuster.get(made.id)).name == made.name
    assert made.id in [row.id async for row in amuster.workloads(f"name=={made.name}")]
    records = [record async for record in amuster.history(made.id)]
    assert isinstance(records[0], models.WorkloadCreatedRecord)
    assert len(records) == len({(record.sequence, record.index) for record in records})
    assert (await amuster.project("default")).id == served.project
    with pytest.raises(NotFound, match="there is no cluster 'elsewhere'"):
        await amuster.cluster("elsewhere")


def test_the_client_without_await_works_where_a_loop_runs_as_in_a_notebook(served: Served, muster: Muster) -> None:
    async def cell() -> models.Workload:
        return muster.submit(creation(served))

    made = asyncio.run(cell())
    assert f"<tr><th>name</th><td style='text-align:left'>{made.name}</td></tr>" in made._repr_html_()


def test_what_is_wrong_is_told_field_by_field(served: Served, muster: Muster) -> None:
    with pytest.raises(InvalidRequest) as refused:
        muster.submit(TrainingCreation(name="x", project_id=served.project, cluster_id="y"))
    assert {"clusterId", "spec.image"} <= {issue.field for issue in refused.value.issues}
    assert ("spec.image", "required") in {(issue.field, issue.rule) for issue in refused.value.issues}
    assert all(issue.details and issue.details in str(refused.value) for issue in refused.value.issues)
    assert refused.value.request_id
    made = muster.submit(creation(served))
    muster.delete(made.id)
    muster.wait(made.id, "Deleted", timeout_seconds=60)
    with pytest.raises(Conflict) as late:
        muster.suspend(made.id)
    assert (late.value.status, bool(late.value.details)) == (409, True)
    with pytest.raises(NotFound):
        muster.get("00000000-0000-4000-8000-000000000000")
    with pytest.raises(ValueError, match="is no id or name"):
        muster.get("..")
    with Muster(served.url, "") as nobody, pytest.raises(NotAuthenticated):
        nobody.projects()


def test_the_same_key_submits_once(served: Served, muster: Muster) -> None:
    request = operations.create_training1(creation(served), idempotency_key=f"client-{time.monotonic_ns()}")
    assert muster.send(request).workload_id == muster.send(request).workload_id


def test_a_log_that_was_restored_without_what_was_seen_is_read_on(muster: Muster) -> None:
    muster._sequence = 10**12
    assert [project.name for project in muster.projects()] == ["default", "other"]
    assert muster._sequence < 10**12


def test_in_a_change_null_is_not_the_same_as_saying_nothing() -> None:
    settings = operations.change_workload("x", models.WorkloadChange(priority_class="high"))
    assert settings.content() == b'{"priorityClass":"high"}'
    never = operations.change_workload("x", models.WorkloadChange(auto_deletion_time_after_completion_seconds=None))
    assert never.content() == b'{"autoDeletionTimeAfterCompletionSeconds":null}'


def test_in_a_submission_null_can_be_said() -> None:
    spec = TrainingSpec(image="a", priority_class=NULL, labels=NULL, compute=models.ComputeSpec(cpu_core_request=NULL))
    sent = TrainingCreation(
        name="n", project_id="p", cluster_id="c", assets=models.AssetChoice(environment_id=NULL), spec=spec
    )
    content = operations.create_training1(sent).content()
    assert content is not None
    assert json.loads(content) == {
        "name": "n",
        "projectId": "p",
        "clusterId": "c",
        "assets": {"environmentId": None},
        "spec": {"image": "a", "priorityClass": None, "labels": None, "compute": {"cpuCoreRequest": None}},
    }
    other: Any = object()
    with pytest.raises(TypeError, match="object cannot be written"):
        operations.create_training1(TrainingCreation(name="n", project_id="p", cluster_id="c", spec=other)).content()


def test_a_wait_ends_and_says_why(served: Served, muster: Muster) -> None:
    made = muster.submit(creation(served))
    with pytest.raises(WaitTimeoutError, match=f"{made.name} is still Creating after 0.4 s"):
        muster.wait(made.id, timeout_seconds=0.4)
    muster.suspend(made.id)
    assert muster.wait(made.id, "Stopped", timeout_seconds=60).phase == "Stopped"
    with pytest.raises(WorkloadEnded, match=f"{made.name} is Stopped.*; waited for Completed"):
        muster.wait(made.id, timeout_seconds=60)
    muster.delete(made.id)
    with pytest.raises(WorkloadEnded, match=r"is Deleted.*; waited for Running or Completed"):
        muster.wait(made.id, "Running", "Completed", timeout_seconds=60)


@pytest.mark.anyio
async def test_a_stream_of_events_goes_on_across_a_restart_and_tells_each_event_once(served: Served) -> None:
    made: list[str] = []
    seen: list[str] = []
    async with AsyncMuster(served.url, served.token("admin")) as muster:
        stream = muster.follow_events(project_id=served.project, types=["WorkloadSubmitted"])
        assert (await anext(stream)).event is None  # it listens
        made.append((await muster.submit(creation(served))).id)
        seen.append(await heard(stream))
        restart = asyncio.create_task(asyncio.to_thread(served.restart, 0.5))
        following = asyncio.create_task(heard(stream))
        await restart
        made.append((await muster.submit(creation(served))).id)
        seen.append(await following)
        place = await anext(stream)
        await stream.aclose()
        # Who stored the place goes on there, even much later.
        made.append((await muster.submit(creation(served))).id)
        stream = muster.follow_events(last_event_id=place.place, types=["WorkloadSubmitted"])
        seen.append(await heard(stream))
        await stream.aclose()
    assert seen == made


async def heard(stream: AsyncIterator[Told]) -> str:
    async with asyncio.timeout(60):
        async for told in stream:
            if isinstance(told.event, models.WorkloadSubmittedPublicEvent):
                return told.event.data.workload_id
    raise AssertionError("the stream has ended")


def test_listening_and_what_has_been_tell_the_same_events(served: Served, muster: Muster) -> None:
    made = muster.submit(creation(served))
    done = threading.Event()
    submitted: list[str] = []

    def submit() -> None:
        with Muster(served.url, served.token("admin")) as other:
            while not done.wait(0.2):
                submitted.append(other.submit(creation(served)).id)

    thread = threading.Thread(target=submit)
    thread.start()
    try:
        listened = [event.id for event in itertools.islice(muster.listen(types=["WorkloadSubmitted"]), 3)]
    finally:
        done.set()
        thread.join(60)
    past = [row.event for row in muster.events(project_id=served.project, types=["WorkloadSubmitted"])]
    assert set(listened) <= {event.id for event in past}
    assert made.id in [
        event.data.workload_id for event in past if isinstance(event, models.WorkloadSubmittedPublicEvent)
    ]


def test_a_server_that_is_away_is_tried_for_a_while_and_then_named() -> None:
    with Muster("http://127.0.0.1:9", "", retry_seconds=0.1) as muster:
        with pytest.raises(Unavailable, match=r"http://127\.0\.0\.1:9: "):
            muster.projects()
        with pytest.raises(Unavailable):
            next(muster.follow_events(away_seconds=0.1))


def test_an_address_without_a_scheme_is_refused() -> None:
    with pytest.raises(ValueError, match="must begin with http:// or https://, got 'localhost:8080'"):
        Muster("localhost:8080")


def test_output_that_the_server_ends_early_is_not_taken_for_the_end(served: Served, muster: Muster) -> None:
    made = muster.submit(creation(served))
    vic = models.AccessRule(subject_id="vic", role_name="viewer", scope_type="project", scope_id=served.project)
    with Muster(served.url, served.token("vic")) as viewer:
        revoke = threading.Timer(1.0, lambda: muster.send(operations.revoke_role(vic)))
        revoke.start()
        with pytest.raises(LogsCut) as cut:
            list(viewer.logs(made.id, follow=True))
        revoke.join(60)
    muster.send(operations.grant_role(vic))
    assert cut.value.details in {"not_permitted", "not_in_project"}


def test_a_place_of_another_log_is_refused_by_name(muster: Muster) -> None:
    with pytest.raises(InvalidRequest, match="lastEventId"):
        next(muster.follow_events(last_event_id="0000000000000001.000000-00000000"))


def take(frames: Frames, *lines: str) -> list[Told]:
    return [told for line in lines if (told := frames.take(line)) is not None]


EVENT: dict[str, Any] = {
    "specversion": "1.0", "id": "a.0", "type": "muster.ProjectDeleted.v1", "source": "/muster", "subject": "x",
    "time": "2030-01-31T12:00:00Z", "datacontenttype": "application/json", "dataschema": "x", "sequence": "1.0",
    "data": {"projectId": "p", "name": "old", "actor": {"id": "u", "kind": "user"}, "at": "x"},
}  # fmt: skip


def test_an_event_that_comes_again_is_told_once_and_a_gap_is_named() -> None:
    frames = Frames(None)
    assert take(frames, "retry: 2000", "id: 1", "") == [Told("1", None)]
    data = f"data: {json.dumps(EVENT)}"
    told = take(frames, "id: 2", data, "", "id: 2", data, "")
    assert [(one.place, type(one.event).__name__) for one in told] == [("2", "ProjectDeletedPublicEvent")]
    frames.take("id: 3")
    frames.connected()
    assert take(frames, "retry: 2000", "id: 2", "", "") == []
    assert frames.place == "2", "what was begun on a connection that broke is not believed"
    assert take(frames, ": heartbeat", "id: 4", "") == [Told("4", None)]
    # While events cannot be read, nobody knows whether something happens.
    assert take(frames, "event: away", "data: {}", "", ": heartbeat", "id: 4", "") == []
    assert take(frames, "event: back", "data: {}", "", ": heartbeat", "id: 4", "") == [Told("4", None)]
    gap = take(frames, "event: gap", 'data: {"code": "gap", "message": "some are gone"}', "")
    assert gap == [Told("4", None, lost="some are gone")]
    with pytest.raises(StreamEndedError) as ended:
        take(frames, "event: end", 'data: {"code": "not_permitted", "message": "you may not"}', "")
    assert (ended.value.may_go_on, "you may not" in str(ended.value.error)) == (False, True)
    assert issubclass(EventsLost, MusterError)


def test_what_a_later_server_adds_breaks_nothing() -> None:
    later = event_of(json.dumps(EVENT | {"more": 1, "data": EVENT["data"] | {"more": {}}}))
    assert isinstance(later, models.ProjectDeletedPublicEvent)
    other = event_of(json.dumps(EVENT | {"type": "muster.ProjectMoved.v1", "data": {"to": "x"}}))
    assert isinstance(other, models.OtherPublicEvent)
    assert (other.type, other.data, other.time.year) == ("muster.ProjectMoved.v1", {"to": "x"}, 2030)


def test_a_proxy_that_answers_in_the_place_of_the_server_is_an_error_too() -> None:
    error = error_of(502, b"<html>", {"retry-after": "3"})
    assert (type(error), error.retry_after_seconds, str(error)) == (Unavailable, 3.0, "the answer was 502")


def test_only_a_line_feed_ends_a_line() -> None:
    lines = Lines()
    told = [*lines.feed(b"a\x0bb\xe2\x80"), *lines.feed(b"\xa8c\r\nd"), *lines.feed(b"e\n\nf"), *lines.rest()]
    assert told == ["a\x0bb\u2028c", "de", "", "f"]


def test_a_long_line_comes_whole_and_one_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = Lines()
    assert [*lines.feed(b"a"), *lines.feed(b"b"), *lines.feed(b"c\nd"), *lines.feed(b"\n\ne")] == ["abc", "d", ""]
    assert [*lines.rest()] == ["e"]
    monkeypatch.setattr(request, "MOST_LINE_BYTES", 10)
    lines = Lines()
    assert [*lines.feed(b"0123456789")] == []
    with pytest.raises(RequestError, match="more than 10 bytes"):
        _ = [*lines.feed(b"0")]


@pytest.mark.parametrize("token", ["secret\x00", "secret\nX-Other: 1", "secret…"])
def test_a_token_that_cannot_be_sent_stands_in_no_error(token: str) -> None:
    with (
        Muster("http://127.0.0.1:1", token, retry_seconds=0) as muster,
        pytest.raises(ValueError, match="token") as got,
    ):
        muster.clusters()
    assert "secret" not in "".join(traceback.format_exception(got.value))


def test_a_token_from_a_file_may_end_its_line(served: Served) -> None:
    with Muster(served.url, served.token("admin") + "\n") as muster:
        assert muster.projects() is not None


def test_a_password_in_the_address_stands_in_no_error() -> None:
    with Muster("http://me:secret@127.0.0.1:1", "", retry_seconds=0) as muster, pytest.raises(Unavailable) as got:
        muster.clusters()
    assert "secret" not in str(got.value)
    assert "http://127.0.0.1:1:" in str(got.value)


@pytest.mark.parametrize(
    ("content", "headers"),
    [
        (b"<html>", {}),
        (b"{}", {}),
        (b"no gzip", {"Content-Encoding": "gzip"}),
        (b"{}", {"X-Log-Sequence": "9" * 5000}),
        (b"{}", {"X-Log-Sequence": "none"}),
    ],
)
def test_an_answer_of_somebody_else_is_an_error_of_the_client(content: bytes, headers: dict[str, str]) -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers=headers, stream=httpx.ByteStream(content))

    with (
        Muster("http://muster", "", retry_seconds=0, transport=httpx.MockTransport(answer)) as muster,
        pytest.raises(RequestError),
    ):
        muster.clusters()


def test_a_server_that_asks_for_a_pause_without_end_is_away() -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(429, headers={"Retry-After": "9" * 400})

    with (
        Muster("http://muster", "", transport=httpx.MockTransport(answer)) as muster,
        pytest.raises(TooManyRequests),
    ):
        next(iter(muster.follow_events()))


def test_names_are_quoted_in_a_path() -> None:
    assert path("/a/{}/b", "x/../?y") == "/a/x%2F..%2F%3Fy/b"


def test_a_program_that_uses_it_passes_the_strict_type_checker(tmp_path: Path) -> None:
    blocks = (ROOT / "clients" / "python" / "README.md").read_text().split("```python\n")[1:]
    for number, block in enumerate(blocks):
        (tmp_path / f"example_{number}.py").write_text(block.partition("```")[0])
    config = {"include": ["."], "extraPaths": [str(ROOT / "clients" / "python")], "typeCheckingMode": "strict"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config))
    checker = [sys.executable, "-m", "basedpyright", "-p", str(tmp_path), "--pythonpath", sys.executable]
    done = subprocess.run(checker, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
