"""Who a bearer token speaks for: a person, by a signed JWT, or a service account, by a token that its project knows.

The gate and the api ask here, each for itself and at each request: nothing about an account is remembered beside the
fold of the log, so that a token ends with the commit that ends it.
"""

from datetime import UTC, datetime
from typing import Final

from events.actors import STRANGER, is_account, share_of
from events.refusal import Refusal
from events.service_accounts import ACCOUNT_ISSUER, is_account_token, token_hash
from services.runtime.identity.actors import Actors
from services.runtime.identity.authentication import Authenticator, Identity, not_authenticated
from services.runtime.identity.directory import Directory

NEVER: Final = datetime.max.replace(tzinfo=UTC)
"""When the token of an account expires: it ends with its account."""


class Identities:
    """Verifies tokens of both forms."""

    def __init__(self, authenticator: Authenticator, actors: Actors, directory: Directory) -> None:
        self._authenticator = authenticator
        self._actors = actors
        self._directory = directory

    async def verify(self, token: str) -> Identity | Refusal:
        """The identity, or `not_authenticated` with what is wrong. Of accounts as the directory knows them now: who
        asks sees to it before that it is as new as it must be.
        """
        return await verified(token, self._authenticator, self._directory)

    async def actor(self, identity: Identity) -> str:
        """The id in the log; STRANGER where there is none. Raises ActorsAwayError."""
        if is_account(identity.sub):
            return identity.sub
        return await self._actors.find(identity.iss, identity.sub) or STRANGER


async def verified(token: str, authenticator: Authenticator, directory: Directory) -> Identity | Refusal:
    """As `Identities.verify`, for whoever needs no ids of the log."""
    if not is_account_token(token):
        return await authenticator.verify(token)
    found = directory.account_with(token_hash(token))
    if found is None:
        return not_authenticated(
            "no service account has this token: it was rotated, or its account or project was deleted"
        )
    return Identity(iss=ACCOUNT_ISSUER, sub=found[0].actor, expires_at=NEVER)


def principal(identity: Identity) -> tuple[str, str]:
    """Whose share of requests and open streams a request takes."""
    return identity.iss, share_of(identity.sub)
