"""Webhooks: made, changed and deleted by the administrators of their project. Keys and deliveries are asked for at the
service `webhooks`, which alone has them.
"""

from collections.abc import Iterator
from typing import Annotated, Final

import msgspec

from events.aggregate import PROJECT
from events.authorize import Permission
from events.codec import UNDECODABLE
from events.envelope import Accepted
from events.fields.declare import Body, Limits
from events.ids import DNS_LABEL, incarnation_id, key_of_id
from events.nearest import did_you_mean
from events.project import Project
from events.public.registry import PUBLIC_EVENTS
from events.webhooks import (
    MAX_TYPE,
    MAX_TYPES,
    MAX_URL,
    TYPE_PATTERN,
    ChangeWebhook,
    CreateWebhook,
    DeleteWebhook,
    RotateWebhookKey,
    Webhook,
    fits,
)
from services.api import answers
from services.api.context import MIN_SEQ, Call, read_answer, sequence_headers
from services.api.errors import ApiError, bad_request, not_found, unavailable
from services.api.issues import Issue, shown
from services.api.operations import MAX_BIGINT, Answer, Query, changes, reads
from services.api.paths import WEBHOOK, WEBHOOKS
from services.api.places import administered, directory_caught_up, directory_fresh
from services.runtime.nats.requests import UnansweredError
from services.runtime.webhooks.addresses import BadAddressError, target_of
from services.runtime.webhooks.protocol import (
    ANSWER_SECONDS,
    MAX_PAGE,
    MAX_REDELIVERED,
    TEST_SECONDS,
    Again,
    Answered,
    AskAgain,
    AskDeliveries,
    Asked,
    AskKey,
    AskTest,
    Away,
    Deliveries,
    Delivery,
    Key,
    Tested,
    subject_of,
)

PROJECT_FILTER: Final = Query(name="projectId", help="Only of this project.")
KEEP: Final = "keep the secret: it is shown once, here. Signatures of deliveries are checked with it"
KEEP_BOTH: Final = f"{KEEP}. For 24 hours deliveries are signed with the old secret, too"
ROTATED: Final = (
    "this request was carried out before, and the webhook has got another secret since; rotate it to see a new one"
)
DELIVERIES: Final = (
    Query(
        name="state",
        type="choice",
        options=("waiting", "delivered", "parked", "failed"),
        help="Only deliveries in this state.",
    ),
    Query(name="before", type="integer", least=1, help="Only older ones than this number: `next` of an answer."),
    Query(name="limit", type="integer", default=50, least=1, most=MAX_PAGE, help="Maximum number, 1 to 100."),
)
_ANSWERED: Final = msgspec.json.Decoder(Answered)
_ENCODER: Final = msgspec.json.Encoder()

type Types = Annotated[
    tuple[Annotated[str, Limits(shortest=1, longest=MAX_TYPE)], ...], Limits(shortest=1, longest=MAX_TYPES)
]


class WebhookCreation(Body, frozen=True, kw_only=True):
    project_id: str
    """UUID of the project whose events are posted."""
    url: Annotated[str, Limits(shortest=1, longest=MAX_URL)]
    """Where they are posted to. It stands in the log, so put no secret into it."""
    name: Annotated[str, Limits(shortest=1, longest=63)] | None = None
    """Unique in the project: lower-case letters, digits and hyphens. Null: a name is chosen."""
    types: Types | None = None
    """Types of the events, such as `WorkloadFailed`; `*` and `?` stand for any characters. Null: all."""


class WebhookChange(Body, frozen=True, kw_only=True):
    url: Annotated[str, Limits(shortest=1, longest=MAX_URL)] | None = None
    """Where events are posted to. Null: as before."""
    types: (
        Annotated[tuple[Annotated[str, Limits(shortest=1, longest=MAX_TYPE)], ...], Limits(longest=MAX_TYPES)] | None
    ) = None
    """Types of the events. Empty: all. Null: as before."""
    enabled: bool | None = None
    """Whether anything is posted. Null: as before."""


