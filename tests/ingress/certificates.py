"""A certificate authority for tests, and what it signs."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

HOUR = datetime.timedelta(hours=1)


class Authority:
    """Signs certificates; `file` has its own, which is what clients and servers trust."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        ski = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        made = (
            self._builder(self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(True, 0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(ski, critical=False)
        )
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(made.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))

    def sign(
        self,
        file: str,
        *names: x509.GeneralName,
        common: str = "",
        server: bool = False,
        rsa_key: bool = False,
        valid_for: datetime.timedelta = HOUR,
    ) -> tuple[Path, Path]:
        """Files of a certificate with these alternative names, and of its key."""
        key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey = (
            rsa.generate_private_key(65537, 2048) if rsa_key else ec.generate_private_key(ec.SECP256R1())
        )
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)] if common else [])
        purpose = ExtendedKeyUsageOID.SERVER_AUTH if server else ExtendedKeyUsageOID.CLIENT_AUTH
        aki = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        made = (
            self._builder(subject, key.public_key(), valid_for)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(aki, critical=False)
        )
        if names:
            made = made.add_extension(x509.SubjectAlternativeName(names), critical=not common)
        certificate, private = self._folder / f"{file}.pem", self._folder / f"{file}.key"
        certificate.write_bytes(made.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))
        private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return certificate, private

    def for_localhost(self, file: str = "server", *, rsa_key: bool = False) -> tuple[Path, Path]:
        """Files of a server's certificate and key."""
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        return self.sign(file, *names, common="localhost", server=True, rsa_key=rsa_key)

    def _builder(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey | rsa.RSAPublicKey,
        valid_for: datetime.timedelta = HOUR,
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return x509.CertificateBuilder(
            self._name, subject, key, x509.random_serial_number(), now - HOUR, now + valid_for
        )
