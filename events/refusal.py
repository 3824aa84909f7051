"""Refusals: a decider's or the gate's named "no"."""

from typing import Final

import msgspec


class Refusal(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a command was not carried out. Nothing was stored."""

    code: str
    """One of `REFUSALS`; programs branch on it."""
    message: str
    """One sentence for a person: what is wrong, with what was given, and what would do."""
    field: str | None = None
    """The request field that is at fault, such as `spec.parallelism`, where there is one."""
    retry_seconds: int | None = None
    """After how long the same command would be carried out, where that is known."""


REFUSALS: Final[dict[str, str]] = {
    "name_taken": "a living workload of the project, or a thing of that kind, has this name",
    "local_taken": "there is a living cluster of kind local: it is this machine, whose devices are given out once",
    "not_found": "there is no such thing, or it is not yours to see",
    "not_owner": "ownership protection: only the creator, or who may override it, does this",
    "not_in_project": "the caller has no role in the project",
    "not_permitted": "the caller's role does not include this action",
    "not_authenticated": "the token is missing, expired or not trusted",
    "version_moved": "If-Match named a version that is no longer the newest",
    "idempotency_key_reused": "the same Idempotency-Key came with another body",
    "workload_finished": "the workload is Completed or Failed: it cannot run again",
    "workload_deleted": "the workload is deleted, or on its way",
    "unknown_project": "no project has this id",
    "unknown_cluster": "no cluster has this id",
    "set_by_cluster": "the cluster's own configuration says otherwise, and it wins",
    "project_not_empty": "workloads live in the project that shall be deleted",
    "too_many_accounts": "the project has as many service accounts as it may",
    "not_for_accounts": "service accounts are not given this: they have the one role that they were made with",
    "role_not_held": "the role that shall be taken away is none that they have there",
    "last_administrator": "somebody must remain who can administer",
    "pods_not_isolated": "pods of the local cluster could read Muster's keys: roles are not given to other people",
    "invalid": "a value breaks a rule",
    "stale_placement": "the pod moved on since the plan was made",
    "placed_twice": "one run of a pod was given two places at once",
    "capacity_exceeded": "the node has not that much left",
    "node_not_schedulable": "the node takes no new pods",
    "too_many_workloads": "the project has as many living workloads as it may",
    "too_many_bytes": "the project, or the user, has created as many bytes of workloads within 60 minutes as it may",
    "too_many_creations": "the project has created as many workloads within 60 minutes as it may",
    "log_full": "the log is nearly full: what is left is for facts, releases, deletions and administrators",
    "message_readable": "only a message of the log that cannot be read can be declared void",
    "log_unreadable": "a message of the log that this takes cannot be read: an administrator must declare it void",
    "actors_away": "the ids of people cannot be read, or no new one be made, now: nothing was done, try again",
    "outcome_unknown": "the answer was lost: repeat with the same Idempotency-Key",
}
"""Every refusal code and what it means; the reference page and the statuses of the API are made from it."""