class WebhookRedelivery(Body, frozen=True, kw_only=True):
    deliveries: (
        Annotated[
            tuple[Annotated[int, Limits(least=1, most=MAX_BIGINT)], ...], Limits(shortest=1, longest=MAX_REDELIVERED)
        ]
        | None
    ) = None
    """Numbers of deliveries that are parked or delivered. Null: all that are parked."""


@reads(
    WEBHOOKS,
    tag="Webhooks",
    summary="List the webhooks of the projects that you administer",
    query=(PROJECT_FILTER, MIN_SEQ),
    errors=(403, 404),
)
async def list_webhooks(call: Call) -> Answer[answers.Webhooks]:
    headers = await directory_fresh(call)
    projects = sorted(
        await administered(call, call.values["projectId"], Permission.MANAGE_WEBHOOKS), key=lambda project: project.name
    )
    found = [
        (project, webhook)
        for project in projects
        for webhook in sorted(project.webhooks.values(), key=lambda webhook: webhook.name)
    ]
    rows = await _answers(call, found)
    return read_answer(answers.Webhooks(webhooks=rows), call.api.directory.seq, headers)


@reads(WEBHOOK, tag="Webhooks", summary="Get a webhook", query=(MIN_SEQ,), errors=(404,))
async def get_webhook(call: Call) -> Answer[answers.Webhook]:
    headers = await directory_fresh(call)
    (row,) = await _answers(call, (_found(call),))
    return read_answer(row, call.api.directory.seq, headers)


@changes(
    "POST",
    WEBHOOKS,
    tag="Webhooks",
    summary="Create a webhook. Only this answer holds its secret",
    body=WebhookCreation,
    example={
        "projectId": "7d1c2b3a-0000-8000-8000-000000000000",
        "url": "https://example.com/muster",
        "types": ["WorkloadCompleted", "WorkloadFailed"],
    },
    errors=(403, 404, 409),
)
async def create_webhook(call: Call) -> Answer[answers.WebhookSecret]:
    given = call.fields(WebhookCreation, lambda creation: _creation_issues(call, creation))
    call.require(Permission.MANAGE_WEBHOOKS, given.project_id)
    command_id = call.command_id()
    key = key_of_id(given.project_id) or ""
    webhook_id = incarnation_id(key, command_id)
    # Before anything is decided: without the service nobody could be shown the secret.
    secret = (await _ask(call, AskKey(webhook_id=webhook_id, number=1), Key)).text
    command = CreateWebhook(project_id=given.project_id, name=given.name or "", url=given.url, types=given.types or ())
    reply = await call.send(command, command_id=command_id, creation=True)
    await directory_caught_up(call, reply)
    project = (await call.api.store.load(PROJECT, key, min_seq=reply.seq)).state
    webhook = project.webhooks.get(webhook_id)
    if webhook is None:
        # Deleted since this request was first carried out.
        raise not_found("this request was carried out before, and the webhook was deleted since")
    if webhook.key_number != 1:
        return _with_secret(reply, project, webhook, secret=None, message=ROTATED)
    return _with_secret(reply, project, webhook, secret=secret, message=KEEP)


def _with_secret(
    reply: Accepted, project: Project, webhook: Webhook, *, secret: str | None, message: str
) -> Answer[answers.WebhookSecret]:
    told = answers.WebhookSecret(
        id=webhook.id,
        name=webhook.name,
        project_id=project.project_id,
        url=webhook.url,
        secret=secret,
        message=message,
    )
    return Answer(told, status=202, headers=sequence_headers(reply.seq))


@changes(
    "PATCH",
    WEBHOOK,
    tag="Webhooks",
    summary="Change where a webhook posts to, which events, or whether it does",
    body=WebhookChange,
    example={"enabled": True},
    errors=(403, 404),
)
async def change_webhook(call: Call) -> Answer[answers.HttpResponse]:
    given = call.fields(WebhookChange, lambda change: _change_issues(call, change))
    await directory_fresh(call)
    project, webhook = _found(call)
    command = ChangeWebhook(
        project_id=project.project_id,
        webhook_id=webhook.id,
        url=given.url,
        types=given.types,
        enabled=given.enabled,
    )
    reply = await call.send(command)
    await directory_caught_up(call, reply)
    return call.accepted(reply, f"webhook {webhook.name} is {'changed' if reply.changed else 'like that already'}")


