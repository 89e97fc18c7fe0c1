"""Load the settings of a process from all their sources, and check them together."""

import ipaddress
import logging
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from outlive.config import database_url
from outlive.config.network import find_proxy, is_loopback
from outlive.config.options import Given, convert
from outlive.config.settings import FIELDS, Settings
from outlive.config.sources import Sources, gather, read_key_lines, resolve
from outlive.config.tables import read_policies, read_prices, read_tool_servers, read_upstreams
from outlive.core.errors import SettingsError, require
from outlive.core.owners import Oidc
from outlive.core.requests.checks import Limits

log = logging.getLogger("outlive")

MIN_SEAL_KEY = 32
# Characters of an owner's key: fewer are refused where other machines can try; fewer than the second are warned of.
LEAST_KEY = 8
SAFE_KEY = 16

_OWNER = re.compile(r"[A-Za-z0-9_.@-]{1,64}\Z")


def load(flags: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Return the settings of this process: defaults < TOML file < OUTLIVE_* < flags. Raise SettingsError.

    `flags` have the names of the options; None counts as not given.
    """
    sources = gather(flags or {}, os.environ if environ is None else environ)
    plain = {name: given for name, given in sources.given.items() if name in FIELDS and FIELDS[name].is_plain}
    values = {name: convert(FIELDS[name], given) for name, given in plain.items()}
    limits = Limits(**{name: values.pop(name) for name in Limits.__struct_fields__ if name in values})
    settings = Settings(
        limits=limits, keys=_read_keys(sources), oidc=_read_oidc(sources), seal_keys=_read_seal_keys(sources), **values
    )
    settings = msgspec.structs.replace(
        settings,
        host=settings.host.removeprefix("[").removesuffix("]"),
        cors_origins=[_check_origin(origin, sources) for origin in settings.cors_origins],
        trusted_proxies=[_check_network(network, sources) for network in settings.trusted_proxies],
    )
    _check_database(settings)
    _check_exposure(settings)
    for name in settings.admins:
        where = sources.given["admins"].where
        require(name in settings.keys, f"{where} names {name!r}, which has no key; give --api-key too.")
    by_list = settings.mcp_requests == "allow-list"
    require(by_list == bool(settings.mcp_hosts), "--mcp-requests allow-list and --mcp-host HOST need each other.")
    for scheme in ("http", "https") if settings.mcp_proxy else ():
        find_proxy(f"{scheme}://outlive.invalid", sources.environ)  # raises now what would fail later
    return msgspec.structs.replace(
        settings,
        upstreams=read_upstreams(sources, settings.silence_seconds),
        mcp=read_tool_servers(sources, settings.tool_seconds),
        owners=read_policies(sources),
        prices=read_prices(sources),
    )


def _read_keys(sources: Sources) -> dict[str, list[str]]:
    given = sources.given.get("keys")
    if given is None:
        return {}
    owners: dict[str, list[str]] = {}
    owner_of: dict[str, str] = {}
    for owner, value in _split_pairs(given):
        allowed = "may hold only letters, digits, '_', '.', '@', '-'"
        require(_OWNER.match(owner), f"The owner's name in {given.where} {allowed}.")
        subject = f"The key of {owner} ({given.where})"
        key = resolve(value, subject, sources.environ)
        require(" " not in key, f"{subject} must not hold a space.")
        other = owner_of.setdefault(key, owner)
        require(other == owner, f"{other} and {owner} have the same key; every owner needs a key of his own.")
        if key not in owners.setdefault(owner, []):
            owners[owner].append(key)
    return owners


def _read_oidc(sources: Sources) -> Oidc | None:
    given = sources.given.get("oidc")
    if given is None:
        return None
    try:
        oidc = msgspec.convert(given.value, Oidc)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{given.where} must be a table with issuer, audience and owner_claim: {error}.") from None
    parts = urlsplit(oidc.issuer)
    is_safe = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))
    wanted = f"issuer in [oidc] must be a URL that begins with https, not {oidc.issuer!r}."
    require(parts.hostname and is_safe, wanted)
    return oidc


def _split_pairs(given: Given) -> list[tuple[str, object]]:
    """Return owner and key of every key, from [keys], from NAME=KEY,NAME=KEY or from a list of NAME=KEY."""
    if isinstance(given.value, dict):
        lists = {owner: keys if isinstance(keys, list) else [keys] for owner, keys in given.value.items()}
        return [(owner, key) for owner, keys in lists.items() for key in keys]
    require(given.lax, f'{given.where} must be a table: [keys] with lines such as alice = "env:ALICE_KEY".')
    texts: Iterable[str] = given.value.split(",") if isinstance(given.value, str) else given.value  # type: ignore[assignment]
    pairs = [text.strip().partition("=") for text in texts]
    # A text without "=" may be a bare key, so it is not repeated.
    wanted = f"{given.where} must be written NAME=KEY, such as alice=env:ALICE_KEY."
    require(all(equals for _, equals, _ in pairs), wanted)
    return [(owner, key) for owner, _, key in pairs]


def _read_seal_keys(sources: Sources) -> list[str]:
    """Return the key itself, or the lines of a file: the first seals, the others are earlier keys that unseal."""
    key, file = sources.given.get("seal_key"), sources.given.get("seal_key_file")
    if file is not None and (key is None or file.where.startswith("--")):
        lines = read_key_lines(str(file.value), file.where)
    elif key is not None:
        lines = [resolve(key.value, key.where, sources.environ)]
    else:
        return []
    is_long = all(len(line) >= MIN_SEAL_KEY for line in lines)
    require(is_long, f"A seal key must have {MIN_SEAL_KEY} characters at least; draw it at random.")
    return lines


def _check_origin(origin: str, sources: Sources) -> str:
    stripped = origin.rstrip("/")
    parts = urlsplit(stripped)
    if parts.scheme and parts.hostname and stripped == f"{parts.scheme}://{parts.netloc}" and "@" not in stripped:
        return stripped.lower()
    if origin == "*":
        return origin
    where = sources.given["cors_origins"].where
    raise SettingsError(f"{where} must be an origin such as https://app.example.com, or *; not {origin!r}.")


def _check_network(network: str, sources: Sources) -> str:
    try:
        ipaddress.ip_network(network, strict=False)
    except ValueError:
        where = sources.given["trusted_proxies"].where
        raise SettingsError(f"{where} must be an address or a network such as 10.0.0.0/8, not {network!r}.") from None
    return network


def _check_database(settings: Settings) -> None:
    database_url.check(settings.database)
    shared, option = database_url.is_shared(settings.database), "--database postgresql://USER@HOST/NAME"
    subject = f"The role {settings.role} needs a database that nodes can share"
    require(shared or settings.role == "all", f"{subject}; give {option}.")
    subject = "A SQLite file has one server: --processes"
    require(shared or settings.processes == 1, f"{subject} needs {option}, which nodes share.")


def _check_exposure(settings: Settings) -> None:
    """Refuse keys that can be guessed where other machines can try, and warn of them elsewhere. Without keys, refuse an
    address that other machines can reach, and access from every web page."""
    if settings.role == "worker":
        return  # it serves health checks only
    for owner, keys in settings.keys.items():
        shortest = min(map(len, keys))
        weak = f"A key of {owner} has {shortest} characters, and others can guess it; draw 32 at random."
        require(shortest >= LEAST_KEY or is_loopback(settings.host), weak)
        if shortest < SAFE_KEY:
            log.warning("A key of %s has only %d characters: draw 32 at random.", owner, shortest)
    if settings.keys or settings.require_keys or settings.oidc:
        return
    reach = f"Without keys the server listens on this machine only, not on {settings.host}"
    require(is_loopback(settings.host), f"{reach}; give --api-key NAME=KEY to let others in.")
    reach = "Without keys the CORS origin * would let any web page drive the server"
    require("*" not in settings.cors_origins, f"{reach}; name the origins, or give --api-key NAME=KEY.")
