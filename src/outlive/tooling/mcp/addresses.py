"""Which addresses are private: known to this machine or its network alone."""

from __future__ import annotations

import ipaddress

# Carriers translate these to other addresses, so what they mean is what they hold.
_MAPPED = ipaddress.ip_network("64:ff9b::/96")


def is_private(address: str) -> bool:
    """Whether an IP address is one that only this machine or its network knows."""
    known = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(known, ipaddress.IPv6Address):
        inner = known.ipv4_mapped or known.sixtofour
        if inner is None and known in _MAPPED:
            inner = ipaddress.IPv4Address(int(known) & 0xFFFFFFFF)
        if inner is not None:
            return is_private(str(inner))
    return not known.is_global or known.is_multicast


def names_private(host: str) -> bool:
    """Whether a host is private by its looks, without asking anybody for its address."""
    try:
        return is_private(host.strip("[]"))
    except ValueError:
        return host.lower().rstrip(".").rpartition(".")[2] in ("localhost", "local", "internal")
