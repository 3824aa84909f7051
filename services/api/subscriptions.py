"""Subscriptions: made, listed and deleted by the administrators of their project. How far each is, FEED says."""

import asyncio
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Annotated, Final

from events.aggregate import PROJECT
from events.authorize import Permission
from events.envelope import Accepted
from events.fields.declare import Body, Limits
from events.ids import DNS_LABEL, incarnation_id, key_of_id
from events.project import Project
from events.subjects import FEED_STREAM, feed_filter
from events.subscriptions import DOMAIN, CreateSubscription, DeleteSubscription, Subscription, inbox_of
from services.api import answers
from services.api.context import MIN_SEQ, Call, read_answer, sequence_headers
from services.api.errors import bad_request, not_found
from services.api.issues import BadValueError, Issue, shown
from services.api.operations import MAX_BIGINT, Answer, Query, changes, reads
from services.api.paths import SUBSCRIPTION, SUBSCRIPTIONS
from services.api.places import administered, directory_caught_up, directory_fresh
from services.api.workloads import parse_moment
from services.runtime.log.store import LogUnavailableError
from services.runtime.nats.jetstream_api import ConsumerInfo, consumer_info
from services.runtime.nats.nkeys import KeyPair, new_seed

PROJECT_FILTER: Final = Query(name="projectId", help="Only of this project.")
SHOWN_BEFORE: Final = (
    "this request was carried out before, and the seed was shown then; delete the subscription and create another one"
)
KEEP: Final = "keep the seed: it is shown once, here"
NOT_YET: Final = f"{KEEP}. It works as soon as the service `subscriptions` runs"
READY_SECONDS: Final = 3.0
"""How long a creation waits until its seed lets its reader in: mostly some milliseconds."""
READY_PAUSE_SECONDS: Final = 0.02
PROGRESS_SECONDS: Final = 1.0
"""For how long FEED is asked how far subscriptions are; what it does not say by then is left out."""
PROGRESS_AT_ONCE: Final = 32


class SubscriptionCreation(Body, frozen=True, kw_only=True):
    project_id: str
    """UUID of the project whose events it reads."""
    name: Annotated[str, Limits(shortest=1, longest=63)] | None = None
    """Unique in the project: lower-case letters, digits and hyphens. Null: a name is chosen."""
    from_time: str | None = None
    """Read events from this time on (RFC 3339). Null: see fromSequence."""
    from_sequence: Annotated[int, Limits(least=1, most=MAX_BIGINT)] | None = None
    """Read events from this sequence of the log on. If this and fromTime are null, from now on."""


@reads(
    SUBSCRIPTIONS,
    tag="Subscriptions",
    summary="List the subscriptions of the projects that you administer",
    query=(PROJECT_FILTER, MIN_SEQ),
    errors=(403, 404),
)
async def list_subscriptions(call: Call) -> Answer[answers.Subscriptions]:
    headers = await directory_fresh(call)
    projects = sorted(
        await administered(call, call.values["projectId"], Permission.MANAGE_SUBSCRIPTIONS),
        key=lambda project: project.name,
    )
    found = [
        (project, subscription)
        for project in projects
        for subscription in sorted(project.subscriptions.values(), key=lambda subscription: subscription.name)
    ]
    rows = await _answers(call, found)
    return read_answer(answers.Subscriptions(subscriptions=rows), call.api.directory.seq, headers)


@reads(
    SUBSCRIPTION,
    tag="Subscriptions",
    summary="Get a subscription, and how far its reader is",
    query=(MIN_SEQ,),
    errors=(404,),
)
async def get_subscription(call: Call) -> Answer[answers.Subscription]:
    headers = await directory_fresh(call)
    (row,) = await _answers(call, (await _found(call),))
    return read_answer(row, call.api.directory.seq, headers)


@changes(
    "POST",
    SUBSCRIPTIONS,
    tag="Subscriptions",
    summary="Create a subscription. Only this answer holds its seed",
    body=SubscriptionCreation,
    example={"projectId": "7d1c2b3a-0000-8000-8000-000000000000", "name": "chat"},
    errors=(403, 404, 409),
)
async def create_subscription(call: Call) -> Answer[answers.SubscriptionKey]:
    given = call.fields(SubscriptionCreation, _issues)
    seed = new_seed("user")
    public_key = KeyPair(seed).public
    command = CreateSubscription(
        project_id=given.project_id,
        name=given.name or "",
        public_key=public_key,
        from_seq=await _from_sequence(call, given),
    )
    command_id = call.command_id()
    reply = await call.send(command, command_id=command_id, creation=True)
    await directory_caught_up(call, reply)
    key = key_of_id(given.project_id) or ""
    project = (await call.api.store.load(PROJECT, key, min_seq=reply.seq)).state
    subscription = project.subscriptions.get(incarnation_id(key, command_id))
    if subscription is None:
        # Deleted since this request was first carried out.
        raise not_found("this request was carried out before, and the subscription was deleted since")
    ours = subscription.public_key == public_key
    ready = ours and await _is_ready(call, subscription.id)
    message = (KEEP if ready else NOT_YET) if ours else SHOWN_BEFORE
    return _with_seed(call, reply, project, subscription, seed=seed if ours else None, message=message)


