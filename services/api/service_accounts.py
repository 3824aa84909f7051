"""Service accounts: made, listed, given a new token and deleted by who may give roles in their project."""

import secrets
from collections.abc import Iterator
from typing import Annotated, Final, Literal

from events.authorize import Permission
from events.envelope import Accepted
from events.fields.declare import Body, Limits
from events.ids import DNS_LABEL
from events.project import Project
from events.service_accounts import (
    TOKEN_BYTES,
    TOKEN_PREFIX,
    CreateServiceAccount,
    DeleteServiceAccount,
    RotateServiceAccount,
    ServiceAccount,
    token_hash,
)
from services.api import answers
from services.api.context import MIN_SEQ, Call, read_answer, sequence_headers
from services.api.errors import not_found
from services.api.issues import Issue, shown
from services.api.operations import Answer, Query, changes, reads
from services.api.paths import SERVICE_ACCOUNT, SERVICE_ACCOUNTS
from services.api.places import administered, directory_caught_up, directory_fresh, find_project

PROJECT_FILTER: Final = Query(name="projectId", help="Only of this project.")
SHOWN_BEFORE: Final = (
    "this request was carried out before, and the token was shown then; rotate the account to get another one"
)


class ServiceAccountCreation(Body, frozen=True, kw_only=True):
    name: Annotated[str, Limits(shortest=1, longest=63)]
    """Unique in the project: lower-case letters, digits and hyphens."""
    project_id: str
    """UUID of the project that it acts in."""
    role_name: Literal["researcher", "viewer"]
    """What it may do there."""


@reads(
    SERVICE_ACCOUNTS,
    tag="Organisation",
    summary="List the service accounts of the projects in which you may grant roles",
    query=(PROJECT_FILTER, MIN_SEQ),
    errors=(403, 404),
)
async def list_service_accounts(call: Call) -> Answer[answers.ServiceAccounts]:
    headers = await directory_fresh(call)
    projects = await administered(call, call.values["projectId"], Permission.GRANT_PROJECT_ROLES)
    makers = {account.created_by for project in projects for account in project.accounts.values()}
    subjects = await call.api.actors.subjects_of(makers)
    rows = [
        _answer(project, account, subjects[account.created_by])
        for project in sorted(projects, key=lambda project: project.name)
        for _, account in sorted(project.accounts.items())
    ]
    return read_answer(answers.ServiceAccounts(service_accounts=rows), call.api.directory.seq, headers)


@reads(SERVICE_ACCOUNT, tag="Organisation", summary="Get a service account", query=(MIN_SEQ,), errors=(404,))
async def get_service_account(call: Call) -> Answer[answers.ServiceAccount]:
    headers = await directory_fresh(call)
    project, account = await _account(call)
    subjects = await call.api.actors.subjects_of((account.created_by,))
    told = _answer(project, account, subjects[account.created_by])
    return read_answer(told, call.api.directory.seq, headers)


@changes(
    "POST",
    SERVICE_ACCOUNTS,
    tag="Organisation",
    summary="Create a service account. Only this answer holds its token",
    body=ServiceAccountCreation,
    example={"name": "ci", "projectId": "7d1c2b3a-0000-8000-8000-000000000000", "roleName": "researcher"},
    errors=(403, 404, 409),
)
async def create_service_account(call: Call) -> Answer[answers.ServiceAccountToken]:
    given = call.fields(ServiceAccountCreation, _issues)
    token = _new_token()
    command = CreateServiceAccount(
        project_id=given.project_id, name=given.name, role=given.role_name, token_hash=token_hash(token)
    )
    reply = await call.send(command, creation=True)
    return await _with_token(call, reply, given.project_id, given.name, token)


@changes(
    "POST",
    f"{SERVICE_ACCOUNT}/rotate",
    tag="Organisation",
    summary="Give a service account a new token. The old token stops working at once",
    errors=(403, 404),
)
async def rotate_service_account(call: Call) -> Answer[answers.ServiceAccountToken]:
    project_id, name = _place(call)
    token = _new_token()
    reply = await call.send(RotateServiceAccount(project_id=project_id, name=name, token_hash=token_hash(token)))
    return await _with_token(call, reply, project_id, name, token)


@changes(
    "DELETE",
    SERVICE_ACCOUNT,
    tag="Organisation",
    summary="Delete a service account. Its token stops working at once",
    errors=(403, 404),
)
async def delete_service_account(call: Call) -> Answer[answers.HttpResponse]:
    project_id, name = _place(call)
    reply = await call.send(DeleteServiceAccount(project_id=project_id, name=name))
    await directory_caught_up(call, reply)
    return call.accepted(reply, f"service account {name} is deleted, and its token ended")


def _new_token() -> str:
    return TOKEN_PREFIX + secrets.token_urlsafe(TOKEN_BYTES)


async def _with_token(
    call: Call, reply: Accepted, project_id: str, name: str, token: str
) -> Answer[answers.ServiceAccountToken]:
    """The answer that shows the token, once. A request that is repeated made no second one: then it shows none."""
    await directory_caught_up(call, reply)
    project = await find_project(call, project_id)
    account = None if project is None else project.accounts.get(name)
    ours = account is not None and account.token_hash == token_hash(token)
    told = answers.ServiceAccountToken(
        project_id=project_id,
        name=name,
        token=token if ours else None,
        message="keep the token: it is shown once, here" if ours else SHOWN_BEFORE,
    )
    return Answer(told, status=202, headers=sequence_headers(reply.seq))


def _issues(account: ServiceAccountCreation) -> Iterator[Issue]:
    if not DNS_LABEL.match(account.name):
        details = (
            f"{shown(account.name)} must begin and end with a lower-case letter or digit, with hyphens between, in at "
            "most 63 characters"
        )
        yield Issue(field="name", details=details)


def _place(call: Call) -> tuple[str, str]:
    """Project id and name, of the path. Raises 404 for what no account can be called."""
    name: str = call.request.path_params["name"]
    if not DNS_LABEL.match(name):
        raise not_found("there is no such service account")
    return str(call.request.path_params["projectId"]), name


async def _account(call: Call) -> tuple[Project, ServiceAccount]:
    project_id, name = _place(call)
    project = await find_project(call, project_id)
    account = None if project is None else project.accounts.get(name)
    if project is None or account is None or not call.grants.allows(Permission.GRANT_PROJECT_ROLES, project_id):
        raise not_found("there is no such service account")
    return project, account


def _answer(project: Project, account: ServiceAccount, created_by: str) -> answers.ServiceAccount:
    return answers.ServiceAccount(
        name=account.name,
        project_id=project.project_id,
        project_name=project.name,
        subject=account.actor,
        role_name=account.role,
        created_by=created_by,
        created_at=account.created_at,
        rotated_at=account.rotated_at,
        last_used=account.last_used,
    )
