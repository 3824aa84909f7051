"""Finds the values of credentials that a run needs, and seals them to the agent that starts it.

Of what the log says, the run alone decides: which credentials, and whose. A credential is its owner's (R10), so only a
workload of the same person gets it, whoever asked for that: one that they own and submitted themselves. What somebody
else wrote shall not find their values because it was given to them.
"""

import asyncio
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from events.aggregate import ASSET
from events.asset import Asset, credential_keys
from events.cluster_protocol import RunPod, SealedValues, sealed_about
from events.workload.fields.process import UserCredentialKey
from services.cluster_sync.reconcile import Desired, template_of
from services.runtime.credentials.kept import KeptCredentials
from services.runtime.credentials.keys import KeyFileError, Ring, read_ring
from services.runtime.credentials.sealed import SealError, seal
from services.runtime.log.jetstream import JetStreamEventStore

FIND_SECONDS: Final = 4.0
"""For all that one run needs; the agent waits a second longer, and asks again."""
MOST_SEALED_BYTES: Final = 512 * 1024
"""Of the values of one run: a recipe must fit a message."""

log = structlog.get_logger(__name__)


class NotFoundError(Exception):
    """There is no such value for this run, whoever asks again; the message says why, and holds no value."""


def needed(desired: Desired) -> dict[str, UserCredentialKey]:
    """Variables of a run whose values are in credentials."""
    variables = template_of(desired).environment
    return {one.name: one.user_credential for one in variables if one.user_credential is not None}


class Credentials:
    """Of this service."""

    def __init__(self, store: JetStreamEventStore, kept: KeptCredentials, key_file: Path | None) -> None:
        self._store = store
        self._kept = kept
        self._key_file = key_file

    async def sealed(self, recipe: RunPod, desired: Desired, cluster_id: str, public_key: bytes) -> RunPod | None:
        """The recipe with what it needs, or with why that cannot be; None where nobody knows now."""
        if not public_key:
            problem = "the cluster's agent is of a version that knows no credentials; update it"
            return msgspec.structs.replace(recipe, no_credentials=problem)
        about = sealed_about(cluster_id, recipe.pod_key, recipe.token)
        try:
            async with asyncio.timeout(FIND_SECONDS):
                values = SealedValues(environment=await self._values(desired))
            plain = msgspec.json.encode(values)
            if len(plain) > MOST_SEALED_BYTES:
                problem = f"its credentials have {len(plain):,} bytes; at most {MOST_SEALED_BYTES:,} are possible"
                return msgspec.structs.replace(recipe, no_credentials=problem)
            return msgspec.structs.replace(recipe, sealed=seal(public_key, plain, about))
        except NotFoundError as error:
            return msgspec.structs.replace(recipe, no_credentials=str(error))
        except (KeyFileError, SealError) as error:
            log.warning("credentials_not_opened", cluster_id=cluster_id, pod=recipe.pod_key, error=str(error))
        except Exception as error:  # noqa: BLE001 (whatever it was: the agent asks again, and this is nobody's to end)
            log.warning("credentials_not_found", cluster_id=cluster_id, pod=recipe.pod_key, error=type(error).__name__)
        return None

    async def _values(self, desired: Desired) -> dict[str, str]:
        """By variable. Raises NotFoundError, KeyFileError, SealError."""
        if desired.state.owner != desired.state.created_by:
            raise NotFoundError(
                "it was given to another owner, and credentials are for workloads that their owner submitted: its "
                "owner has to submit it again"
            )
        if self._key_file is None:
            raise KeyFileError("MUSTER_CREDENTIAL_KEY_FILE is not set")
        ring = read_ring(self._key_file)
        found: dict[str, dict[str, str]] = {}
        values: dict[str, str] = {}
        for variable, wanted in needed(desired).items():
            if wanted.name not in found:
                found[wanted.name] = await self._of(wanted.name, desired, ring)
            if wanted.key not in found[wanted.name]:
                raise NotFoundError(f"credential {wanted.name!r} has no key {wanted.key!r} any more")
            values[variable] = found[wanted.name][wanted.key]
        return values

    async def _of(self, name: str, desired: Desired, ring: Ring) -> dict[str, str]:
        state = desired.state
        for key in credential_keys(name, project_id=state.project_id, cluster_id=state.cluster_id):
            asset: Asset = (await self._store.load(ASSET, key)).state
            if asset.exists and asset.kind == "credentials" and asset.created_by == state.owner:
                kept: dict[str, Any] = asset.spec.get("credential") or {}
                try:
                    value = await self._kept.get(state.owner, str(kept.get("value") or "none"), ring)
                except SealError:
                    value = None
                if value is None:
                    raise NotFoundError(f"the value of credential {name!r} is gone; its owner has to set it again")
                return value
        raise NotFoundError(f"credential {name!r} is not there any more; its owner has to create it again")
