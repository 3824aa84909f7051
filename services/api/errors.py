"""Errors of the API: always `{code, message, details?}`, and the one table from refusal codes to HTTP statuses."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Final

import msgspec
from msgspec import UNSET
from starlette.responses import Response

from events.refusal import REFUSALS, Refusal
from services.api.answers import ComplianceIssue, SubmissionErrorV2
from services.api.issues import Issue

RETRY_AFTER_SECONDS: Final = "1"
"""What a 503 asks for: a server of the log that restarts is back within seconds."""

REFUSAL_STATUSES: Final[dict[str, int]] = {
    "name_taken": 400,
    "url_taken": 400,
    "local_taken": 400,
    "not_found": 404,
    "not_owner": 403,
    "heir_not_permitted": 409,
    "holds_credentials": 403,
    "pod_not_running": 409,
    "too_many_sessions": 429,
    "act_overtaken": 409,
    "nothing_to_undo": 409,
    "not_in_project": 403,
    "not_permitted": 403,
    "not_authenticated": 401,
    "version_moved": 412,
    "idempotency_key_reused": 409,
    "workload_finished": 409,
    "workload_deleted": 409,
    "others_refused": 409,
    "unknown_project": 400,
    "unknown_department": 400,
    "unknown_cluster": 400,
    "set_by_cluster": 409,
    "not_simulated": 409,
    "project_not_empty": 409,
    "cluster_not_empty": 409,
    "department_not_empty": 409,
    "default_department": 409,
    "node_pool_in_use": 409,
    "too_many_accounts": 409,
    "too_many_subscriptions": 409,
    "too_many_webhooks": 409,
    "webhook_disabled": 409,
    "budget_exhausted": 409,
    "no_prices": 409,
    "other_currency": 400,
    "price_in_past": 400,
    "too_many_prices": 409,
    "not_for_accounts": 400,
    "role_not_held": 404,
    "last_administrator": 409,
    "pods_not_isolated": 409,
    "invalid": 400,
    "stale_placement": 409,
    "placed_twice": 409,
    "capacity_exceeded": 409,
    "node_not_schedulable": 409,
    "too_many_workloads": 429,
    "too_many_creations": 429,
    "too_many_new_people": 429,
    "too_many_bytes": 429,
    "log_full": 503,
    "message_readable": 409,
    "log_unreadable": 503,
    "actors_away": 503,
    "outcome_unknown": 503,
}
"""Status of every refusal (C21; 409, 412 and 429 extend the contract). The code itself stands in `details`."""
assert REFUSAL_STATUSES.keys() == REFUSALS.keys(), "every refusal has a status"

_FIELDS: Final = {
    "name_taken": "name",
    "url_taken": "spec.exposedUrls",
    "unknown_project": "projectId",
    "unknown_department": "departmentId",
    "unknown_cluster": "clusterId",
}
"""The request field at fault, where the refusal names none."""


class ApiError(Exception):
    """An answer that is an error. Raised anywhere below the edge, written there."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        details: str | None = None,
        issues: Sequence[Issue] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.details = details
        self.issues = issues
        self.headers = dict(headers or {})

    def response(self) -> Response:
        body = SubmissionErrorV2(
            code=self.status,
            message=self.message,
            details=UNSET if self.details is None else self.details,
            compliance_issues=UNSET if self.issues is None else compliance_issues(self.issues),
        )
        return Response(
            msgspec.json.encode(body), status_code=self.status, headers=self.headers, media_type="application/json"
        )


def compliance_issues(issues: Sequence[Issue]) -> list[ComplianceIssue]:
    """As answers tell them."""
    return [
        ComplianceIssue(field=one.field, details=one.details, rule=UNSET if one.rule is None else one.rule)
        for one in issues
    ]


def not_found(what: str) -> ApiError:
    return ApiError(404, f"{what}, or you may not see it", details="not_found")


def bad_request(issues: Sequence[Issue]) -> ApiError:
    """Everything that is wrong, in one answer."""
    count = len(issues)
    message = f"{issues[0].field}: {issues[0].details}" if count == 1 else f"{count} things are wrong with the request"
    return ApiError(400, message, issues=issues)


def unavailable(message: str, *, details: str = "unavailable") -> ApiError:
    return ApiError(503, message, details=details, headers={"Retry-After": RETRY_AFTER_SECONDS})


def outcome_unknown() -> ApiError:
    return unavailable(
        "the outcome is unknown: it may have been stored. Repeat the request with the same Idempotency-Key to learn "
        "which",
        details="outcome_unknown",
    )


def refused(refusal: Refusal, *, creation: bool) -> ApiError:
    """The answer to a refused command.

    Args:
        creation: whether something was to be made. A project without a role is 403 then; a thing that stands in one is
            404, as if it were not there.
    """
    status = REFUSAL_STATUSES.get(refusal.code, 409)
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        return unavailable(refusal.message, details=refusal.code)
    if refusal.code == "not_in_project" and not creation:
        return not_found("there is no such thing")
    headers = {"WWW-Authenticate": "Bearer"} if status == HTTPStatus.UNAUTHORIZED else {}
    if refusal.retry_seconds is not None:
        headers["Retry-After"] = str(refusal.retry_seconds)
    issues = None
    if status == HTTPStatus.BAD_REQUEST:
        field = refusal.field or _FIELDS.get(refusal.code, "body")
        issues = [Issue(field=field, details=refusal.message)]
    return ApiError(status, refusal.message, details=refusal.code, issues=issues, headers=headers)