@changes(
    "POST",
    f"{WEBHOOK}/rotate-key",
    tag="Webhooks",
    summary="Give a webhook a new secret. For 24 hours deliveries are signed with the old one, too",
    errors=(403, 404),
)
async def rotate_webhook_key(call: Call) -> Answer[answers.WebhookSecret]:
    await directory_fresh(call)
    project, webhook = _found(call)
    # As at a creation: first see whether the secret can be shown.
    await _ask(call, AskKey(webhook_id=webhook.id, number=webhook.key_number), Key)
    reply = await call.send(RotateWebhookKey(project_id=project.project_id, webhook_id=webhook.id))
    await directory_caught_up(call, reply)
    key = key_of_id(project.project_id) or ""
    after = (await call.api.store.load(PROJECT, key, min_seq=reply.seq)).state.webhooks.get(webhook.id)
    if after is None:
        raise not_found("the webhook was deleted meanwhile")
    secret = (await _ask(call, AskKey(webhook_id=after.id, number=after.key_number), Key)).text
    return _with_secret(reply, project, after, secret=secret, message=KEEP_BOTH)


@changes("DELETE", WEBHOOK, tag="Webhooks", summary="Delete a webhook, and forget its deliveries", errors=(403, 404))
async def delete_webhook(call: Call) -> Answer[answers.HttpResponse]:
    await directory_fresh(call)
    project, webhook = _found(call)
    reply = await call.send(DeleteWebhook(project_id=project.project_id, webhook_id=webhook.id))
    await directory_caught_up(call, reply)
    return call.accepted(reply, f"webhook {webhook.name} is deleted, and nothing more is posted")


# -- deliveries -------------------------------------------------------------------------------------------------------


@reads(
    f"{WEBHOOK}/deliveries",
    tag="Webhooks",
    summary="List the deliveries of a webhook, the newest first, each with its tries",
    query=DELIVERIES,
    errors=(404,),
)
async def list_webhook_deliveries(call: Call) -> Answer[answers.WebhookDeliveries]:
    headers = await directory_fresh(call)
    _, webhook = _found(call)
    limit: int = call.values["limit"]
    asked = AskDeliveries(webhook_id=webhook.id, state=call.values["state"], before=call.values["before"], limit=limit)
    found = (await _ask(call, asked, Deliveries)).deliveries
    more = found[-1].number if len(found) == limit else None
    told = answers.WebhookDeliveries(deliveries=[_delivery(one) for one in found], next=more)
    return read_answer(told, call.api.directory.seq, headers)


@changes(
    "POST",
    f"{WEBHOOK}/redeliver",
    tag="Webhooks",
    summary="Deliver again: all that is parked, or these deliveries",
    body=WebhookRedelivery,
    example={"deliveries": [4711]},
    errors=(403, 404, 409),
)
async def redeliver_webhook(call: Call) -> Answer[answers.WebhookRedelivered]:
    given = call.fields(WebhookRedelivery)
    await directory_fresh(call)
    _, webhook = _found(call)
    if webhook.disabled is not None:
        message = f"webhook {webhook.name} is disabled ({webhook.disabled}), so nothing is delivered; enable it first"
        raise ApiError(409, message, details="webhook_disabled")
    again = await _ask(call, AskAgain(webhook_id=webhook.id, numbers=given.deliveries), Again)
    if given.deliveries and again.count < len(set(given.deliveries)):
        raise not_found(
            f"{again.count} of these deliveries are made again; the others do not exist, or wait to be tried anyway"
        )
    return Answer(answers.WebhookRedelivered(count=again.count), status=202)


@changes(
    "POST",
    f"{WEBHOOK}/test",
    tag="Webhooks",
    summary="Post a test event to a webhook now, once, and say what came of it",
    errors=(403, 404),
)
async def test_webhook(call: Call) -> Answer[answers.WebhookDelivery]:
    if call.faults:
        raise bad_request([])  # and the faults, which `endpoint` adds
    await directory_fresh(call)
    _, webhook = _found(call)
    asked = AskTest(webhook_id=webhook.id, test_id=call.command_id())
    tested = await _ask(call, asked, Tested, seconds=TEST_SECONDS)
    return Answer(_delivery(tested.delivery), status=202)


