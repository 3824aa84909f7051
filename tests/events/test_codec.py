"""The storage format: every event ever shipped can be read, and is still written as its golden payload says.

A golden is one file per event type and version. Old ones are never changed; a new version adds a file.
"""

from datetime import UTC, timedelta, timezone
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from events import codec
from events.cluster import ClusterRemoved
from events.codec import (
    REGISTRY,
    UNDECODABLE,
    UPCASTERS,
    UnknownEventError,
    decode_commit,
    decode_event,
    encode_commit,
    encode_event,
)
from events.commit import About, Actor, BatchPart, CommitRecord, EventRecord
from events.very_same import for_the_very_same
from events.workload.fields.compute import ComputeSpec
from events.workload.fields.distribution import Distribution
from events.workload.fields.inference import ServedModel, Serving, ServingPort
from events.workload.fields.metadata import Label
from events.workload.fields.storage import StorageSpec
from events.workload.life import WorkloadCreated
from events.workload.made_from import MadeFrom
from events.workload.spec import NO_SPEC, Inference, TrainingSpec
from tests.events.given import NOW

GOLDENS = Path(__file__).parent / "goldens"
NO_DISTRIBUTION = msgspec.json.decode(msgspec.json.encode(Distribution(distributed_framework="PyTorch")))
NO_INFERENCE = Inference(
    serving=Serving(serving_port=ServingPort(container=1), model=ServedModel(name="m")), replicas=1
)
"""With all that one may have, and of that the defaults."""


