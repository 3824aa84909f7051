"""Roles by actor id, as the tenant and projects hold them."""

from events.refusal import Refusal


def with_role[R](roles: dict[str, tuple[R, ...]], actor: str, role: R) -> dict[str, tuple[R, ...]]:
    return roles | {actor: (*roles.get(actor, ()), role)}


def without_role[R](roles: dict[str, tuple[R, ...]], actor: str, role: R) -> dict[str, tuple[R, ...]]:
    """An actor without roles is not kept."""
    kept = tuple(held for held in roles.get(actor, ()) if held != role)
    others = {other: held for other, held in roles.items() if other != actor}
    return others | ({actor: kept} if kept else {})


def not_held(held: tuple[str, ...], subject: str, role: str, where: str) -> Refusal:
    """The refusal to revoke a role that the subject does not have.

    Args:
        where: such as `everywhere`.
    """
    has = f"has only: {', '.join(held)}" if held else "has no role"
    return Refusal(
        code="role_not_held",
        field="roleName",
        message=f"{subject!r} does not have the role {role} {where}, so it cannot be revoked; {subject!r} {has} "
        f"{'there' if where != 'everywhere' else where}",
    )