def _with_seed(
    call: Call, reply: Accepted, project: Project, subscription: Subscription, *, seed: str | None, message: str
) -> Answer[answers.SubscriptionKey]:
    told = answers.SubscriptionKey(
        id=subscription.id,
        name=subscription.name,
        project_id=project.project_id,
        url=call.api.subscriber_url,
        seed=seed,
        domain=DOMAIN,
        inbox_prefix=inbox_of(subscription.id),
        stream=FEED_STREAM,
        consumer=subscription.id,
        subjects=[feed_filter(project.project_id)],
        from_sequence=subscription.from_seq,
        message=message,
    )
    return Answer(told, status=202, headers=sequence_headers(reply.seq))


@changes(
    "DELETE",
    SUBSCRIPTION,
    tag="Subscriptions",
    summary="Delete a subscription. Its reader is cut off at once",
    errors=(403, 404),
)
async def delete_subscription(call: Call) -> Answer[answers.HttpResponse]:
    await directory_fresh(call)
    project, subscription = await _found(call)
    command = DeleteSubscription(project_id=project.project_id, subscription_id=subscription.id)
    reply = await call.send(command)
    await directory_caught_up(call, reply)
    return call.accepted(reply, f"subscription {subscription.name} is deleted, and its reader cut off")


async def _found(call: Call) -> tuple[Project, Subscription]:
    """That of the path. Raises 404, also where the caller may not see it."""
    known = call.api.directory.subscriptions.get(call.id)
    project = None if known is None else call.api.directory.project(known[1])
    if known is None or project is None or not call.grants.allows(Permission.MANAGE_SUBSCRIPTIONS, known[1]):
        raise not_found("there is no such subscription")
    return project, known[0]


def _issues(creation: SubscriptionCreation) -> Iterator[Issue]:
    if creation.name is not None and not DNS_LABEL.match(creation.name):
        details = (
            f"{shown(creation.name)} must begin and end with a lower-case letter or digit, with hyphens between, in at "
            "most 63 characters"
        )
        yield Issue(field="name", details=details)
    if creation.from_time is None:
        return
    if creation.from_sequence is not None:
        yield Issue(field="fromTime", details="give fromTime or fromSequence, not both")
    try:
        moment = parse_moment(creation.from_time)
    except BadValueError as error:
        yield Issue(field="fromTime", details=str(error))
    else:
        if moment > datetime.now(UTC):
            yield Issue(field="fromTime", details=f"{shown(creation.from_time)} is in the future")


async def _from_sequence(call: Call, given: SubscriptionCreation) -> int:
    """Where in the log it begins. Raises 400 for a sequence that the log has not come to."""
    end = await call.api.store.last_seq()
    if given.from_time is not None:
        return 1 + await call.api.store.sequence_at(parse_moment(given.from_time))
    if given.from_sequence is None:
        return end + 1
    if given.from_sequence > end + 1:
        details = f"the log ends at {end}, got {given.from_sequence}; leave it out for all that is new"
        raise bad_request([Issue(field="fromSequence", details=details, rule="max")])
    return given.from_sequence


# -- how far it is ---------------------------------------------------------------------------------------------------


async def _is_ready(call: Call, subscription_id: str) -> bool:
    """Whether its reader is let in and can read."""
    deadline = asyncio.get_running_loop().time() + READY_SECONDS
    while await _progress(call, subscription_id) is None:
        if asyncio.get_running_loop().time() > deadline:
            return False
        await asyncio.sleep(READY_PAUSE_SECONDS)
    return True


async def _progress(call: Call, subscription_id: str) -> ConsumerInfo | None:
    """None where it cannot be had now."""
    try:
        return await consumer_info(call.api.requests, FEED_STREAM, subscription_id, seconds=PROGRESS_SECONDS)
    except LogUnavailableError:
        return None


async def _answers(call: Call, found: Iterable[tuple[Project, Subscription]]) -> list[answers.Subscription]:
    rows = list(found)
    slots = asyncio.Semaphore(PROGRESS_AT_ONCE)

    async def progress(subscription: Subscription) -> ConsumerInfo | None:
        async with slots:
            return await _progress(call, subscription.id)

    infos = await asyncio.gather(*(progress(subscription) for _, subscription in rows))
    subjects = await call.api.actors.subjects_of({subscription.created_by for _, subscription in rows})
    return [
        _answer(call, project, subscription, info, subjects[subscription.created_by])
        for (project, subscription), info in zip(rows, infos, strict=True)
    ]


def _answer(
    call: Call, project: Project, subscription: Subscription, info: ConsumerInfo | None, created_by: str
) -> answers.Subscription:
    return answers.Subscription(
        id=subscription.id,
        name=subscription.name,
        project_id=project.project_id,
        project_name=project.name,
        url=call.api.subscriber_url,
        domain=DOMAIN,
        inbox_prefix=inbox_of(subscription.id),
        stream=FEED_STREAM,
        consumer=subscription.id,
        subjects=[feed_filter(project.project_id)],
        from_sequence=subscription.from_seq,
        pending=None if info is None else info.num_pending,
        unacknowledged=None if info is None else info.num_ack_pending,
        last_delivered_at=None if info is None else info.delivered.last_active,
        created_by=created_by,
        created_at=subscription.created_at,
    )
