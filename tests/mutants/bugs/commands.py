"""In how a command is carried out: once, and answered truly. Also when it is due."""

from typing import Any, Final

from tests.mutants.mutant import Mutant


def _whatever_the_body(original: Any) -> Any:
    def remembered(key: str, chain: Any, admitted: Any) -> Any:
        from msgspec.structs import replace

        known = chain.remembered(admitted.command_id)
        same = admitted if known is None else replace(admitted, body_hash=known.body_hash)
        return original(key, chain, same)

    return remembered


def _without_the_subject(original: Any) -> Any:
    def idempotent_command_id(actor: str, method: str, path: str, idempotency_key: str) -> str:
        return original("", method, path, idempotency_key)

    return idempotent_command_id


def _body_alone(_: Any) -> Any:
    def hash_of_keyed(self: Any) -> str:
        import hashlib

        return hashlib.sha256(self.raw).hexdigest() if self.keyed else ""

    return hash_of_keyed


def _never_found(_: Any) -> Any:
    async def found(self: Any, until_seq: int) -> None:
        self._after_seq = until_seq

    return found


def _over_anything(_: Any) -> Any:
    async def write(self: Any, command_id: str, entry: Any, *, over: int) -> int | None:
        import msgspec

        from events.subjects import key_subject
        from services.commands.keys import KEY_SECONDS
        from services.runtime.nats.jetstream_api import JetStreamError, decode_ack

        payload = msgspec.json.encode(entry)
        ack = decode_ack(await self._requests.ask(key_subject(command_id), payload, seconds=KEY_SECONDS))
        if ack.error is not None:
            raise JetStreamError(ack.error)
        return ack.seq

    return write


def _unknown_is_no(original: Any) -> Any:
    def answer_of(outcome: Any, admitted: Any) -> Any:
        from events.envelope import Refused
        from events.refusal import Refusal
        from services.runtime.log.store import Unknown

        if isinstance(outcome, Unknown):
            return Refused(refusal=Refusal(code="log_full", message="the log could not be written; try again later"))
        return original(outcome, admitted)

    return answer_of


def _query_alone(_: Any) -> Any:
    return lambda self: self.values.get("min_seq") or 0


def _unmarked(original: Any) -> Any:
    async def fresh(self: Any, least: int = 0) -> dict[str, str]:
        await original(self, least)
        return {}

    return fresh


def _never_again(_: Any) -> Any:
    def plan(due: Any, sent: Any, now: Any, *, most: int) -> Any:
        to_send = [row for row in dict.fromkeys(due) if row not in sent][:most]
        return to_send, {**sent, **dict.fromkeys(to_send, now)}

    return plan


def _as_a_person_would(original: Any) -> Any:
    def not_for_service(service: str, command: Any) -> Any:
        from msgspec.structs import replace

        from events.workload.commands import DeleteWorkload

        return original(service, replace(command, generation=0) if isinstance(command, DeleteWorkload) else command)

    return not_for_service


COMMANDS: Final[list[Mutant]] = [
    Mutant(
        name="whatever-the-body",
        function="services.commands.decide:remembered",
        invariant="once",
        bug="A different request with the same key gets the answer of the first request.",
        make=_whatever_the_body,
    ),
    Mutant(
        name="keys-are-shared",
        function="events.ids:idempotent_command_id",
        invariant="once",
        bug="Two users who use the same key for the same path count as one user.",
        make=_without_the_subject,
    ),
    Mutant(
        name="the-query-is-no-part-of-it",
        function="services.api.context:Call.hash_of_keyed",
        invariant="once",
        bug="A request with the same key and another query gets the answer of the first request.",
        make=_body_alone,
    ),
    Mutant(
        name="first-try-not-looked-for",
        function="services.commands.pledge:Pledge._found",
        invariant="once",
        bug="A repeated request is carried out again if the chain no longer remembers it, because nobody looks for "
        "its commit.",
        make=_never_found,
    ),
    Mutant(
        name="keys-are-written-over",
        function="services.commands.keys:JetStreamKeys.write",
        invariant="once",
        bug="The record of a key is written without a guard, over an existing record.",
        make=_over_anything,
    ),
    Mutant(
        name="unknown-is-no",
        function="services.commands.handle:_answer_of",
        invariant="true answers",
        bug="A command that may have been stored is answered with a refusal.",
        make=_unknown_is_no,
    ),
    Mutant(
        name="earlier-answers-are-forgotten",
        function="services.api.context:Look.min_seq",
        invariant="true answers",
        bug="The X-Log-Sequence of an earlier answer, sent with a request, does not count.",
        make=_query_alone,
    ),
    Mutant(
        name="old-answers-are-not-marked",
        function="services.api.context:Look.fresh",
        invariant="true answers",
        bug="A list that is older than the requested sequence does not say so.",
        make=_unmarked,
    ),
    Mutant(
        name="due-is-sent-once-for-ever",
        function="services.auto_deletion.due:plan",
        invariant="due",
        bug="A deletion that was sent once is never sent again, even if its answer was lost.",
        make=_never_again,
    ),
    Mutant(
        name="services-delete-anything",
        function="services.commands.decide:not_for_service",
        invariant="who may",
        bug="A service may delete a workload without naming the auto-deletion that is due.",
        make=_as_a_person_would,
    ),
]
