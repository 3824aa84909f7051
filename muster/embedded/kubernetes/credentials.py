"""Keys of a control plane on loopback: an authority, the API server's certificate, the key that signs tokens."""

import datetime as dt
import ipaddress
import secrets
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

VALID_DAYS: Final = 3650
"""A development cluster outlives no laptop; nobody is to be stopped by a certificate that ran out."""
TOKEN_BYTES: Final = 24
"""192 bits: not to be guessed."""


def make(folder: Path) -> None:
    """Make ca.crt, server.crt, server.key, service-accounts.key and tokens.csv, where they are missing; for us only."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if (folder / "tokens.csv").exists():
        return  # written last: all of it is there
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = _authority(authority_key)
    server_key = ec.generate_private_key(ec.SECP256R1())
    server = _server(server_key, authority, authority_key)
    _write(folder / "ca.crt", authority.public_bytes(serialization.Encoding.PEM))
    _write(folder / "server.crt", server.public_bytes(serialization.Encoding.PEM))
    _write(folder / "server.key", _pem(server_key))
    _write(folder / "service-accounts.key", _pem(ec.generate_private_key(ec.SECP256R1())))
    _write(folder / "tokens.csv", f"{secrets.token_hex(TOKEN_BYTES)},admin,admin,system:masters\n".encode())


def admin_token(folder: Path) -> str:
    """The administrator's token among the credentials in `folder`."""
    return (folder / "tokens.csv").read_text().partition(",")[0]


def _authority(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "muster simulated cluster")])
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        _certificate(name, name, key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )


def _server(
    key: ec.EllipticCurvePrivateKey, authority: x509.Certificate, authority_key: ec.EllipticCurvePrivateKey
) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kube-apiserver")])
    hosts = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
    return (
        _certificate(name, authority.subject, key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .add_extension(
            # Python's strict check of certificates asks for it.
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
            critical=False,
        )
        .sign(authority_key, hashes.SHA256())
    )


def _certificate(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=VALID_DAYS))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    # The form that the API server reads for signing service account tokens as well.
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )


def _write(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)
