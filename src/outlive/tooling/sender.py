"""HTTP to addresses that callers name: never to a private one, unless the settings allow it."""

import asyncio
import contextlib
import ipaddress
import os
import re
import socket
import ssl
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from outlive import __version__
from outlive.config.network import find_proxy
from outlive.core.errors import SettingsError
from outlive.core.requests.checks import refuse
from outlive.dialects.transport.endpoint import read_retry_after
from outlive.dialects.transport.http1 import ConnectFailed, Connection, HttpPool, Origin
from outlive.dialects.transport.route import Route
from outlive.ports.backend import Upstream
from outlive.ports.webhooks import Answer

# So many of a host's addresses are tried.
MAX_ADDRESSES = 3
# Nothing that could end a line of the request, or that a URL would have to escape.
_WRITTEN = re.compile(r"[!-~]{1,2048}")
_LIFT = "(The operator of this server can allow it with --webhook-private.)"
# Carriers translate these (NAT64) to the IPv4 address inside, which therefore decides.
_MAPPED = ipaddress.ip_network("64:ff9b::/96")
# No public server has such an address: NAT64 of a network of one's own (RFC 8215), IPv4-compatible and IPv4-translated
# addresses, and site-local ones. What they embed or stand for may be private.
_LOCAL = [ipaddress.ip_network(text) for text in ("64:ff9b:1::/48", "::/96", "::ffff:0:0:0/96", "fec0::/10")]


class PrivateHost(ConnectFailed):
    """The host has a private address, and this server may not be sent there."""


def is_private(address: str) -> bool:
    """Return True if an IP address belongs to this machine or its network alone."""
    known = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(known, ipaddress.IPv6Address):
        inner = known.ipv4_mapped or known.sixtofour
        if inner is None and known in _MAPPED:
            inner = ipaddress.IPv4Address(int(known) & 0xFFFFFFFF)
        if inner is not None:
            return is_private(str(inner))
        if any(known in network for network in _LOCAL):
            return True
    return not known.is_global or known.is_multicast


def names_private(host: str) -> bool:
    """Return True if a host is private by its spelling alone, without a lookup."""
    try:
        return is_private(host.strip("[]"))
    except ValueError:
        return host.lower().rstrip(".").rpartition(".")[2] in ("localhost", "local", "internal")


def split_url(url: str) -> tuple[str, bool] | None:
    """Return the host of an http or https URL, and True if the URL holds a user name; None for an invalid URL."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
        (parts.hostname or "").encode("idna")  # as a lookup does: an empty or long label is an error
    except ValueError:
        return None
    return (parts.hostname or "", "@" in parts.netloc) if valid else None


async def resolve_public(host: str, port: int) -> list[str]:
    """Return the addresses of a host, all of them public. Raises PrivateHost, or OSError for an unknown host."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [str(entry[4][0]) for entry in found]
    if not addresses or any(is_private(address) for address in addresses):
        raise PrivateHost("The host has a private address.")
    return addresses[:MAX_ADDRESSES]


class GuardedPool(HttpPool):
    """Connects to the addresses that it has checked itself: a second lookup might find others."""

    async def _open(
        self, origin: Origin, host: str, port: int, context: ssl.SSLContext | None, name: str | None = None
    ) -> Connection:
        if self._route.proxy is not None:
            # The proxy looks the name up: this server may not know it.
            with contextlib.suppress(socket.gaierror):
                await resolve_public(origin[0], origin[1])
            return await super()._open(origin, host, port, context)
        *others, last = await resolve_public(host, port)
        for address in others:
            with contextlib.suppress(OSError):
                return await super()._open(origin, address, port, context, host)
        return await super()._open(origin, last, port, context, host)


@dataclass(kw_only=True)
class HttpSender:
    """Sends the events of webhooks."""

    private: bool = False  # True: also to private addresses, and without TLS
    proxied: bool = False  # True: through the proxy of the environment, if there is one
    seconds: float = 15.0  # the limit of one attempt
    _pools: dict[str | None, HttpPool] = field(default_factory=dict)  # by proxy

    def check(self, url: str) -> None:
        parts = split_url(url)
        if parts is None or not _WRITTEN.fullmatch(url) or "#" in url:
            refuse("url must be a URL such as https://example.com/webhooks.", "url")
        host, has_user = parts
        if has_user:
            refuse("url must not hold a password: verify the signature instead.", "url")
        if not self.private and not url.startswith("https:"):
            refuse(f"url must begin with https://. {_LIFT}", "url")
        if not self.private and names_private(host):
            refuse(f"url must not name a private address. {_LIFT}", "url")

    async def send(self, url: str, headers: dict[str, str], body: bytes) -> Answer:
        given = {"content-type": "application/json", "user-agent": f"outlive/{__version__}"} | headers
        lines = "".join(f"{name}: {value}\r\n" for name, value in given.items()).encode()
        try:
            proxy = find_proxy(url, os.environ) if self.proxied else None
            if proxy not in self._pools:
                route = Route(Upstream(name="webhooks", url=url, proxy=proxy))
                self._pools[proxy] = (HttpPool if self.private else GuardedPool)(route)
            async with asyncio.timeout(self.seconds):
                answer = await self._pools[proxy].request("POST", url, lines, body)
        except PrivateHost:
            return Answer(None, "private address")
        except TimeoutError:
            return Answer(None, f"no answer in {self.seconds:g} s")
        except ConnectFailed as error:
            return Answer(None, f"connection failed ({type(error.__cause__ or error).__name__})")
        except (OSError, SettingsError, ValueError) as error:  # ValueError: a host that no lookup takes
            return Answer(None, f"broken ({type(error).__name__})")
        answer.leave()  # its body is not read: it could hold anything
        status = answer.status
        reason = "delivered" if 200 <= status < 300 else "redirects" if 300 <= status < 400 else "refused"
        return Answer(status, reason, read_retry_after(answer.headers))

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()
