"""Whether somebody's private key for ssh has a passphrase, as its head says; no service loads such a key.

Requirement rows: S057, R34.
"""

import ast
import base64
import struct
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from services.runtime.credentials.ssh import has_passphrase, ssh_pair

OURS = Ed25519PrivateKey.from_private_bytes(b"0" * 32)
CURVE = generate_private_key(SECP256R1())
LOCK = BestAvailableEncryption(b"s3cr3t")
MOST_VALUE = 16 * 1024
"""Bytes of a value of a credential."""


def openssh(*fields: bytes) -> str:
    """A key in OpenSSH's form that has these fields at its head, and nothing behind them."""
    content = b"openssh-key-v1\0" + b"".join(struct.pack(">I", len(each)) + each for each in fields)
    return armoured("OPENSSH PRIVATE KEY", content)


def armoured(label: str, content: bytes, headers: str = "") -> str:
    text = base64.encodebytes(content).decode()
    return f"-----BEGIN {label}-----\n{headers}{text}-----END {label}-----\n"


HUGE_RSA = armoured("RSA PRIVATE KEY", b"\x30\x82\x13\x2c" + b"\xff" * 11_000)
"""A key of numbers so large that to prove them takes a processor many seconds."""

WITHOUT = {
    "OpenSSH's form": ssh_pair(b"0" * 32, "a repository")[0],
    "PKCS 8": OURS.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode(),
    "PEM": CURVE.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()).decode(),
    "huge": HUGE_RSA,
    "text before it": f"# mine\n{openssh(b'none', b'none')}",
    "empty": "-----BEGIN OPENSSH PRIVATE KEY-----\n-----END OPENSSH PRIVATE KEY-----\n",
    "no base64": "-----BEGIN OPENSSH PRIVATE KEY-----\né!!\n-----END OPENSSH PRIVATE KEY-----\n",
    "a length of what is not there": armoured("OPENSSH PRIVATE KEY", b"openssh-key-v1\0\xff\xff\xff\xff"),
    "only the words": "PRIVATE KEY-----",
    "many heads": "-----BEGIN PRIVATE KEY-----\n" * (MOST_VALUE // 28),
    "many headers": "-----BEGIN RSA PRIVATE KEY-----\n" + "a:\n" * (MOST_VALUE // 3),
}
WITH = {
    "OpenSSH's form": openssh(b"aes256-ctr", b"bcrypt", b"salt"),
    "PKCS 8": OURS.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, LOCK).decode(),
    "PEM": CURVE.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, LOCK).decode(),
    "PEM, of which only the head is one": armoured(
        "RSA PRIVATE KEY", b"?", "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\n"
    ),
    "text before it": f"# mine\n{openssh(b'aes256-ctr', b'bcrypt', b'salt')}",
}


@pytest.mark.parametrize("name", WITHOUT)
def test_a_key_without_a_passphrase_has_none(name: str) -> None:
    assert not has_passphrase(WITHOUT[name])


@pytest.mark.parametrize("name", WITH)
def test_a_key_with_a_passphrase_is_known_by_its_head(name: str) -> None:
    assert has_passphrase(WITH[name])


def test_nothing_loads_a_private_key_that_a_user_can_give() -> None:
    """Who gives a key would choose how long a service stands still: a library proves a key's numbers as it loads it."""
    root = Path(__file__).parents[2]
    of_the_installation = {"services/api/tls.py", "muster/embedded/certificates.py"}
    loading = {
        str(file.relative_to(root))
        for part in ("events", "projections", "services", "muster")
        for file in (root / part).rglob("*.py")
        if "load_" in (text := file.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom | ast.Attribute)
        for name in ([each.name for each in node.names] if isinstance(node, ast.ImportFrom) else [node.attr])
        if name.startswith("load_") and name.endswith(("_private_key", "_key_and_certificates"))
    }
    assert loading == of_the_installation
