"""In projections, the projector and the rebuild."""

from typing import Any, Final

from tests.mutants.mutant import Mutant


def _deleted_still_count(original: Any) -> Any:
    def use_changes(changes: Any) -> Any:
        return original([(b, a) for b, a in changes if a is None or a.deleted_at is None])

    return use_changes


def _released_stay(original: Any) -> Any:
    def project(before: Any, after: Any) -> Any:
        from projections.changes import Put

        return [change for change in original(before, after) if isinstance(change, Put)]

    return project


def _from_wherever_it_is(original: Any) -> Any:
    async def write(self: Any, changes: Any, old_seq: int, new: Any) -> None:
        await original(self, changes, (await self.checkpoint()).seq, new)

    return write


def _ended_vanish(original: Any) -> Any:
    def put_runs(self: Any, state: Any, into: Any) -> None:
        self._over.clear()
        original(self, state, into)

    return put_runs


def _not_retired(original: Any) -> Any:
    async def swap(connection: Any, new: Any) -> None:
        from projections.tables import SHAPE

        old = await connection.fetchval("SELECT schema_name FROM muster.current_projection")
        await original(connection, new)
        await connection.execute(f'UPDATE "{old}".checkpoint SET version = $1', SHAPE)

    return swap


def _any_log(original: Any) -> Any:
    return lambda first, seq, last_commit_id: original(first, seq, first.record.commit_id)


TABLES: Final[list[Mutant]] = [
    Mutant(
        name="deleted-ones-still-count",
        function="projections.projects.project:use_changes",
        invariant="tables",
        bug="The use of a project does not decrease when a workload is deleted.",
        make=_deleted_still_count,
    ),
    Mutant(
        name="released-rows-stay",
        function="projections.nodes.project:project",
        invariant="tables",
        bug="The row of a reservation stays when the node releases it.",
        make=_released_stay,
    ),
    Mutant(
        name="checkpoint-from-anywhere",
        function="services.projector.writer:Writer.write",
        invariant="tables",
        bug="A batch is written without comparing the checkpoint, so two projectors write the same commits.",
        make=_from_wherever_it_is,
    ),
    Mutant(
        name="ended-runs-vanish",
        function="projections.workloads.project:WorkloadWork._put_runs",
        invariant="tables",
        bug="The row of a run is removed when the run ends.",
        make=_ended_vanish,
    ),
    Mutant(
        name="the-old-schema-is-not-retired",
        function="services.projector.rebuild:_swap",
        invariant="tables",
        bug="After a rebuild the projector continues with the replaced schema.",
        make=_not_retired,
    ),
    Mutant(
        name="any-log-is-the-log",
        function="services.projector.service:check_same_log",
        invariant="tables",
        bug="The tables are continued from a log that differs from theirs before their checkpoint.",
        make=_any_log,
    ),
]
