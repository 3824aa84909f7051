"""Finds the values of credentials that a run needs, makes its keys for ssh, and seals both to the agent that starts it.

Of what the log says, the run alone decides: which credentials, and whose. A credential is its owner's (R10), so only a
workload of the same person gets it, whoever asked for that: one that they own and submitted themselves. What somebody
else wrote shall not find their values because it was given to them.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from events.aggregate import ASSET
from events.asset import Asset, credential_keys
from events.asset_specs import CredentialKind
from events.cluster_protocol import (
    Login,
    RecipeRequest,
    Registry,
    RepositoryKey,
    RunPod,
    SealedValues,
    sealed_about,
)
from events.workload.fields.process import UserCredentialKey
from events.workload.mpi import Mpi, ssh_files
from events.workload.repositories import KNOWN_HOSTS, PRIVATE_KEY
from events.workload.volumes import ClonedFolder, FetchedFolder, FolderLogin
from services.cluster_sync.reconcile import Desired, mpi_of, template_of
from services.runtime.credentials.kept import KeptCredentials
from services.runtime.credentials.keys import MOST_SEEDS, KeyFileError, Ring, read_ring
from services.runtime.credentials.sealed import SealError, seal
from services.runtime.credentials.ssh import has_passphrase, ssh_pair
from services.runtime.log.jetstream import JetStreamEventStore

FIND_SECONDS: Final = 4.0
"""For all that one run needs; the agent waits a second longer, and asks again."""
MOST_SEALED_BYTES: Final = 512 * 1024
"""Of the values of one run: a recipe must fit a message."""
REGISTRY_KIND: Final[CredentialKind] = "docker-registry"
USER_KEY, PASSWORD_KEY = "username", "password"
"""Of a login, where no others are said: those of a credential of kind password."""
DEFAULT_USER: Final = "git"
"""Servers that take a token ask for no name in particular."""

log = structlog.get_logger(__name__)


class NotFoundError(Exception):
    """There is no such value for this run, whoever asks again; the message says why, and holds no value."""


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    """What a run needs of credentials."""

    variables: dict[str, UserCredentialKey] = {}
    registries: tuple[str, ...] = ()
    """Names of credentials that its image is pulled with."""
    logins: dict[str, FolderLogin] = {}
    """By the path at which the pod finds the volume that is fetched with it."""
    keys: dict[str, FolderLogin] = {}
    """Of repositories that are cloned over ssh, likewise."""
    mpi: Mpi | None = None
    """What it is in an MPI training whose pods have keys for ssh."""

    @property
    def of_owner(self) -> bool:
        """Whether it needs something of a credential."""
        return bool(self.variables or self.registries or self.logins or self.keys)

    @property
    def nothing(self) -> bool:
        return not self.of_owner and self.mpi is None


def needed(desired: Desired, *, ssh_keys: bool) -> Needs:
    """`ssh_keys`: as its agent asked."""
    template = template_of(desired)
    variables = {one.name: one.user_credential for one in template.environment if one.user_credential is not None}
    logins: dict[str, FolderLogin] = {}
    keys: dict[str, FolderLogin] = {}
    for volume in template.volumes:
        if isinstance(volume, FetchedFolder) and volume.login is not None and volume.login.credential:
            of_ssh = isinstance(volume, ClonedFolder) and volume.over_ssh
            (keys if of_ssh else logins)[volume.mount_path] = volume.login
    mpi = mpi_of(desired, ssh_keys=ssh_keys)
    return Needs(
        variables=variables,
        registries=template.container.pull_credentials,
        logins=logins,
        keys=keys,
        mpi=mpi if mpi is not None and mpi.ssh else None,
    )


class _Found(msgspec.Struct, frozen=True):
    """A credential's value."""

    name: str
    kind: str
    data: dict[str, str]

    def of(self, key: str) -> str:
        """Raises NotFoundError."""
        if key not in self.data:
            raise NotFoundError(f"credential {self.name!r} has no key {key!r} any more")
        return self.data[key]


