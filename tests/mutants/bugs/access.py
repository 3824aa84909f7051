"""In the gate, in authentication, and in what the api shows."""

from typing import Any, Final

from tests.mutants.mutant import Mutant


def _unknown_is_off(original: Any) -> Any:
    def of_workload(command: Any, subject: str, needed: Any, facts: Any) -> Any:
        from msgspec.structs import replace

        return original(command, subject, needed, replace(facts, protection=bool(facts.protection)))

    return of_workload


def _honours_the_revoked(original: Any) -> Any:
    def took(self: Any, commit: Any, before: Any, after: Any) -> None:
        from events.project import ProjectRoleRevoked

        kept = dict(self._grants)
        original(self, commit, before, after)
        if commit.events and all(isinstance(event, ProjectRoleRevoked) for event in commit.events):
            self._grants.update(kept)

    return took


def _once_begun(original: Any) -> Any:
    async def refusal(call: Any, permission: Any, project_id: Any) -> Any:
        from events.authorize import authorize

        refused = await original(call, permission, project_id)
        grants = call.api.directory.grants(call.identity.sub)
        return None if refused == authorize(grants, permission, project_id) else refused

    return refusal


def _by_anyone(original: Any) -> Any:
    async def load_workload(call: Any, workload_id: str, *, creation: bool = False, **kwargs: Any) -> Any:
        return await original(call, workload_id, creation=True, **kwargs)

    return load_workload


def _anywhere_is_everywhere(original: Any) -> Any:
    def roles_in(self: Any, project_id: str | None) -> Any:
        if project_id is None:
            return (*self.tenant_roles, *(role for roles in self.project_roles.values() for role in roles))
        return original(self, project_id)

    return roles_in


def _for_a_minute(original: Any) -> Any:
    def remember(self: Any, digest: bytes, identity: Any, now: float) -> None:
        from services.runtime.identity.authentication import REMEMBER_SECONDS

        original(self, digest, identity, now)
        self._remembered[digest] = (now + REMEMBER_SECONDS, identity)

    return remember


def _nobody_is_left(original: Any) -> Any:
    def decide(command: Any, state: Any, context: Any) -> Any:
        from msgspec.structs import replace

        return original(command, replace(state, roles={**state.roles, "": ("administrator",)}), context)

    return decide


def _as_it_was(_: Any) -> Any:
    async def protection_of_leader(self: Any, about: Any) -> Any:
        cluster = None if about is None else self._directory.cluster(about.cluster_id)
        return None if cluster is None else cluster.ownership_protection

    return protection_of_leader


ACCESS: Final[list[Mutant]] = [
    Mutant(
        name="unknown-is-unprotected",
        function="services.ownership.decide:_of_workload",
        invariant="who may",
        bug="Ownership protection counts as off if the workload's cluster is not known.",
        make=_unknown_is_off,
    ),
    Mutant(
        name="protection-as-it-was",
        function="services.ownership.gate:Gate._protection_of_leader",
        invariant="who may",
        bug="Whether a workload of another user is protected is read from a fold that may be behind.",
        make=_as_it_was,
    ),
    Mutant(
        name="revoked-roles-are-honoured",
        function="services.runtime.identity.directory:Directory.took",
        invariant="who may",
        bug="A revoked role of a project still counts until something else changes.",
        make=_honours_the_revoked,
    ),
    Mutant(
        name="streams-outlive-roles",
        function="services.api.follows:_refusal",
        invariant="who may",
        bug="An open stream continues after its reader's role is revoked.",
        make=_once_begun,
    ),
    Mutant(
        name="read-by-anyone-with-the-id",
        function="services.api.kinds:load_workload",
        invariant="who may",
        bug="Anybody who knows the id of a workload can read it, in any project.",
        make=_by_anyone,
    ),
    Mutant(
        name="a-role-anywhere-is-one-everywhere",
        function="events.authorize:Grants.roles_in",
        invariant="who may",
        bug="A role in one project also gives rights on things of the whole tenant.",
        make=_anywhere_is_everywhere,
    ),
    Mutant(
        name="expired-and-remembered",
        function="services.runtime.identity.authentication:Authenticator._remember",
        invariant="who may",
        bug="A token that was valid once is accepted for another minute, even if it has expired.",
        make=_for_a_minute,
    ),
    Mutant(
        name="nobody-is-left",
        function="events.tenant:decide",
        invariant="who may",
        bug="The only administrator's role can be revoked.",
        make=_nobody_is_left,
    ),
]
