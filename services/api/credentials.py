"""Credentials: five operations. Values come in, are sealed to a key that this process cannot open, and never come out.

A credential is used by its owner alone, who created it (R10): in a project by anybody who may submit there.
"""

import asyncio
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, cast

import structlog
from msgspec.structs import replace

from events.aggregate import ASSET
from events.asset import (
    OWNERS,
    Asset,
    AssetCommand,
    ChangeAsset,
    ChangeCredential,
    CreateAsset,
    CreateCredential,
    DeleteAsset,
    DeleteCredential,
    asset_key,
)
from events.asset_specs import CredentialKind
from events.authorize import Permission
from events.fields.declare import Body, Limits
from events.fields.node import tree
from events.ids import incarnation_id, key_of_id
from events.subjects import credential_subject, credential_value_id
from services.api import answers
from services.api.asset_core import (
    LIST,
    AssetPlace,
    found_asset,
    listed,
    place_issues,
    read,
    require_room,
    send_creation,
    shown_asset,
)
from services.api.check import untouched, without_faults
from services.api.context import MIN_SEQ, Api, Call, Look, read_answer, sequence_headers
from services.api.errors import ApiError, bad_request
from services.api.issues import MAX_ISSUES, Issue, fault
from services.api.moments import AS_OF, MOMENT_HEADERS
from services.api.operations import Answer, changes, reads
from services.api.paths import CREDENTIAL, CREDENTIALS
from services.runtime.credentials.kept import CredentialsFullError, KeptCredentials
from services.runtime.credentials.keys import KeyFileError, read_public
from services.runtime.log.store import EventReader, LogUnavailableError
from services.runtime.nats.requests import Requests

MAX_KEYS: Final = 32
MAX_VALUE_BYTES: Final = 16 * 1024
"""Of one value: a long key or a small file."""
MAX_DATA_BYTES: Final = 32 * 1024
"""Of all values of a credential: a run that needs several still fits a message."""
TIDY_SECONDS: Final = 3600.0
"""How often values that no credential has any more are looked for; they are seen so twice before they go."""
MOST_VALUES: Final = 500
"""Of one person, with those that were replaced and are not removed yet: else one who replaces one again and again fills
the store for everybody within minutes.
"""
SCARCE: Final = 0.5
"""Of the store: where it is fuller, one person keeps MOST_WHERE_SCARCE values. A dozen with MOST_VALUES of the largest
would fill it for all others; so it takes some sixty.
"""
MOST_WHERE_SCARCE: Final = 50
KEY_TRIES: Final = 3
"""Of storing one value, each with another key."""
KEYS: Final[dict[CredentialKind, tuple[frozenset[str], frozenset[str]]]] = {
    "password": (frozenset({"username", "password"}), frozenset()),
    "access-key": (frozenset({"accessKeyId", "accessKeySecret"}), frozenset()),
    "docker-registry": (frozenset({"url", "username", "password"}), frozenset({"email"})),
    "ngc-key": (frozenset({"ngcApiKey"}), frozenset()),
    "generic-secret": (frozenset(), frozenset()),
}
"""By kind: the keys that it has, and those that it may have. A generic secret has what its owner wants."""

_KEY: Final = re.compile(r"[A-Za-z0-9._-]{1,63}")

log = structlog.get_logger(__name__)

DataValue = Annotated[str, Limits(longest=MAX_VALUE_BYTES)]


class CredentialSpec(Body, frozen=True, kw_only=True):
    """What a credential is and holds."""

    kind: CredentialKind
    """What it is for. password: username and password; access-key: accessKeyId and accessKeySecret; docker-registry:
    url, username and password; ngc-key: ngcApiKey; generic-secret: any keys.
    """
    data: Annotated[dict[str, DataValue], Limits(shortest=1, longest=MAX_KEYS)]
    """Values by their keys; at most 32 keys, 16 KiB in a value, 32 KiB in all. They are never read back."""


class CredentialCreation(Body, frozen=True, kw_only=True):
    """A credential to be made."""

    meta: AssetPlace
    """Which it is to be, and where you use it."""
    spec: CredentialSpec
    """What it is and holds."""


class CredentialChange(Body, frozen=True, kw_only=True):
    """What a credential is to hold."""

    meta: AssetPlace | None = None
    """Which it is. It cannot be changed, and can be left out."""
    spec: CredentialSpec
    """What it is and holds from now on."""


