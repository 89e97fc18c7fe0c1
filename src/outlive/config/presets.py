"""Presets: upstreams known by name, with their addresses and the quirks of their servers, from `presets.toml`."""

from importlib import resources
from typing import Any
from urllib.parse import urlsplit

import msgspec


class Preset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The defaults for one kind of server."""

    quirks: dict[str, Any]
    url: str | None = None
    key_variable: str | None = None
    hosts: tuple[str, ...] = ()
    note: str = ""


_FILE = resources.files(__package__).joinpath("presets.toml")
PRESETS = msgspec.toml.decode(_FILE.read_bytes(), type=dict[str, Preset])


def recognise(url: str) -> str:
    """Return the name of the preset that has this address, else `generic`."""
    host = (urlsplit(url).hostname or "").lower()
    for name, preset in PRESETS.items():
        # A preset without a key is on the user's own machine, at an address that other servers may have too.
        if host.endswith(preset.hosts) or (preset.key_variable and host == urlsplit(preset.url or "").hostname):
            return name
    return "generic"
