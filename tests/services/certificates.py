"""An authority of the tests, and certificates that it signs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

__all__ = ("Authority", "Certificate")


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """A certificate and its key, in files of their own and in one together."""

    cert: Path
    key: Path
    both: Path


class Authority:
    """Signs certificates for 127.0.0.1 and localhost, unless another name is given."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        signed = self._builder(self._name, self._key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(signed.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def sign(self, name: str, host: str | None = None) -> Certificate:
        """Return a new certificate; ``host`` is the only name that it is for."""
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [x509.DNSName(host)] if host else [
            x509.DNSName("localhost"), x509.IPAddress(IPv4Address("127.0.0.1")),
        ]  # fmt: skip
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        signed = (
            self._builder(subject, key.public_key())
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        public = signed.public_bytes(serialization.Encoding.PEM)
        found = Certificate(
            cert=self._folder / f"{name}.crt", key=self._folder / f"{name}.key", both=self._folder / f"{name}.pem"
        )
        found.cert.write_bytes(public)
        found.key.write_bytes(private)
        found.both.write_bytes(private + public)
        return found

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=1))
        )
