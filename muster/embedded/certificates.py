"""A certificate authority of our own: for a NATS server that agents of other machines connect to, and for simulated
clusters on loopback.
"""

import datetime as dt
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

VALID_DAYS: Final = 3650
"""Made for one installation, by itself: nobody is to be stopped by a certificate that ran out."""


@dataclass(frozen=True, slots=True)
class Authority:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def authority_in(folder: Path) -> Authority:
    """The authority whose ca.key and ca.crt are in the folder; made where there is none."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    key_file, file = folder / "ca.key", folder / "ca.crt"
    if not key_file.exists():
        key = ec.generate_private_key(ec.SECP256R1())
        file.write_bytes(_authority(key).public_bytes(serialization.Encoding.PEM))
        key_file.touch(mode=0o600)
        key_file.write_bytes(_pem(key))
    loaded = serialization.load_pem_private_key(key_file.read_bytes(), None)
    if not isinstance(loaded, ec.EllipticCurvePrivateKey):
        raise TypeError(f"{key_file} holds no key of ours: move it away to have one made")
    return Authority(x509.load_pem_x509_certificate(file.read_bytes()), loaded)


def server_certificate(authority: Authority, names: Sequence[str]) -> tuple[bytes, bytes]:
    """A certificate for a server that is called by these names and addresses, and its key; both as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = authority.certificate.subject
    certificate = (
        _certificate(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])]), issuer, key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_name(name) for name in (*names, "127.0.0.1")]), critical=False)
        .add_extension(
            # Python's strict check of certificates asks for it.
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()),
            critical=False,
        )
        .sign(authority.key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM), _pem(key)


def new_key() -> bytes:
    """As PEM."""
    return _pem(ec.generate_private_key(ec.SECP256R1()))


def _name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _authority(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "muster authority")])
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
    # The form that Kubernetes' API server reads for signing service account tokens as well.
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