@reads(
    CREDENTIALS,
    tag="Assets",
    summary="List your credentials, without their values; as an administrator all of them",
    query=LIST,
    headers=MOMENT_HEADERS,
    errors=(403,),
)
async def list_credentials(call: Look) -> Answer[answers.Credentials]:
    everybodys = call.grants.allows(Permission.MANAGE_ASSETS, None)
    page, following, seq, headers = await listed(call, "credentials", created_by=None if everybodys else call.actor)
    rows = [_shown(one.meta, one.spec) for one in page]
    return read_answer(answers.Credentials(credentials=rows, next=following), seq, headers)


@changes(
    "POST",
    CREDENTIALS,
    tag="Assets",
    summary="Create a credential, for workloads that you submit",
    body=CredentialCreation,
    example={
        "meta": {"name": "wandb", "scope": "project", "projectId": "8f3b1c52-7d0e-8a61-b1f4-0a5c9e2d7713"},
        "spec": {"kind": "generic-secret", "data": {"WANDB_API_KEY": "…"}},
    },
    errors=(403,),
    secret=True,
)
async def create_credential(call: Call) -> Answer[answers.Credential]:
    data, secret = _without_values(call.json_object())
    sound, issues = _checked(CredentialCreation, data, secret)
    meta: dict[str, Any] = sound.get("meta") or {}
    if wrong := [*issues, *untouched(await place_issues(call, meta), sound, issues)]:
        raise bad_request(wrong[:MAX_ISSUES])
    place = meta.get("projectId") or meta.get("clusterId") or ""
    call.require(Permission.SUBMIT if meta["scope"] == "project" else Permission.MANAGE_ASSETS, meta.get("projectId"))
    await require_room(call, "credentials", meta)
    await require_room(call, "credentials", meta, own=True)
    command_id = call.command_id()
    key = asset_key("credentials", meta["scope"], place, meta["name"])
    value_id = _value_id(call, key, command_id)
    await _keep(call, call.actor, value_id, secret.values or {})
    spec = _stored(sound, secret, value_id)
    creation = CreateAsset(
        kind="credentials",
        name=meta["name"],
        scope=meta["scope"],
        project_id=place if meta["scope"] == "project" else None,
        cluster_id=place if meta["scope"] == "cluster" else None,
        spec=spec,
    )
    command = (
        CreateCredential(project_id=place, name=meta["name"], spec=spec) if meta["scope"] == "project" else creation
    )
    reply = await send_creation(call, creation, command, command_id=command_id)
    assert reply.at is not None, "a creation is answered with its time"
    made = Asset(
        asset_id=reply.id,
        kind="credentials",
        name=creation.name,
        scope=creation.scope,
        project_id=creation.project_id or "",
        cluster_id=creation.cluster_id or "",
        created_by=call.actor,
        created_at=reply.at,
        spec=spec,
    )
    shown = await shown_asset(call, made)
    return Answer(_shown(shown.meta, shown.spec), status=202, headers=sequence_headers(reply.seq))


@reads(
    CREDENTIAL,
    tag="Assets",
    summary="Get a credential without its values, in its newest state, or as of a moment",
    query=(AS_OF, MIN_SEQ),
    errors=(403, 404),
    headers=MOMENT_HEADERS,
)
async def get_credential(call: Look) -> Answer[answers.Credential]:
    one, headers = await read(call, "credentials")
    return Answer(_shown(one.meta, one.spec), headers=headers)


@changes(
    "PUT",
    CREDENTIAL,
    tag="Assets",
    summary="Set what a credential of yours holds. Pods that start from now on find it; those that run do not",
    body=CredentialChange,
    example={"spec": {"kind": "generic-secret", "data": {"WANDB_API_KEY": "…"}}},
    errors=(403, 404),
    secret=True,
)
async def set_credential(call: Call) -> Answer[answers.Credential]:
    chain = await found_asset(call, "credentials")
    asset = chain.state
    data, secret = _without_values(call.json_object())
    sound, issues = _checked(CredentialChange, data, secret)
    about = await place_issues(call, sound.get("meta") or {}, before=asset)
    if wrong := [*issues, *untouched(about, sound, issues)]:
        raise bad_request(wrong[:MAX_ISSUES])
    if asset.created_by != call.actor:
        raise ApiError(403, OWNERS, details="not_permitted")
    call.require(Permission.SUBMIT if asset.project_id else Permission.MANAGE_ASSETS, asset.project_id or None)
    command_id, key = call.command_id(), key_of_id(asset.asset_id)
    assert key is not None, "it was found by its id"
    value_id = _value_id(call, key, command_id)
    await _keep(call, call.actor, value_id, secret.values or {})
    spec = _stored(sound, secret, value_id)
    change = ChangeCredential if asset.project_id else ChangeAsset
    command: AssetCommand = change(asset_id=call.id, project_id=asset.project_id or None, spec=spec)
    reply = await call.send(command, command_id=command_id)
    changed = replace(asset, spec=spec, changed_at=reply.at) if reply.changed else asset
    shown = await shown_asset(call, changed)
    return Answer(_shown(shown.meta, shown.spec), status=202, headers=sequence_headers(reply.seq))


