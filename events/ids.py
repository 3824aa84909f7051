"""Ids and keys: how a name becomes a key, and how an id leads back to its key without an index.

A key names an aggregate's subject. It is the first 60 bits of a SHA-256 over what identifies the thing, in base32.
An id is a UUID of version 8 whose first 60 free bits are the key's and whose last 62 are taken from the command that
made this incarnation, so the same command again gives the same id, and an id alone tells where its log stands.
"""

import hashlib
import re
from functools import lru_cache
from uuid import UUID

KEY_PATTERN = re.compile(r"^[A-Za-z0-9_-]{1,64}\Z")
"""What may stand in a subject: no dots, no wildcards, no spaces."""
DNS_LABEL = re.compile(r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")
"""What service accounts and subscriptions may be called: fit for paths, shells and Kubernetes."""

ANY_CLUSTER = "00000000-0000-0000-0000-000000000000"
"""Over HTTP, in place of a cluster's id: the scheduler chooses it, or has not chosen it yet."""

TENANT_KEY = "default"
"""Muster serves one tenant; its aggregate has a fixed key."""

_COMMAND_NAMESPACE = UUID("6f1d3b0a-52a8-5d0e-9c2e-6d7573746572")
_KEY_BITS = 60
_OF_OURS = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-8[0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}\Z")
"""An id: a UUID of version 8. The standard library's UUID takes three times as long to tell."""
_INCARNATION_BITS = 62
_DIGITS = "abcdefghijklmnopqrstuvwxyz234567"
"""Of base32 (RFC 4648), small."""
_PAIRS = tuple(first + second for first in _DIGITS for second in _DIGITS)
"""Two digits are looked up at once: the standard library's base32 is the most of what a key costs."""
_JUST_MADE = 4096
"""So many keys and ids are remembered: one that was asked for is asked for again a moment later, at each step of a
request. More than the items of some batches; about 1 MB of each."""
_AS_PYTHON_READS = str.maketrans(_DIGITS, "0123456789abcdefghijklmnopqrstuv")


def name_key(*parts: str) -> str:
    """The 12-character key of the thing that these parts identify, such as `("workload", project_id, name)`.

    Parts are length-prefixed before hashing, so that ("ab", "c") and ("a", "bc") differ.
    """
    return _key_of_bits(_digest_bits(parts, _KEY_BITS))


@lru_cache(_JUST_MADE)
def workload_key(project_id: str, name: str) -> str:
    return name_key("workload", project_id, name)


def node_key(cluster_id: str, node_name: str) -> str:
    return name_key("node", cluster_id, node_name)


def cluster_key(name: str) -> str:
    return name_key("cluster", name)


def project_key(name: str) -> str:
    return name_key("project", name)


@lru_cache(_JUST_MADE)
def incarnation_id(key: str, command_id: str) -> str:
    """The UUID (version 8) of what `command_id` made under `key`."""
    first = _bits_of_key(key)
    last = _digest_bits((command_id,), _INCARNATION_BITS)
    digits = f"{(first >> 12) << 80 | 0x8 << 76 | (first & 0xFFF) << 64 | 0b10 << 62 | last:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


@lru_cache(_JUST_MADE)
def key_of_id(identifier: str) -> str | None:
    """The key that an id begins with, or None where the text is not an id of ours."""
    if _OF_OURS.match(identifier) is None:
        return None
    return _key_of_bits(int(f"{identifier[:8]}{identifier[9:13]}{identifier[15:18]}", 16))


def idempotent_command_id(actor: str, method: str, path: str, idempotency_key: str) -> str:
    """The command id of a request that carries an `Idempotency-Key`: the same request again is the same command."""
    return derived_command_id(actor, method, path, idempotency_key)


def derived_command_id(*parts: str) -> str:
    """The command id of a service's own act, from what caused it: done twice, it is the same command."""
    # A UUID of version 5, written down at once: the standard library's takes three times as long.
    name = "\x00".join(parts).encode()
    digits = hashlib.sha1(_COMMAND_NAMESPACE.bytes + name, usedforsecurity=False).hexdigest()
    variant = "89ab"[int(digits[16], 16) & 3]
    return f"{digits[:8]}-{digits[8:12]}-5{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:32]}"


@lru_cache(_JUST_MADE)
def item_command_id(batch_id: str, index: int) -> str:
    """The command id of one item of a batch: the same batch again gives each item the same command."""
    return derived_command_id(batch_id, str(index))


def name_suffix(command_id: str) -> str:
    """Six characters that follow a name given as a prefix (R38); the same command gives the same suffix."""
    return _key_of_bits(_digest_bits(("suffix", command_id), _KEY_BITS))[:6]


def _digest_bits(parts: tuple[str, ...], bits: int) -> int:
    hasher = hashlib.sha256()
    for part in parts:
        encoded = part.encode()
        hasher.update(len(encoded).to_bytes(4, "big") + encoded)
    return int.from_bytes(hasher.digest(), "big") >> (256 - bits)


def _key_of_bits(bits: int) -> str:
    return "".join([_PAIRS[bits >> shift & 1023] for shift in (50, 40, 30, 20, 10, 0)])


def _bits_of_key(key: str) -> int:
    return int(key.translate(_AS_PYTHON_READS), 32)