def without_later(section: dict[str, Any], golden: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """A section with the fields of its golden alone; the others have their defaults."""
    later = {key: value for key, value in section.items() if key not in golden}
    assert later == {key: defaults[key] for key in later}
    return {
        key: without_later(value, golden[key], defaults[key]) if isinstance(value, dict) else value
        for key, value in section.items()
        if key in golden
    }


@pytest.mark.parametrize(("name", "version"), sorted(REGISTRY))
def test_every_registered_event_is_written_exactly_as_its_golden(name: str, version: int) -> None:
    golden = (GOLDENS / f"{name}.v{version}.json").read_bytes().strip()
    event = decode_event(EventRecord(type=name, version=version, data=msgspec.Raw(golden)))
    assert type(event) is REGISTRY[name, version]
    written = bytes(encode_event(event).data)
    if "spec" in event.__struct_fields__:
        # A spec is stored whole: it has the fields, too, that came after its golden, each with its default.
        whole, before = msgspec.json.decode(written), msgspec.json.decode(golden)
        for part, defaults in (("spec", NO_SPEC), ("inference", NO_INFERENCE)):
            if before.get(part) is not None:
                told = msgspec.json.decode(msgspec.json.encode(defaults))
                whole[part] = without_later(whole[part], before[part], told)
        if (distributed := whole.get("distributed")) is not None:
            told = before["distributed"]["distribution"]
            distributed["distribution"] = without_later(distributed["distribution"], told, NO_DISTRIBUTION)
        written = msgspec.json.encode(whole)
    elif getattr(event, "storage", None) is not None:
        # Likewise all volumes of a workload.
        whole, before = msgspec.json.decode(written), msgspec.json.decode(golden)
        told = msgspec.json.decode(msgspec.json.encode(StorageSpec()))
        written = msgspec.json.encode(whole | {"storage": without_later(whole["storage"], before["storage"], told)})
    assert written == golden
    for field in msgspec.structs.fields(event):
        assert field.encode_name in msgspec.json.decode(golden), f"the golden leaves {field.name} out"


@pytest.mark.parametrize("path", sorted(GOLDENS.iterdir()), ids=lambda path: path.name)
def test_every_golden_can_be_read_for_ever(path: Path) -> None:
    name, version, _ = path.name.split(".")
    record = EventRecord(type=name, version=int(version[1:]), data=msgspec.Raw(path.read_bytes().strip()))
    assert decode_event(record) is not None


def test_old_versions_are_upcast_one_step_at_a_time(request: pytest.FixtureRequest) -> None:
    class Old(msgspec.Struct, frozen=True):
        gpus: int

    class New(msgspec.Struct, frozen=True):
        gpu_milli: int
        note: str

    added = {("TestEvent", 3): New}
    steps = {
        ("TestEvent", 1): lambda fields: {"gpu_milli": fields["gpus"] * 1000},
        ("TestEvent", 2): lambda fields: fields | {"note": "none"},
    }
    REGISTRY.update(added)
    UPCASTERS.update(steps)
    codec._VERSIONS["TestEvent"] = 3

    def forget() -> None:
        del REGISTRY["TestEvent", 3], codec._VERSIONS["TestEvent"]
        for key in steps:
            del UPCASTERS[key]

    request.addfinalizer(forget)
    old = EventRecord(type="TestEvent", version=1, data=msgspec.Raw(msgspec.json.encode(Old(2))))
    assert decode_event(old) == New(gpu_milli=2000, note="none")


@pytest.mark.parametrize(("name", "version"), [("NeverHeardOf", 1), ("WorkloadQueued", 2), ("WorkloadQueued", 0)])
def test_an_unknown_event_or_version_is_an_error_never_skipped(name: str, version: int) -> None:
    with pytest.raises(UnknownEventError, match=name):
        decode_event(EventRecord(type=name, version=version, data=msgspec.Raw(b"{}")))


@given(
    command_id=st.text(min_size=1, max_size=40),
    parent=st.integers(0, 2**53),
    batch=st.none() | st.builds(BatchPart, id=st.text(), index=st.integers(1, 9), count=st.integers(1, 9)),
    about=st.builds(About, id=st.none() | st.text(), owner=st.none() | st.text()),
)
def test_a_commit_survives_the_way_through_the_log(
    command_id: str, parent: int, batch: BatchPart | None, about: About
) -> None:
    golden = (GOLDENS / "WorkloadCreated.v1.json").read_bytes().strip()
    event = decode_event(EventRecord(type="WorkloadCreated", data=msgspec.Raw(golden)))
    record = CommitRecord(
        commit_id="c",
        command_id=command_id,
        actor=Actor(id="s"),
        occurred_at=NOW,
        parent_seq=parent,
        events=(encode_event(event),),
        batch=batch,
        about=about,
    )
    commit = decode_commit("ev.workload.abc", 7, encode_commit(record))
    assert (commit.aggregate, commit.key, commit.seq, commit.events) == ("workload", "abc", 7, (event,))
    assert (commit.record.parent_seq, commit.record.batch, commit.record.about) == (parent, batch, about)


def created(spec: TrainingSpec, name: str) -> CommitRecord:
    event = WorkloadCreated(
        workload_id=name,
        name=name,
        requested_name=name,
        kind="Training",
        project_id="p",
        cluster_id="c",
        owner="ann",
        at=NOW,
        spec=spec,
        made_from=MadeFrom(set_by={"policy": ("priorityClass",)}),
    )
    return CommitRecord(
        commit_id=name,
        command_id=name,
        actor=Actor(id="ann"),
        occurred_at=NOW,
        parent_seq=0,
        events=(encode_event(event),),
    )


def test_workloads_that_say_the_same_of_their_spec_share_it_once_they_are_read() -> None:
    spec = TrainingSpec(image="busybox", command="sleep 1", labels=(Label(name="a", value="b"),))
    specs = (spec, replace(spec, command="sleep 2"), replace(spec, args="x" * 20_000))
    records = [created(one, name) for one in specs for name in ("first", "second")]
    commits = [decode_commit("ev.workload.abc", 7, encode_commit(record)) for record in records]
    for record, commit in zip(records, commits, strict=True):
        assert commit.events == (decode_event(record.events[0]),)
    first, second, other, another, long, longer = (commit.events[0].spec for commit in commits)
    assert first is second
    assert other is another
    assert first is not other
    assert long is not longer, "what is long is not kept"


def test_a_creation_that_nobody_could_run_is_not_read_though_its_spec_is_one() -> None:
    record = created(TrainingSpec(image="busybox", compute=ComputeSpec()), "a")
    data = bytes(record.events[0].data)
    for good, bad in ((b'"Training"', b'"Nothing"'), (b'"command":null', b'"command":"\'"'), (b'"spec":', b'"sp":')):
        assert good in data
        broken = EventRecord(type="WorkloadCreated", data=msgspec.Raw(data.replace(good, bad, 1)))
        payload = encode_commit(replace(record, events=(broken,)))
        with pytest.raises(UNDECODABLE):
            decode_commit("ev.workload.abc", 7, payload)


def test_of_the_very_same_object_a_result_is_found_once() -> None:
    asked: list[list[int]] = []

    @for_the_very_same
    def size(of: list[int]) -> int:
        asked.append(of)
        return len(of)

    one, other = [1, 2], [1, 2]
    assert [size(one), size(one), size(other), size(one)] == [2, 2, 2, 2]
    assert [id(each) for each in asked] == [id(one), id(other), id(one)]


@pytest.mark.parametrize("hours", [-23.75, 0, 5.5, 16, 23.75])
def test_a_time_of_any_zone_is_read_as_that_moment_in_utc(hours: float) -> None:
    """Postgres, for one, reads no zone beyond 15:59."""
    said = NOW.astimezone(timezone(timedelta(hours=hours)))
    event = ClusterRemoved(at=said)
    record = CommitRecord(
        commit_id="c",
        command_id="c",
        actor=Actor(id="s"),
        occurred_at=said,
        parent_seq=0,
        events=(encode_event(event),),
    )
    commit = decode_commit("ev.cluster.abc", 1, encode_commit(record))
    for read in (commit.record.occurred_at, commit.events[0].at):
        assert (read, read.tzinfo) == (NOW, UTC)


def test_no_event_has_a_field_for_secrets_or_bytes() -> None:
    """log.md section 6.6: the log is for ever, so nothing that must be forgotten may enter it."""
    for (name, _), struct in REGISTRY.items():
        for field in msgspec.structs.fields(struct):
            assert field.type is not bytes, f"{name}.{field.name} holds bytes"
            assert not {"token", "password", "secret"} & {field.name} or name == "PodsBound", f"{name}.{field.name}"
