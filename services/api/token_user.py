"""The user of a token as the one whom a workload's pods run as (S022, R23). Pure."""

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from events.workload.fields.creation import Creation
from events.workload.fields.security import SecuritySpec
from services.api.issues import Issue, fault
from services.runtime.identity.posix_user import PosixUser

_SPECS = (("spec", "spec"), ("masterSpec", "master_spec"))


def with_token_user[C: Creation](asked: C, user: PosixUser | str) -> tuple[C, list[Issue]]:
    """(the creation with the ids of the token's user where it asks for them, why that cannot be)."""
    issues: list[Issue] = []
    for path, attribute in _SPECS:
        spec: Any = getattr(asked, attribute, None)
        if spec is None or spec.security.uid_gid_source != "fromIdpToken":
            continue
        if isinstance(user, str):
            details = f"{user}; ask who issues your tokens, or give custom with runAsUid and runAsGid"
            issues.append(Issue(field=f"{path}.security.uidGidSource", details=details))
        else:
            security = _as(user, spec.security)
            issues += _root(user, security, f"{path}.security")
            asked = replace(asked, **{attribute: replace(spec, security=security)})
    return asked, issues


def _as(user: PosixUser, security: SecuritySpec) -> SecuritySpec:
    groups = ",".join(str(group) for group in user.groups)
    return replace(security, run_as_uid=user.uid, run_as_gid=user.gid, supplemental_groups=groups)


def _root(user: PosixUser, security: SecuritySpec, path: str) -> Iterator[Issue]:
    if security.run_as_non_root and user.uid == 0:
        details = "your token names user 0, which is root, and runAsNonRoot is true"
        yield fault(f"{path}.uidGidSource", details, "min", f"{path}.runAsNonRoot")
