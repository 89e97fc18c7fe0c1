"""Real nginx and Caddy processes with the configurations of deploy/, and a client that sends requests through them."""

from __future__ import annotations

import contextlib
import os
import shutil
import ssl
import subprocess
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from types import TracebackType
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from tests.support.http_client import HttpClient
from tests.support.server import free_port
from tests.support.waiting import TIMEOUT_SECONDS, wait_until

DEPLOY = Path(__file__).parent.parent.parent / "deploy"
# Debian's nginx is in a folder that is not on every user's PATH.
PATH = os.environ.get("PATH", "") + ":/usr/sbin"
NAME = "localhost"  # of the certificate, in the place of outlive.example.com

NGINX_MAIN = """
daemon off;
{user}
pid {folder}/nginx.pid;
error_log {folder}/proxy.log;
worker_processes 1;
worker_shutdown_timeout 500ms;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    include {folder}/outlive.conf;
}}
"""


def make_certificate(folder: Path) -> None:
    """Write a self-signed certificate for localhost, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, SHA256())
    )
    (folder / "tls.crt").write_bytes(certificate.public_bytes(Encoding.PEM))
    (folder / "tls.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


class TlsClient(HttpClient):
    """Sends requests to localhost over TLS, from any address of this machine."""

    def __init__(self, port: int, context: ssl.SSLContext, source: str = "127.0.0.1", key: str | None = None) -> None:
        super().__init__(port, key)
        self._context = context
        self._source = source

    def connect(self) -> HTTPConnection:
        return HTTPSConnection(
            NAME, self.port, timeout=TIMEOUT_SECONDS, context=self._context, source_address=(self._source, 0)
        )


class ReverseProxy:
    """A proxy with TLS in front of the server on `target`. `changes` are replacements in its configuration of deploy/;
    `root` is the path below which it then serves."""

    program: str
    package: str

    def __init__(self, folder: Path, target: int, changes: dict[str, str] | None = None, root: str = "") -> None:
        self.folder = folder
        self.root = root
        self.port = free_port()
        self.target = target
        self.changes = changes or {}
        self._process: subprocess.Popen[bytes] | None = None
        make_certificate(folder)
        self.context = ssl.create_default_context(cafile=str(folder / "tls.crt"))

    @classmethod
    def is_installed(cls) -> bool:
        return shutil.which(cls.program, path=PATH) is not None

    def __enter__(self) -> Self:
        self.configure()
        self._process = self._run(self._command())
        wait_until(self._is_ready, f"{self.program} passes requests on")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(TIMEOUT_SECONDS)

    @property
    def base_url(self) -> str:
        """The address for an OpenAI client."""
        return f"https://{NAME}:{self.port}{self.root}/v1"

    def client(self, source: str = "127.0.0.1", key: str | None = None) -> TlsClient:
        return TlsClient(self.port, self.context, source, key)

    def reload(self) -> None:
        """Let the program read its configuration again."""
        self.configure()
        assert self._run(self._reload_command()).wait(TIMEOUT_SECONDS) == 0

    def configure(self) -> None:
        """Write the configuration."""
        raise NotImplementedError

    def replace(self, text: str, places: dict[str, str]) -> str:
        """Return a configuration with the test's changes and places; each must be found in it."""
        for before, after in (self.changes | places).items():
            assert before in text, before
            text = text.replace(before, after)
        return text

    def _is_ready(self) -> bool:
        with contextlib.suppress(OSError, HTTPException):
            return self.client().get(f"{self.root}/readyz").status == 200
        return False

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _reload_command(self) -> list[str]:
        raise NotImplementedError

    def _run(self, words: list[str]) -> subprocess.Popen[bytes]:
        environment = os.environ | {"PATH": PATH, "HOME": str(self.folder)}
        with (self.folder / "output.log").open("ab") as output:
            return subprocess.Popen(words, stdout=output, stderr=output, env=environment, cwd=self.folder)


class Nginx(ReverseProxy):
    program = "nginx"
    package = "nginx-light"

    def configure(self) -> None:
        places = {
            "127.0.0.1:7878": f"127.0.0.1:{self.target}",
            "listen 443 ssl": f"listen 127.0.0.1:{self.port} ssl",
            "outlive.example.com": NAME,
            "/etc/outlive/": f"{self.folder}/",
        }
        text = self.replace((DEPLOY / "nginx" / "outlive.conf").read_text(), places)
        (self.folder / "outlive.conf").write_text(text)
        user = "user root;" if os.geteuid() == 0 else ""
        (self.folder / "nginx.conf").write_text(NGINX_MAIN.format(folder=self.folder, user=user))

    def _command(self) -> list[str]:
        return ["nginx", "-p", str(self.folder), "-e", f"{self.folder}/proxy.log", "-c", f"{self.folder}/nginx.conf"]

    def _reload_command(self) -> list[str]:
        return [*self._command(), "-s", "reload"]


class Caddy(ReverseProxy):
    program = "caddy"
    package = "caddy"

    def __init__(self, folder: Path, target: int, changes: dict[str, str] | None = None, root: str = "") -> None:
        super().__init__(folder, target, changes, root)
        self._admin = f"127.0.0.1:{free_port()}"

    def configure(self) -> None:
        options = f"admin {self._admin}\n\tauto_https disable_redirects\n\tgrace_period 500ms"
        site = f"https://{NAME}:{self.port} {{\n\tbind 127.0.0.1\n\ttls {self.folder}/tls.crt {self.folder}/tls.key"
        places = {
            "127.0.0.1:7878": f"127.0.0.1:{self.target}",
            "grace_period 10s": options,
            "outlive.example.com {": site,
        }
        (self.folder / "Caddyfile").write_text(self.replace((DEPLOY / "caddy" / "Caddyfile").read_text(), places))

    def _command(self) -> list[str]:
        return ["caddy", "run", "--config", "Caddyfile"]

    def _reload_command(self) -> list[str]:
        # Without --force Caddy does nothing where the configuration is the same.
        return ["caddy", "reload", "--config", "Caddyfile", "--address", self._admin, "--force"]


PROXIES: dict[str, type[ReverseProxy]] = {"nginx": Nginx, "caddy": Caddy}
