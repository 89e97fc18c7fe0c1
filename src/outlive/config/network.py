"""Addresses of this machine, and the proxies of the environment that lead to others."""

import contextlib
import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

from outlive.core.errors import SettingsError


def is_loopback(host: str) -> bool:
    """Return True if only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def find_proxy(url: str, environ: Mapping[str, str]) -> str | None:
    """Return the URL of the proxy that leads to an address, by HTTPS_PROXY, HTTP_PROXY and NO_PROXY, in upper or lower
    case. None: there is none, or the address is reached without it. Raise SettingsError for a proxy of another kind."""
    parts = urlsplit(url)
    name = f"{parts.scheme}_proxy"
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    written, excluded = _read(name, environ), _read("no_proxy", environ).lower().replace(",", " ").split()
    if not written or is_loopback(host) or any(_matches(entry, host.rstrip("."), port) for entry in excluded):
        return None
    proxy = written if "://" in written else f"http://{written}"
    with contextlib.suppress(ValueError):
        found = urlsplit(proxy)
        if found.scheme in ("http", "https") and found.hostname and found.port != 0:
            return proxy
    # It may hold a password, so it is not repeated.
    raise SettingsError(f"{name.upper()} must be a URL such as http://proxy.example.com:3128.")


def hide_password(proxy: str) -> str:
    """Return the URL of a proxy without its user name and password."""
    parts = urlsplit(proxy)
    return f"{parts.scheme}://{'***@' if '@' in parts.netloc else ''}{parts.netloc.rpartition('@')[2]}"


def _read(name: str, environ: Mapping[str, str]) -> str:
    return (environ.get(name) or environ.get(name.upper()) or "").strip()


def _matches(entry: str, host: str, port: int) -> bool:
    """Return True if an entry of NO_PROXY names the host: a domain, an address, a network or *, perhaps with a port."""
    name, colon, digits = entry.rpartition(":")
    if colon and digits.isdigit() and (":" not in name or name.endswith("]")):
        if int(digits) != port:
            return False
        entry = name
    entry = entry.strip("[]")
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        domain = entry.removeprefix("*").removeprefix(".")
        return entry == "*" or (bool(domain) and (host == domain or host.endswith(f".{domain}")))
