"""`outlive doctor`: check settings, database, server and upstreams, and report the settings to change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from outlive.cli.client import ApiClient, RequestRefused, ServerUnreachable
from outlive.cli.doctor.databases import check_database
from outlive.cli.doctor.findings import Section, print_section
from outlive.cli.serve import base_url, parameter, take_settings
from outlive.cli.terminal import print_json
from outlive.config.load import load
from outlive.config.settings import Settings
from outlive.core.errors import SettingsError
from outlive.core.routing import route


@take_settings(
    parameter("model", str, "--model", "The model to ask, instead of the first one that is listed.", "NAME"),
    parameter("no_probe", bool, "--no-probe", "Ask the upstreams nothing."),
    parameter("timeout", float, "--timeout", "Seconds to wait for an upstream's next byte. Default: 60.", "NUMBER"),
    parameter("as_json", bool, "--json", "Print JSON, for scripts."),
)
def doctor(**flags: Any) -> None:
    """Check the settings, the database, the running server and every upstream, and report what to set.

    Takes the settings of `outlive serve`. Each upstream is asked a few questions of 16 tokens at most.
    """
    as_json = flags.pop("as_json")
    sections: list[Section] = []
    for section in _examine(flags):
        sections.append(section)
        if not as_json:
            print_section(section)
    failed = any(section.failed for section in sections)
    if as_json:
        print_json({"ok": not failed, "sections": sections})
    if failed:
        raise typer.Exit(1)


def _examine(flags: dict[str, Any]) -> Iterator[Section]:
    model, no_probe, timeout = flags.pop("model"), flags.pop("no_probe"), flags.pop("timeout") or 60.0
    section = Section("Settings")
    try:
        settings = load(flags)
    except SettingsError as error:
        section.add("fail", "settings", error.message)
        yield section
        return
    section.add("ok", "settings", f"{len(settings.upstreams)} upstreams, {len(settings.keys)} owners with keys")
    yield section
    yield check_database(settings.database)
    yield _check_server(settings)
    if not settings.upstreams:
        yield _check_embedded()
    elif not no_probe:
        # The dialects; every other command starts faster without this import.
        from outlive.cli.doctor.probe import probe

        chosen = dict([route(model, settings.upstreams)]) if model else {}
        for upstream in settings.upstreams:
            yield probe(upstream, chosen.get(upstream.name), timeout)


def _check_server(settings: Settings) -> Section:
    section = Section("Server")
    if not settings.port:
        section.add("skip", "server", "The port is 0, so its address is unknown.")
        return section
    server = ApiClient(base_url(settings))
    for path, name in (("/healthz", "alive"), ("/readyz", "ready")):
        try:
            server.call("GET", path, timeout=5.0)
            section.add("ok", name, server.url)
        except RequestRefused as error:
            section.add("fail", name, f"{server.url}{path}: {error.message}")
        except ServerUnreachable:
            section.add("skip", "server", f"None is running at {server.url}.")
            break
    return section


def _check_embedded() -> Section:
    # Every other command starts faster without this import.
    from outlive.dialects.embedded.backend import TITLE, find_weights

    section = Section("Embedded model")
    try:
        size = find_weights().stat().st_size / 1e6
        section.add("ok", "model", f"{TITLE}, {size:.0f} MB. A demo model; for yours give --upstream URL.")
    except SettingsError as error:
        section.add("fail", "model", error.message)
    return section
