"""Recognition of private addresses: those that only this machine or its network can reach."""

from __future__ import annotations

import ipaddress

# Carriers translate these (NAT64) to the IPv4 address inside, which therefore decides.
_MAPPED = ipaddress.ip_network("64:ff9b::/96")
# No public server has such an address: NAT64 of a network of one's own (RFC 8215), IPv4-compatible and IPv4-translated
# addresses, and site-local ones. What they embed or stand for may be private.
_LOCAL = [ipaddress.ip_network(text) for text in ("64:ff9b:1::/48", "::/96", "::ffff:0:0:0/96", "fec0::/10")]


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
