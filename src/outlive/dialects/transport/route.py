"""The way to an upstream: through a proxy or directly, and the certificates that TLS uses on it."""

import base64
import ssl
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from outlive.ports.backend import Upstream


class Proxy(NamedTuple):
    """A forward proxy, and the header line with its credentials."""

    host: str
    port: int
    tls: bool
    authorization: str


class Route:
    """The way to one upstream; without one, the direct way with the certificate authorities of the system."""

    def __init__(self, upstream: Upstream | None = None) -> None:
        self._upstream = upstream
        self.proxy: Proxy | None = None
        if upstream is not None and upstream.proxy is not None:
            parts, line = urlsplit(upstream.proxy), ""
            if parts.username is not None:
                pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
                line = f"Proxy-Authorization: Basic {base64.b64encode(pair).decode()}\r\n"
            tls = parts.scheme == "https"
            self.proxy = Proxy(parts.hostname or "", parts.port or (443 if tls else 80), tls, line)
        files = () if upstream is None else (upstream.ca_file, upstream.client_cert, upstream.client_key)
        self.files = [Path(file) for file in files if file is not None]
        self._made: tuple[list[int], ssl.SSLContext] | None = None

    def find_context(self) -> ssl.SSLContext:
        """Return the TLS context for a new connection, made anew if its files were replaced: certificates expire.
        Takes some 50 ms the first time. Raises OSError."""
        stamps = [file.stat().st_mtime_ns for file in self.files]
        if self._made is None or self._made[0] != stamps:
            context = ssl.create_default_context()
            if self._upstream is not None and self._upstream.ca_file is not None:
                context.load_verify_locations(self._upstream.ca_file)
            if self._upstream is not None and self._upstream.client_cert is not None:
                certificate = self._upstream.client_cert, self._upstream.client_key
                context.load_cert_chain(*certificate, password="")  # else it would ask for one
            self._made = stamps, context
        return self._made[1]
