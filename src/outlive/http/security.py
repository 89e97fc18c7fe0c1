"""The security log: keys, limits and ids that were refused, and what was deleted, by owner and address; no content.
The address is that of the client, also behind proxies that are trusted to name it."""

import asyncio
import ipaddress
import logging
import re
from collections import Counter
from collections.abc import MutableMapping, Sequence
from functools import lru_cache
from typing import Any

from outlive.core.errors import NotFound, OutliveError, TooLarge, TooMany
from outlive.core.owners import name_of

log = logging.getLogger("outlive.security")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

INTERVAL_SECONDS = 60.0
# Refusals that are counted apart from each other in one interval: clients choose their addresses.
MAX_COUNTS = 500
OTHERS = "others"

# Codes of errors about an id: an unknown one, a deleted one, or another owner's (D14).
_CODES_OF_IDS = (None, "previous_response_not_found")
# `for=` in the header Forwarded (RFC 7239): an address, in quotes if it has a port or is one of IPv6.
_FORWARDED_FOR = re.compile(r"""for\s*=\s*"?([^";,]*)""", re.IGNORECASE)
_MAX_LENGTH = 45  # of an address, in characters
_IPV6_PREFIX = 64  # bits that one subscriber's network has in common


class SecurityLog:
    """Writes each deletion at once, and what may come often once per interval with its count."""

    def __init__(self, trusted_proxies: Sequence[str] = ()) -> None:
        """Let hosts of these networks say in a header which client they ask for."""
        self._proxies = [ipaddress.ip_network(network, strict=False) for network in trusted_proxies]
        # By message, address, owner, code and the key's id.
        self._counts: Counter[tuple[str, str, str, str, str]] = Counter()

    def is_proxy(self, address: str) -> bool:
        parsed = _parse(address)
        return parsed is not None and any(parsed in network for network in self._proxies)

    def find_address(self, scope: MutableMapping[str, Any]) -> str:
        """Return the address of a request's client: the last one in X-Forwarded-For, or else in Forwarded, that is no
        proxy. Whatever stands before it may be the client's own invention."""
        client = scope["client"][0] if scope.get("client") else ""
        if not self.is_proxy(client):
            return str(client)
        listed = _join(scope["headers"], b"x-forwarded-for")
        named = listed.split(",") if listed else _FORWARDED_FOR.findall(_join(scope["headers"], b"forwarded"))
        for address in map(_strip_port, reversed(named)):
            if _parse(address) is None:
                break
            client = address
            if not self.is_proxy(address):
                break
        return str(client)

    def write_deletion(self, scope: MutableMapping[str, Any], fields: dict[str, Any]) -> None:
        log.info("deleted", extra=fields | {"address": self.find_address(scope)})

    def count_error(self, scope: MutableMapping[str, Any], owner: str, error: OutliveError) -> None:
        """Count a request that was refused for a limit, or for an id that its owner does not have."""
        if isinstance(error, TooMany | TooLarge):
            self.count("limit hit", self.find_address(scope), owner, error.code or "")
        elif error.code in _CODES_OF_IDS and (isinstance(error, NotFound) or error.code):
            self.count("unknown id", self.find_address(scope), owner)

    def count(self, message: str, address: str, owner: str = "", code: str = "", key_id: str = "") -> None:
        if not self._counts:
            asyncio.get_running_loop().call_later(INTERVAL_SECONDS, self.flush)
        counted = (message, group(address), name_of(owner), code, key_id)
        if len(self._counts) >= MAX_COUNTS and counted not in self._counts:
            counted = (message, OTHERS, "", code, "")
        self._counts[counted] += 1

    def flush(self) -> None:
        """Write what was counted."""
        counts, self._counts = self._counts, Counter()
        for (message, address, owner, code, key_id), count in counts.items():
            fields = {"address": address, "owner": owner, "code": code, "key_id": key_id, "count": count}
            log.warning(message, extra=fields)


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