@changes(
    "DELETE",
    CREDENTIAL,
    tag="Assets",
    summary="Delete a credential of yours and its values; as an administrator anybody's",
    errors=(403, 404),
)
async def delete_credential(call: Call) -> Answer[answers.HttpResponse]:
    asset = (await found_asset(call, "credentials")).state
    own = bool(asset.project_id) and asset.created_by == call.actor
    delete = DeleteCredential if own else DeleteAsset
    command: AssetCommand = delete(asset_id=call.id, project_id=asset.project_id or None)
    reply = await call.send(command)
    if value_id := _value_of(asset):
        # What stays because this fails is found by `tidy`.
        await KeptCredentials(call.api.requests).remove(credential_subject(asset.created_by, value_id))
    message = f"credential {asset.name} is deleted; pods that run keep it, and none that needs it starts any more"
    return call.accepted(reply, message)


# -- values ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class _Secret:
    """What a request holds of values. Never shown: what goes wrong with it is told without it."""

    values: dict[str, str] | None
    """By key; None where they are no such thing at all."""
    issues: list[Issue]


def _without_values(data: dict[str, Any]) -> tuple[dict[str, Any], _Secret]:
    """(the request with an empty text for each value, the values). Nothing else ever sees them."""
    spec = data.get("spec")
    given: Any = cast("dict[str, Any]", spec).get("data") if isinstance(spec, dict) else None
    if not isinstance(spec, dict) or given is None:
        return data, _Secret({}, [])
    if not isinstance(given, dict):
        without = {name: value for name, value in cast("dict[str, Any]", spec).items() if name != "data"}
        wrong = [fault("spec.data", "must be an object with a text for each key", "required")]
        return data | {"spec": {**without, "data": {"any": ""}}}, _Secret(None, wrong)
    values = cast("dict[str, Any]", given)
    issues = [
        fault(f"spec.data.{name}", "must be a text; quote it")
        for name, value in values.items()
        if not isinstance(value, str)
    ]
    texts = {name: value for name, value in values.items() if isinstance(value, str)}
    return data | {"spec": {**cast("dict[str, Any]", spec), "data": dict.fromkeys(values, "")}}, _Secret(texts, issues)


def _checked(body: type[Body], data: dict[str, Any], secret: _Secret) -> tuple[dict[str, Any], list[Issue]]:
    sound, issues = without_faults(tree(body), data)
    spec: dict[str, Any] = sound.get("spec") or {}
    whole = data.get("spec")
    given: Any = cast("dict[str, Any]", whole).get("kind") if isinstance(whole, dict) else None
    kind: CredentialKind = given if isinstance(given, str) and given in KEYS else "generic-secret"
    of_values = () if secret.values is None else _of_values(kind, spec.get("data") or {}, secret.values)
    return sound, [*issues, *secret.issues, *of_values]


def _of_values(kind: CredentialKind, keys: Mapping[str, Any], values: Mapping[str, str]) -> Iterator[Issue]:
    """Without a word of what they are."""
    mandatory, possible = KEYS[kind]
    for name in sorted(mandatory - keys.keys()):
        yield fault(f"spec.data.{name}", f"is required of kind {kind}", "required", "spec.kind")
    for name in keys:
        if kind != "generic-secret" and name not in mandatory | possible:
            said = ", ".join(sorted(mandatory | possible))
            yield fault("spec.data", f"a {kind} has {said}; leave other keys out", "canAdd", "spec.kind")
        elif not _KEY.fullmatch(name):
            yield fault("spec.data", "a key has 1 to 63 letters, digits, `-`, `_` and `.`")
    sizes = {name: len(value.encode()) for name, value in values.items()}
    for name, size in sizes.items():
        if size > MAX_VALUE_BYTES:
            yield fault(f"spec.data.{name}", f"has {size:,} bytes; at most {MAX_VALUE_BYTES:,} are possible", "max")
        if not values[name]:
            yield fault(f"spec.data.{name}", "must not be empty", "min")
    if sum(sizes.values()) > MAX_DATA_BYTES:
        yield fault("spec.data", f"has {sum(sizes.values()):,} bytes; at most {MAX_DATA_BYTES:,} are possible", "max")


