"""Refusals: why a decider or the gate did not carry out a command, with a code."""

from typing import Final

import msgspec


class Refusal(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a command was not carried out. Nothing was stored."""

    code: str
    """One of `REFUSALS`. Programs can rely on it."""
    message: str
    """A sentence for a person: what is wrong, what was given, and what would be accepted."""
    field: str | None = None
    """The request field that is wrong, such as `spec.parallelism`; None if it is not one field."""
    retry_seconds: int | None = None
    """Seconds after which the same command would be accepted, if that is known."""


REFUSALS: Final[dict[str, str]] = {
    "name_taken": "A living workload of the project has this name, or a department, project, cluster or node pool has "
    "it.",
    "url_taken": "A living workload has the address before the domain of the proxy that an exposed URL asks for.",
    "local_taken": "A cluster of kind local exists already. It is this machine, so there can be only one.",
    "not_found": "It does not exist, or you may not see it.",
    "not_owner": "The cluster has ownership protection. Only the owner of the workload or an administrator may do "
    "this. Nobody else ever gives a workload to another owner.",
    "heir_not_permitted": "Who is to own the workload has no role in its project that lets them submit workloads.",
    "holds_credentials": "Pods of the workload get values of credentials of who submitted it. Nobody else is let into "
    "them, or changes where their volumes are, administrators neither.",
    "pod_not_running": "The pod is not running, and only into a running pod a way can be opened.",
    "too_many_sessions": "As many sessions lead into pods of the workload as may.",
    "act_overtaken": "What should be undone was changed again by somebody since.",
    "nothing_to_undo": "There is no act of this workload that can be undone, or not the one that was named.",
    "not_in_project": "The caller has no role in the project.",
    "not_permitted": "The caller's role does not allow this action.",
    "not_authenticated": "The token is missing, has expired or is not trusted.",
    "version_moved": "The version in If-Match is no longer the newest.",
    "idempotency_key_reused": "The same Idempotency-Key was used with another body or query.",
    "workload_finished": "The workload is Completed or Failed, so it cannot run again.",
    "workload_deleted": "The workload is deleted or being deleted.",
    "others_refused": "Another item of a batch that is all or nothing was refused, so this one was not created either.",
    "unknown_project": "No project has this id.",
    "unknown_department": "No department has this id.",
    "unknown_cluster": "No cluster has this id.",
    "set_by_cluster": "The cluster's own configuration sets the opposite, and it takes precedence.",
    "not_simulated": "The cluster is real: its agent reports its nodes, so nobody changes them here, or cuts it off.",
    "project_not_empty": "The project still has living workloads, so it cannot be deleted.",
    "cluster_not_empty": "Workloads still live on the cluster, so it cannot be removed without `force`.",
    "department_not_empty": "Projects still stand in the department, so it cannot be deleted.",
    "default_department": "The default department is always there, so it cannot be deleted.",
    "node_pool_in_use": "Departments or projects name the node pool, so it cannot be removed.",
    "too_many_accounts": "The project has reached its limit of service accounts.",
    "too_many_subscriptions": "The project, or all projects together, have reached the limit of subscriptions.",
    "too_many_webhooks": "The project, or all projects together, have reached the limit of webhooks.",
    "webhook_disabled": "The webhook is disabled, so nothing can be delivered again; enable it first.",
    "budget_exhausted": "The project has used its budget of the month. What runs or waits goes on.",
    "no_prices": "A budget in money needs prices, in the same currency. Set a price first.",
    "other_currency": "All prices of an installation are in one currency.",
    "price_in_past": "Hours of this GPU model had a price already, and what past hours cost never changes.",
    "too_many_prices": "The installation has reached its limit of prices.",
    "not_for_accounts": "A service account has one fixed role and cannot be given another.",
    "role_not_held": "The user does not have the role that should be revoked.",
    "last_administrator": "This is the only administrator, and there must be at least one.",
    "pods_not_isolated": "Pods of the local cluster could read Muster's keys, so roles cannot be given to other "
    "people.",
    "invalid": "A value breaks a rule.",
    "stale_placement": "The pod has changed since the plan was made.",
    "placed_twice": "One command places the same run twice.",
    "capacity_exceeded": "The node does not have that much left.",
    "node_not_schedulable": "The node accepts no new pods.",
    "too_many_workloads": "The project has reached its limit of living workloads.",
    "too_many_bytes": "The project or the user has reached the limit on bytes of new workloads in 60 minutes.",
    "too_many_new_people": "The user has given a first role to as many people as they may in 60 minutes.",
    "too_many_creations": "The project has reached its limit of new workloads in 60 minutes.",
    "log_full": "The log is nearly full. The rest is kept for facts, releases, deletions and administrators.",
    "message_readable": "The message can be read. Only a message that cannot be read can be declared void.",
    "log_unreadable": "A message of the log that is needed here cannot be read. An administrator must declare it void.",
    "actors_away": "The ids of people cannot be read or created at the moment. Nothing was done; try again.",
    "outcome_unknown": "The answer was lost. Repeat the request with the same Idempotency-Key.",
}
"""Every refusal code and what it means; the reference page and the statuses of the API are made from it."""
