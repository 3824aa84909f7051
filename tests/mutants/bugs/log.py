"""In appends, their unknown outcomes, followers, folds and snapshots."""

from typing import Any, Final

from tests.mutants.mutant import Mutant


def _whole_before_its_end(_: Any) -> Any:
    def ends_batch(self: Any) -> bool:
        batch = self.record.batch
        return batch is None or batch.index >= batch.count - 1

    return ends_batch


def _gap_is_no_news(_: Any) -> Any:
    def check_parent(self: Any, subject: str, commit: Any) -> None:
        self._parents[subject] = commit.seq

    return check_parent


def _first_place_for_the_last(original: Any) -> Any:
    def fate(self: Any, stored: Any, drafts: Any, draft: Any) -> Any:
        from services.runtime.log import jetstream
        from services.runtime.log.store import Committed

        decided = original(self, stored, drafts, draft)
        found_first = isinstance(decided, Committed) and len(drafts) > 1
        return jetstream._committed(drafts, stored.seq) if found_first else decided

    return fate


def _of_any_log(_: Any) -> Any:
    async def log_id(self: Any) -> str:
        return ""

    return log_id


def _one_guard(original: Any) -> Any:
    async def publish_batch(self: Any, drafts: Any, seconds: float) -> Any:
        from types import SimpleNamespace

        from services.runtime.log.jetstream import GUARD

        def guarded_once(call: Any) -> Any:
            async def bare(*args: Any, headers: Any, **kwargs: Any) -> Any:
                first = headers["Nats-Batch-Sequence"] == "1"
                left = {name: value for name, value in headers.items() if first or name != GUARD}
                return await call(*args, headers=left, **kwargs)

            return bare

        connection = SimpleNamespace(publish=guarded_once(self._nc.publish), max_payload=self._nc.max_payload)
        requests = SimpleNamespace(ask=guarded_once(self._requests.ask))
        through = SimpleNamespace(_nc=connection, _requests=requests, _too_large=self._too_large)
        return await original(through, drafts, seconds)

    return publish_batch


def _whoever_it_is(original: Any) -> Any:
    def fate(self: Any, stored: Any, drafts: Any, draft: Any) -> Any:
        from services.runtime.log.examination import decoded
        from services.runtime.log.store import Committed, Conflict

        decided = original(self, stored, drafts, draft)
        if isinstance(decided, Conflict) and len(drafts) == 1:
            return Committed((decoded(stored.subject, stored.seq, stored.data),))
        return decided

    return fate


def _whatever_comes_before(original: Any) -> Any:
    def advance(aggregate: Any, chain: Any, commit: Any) -> Any:
        from msgspec.structs import replace

        return original(aggregate, None if chain is None else replace(chain, version=commit.record.parent_seq), commit)

    return advance


def _passed_by(_: Any) -> Any:
    def take(fold: Any, commits: Any) -> Any:
        from events.aggregate import BrokenChainError

        for commit in commits:
            try:
                fold.apply(commit)
            except BrokenChainError:
                if fold.from_snapshot:
                    raise
            if commit.ends_batch:
                fold.seq = commit.seq

    return take


LOG: Final[list[Mutant]] = [
    Mutant(
        name="whole-before-its-end",
        function="events.commit:Commit.ends_batch",
        invariant="whole log",
        bug="An atomic batch counts as complete one commit too early.",
        make=_whole_before_its_end,
    ),
    Mutant(
        name="a-gap-is-no-news",
        function="services.runtime.log.follower:Follower._check_parent",
        invariant="whole log",
        bug="A reader of some kinds of aggregates does not notice a missing commit in a chain.",
        make=_gap_is_no_news,
    ),
    Mutant(
        name="folds-whatever-comes",
        function="events.aggregate:advance",
        invariant="whole log",
        bug="The fold of a follower applies a commit without checking which commit it follows.",
        make=_whatever_comes_before,
    ),
    Mutant(
        name="passed-by",
        function="services.runtime.log.folding:take",
        invariant="whole log",
        bug="A follower skips a commit that cannot be applied, and continues after it.",
        make=_passed_by,
    ),
    Mutant(
        name="a-batch-found-in-the-wrong-place",
        function="services.runtime.log.jetstream:JetStreamEventStore._fate",
        invariant="whole log",
        bug="After a lost answer, the first sequence of a batch is taken for its last one, so its commits get "
        "sequences that are too low.",
        make=_first_place_for_the_last,
    ),
    Mutant(
        name="one-guard-for-a-batch",
        function="services.runtime.log.jetstream:JetStreamEventStore._publish_batch",
        invariant="whole log",
        bug="Only the first commit of an atomic batch is guarded.",
        make=_one_guard,
    ),
    Mutant(
        name="snapshot-of-another-log",
        function="services.runtime.log.snapshots:Snapshots._log_id",
        invariant="whole log",
        bug="A snapshot does not name its log, so a snapshot of an older log is used.",
        make=_of_any_log,
    ),
    Mutant(
        name="whoever-stands-there",
        function="services.runtime.log.jetstream:JetStreamEventStore._fate",
        invariant="true answers",
        bug="After a lost answer, any commit at the expected sequence is taken for the one that was sent.",
        make=_whoever_it_is,
    ),
    Mutant(
        name="what-was-stored-is-no-floor",
        function="services.runtime.log.jetstream:JetStreamEventStore._remembering",
        invariant="true answers",
        bug="A process can read data that is older than what it has stored itself.",
        make=lambda _: lambda self, outcome: outcome,
    ),
]