async def _ask[A](call: Call, asked: Asked, wanted: type[A], *, seconds: float = ANSWER_SECONDS) -> A:
    """Raises 503 where it is not answered."""
    try:
        answer = _ANSWERED.decode(
            await call.api.requests.ask(subject_of(asked), _ENCODER.encode(asked), seconds=seconds)
        )
    except (UnansweredError, *UNDECODABLE):
        raise unavailable("the service `webhooks` does not answer now; try again later") from None
    if isinstance(answer, Away):
        raise unavailable(f"{answer.reason}; try again later")
    if not isinstance(answer, wanted):
        raise unavailable("the service `webhooks` answers something else; it may be of another version")
    return answer


# -- what is given, and what is shown ---------------------------------------------------------------------------------


def _creation_issues(call: Call, creation: WebhookCreation) -> Iterator[Issue]:
    if creation.name is not None and not DNS_LABEL.match(creation.name):
        details = (
            f"{shown(creation.name)} must begin and end with a lower-case letter or digit, with hyphens between, in at "
            "most 63 characters"
        )
        yield Issue(field="name", details=details)
    yield from _url_issues(call, creation.url)
    yield from _type_issues(creation.types or ())


def _change_issues(call: Call, change: WebhookChange) -> Iterator[Issue]:
    if change == WebhookChange():
        yield Issue(field="body", details="names nothing to change; give url, types or enabled", rule="required")
    if change.url is not None:
        yield from _url_issues(call, change.url)
    yield from _type_issues(change.types or ())


def _url_issues(call: Call, url: str) -> Iterator[Issue]:
    try:
        target_of(url, call.api.webhook_networks)
    except BadAddressError as error:
        yield Issue(field="url", details=f"{shown(url)} {error}")


def _type_issues(types: tuple[str, ...]) -> Iterator[Issue]:
    for place, given in enumerate(types):
        if TYPE_PATTERN.match(given) and any(fits(known, given) for known in PUBLIC_EVENTS):
            continue
        hint = did_you_mean(given.removeprefix("muster.").removesuffix(".v1"), PUBLIC_EVENTS)
        details = f"{shown(given)} is no type of a public event, and matches none; "
        details += hint or f"they are {', '.join(sorted(PUBLIC_EVENTS))}"
        yield Issue(field=f"types[{place}]", details=details, rule="options")


def _found(call: Call) -> tuple[Project, Webhook]:
    """That of the path. Raises 404, also where the caller may not see it."""
    known = call.api.directory.webhooks.get(call.id)
    project = None if known is None else call.api.directory.project(known.project_id)
    if known is None or project is None or not call.grants.allows(Permission.MANAGE_WEBHOOKS, known.project_id):
        raise not_found("there is no such webhook")
    return project, known.webhook


async def _answers(
    call: Call, found: "list[tuple[Project, Webhook]] | tuple[tuple[Project, Webhook]]"
) -> list[answers.Webhook]:
    subjects = await call.api.actors.subjects_of({webhook.created_by for _, webhook in found})
    return [_answer(project, webhook, subjects[webhook.created_by]) for project, webhook in found]


def _answer(project: Project, webhook: Webhook, created_by: str) -> answers.Webhook:
    return answers.Webhook(
        id=webhook.id,
        name=webhook.name,
        project_id=project.project_id,
        project_name=project.name,
        url=webhook.url,
        types=list(webhook.types),
        enabled=webhook.disabled is None,
        disabled_because=webhook.disabled,
        disabled_at=webhook.disabled_at,
        secret_rotated_at=webhook.key_rotated_at,
        created_by=created_by,
        created_at=webhook.created_at,
    )


def _delivery(delivery: Delivery) -> answers.WebhookDelivery:
    return answers.WebhookDelivery(
        number=delivery.number,
        event_id=delivery.event_id,
        type=delivery.type,
        state=delivery.state,
        created_at=delivery.created_at,
        due_at=delivery.due_at,
        tries=[
            answers.WebhookTry(at=one.at, status=one.status, error=one.error, excerpt=one.excerpt, seconds=one.seconds)
            for one in delivery.tries
        ],
    )