class Credentials:
    """Of this service."""

    def __init__(self, store: JetStreamEventStore, kept: KeptCredentials, key_file: Path | None) -> None:
        self._store = store
        self._kept = kept
        self._key_file = key_file

    async def sealed(self, recipe: RunPod, desired: Desired, cluster_id: str, asked: RecipeRequest) -> RunPod | None:
        """The recipe with what it needs, or with why that cannot be; None where nobody knows now."""
        if not asked.public_key:
            problem = "the cluster's agent is of a version that knows no credentials; update it"
            return msgspec.structs.replace(recipe, no_credentials=problem)
        about = sealed_about(cluster_id, recipe.pod_key, recipe.token)
        try:
            async with asyncio.timeout(FIND_SECONDS):
                values = await self._values(desired, needed(desired, ssh_keys=asked.ssh_keys), cluster_id)
            plain = msgspec.json.encode(values)
            if len(plain) > MOST_SEALED_BYTES:
                problem = f"its credentials have {len(plain):,} bytes; at most {MOST_SEALED_BYTES:,} are possible"
                return msgspec.structs.replace(recipe, no_credentials=problem)
            return msgspec.structs.replace(recipe, sealed=seal(asked.public_key, plain, about))
        except NotFoundError as error:
            return msgspec.structs.replace(recipe, no_credentials=str(error))
        except (KeyFileError, SealError) as error:
            log.warning("credentials_not_opened", cluster_id=cluster_id, pod=recipe.pod_key, error=str(error))
        except Exception as error:  # noqa: BLE001 (whatever it was: the agent asks again, and this is nobody's to end)
            log.warning("credentials_not_found", cluster_id=cluster_id, pod=recipe.pod_key, error=type(error).__name__)
        return None

    async def _values(self, desired: Desired, needs: Needs, cluster_id: str) -> SealedValues:
        """Raises NotFoundError, KeyFileError, SealError."""
        if needs.of_owner and desired.state.owner != desired.state.created_by:
            raise NotFoundError(
                "it was given to another owner, and credentials are for workloads that their owner submitted: its "
                "owner has to submit it again"
            )
        if self._key_file is None:
            raise KeyFileError("MUSTER_CREDENTIAL_KEY_FILE is not set")
        ring = read_ring(self._key_file)
        wanted_of = (*needs.variables.values(), *needs.logins.values(), *needs.keys.values())
        names = [one.name for one in wanted_of]
        found = {name: await self._of(name, desired, ring) for name in dict.fromkeys((*names, *needs.registries))}
        return SealedValues(
            environment={name: found[wanted.name].of(wanted.key) for name, wanted in needs.variables.items()},
            registries=_registries([found[name] for name in needs.registries]),
            logins={path: _login(found[wanted.name], wanted) for path, wanted in needs.logins.items()},
            keys={path: _repository_key(found[wanted.name], wanted) for path, wanted in needs.keys.items()},
            ssh={} if needs.mpi is None else _ssh(needs.mpi, desired, cluster_id, ring),
        )

    async def _of(self, name: str, desired: Desired, ring: Ring) -> _Found:
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
                return _Found(name, str(kept.get("kind") or ""), value)
        raise NotFoundError(f"credential {name!r} is not there any more; its owner has to create it again")


def _ssh(mpi: Mpi, desired: Desired, cluster_id: str, ring: Ring) -> dict[str, str]:
    """Made of what stands in the log and in the key file, so that every run of the attempt, whoever answers for it, has
    the same. Raises NotFoundError.
    """
    state = desired.state
    seed = ring.seed_of(state.created_at)
    if seed is None:
        raise NotFoundError(
            f"its keys for ssh are gone: the key file was rotated {MOST_SEEDS} times since it was submitted; "
            "submit it again"
        )
    return ssh_files(mpi, *ssh_pair(seed, f"{cluster_id} {state.workload_id} {desired.pod.attempt}"))


def _registries(found: Sequence[_Found]) -> tuple[Registry, ...]:
    """Raises NotFoundError."""
    made: dict[str, Registry] = {}
    names: dict[str, str] = {}
    for one in found:
        if one.kind != REGISTRY_KIND:
            raise NotFoundError(
                f"credential {one.name!r} is of kind {one.kind}; images are pulled with {REGISTRY_KIND}"
            )
        url = one.of("url").strip()
        if url in made:
            raise NotFoundError(f"credentials {names[url]!r} and {one.name!r} are for one registry; name one of them")
        names[url] = one.name
        made[url] = Registry(
            url=url, user=one.of("username"), password=one.of("password"), email=one.data.get("email", "")
        )
    return tuple(made.values())


def _login(found: _Found, wanted: FolderLogin) -> Login:
    """Raises NotFoundError."""
    user = found.of(wanted.user_key) if wanted.user_key else found.data.get(USER_KEY, DEFAULT_USER)
    login = Login(user=user.strip("\r\n"), password=found.of(wanted.password_key or PASSWORD_KEY).strip("\r\n"))
    if any(sign in text for text in (login.user, login.password) for sign in "\r\n\0"):
        raise NotFoundError(f"credential {found.name!r} has several lines, and one is possible: set it again")
    return login


def _repository_key(found: _Found, wanted: FolderLogin) -> RepositoryKey:
    """Raises NotFoundError, where ssh would say much later, and in other words, what is wrong."""
    name = wanted.password_key or PRIVATE_KEY
    private, known_hosts = _lines(found.of(name)), _lines(found.of(KNOWN_HOSTS))
    about = f"key {name!r} of credential {found.name!r}"
    if "PRIVATE KEY-----" not in private:
        raise NotFoundError(f"{about} holds no private key for ssh: set it again")
    if has_passphrase(private):
        raise NotFoundError(f"{about} has a passphrase, and nobody is there to type it: set a key without one")
    if all(line.startswith("#") or not line.strip() for line in known_hosts.splitlines()):
        raise NotFoundError(
            f"key {KNOWN_HOSTS!r} of credential {found.name!r} names no server: set it to what ssh-keyscan says"
        )
    return RepositoryKey(private=private, known_hosts=known_hosts)


def _lines(text: str) -> str:
    """As a program of this system reads them: one that was typed elsewhere may end otherwise. Raises NotFoundError."""
    if "\0" in text:
        raise NotFoundError("a key for ssh holds bytes that are no text: set it again")
    return text.replace("\r\n", "\n").rstrip("\n") + "\n"
