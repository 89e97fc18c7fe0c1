"""An identity provider as a process of its own: a discovery document, public keys that rotate, and tokens on demand.

`POST /token` signs the claims that it is sent (those of its own by default), `POST /rotate` makes a new key and drops
the one before, `GET /fetches` says how often the keys were fetched.
"""

from __future__ import annotations

import hmac
import json
import subprocess
import sys
import time
import urllib.request
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

AUDIENCE = "outlive"


class Signer:
    """One signing key of each kind, under one number."""

    def __init__(self, number: int) -> None:
        self.kid = f"key-{number}"
        self.private: dict[str, Any] = {
            "RS256": rsa.generate_private_key(65537, 2048),
            "ES256": ec.generate_private_key(ec.SECP256R1()),
            "EdDSA": ed25519.Ed25519PrivateKey.generate(),
        }

    def describe(self) -> list[dict[str, Any]]:
        kinds: dict[str, Any] = {"RS256": RSAAlgorithm, "ES256": ECAlgorithm, "EdDSA": OKPAlgorithm}
        return [
            {
                **kinds[name].to_jwk(key.public_key(), as_dict=True),
                "kid": f"{self.kid}-{name}",
                "alg": name,
                "use": "sig",
            }
            for name, key in self.private.items()
        ]

    def sign(self, claims: dict[str, Any], algorithm: str) -> str:
        kid = {"kid": f"{self.kid}-{algorithm}"}
        if algorithm == "none":
            return jwt.encode(claims, "", "none", kid)
        if algorithm == "HS256":  # with a public key as the secret, which a careless server would take
            public = self.private["RS256"].public_key()
            secret = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
            parts = [json.dumps(part).encode() for part in ({"alg": "HS256", "kid": f"{self.kid}-RS256"}, claims)]
            signed = b".".join(urlsafe_b64encode(part).rstrip(b"=") for part in parts)
            return f"{signed.decode()}.{urlsafe_b64encode(hmac.digest(secret, signed, 'sha256')).decode().rstrip('=')}"
        return jwt.encode(claims, self.private[algorithm], algorithm, kid)


class Provider(BaseHTTPRequestHandler):
    signer = Signer(0)
    number = fetches = 0

    def do_GET(self) -> None:
        issuer = f"http://127.0.0.1:{self.connection.getsockname()[1]}"
        if self.path == "/.well-known/openid-configuration":
            self.reply({"issuer": issuer, "jwks_uri": f"{issuer}/keys"})
        elif self.path == "/keys":
            Provider.fetches += 1
            self.reply({"keys": Provider.signer.describe()})
        else:
            self.reply({"fetches": Provider.fetches})

    def do_POST(self) -> None:
        sent = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}")
        if self.path == "/rotate":
            Provider.number += 1
            Provider.signer = Signer(Provider.number)
            self.reply({})
            return
        algorithm, now = sent.pop("algorithm", "RS256"), int(time.time())
        claims = {
            "iss": f"http://127.0.0.1:{self.connection.getsockname()[1]}",
            "aud": AUDIENCE,
            "exp": now + 600,
        } | sent
        claims = {name: value for name, value in claims.items() if value is not None}
        self.reply({"token": Provider.signer.sign(claims, algorithm)})

    def reply(self, body: dict[str, Any]) -> None:
        raw = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, format: str, *args: object) -> None:
        pass


class Issuer:
    """The provider as tests use it."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def token(self, **claims: Any) -> str:
        return str(self._ask("/token", claims)["token"])

    def rotate(self) -> None:
        self._ask("/rotate", {})

    def fetches(self) -> int:
        return int(self._ask("/fetches")["fetches"])

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(self.url + path, data)) as answer:
            result: dict[str, Any] = json.load(answer)
            return result


@contextmanager
def running_issuer() -> Iterator[Issuer]:
    process = subprocess.Popen([sys.executable, "-m", "tests.support.issuer"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield Issuer(int(process.stdout.readline()))
    finally:
        process.kill()
        process.communicate()


if __name__ == "__main__":
    with ThreadingHTTPServer(("127.0.0.1", 0), Provider) as provider:
        print(provider.socket.getsockname()[1], flush=True)
        provider.serve_forever()
