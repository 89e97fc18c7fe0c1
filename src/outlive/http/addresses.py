"""Addresses of clients: the proxies that are trusted to name them, and the group that an address is counted with."""

import ipaddress
import re
from functools import lru_cache

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# `for=` in the header Forwarded (RFC 7239): an address, in quotes if it has a port or is one of IPv6.
_FORWARDED_FOR = re.compile(r"""for\s*=\s*"?([^";,]*)""", re.IGNORECASE)
_MAX_LENGTH = 45  # of an address, in characters
_IPV6_PREFIX = 64  # bits that one subscriber's network has in common


class TrustedProxies:
    """The networks whose hosts may say in a header which client they ask for."""

    def __init__(self, networks: list[str]) -> None:
        self._networks = [ipaddress.ip_network(network, strict=False) for network in networks]

    def include(self, address: str) -> bool:
        """Return True if a proxy has this address."""
        parsed = _parse(address)
        return parsed is not None and any(parsed in network for network in self._networks)

    def find_client(self, peer: str, headers: list[tuple[bytes, bytes]]) -> str:
        """Return the address of the client: the last one in X-Forwarded-For, or else in Forwarded, that is no proxy.
        Whatever stands before it may be the client's own invention."""
        client = peer
        for address in reversed(_read_forwarded(headers) if self.include(peer) else []):
            if _parse(address) is None:
                break
            client = address
            if not self.include(address):
                break
        return client


def group(address: str) -> str:
    """Return the address by which a client is counted: a whole /64 of IPv6 is one client's."""
    parsed = _parse(address)
    if not isinstance(parsed, ipaddress.IPv6Address):
        return address if parsed is None else str(parsed)
    return str(ipaddress.ip_network((parsed, _IPV6_PREFIX), strict=False))


def is_loopback(address: str) -> bool:
    """Return True if the address is one of this machine's own."""
    parsed = _parse(address)
    return parsed is not None and parsed.is_loopback


def _read_forwarded(headers: list[tuple[bytes, bytes]]) -> list[str]:
    """Return the addresses that the headers name, the one that the nearest proxy saw last."""
    listed = _join(headers, b"x-forwarded-for")
    named = listed.split(",") if listed else _FORWARDED_FOR.findall(_join(headers, b"forwarded"))
    return [_strip_port(each) for each in named]


def _join(headers: list[tuple[bytes, bytes]], name: bytes) -> str:
    return ",".join(value.decode("latin-1") for each, value in headers if each == name)


def _strip_port(text: str) -> str:
    text = text.strip()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text


def _parse(text: str) -> Address | None:
    return _parse_short(text) if len(text) <= _MAX_LENGTH else None


@lru_cache(maxsize=4096)
def _parse_short(text: str) -> Address | None:
    try:
        parsed = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return mapped or parsed
