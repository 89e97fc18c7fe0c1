"""Certificates for tests: an authority of the test's own, and certificates that it signs."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

# A spelling of 127.0.0.1 that is taken for the name of another machine, so that requests to it go through proxies.
HOST = "127.1"
USAGES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


class Authority:
    """A certificate authority; `file` is its certificate."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        made = self._build(self._name, self._key).add_extension(x509.BasicConstraints(True, None), critical=True)
        usage = dict.fromkeys(USAGES, False) | {"key_cert_sign": True, "crl_sign": True}
        made = made.add_extension(x509.KeyUsage(**usage), critical=True)
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def sign(self, name: str) -> tuple[Path, Path]:
        """Return the files of a new certificate for HOST, and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.DNSName(HOST)])
        made = self._build(_name(name), key).add_extension(names, critical=False).sign(self._key, hashes.SHA256())
        cert_file, key_file = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        cert_file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return cert_file, key_file

    def serve(self, *, clients: bool = False) -> ssl.SSLContext:
        """Return the context of a server with a certificate; with `clients`, of one that asks clients for theirs."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.sign("server"))
        if clients:
            context.load_verify_locations(self.file)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _build(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder(issuer_name=self._name, subject_name=subject, public_key=key.public_key())
        builder = builder.serial_number(x509.random_serial_number())
        # Python 3.13 and newer refuse certificates without the key identifiers, and authorities without a key usage.
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(identifier, critical=False)
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        return builder.not_valid_before(now - datetime.timedelta(1)).not_valid_after(now + datetime.timedelta(30))


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
