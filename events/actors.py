"""Who acts: ids of our own for people, and what the stream ACTORS says of each. Pure.

The log holds ids alone. Issuer and subject stand in one record per id, outside the log, that can be replaced by a blank
one: then nobody can tell any more whom the id meant (docs/adr/0048).
"""

import base64
import hashlib
import re
from collections.abc import Callable
from typing import Final

import msgspec

SERVICE_PREFIX: Final = "muster."
"""What ids of Muster's own services begin with; no person's does."""
ACCOUNT_PREFIX: Final = "service-account:"
"""What ids and subjects of service accounts begin with; no person's does."""
ACTOR_ID: Final = re.compile(r"^a_[a-z2-7]{26}\Z")
"""The form of a person's id."""
_MENTIONED: Final = re.compile(r"\ba_[a-z2-7]{26}\b")
"""A person's id inside a sentence, as in the reason that names who cordoned a node."""
ACTOR_ID_BYTES: Final = 16
"""Of chance in an id."""
STRANGER: Final = ""
"""Instead of an id, of who has none: nobody ever gave them a role."""
MAX_SUBJECT_LENGTH: Final = 256
"""OpenID Connect allows 255; a subject is kept in a record of ACTORS."""


class Person(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A record of ACTORS: whom an id means. A blank one, without a subject, is a person who was forgotten."""

    issuer: str = ""
    """Of their tokens."""
    subject: str = ""
    """Of their tokens."""


def fit_subject(text: str) -> bool:
    """Whether a token of a person may name its subject so."""
    return 0 < len(text) <= MAX_SUBJECT_LENGTH and text.isprintable() and not is_account(text)


def share_of(actor: str) -> str:
    """Whose share of what is limited somebody takes: all accounts of a project take one, so that whoever makes a
    hundred has no more than with one.
    """
    return actor.rpartition("/")[0] if is_account(actor) else actor


def fit_account(text: str) -> bool:
    """Whether a service account may be called so."""
    return is_account(text) and len(text) <= MAX_SUBJECT_LENGTH and text.isprintable()


def is_account(subject: str) -> bool:
    """Whether this is the id, and so also the subject, of a service account (events/service_accounts.py)."""
    return subject.startswith(ACCOUNT_PREFIX)


def actor_id(chance: bytes) -> str:
    """The id made of ACTOR_ID_BYTES bytes."""
    return "a_" + base64.b32encode(chance).decode().rstrip("=").lower()


def actor_key(issuer: str, subject: str) -> str:
    """Where the record of (issuer, subject) is found: a SHA-256, since nobody may ever come upon another one's."""
    hasher = hashlib.sha256()
    for part in (issuer, subject):
        encoded = part.encode("utf-8", "surrogatepass")
        hasher.update(len(encoded).to_bytes(4, "big") + encoded)
    return hasher.hexdigest()


def mentioned(sentence: str) -> set[str]:
    """Ids of people in a sentence that the log holds: names are put in their place where it is shown."""
    return set(_MENTIONED.findall(sentence)) if "a_" in sentence else set()


def with_names(sentence: str, name: Callable[[str], str]) -> str:
    """The sentence with names in the place of ids."""
    return _MENTIONED.sub(lambda found: name(found[0]), sentence) if "a_" in sentence else sentence


def shown_without_record(actor: str) -> Person:
    """What is shown of an id of which no record says whom it means: a service's name, or the id itself."""
    if actor.startswith(SERVICE_PREFIX):
        return Person(issuer="muster", subject=actor.removeprefix(SERVICE_PREFIX))
    if actor.startswith(ACCOUNT_PREFIX):
        return Person(issuer="muster", subject=actor)
    return Person(subject=actor)
