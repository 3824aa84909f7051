"""Keys for ssh: pairs that nobody keeps, derived from a seed of the key file and from what they are for; and of a key
that somebody gave, whether it has a passphrase.
"""

import binascii
import re
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from services.runtime.credentials.sealed import derived

_PURPOSE: Final = "ssh 1"
_BEGINS: Final = re.compile(r"^-----BEGIN ([A-Z ]{0,40})PRIVATE KEY-----[ \t]*\n", re.MULTILINE)
_HEADERS_CHARACTERS: Final = 512
"""So many behind the first line hold the headers of PEM, where it has any, and the cipher's name in OpenSSH's form."""
_MAGIC: Final = b"openssh-key-v1\0"
_LENGTH_BYTES: Final = 4
"""Of a length in OpenSSH's form; the first one, behind the magic, is that of the cipher's name."""
_NO_CIPHER: Final = b"none"


def ssh_pair(seed: bytes, about: str) -> tuple[str, str]:
    """(private key, public key), as OpenSSH reads them, each with a line end. The pair is the same each time; how the
    private key is written is not, since OpenSSH puts random bytes into it.
    """
    private = Ed25519PrivateKey.from_private_bytes(derived(seed, f"{_PURPOSE} {about}"))
    public = private.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return (
        private.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode(),
        f"{public.decode()}\n",
    )


def has_passphrase(private: str) -> bool:
    """As the head of a private key says; each line ends with a line feed. What no head says, ssh itself judges.

    The key is never loaded: whoever wrote it would choose how long that takes, since a library proves the numbers of a
    key, and large ones take it many seconds.
    """
    begins = _BEGINS.search(private)
    if begins is None:
        return False
    head = private[begins.end() : begins.end() + _HEADERS_CHARACTERS]
    match begins[1]:
        case "ENCRYPTED ":
            return True
        case "OPENSSH ":
            return _cipher(head) not in {_NO_CIPHER, b""}
        case _:
            return re.match(r"(?:[^\n:]+:[^\n]*\n)*?Proc-Type:[^\n]*\bENCRYPTED\b", head) is not None


def _cipher(head: str) -> bytes:
    """Its name, in OpenSSH's form of a private key; empty where it is not in that form."""
    signs = re.sub(r"\s", "", head.partition("-----")[0])
    try:
        content = binascii.a2b_base64(signs[: len(signs) // 4 * 4])
    except (binascii.Error, ValueError):
        return b""
    if not content.startswith(_MAGIC):
        return b""
    begins = len(_MAGIC) + _LENGTH_BYTES
    length = int.from_bytes(content[len(_MAGIC) : begins])
    return content[begins : begins + length]
