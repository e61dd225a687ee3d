"""Certificates and node keys, made on this machine. Private keys are readable by their owner only."""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedptr.errors import UserError
from fedptr.regular_files import read_bytes

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

NONE = serialization.NoEncryption()
MOST = 1 << 20  # bytes of a key or certificate
T = TypeVar("T")


def write_private(path: Path, content: bytes) -> None:
    """Never readable by others, not even for a moment."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def encode_pem(key: EllipticCurvePrivateKey) -> bytes:
    return bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, NONE))


def make_authority(folder: Path, days: int) -> None:
    """ca.key and ca.crt: who has the certificate trusts servers that the key has signed, and no others."""
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedptr federation")])
    builder = start_certificate(name, name, key, days).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), True
    )
    builder = builder.add_extension(key_usage(key_cert_sign=True, crl_sign=True), True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
    write_private(folder / "ca.key", encode_pem(key))
    (folder / "ca.crt").write_bytes(builder.sign(key, hashes.SHA384()).public_bytes(serialization.Encoding.PEM))


def make_server(folder: Path, hosts: Sequence[str], days: int) -> None:
    """server.key and server.crt, for these names and addresses, signed by the authority in the same folder."""
    ca_key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    ca = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    builder = start_certificate(name, ca.subject, key, days).add_extension(x509.BasicConstraints(False, None), True)
    builder = builder.add_extension(x509.SubjectAlternativeName([general_name(host) for host in hosts]), False)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
    builder = builder.add_extension(key_usage(digital_signature=True), True)
    builder = builder.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), False)
    write_private(folder / "server.key", encode_pem(key))
    certificate = builder.sign(ca_key, hashes.SHA384())
    (folder / "server.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def make_node(folder: Path, name: str) -> bytes:
    """key and key.pub of a node, in the OpenSSH format that Flower needs; returns the public key."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, NONE)
    write_private(folder / "key", private)
    form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    public = bytes(key.public_key().public_bytes(*form)) + f" {name}\n".encode()
    (folder / "key.pub").write_bytes(public)
    return public


def start_certificate(
    subject: x509.Name, issuer: x509.Name, key: EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    begin, end = now - datetime.timedelta(hours=1), now + datetime.timedelta(days=days)  # clocks differ
    return builder.not_valid_before(begin).not_valid_after(end)


def key_usage(**used: bool) -> x509.KeyUsage:
    names = (
        "digital_signature content_commitment key_encipherment data_encipherment key_agreement key_cert_sign crl_sign "
        "encipher_only decipher_only"
    )
    return x509.KeyUsage(**{name: used.get(name, False) for name in names.split()})


def general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def load_file(path: Path, what: str, parse: Callable[[bytes], T]) -> T:
    """The parsed content of a file; UserError where it is missing or something else."""
    try:
        return parse(read_bytes(path, MOST))
    except Exception:  # a damaged file can raise anything
        raise UserError(f"{path.name} is missing, or no {what}; it was made by `fedptr deploy init`") from None


def load_certificate(path: Path) -> x509.Certificate:
    return load_file(path, "certificate", x509.load_pem_x509_certificate)


def load_public_half(path: Path) -> bytes:
    """The public half of a private key, of either form."""

    def parse(content: bytes) -> bytes:
        ssh = b"OPENSSH" in content[:60]
        key = (serialization.load_ssh_private_key if ssh else serialization.load_pem_private_key)(content, None)
        return encode_public_key(key.public_key())

    return load_file(path, "private key", parse)


def load_public_key(path: Path) -> bytes:
    """The key in a node's .pub file."""
    return load_file(path, "public key", lambda content: encode_public_key(serialization.load_ssh_public_key(content)))


def encode_public_key(key: Any) -> bytes:
    form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    return bytes(key.public_bytes(*form))


def read_hosts(path: Path) -> tuple[list[str], datetime.datetime]:
    """The names and addresses a certificate is for, and when it ends."""

    def parse(content: bytes) -> tuple[list[str], datetime.datetime]:
        found = x509.load_pem_x509_certificate(content)
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return [str(name.value) for name in names], found.not_valid_after_utc

    return load_file(path, "certificate of a server", parse)


def is_signed_by(path: Path, authority: Path) -> bool:
    """Whether this authority signed that certificate."""
    found, ca = load_certificate(path), load_certificate(authority)
    try:
        found.verify_directly_issued_by(ca)
        return True
    except Exception:  # a wrong name, key or signature
        return False
