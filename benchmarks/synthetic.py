"""A long log in little time: the lives of many trainings, from one that the real deciders told.

Each life is four commits and six events: created; queued and bound; running; succeeded and completed. Only ids, names
and sequences differ. Written in atomic batches of the server without guards: nobody else writes meanwhile.
"""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import msgspec
from nats.aio.client import Client

from events.aggregate import WORKLOAD, Chain, draft
from events.codec import encode_commit
from events.commit import Actor, service_actor
from events.decision import Context
from events.ids import incarnation_id, workload_key
from events.refusal import Refusal
from events.subjects import EVENTS_STREAM, aggregate_subject
from events.workload.commands import CreateWorkload, PlacePods, PodFact, ReportPods
from events.workload.pod import Placement, PodRef
from events.workload.spec import ComputeSpec, TrainingSpec

COMMITS_PER_LIFE = 4
EVENTS_PER_LIFE = 6
BATCH_MESSAGES = 500
_FIRST_SEQ = 111_111_111_110
"""Sequences of the model life; replaced by the real ones."""


class Model:
    """The four records of one life as text with holes."""

    def __init__(self, project_id: str, cluster_id: str) -> None:
        self.project_id = project_id
        self.name, self.command_id = "modelname", "modelcommand"
        self.key = workload_key(project_id, self.name)
        self.id = incarnation_id(self.key, self.command_id)
        self.records = self._live(cluster_id)

    def _live(self, cluster_id: str) -> list[bytes]:
        command = CreateWorkload(
            kind="Training",
            name=self.name,
            requested_name=self.name,
            project_id=self.project_id,
            cluster_id=cluster_id,
            spec=TrainingSpec(
                image="python:3.13", command="python train.py", compute=ComputeSpec(gpu_devices_request=1)
            ),
        )
        pod = PodRef(pod_set="main", index=0, attempt=1, try_=0)
        now = datetime.now(UTC) - timedelta(hours=1)
        bound = Placement(pod=pod, node_key="modelnode", node_name="node-1", pool="default")
        steps = [
            (command, "create"),
            (PlacePods(workload_id=self.id, placements=(bound,)), "bind"),
            (ReportPods(workload_id=self.id, facts=(PodFact(pod=pod, kind="running", at=now),)), "run"),
            (ReportPods(workload_id=self.id, facts=(PodFact(pod=pod, kind="succeeded", at=now),)), "end"),
        ]
        chain = Chain(state=WORKLOAD.initial)
        records: list[bytes] = []
        for number, (step, word) in enumerate(steps):
            actor = Actor(id="alice") if number == 0 else service_actor("bench")
            command_id = self.command_id if number == 0 else f"{self.command_id}-{word}"
            context = Context(now=now, actor=actor, command_id=command_id, version=chain.version)
            events = WORKLOAD.decide(step, chain.state, context)
            assert not isinstance(events, Refusal), events
            made = draft(WORKLOAD, self.key, chain, events, command_id=command_id, actor=actor, now=now)
            records.append(encode_commit(made.record))
            state = chain.state
            for event in events:
                state = WORKLOAD.evolve(state, event)
            chain = msgspec.structs.replace(chain, state=state, version=_FIRST_SEQ + number)
        return records

    def life(self, number: int, first_seq: int) -> list[tuple[str, bytes]]:
        """(subject, payload) of the commits of life `number`, whose first has the sequence `first_seq`."""
        name, command_id = f"train-{number:06}", f"command-{number:06}"
        key = workload_key(self.project_id, name)
        holes = [
            (self.id, incarnation_id(key, command_id)),
            (self.command_id, command_id),
            (self.name, name),
            (self.key, key),
            *((str(_FIRST_SEQ + i), str(first_seq + i)) for i in range(COMMITS_PER_LIFE)),
        ]
        subject = aggregate_subject("workload", key)
        filled: list[tuple[str, bytes]] = []
        for record in self.records:
            text = record
            for hole, value in holes:
                text = text.replace(hole.encode(), value.encode())
            filled.append((subject, text))
        return filled


async def write_lives(nc: Client, project_id: str, cluster_id: str, count: int) -> None:
    """Append `count` lives to the log, whatever is there."""
    model = Model(project_id, cluster_id)
    seq = (await nc.jetstream().stream_info(EVENTS_STREAM)).state.last_seq
    waiting: list[tuple[str, bytes]] = []
    for number in range(count):
        waiting.extend(model.life(number, seq + len(waiting) + 1))
        if len(waiting) >= BATCH_MESSAGES or number == count - 1:
            await _write(nc, waiting)
            seq += len(waiting)
            waiting = []


async def _write(nc: Client, messages: list[tuple[str, bytes]]) -> None:
    batch = uuid4().hex
    for number, (subject, payload) in enumerate(messages, start=1):
        headers = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number)}
        if number < len(messages):
            await nc.publish(subject, payload, headers=headers)
            continue
        headers["Nats-Batch-Commit"] = "1"
        answer = await nc.request(subject, payload, timeout=30, headers=headers)
        assert b'"error"' not in answer.data, answer.data