def _value_id(call: Call, key: str, command_id: str) -> str:
    """Of the body, too: another one under the same Idempotency-Key is refused, and must not take this one's place."""
    return incarnation_id(key, f"{command_id} {call.hash_of_keyed()}")


def _stored(sound: Mapping[str, Any], secret: _Secret, value_id: str) -> dict[str, Any]:
    return {"credential": {"kind": sound["spec"]["kind"], "keys": sorted(secret.values or {}), "value": value_id}}


def _value_of(asset: Asset) -> str:
    kept: Any = asset.spec.get("credential") or {}
    return kept.get("value") or ""


async def _keep(call: Call, owner: str, value_id: str, values: dict[str, str]) -> None:
    """Before the log speaks of it: what was acknowledged is there. Raises 503."""
    if call.faults:
        raise bad_request([])
    file = call.api.credential_public_key_file
    if file is None:
        raise ApiError(
            503, "this installation keeps no credentials: an operator sets MUSTER_CREDENTIAL_PUBLIC_KEY_FILE",
            details="no_credential_store",
        )  # fmt: skip
    kept, subject = KeptCredentials(call.api.requests), credential_subject(owner, value_id)
    there, full = await kept.kept_of(owner)
    most = MOST_WHERE_SCARCE if full > SCARCE else MOST_VALUES
    if len(there) >= most and subject not in there:
        scarce = " while the store is more than half full" if full > SCARCE else ""
        message = (
            f"{len(there)} values of your credentials are kept, with replaced ones, and at most {most} are "
            f"possible{scarce}; delete credentials, or try again in two hours, when replaced values are gone"
        )
        again = {"Retry-After": str(int(2 * TIDY_SECONDS))}
        raise ApiError(429, message, details="too_many_values", headers=again)
    try:
        for _ in range(KEY_TRIES):
            public = read_public(file)
            await kept.put(owner, value_id, values, public)
            # A rotation that began meanwhile may have ended, too: nothing would open what is sealed to its old key.
            if read_public(file) == public:
                return
        told = "the key of the store is being replaced; try again"
        raise ApiError(503, told, details="no_credential_store", headers={"Retry-After": "10"})
    except KeyFileError as error:
        log.warning("no_public_key", reason=str(error))
        told = "the store of credentials has no key; ask an operator"
        raise ApiError(503, told, details="no_credential_store") from None
    except CredentialsFullError:
        raise ApiError(503, "the store of credentials is full; ask an operator", details="credentials_full") from None


async def tidy_credentials(api: Api) -> None:
    """Remove, for ever, values that no credential has any more: replaced ones, and those of refused creations."""
    before: frozenset[str] = frozenset()
    while True:
        try:
            before = await remove_unused(api.requests, api.store, before)
        except LogUnavailableError as error:
            log.warning("credentials_not_tidied", reason=str(error))
        await asyncio.sleep(TIDY_SECONDS)


async def remove_unused(requests: Requests, store: EventReader, before: frozenset[str]) -> frozenset[str]:
    """Subjects that no credential has now; those that were so `before` are gone. Raises LogUnavailableError."""
    kept = KeptCredentials(requests)
    unused: set[str] = set()
    for subject in await kept.subjects():
        value_id = credential_value_id(subject)
        key = key_of_id(value_id)
        state = None if key is None else (await store.load(ASSET, key)).state
        if state is not None and state.exists and _value_of(state) == value_id:
            continue
        if subject in before:
            await kept.remove(subject)
            log.info("old_credential_value_removed", value=value_id)
        else:
            unused.add(subject)
    return frozenset(unused)


def _shown(meta: answers.AssetMeta, spec: Mapping[str, Any]) -> answers.Credential:
    kept: dict[str, Any] = spec.get("credential") or {}
    shown = answers.CredentialShown(kind=kept.get("kind") or "generic-secret", keys=list(kept.get("keys") or ()))
    return answers.Credential(meta=meta, spec=shown)
