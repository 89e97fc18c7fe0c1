"""Read the upstreams of the settings: [upstreams.NAME] in the TOML file, or --upstream and its relatives."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from outlive.config.options import Given, convert, read_options
from outlive.config.presets import PRESETS, recognise
from outlive.config.sources import Sources, read_key_file, read_tables, resolve, resolve_all, unknown
from outlive.core.errors import SettingsError
from outlive.ports.backend import Upstream

_OPTIONS = read_options(Upstream)
# The keys of [upstreams.NAME] that are fields of Upstream with one value.
_QUIRKS = [
    name for name, option in _OPTIONS.items() if option.is_plain and name not in ("name", "url", "key", "any_model")
]
KEYS = ("preset", "url", "key", "key_file", "headers", "query", "models", "default", *_QUIRKS)

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+\Z")
_AUTH_HEADERS = frozenset({"authorization", "api-key", "x-api-key", "x-goog-api-key"})


def read_upstreams(sources: Sources, silence_seconds: float) -> list[Upstream]:
    """Return all upstreams, first the one that gets unclaimed model names. Empty: use the embedded model."""
    tables = _read_named_tables(sources)
    chosen = sources.given.get("upstream")
    if chosen is not None:
        tables = _choose(chosen, tables)
    _apply_flags(tables, sources)
    built = [_TableReader(name, table, sources.environ).build(silence_seconds) for name, table in tables.items()]
    defaults = [name for name, table in tables.items() if table.get("default") is True]
    if len(defaults) > 1:
        raise SettingsError(f"Only one upstream can be the default, not {' and '.join(defaults)}.")
    return sorted(built, key=lambda upstream: upstream.name not in defaults)


def _read_named_tables(sources: Sources) -> dict[str, dict[str, Any]]:
    tables = read_tables(sources, "upstreams", "NAME")
    for name in tables:
        if not _NAME.match(name):
            raise SettingsError(f"The upstream name {name!r} may hold only letters, digits, '_', '.' and '-'.")
    return tables


def _choose(chosen: Given, tables: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the one table that --upstream selects: a table of the file, a preset, or a URL."""
    value = str(chosen.value)
    if value in tables:
        return {value: tables[value]}
    if value in PRESETS:
        return {value: {"preset": value}}
    if "://" in value:
        return {"upstream": {"url": value}}
    names = ", ".join([*tables, *(name for name, preset in PRESETS.items() if preset.url and name not in tables)])
    raise SettingsError(
        f"{chosen.where} must be a URL such as http://localhost:8000/v1, or one of {names}; not {value!r}."
    )


def _apply_flags(tables: dict[str, dict[str, Any]], sources: Sources) -> None:
    """Set the key and the dialect of flags and variables, which win over those of the TOML file."""
    given = sources.given
    file, key, dialect = given.get("upstream_key_file"), given.get("upstream_key"), given.get("upstream_dialect")
    if file is not None and (key is None or file.where.startswith("--")):
        _find_only(tables, file, "key").update(key=read_key_file(str(file.value), file.where))
    elif key is not None:
        _find_only(tables, key, "key").update(key=resolve(key.value, key.where, sources.environ))
    if dialect is not None:
        _find_only(tables, dialect, "dialect").update(dialect=convert(_OPTIONS["dialect"], dialect))


def _find_only(tables: dict[str, dict[str, Any]], given: Given, key: str) -> dict[str, Any]:
    """Return the only table, without what a flag replaces in it. Raise SettingsError if there are several, or none."""
    if len(tables) != 1:
        subject = f"which of {', '.join(tables)} it is for" if tables else "what it is for"
        raise SettingsError(
            f"{given.where} does not say {subject}; choose with --upstream URL, or set {key} in [upstreams.NAME]."
        )
    (table,) = tables.values()
    if key == "key":
        table.pop("key_file", None)
    return table


class _TableReader:
    """Makes an Upstream of one table [upstreams.NAME]."""

    def __init__(self, name: str, table: dict[str, Any], environ: Mapping[str, str]) -> None:
        self.name = name
        self.table = table
        self.environ = environ
        for key in table:
            if key not in KEYS:
                raise unknown(self.place(key), key, list(KEYS))

    def place(self, key: str) -> str:
        return "--upstream" if self.name == "upstream" and key == "url" else f"{key} in [upstreams.{self.name}]"

    def build(self, silence_seconds: float) -> Upstream:
        preset_name, url, query = self.address()
        fields: dict[str, Any] = {"silence_seconds": silence_seconds} | PRESETS[preset_name].quirks
        for key in _QUIRKS:
            if key in self.table:
                fields[key] = convert(_OPTIONS[key], Given(self.table[key], self.place(key)))
        self.adjust_to_dialect(fields)
        headers = self.mapping("headers")
        return Upstream(
            name=self.name,
            url=url,
            key=self.key(preset_name, url, headers),
            headers=headers,
            query=query | self.mapping("query"),
            models=self.mapping("models"),
            **fields,
        )

    def adjust_to_dialect(self, fields: dict[str, Any]) -> None:
        """Adjust the settings that a dialect does not have, or has another default for."""
        dialect = fields.get("dialect", "chat")
        if dialect == "anthropic":
            fields.setdefault("key_header", "x-api-key")
        if fields.get("reattach") and dialect != "responses":
            raise SettingsError(f'{self.place("reattach")} needs dialect = "responses".')
        if dialect != "chat" and fields.get("continuation", "none") not in ("none", "prefill"):
            if "continuation" in self.table:
                raise SettingsError(f"{self.place('continuation')} can only be none or prefill in this dialect.")
            fields["continuation"] = "prefill"  # the preset's value is for Chat Completions

    def address(self) -> tuple[str, str, dict[str, str]]:
        """Return the preset's name, the base URL, and the query of the URL."""
        named = self.table.get("preset", self.name if self.name in PRESETS else None)
        if named is not None and named not in PRESETS:
            raise SettingsError(f"{self.place('preset')} must be one of {', '.join(PRESETS)}, not {named!r}.")
        written = self.table.get("url", PRESETS[named].url if named else None)
        if written is None:
            hint = PRESETS[named].note if named else PRESETS["generic"].note
            raise SettingsError(f"The upstream {self.name} has no address: {hint}.")
        url, query = check_url(written, self.place("url"))
        return named or recognise(url), url, query

    def key(self, preset_name: str, url: str, headers: Mapping[str, str]) -> str | None:
        if "key" in self.table and "key_file" in self.table:
            raise SettingsError(f"[upstreams.{self.name}] has both key and key_file; give one of them.")
        if "key" in self.table:
            return resolve(self.table["key"], self.place("key"), self.environ)
        if "key_file" in self.table:
            convert(_OPTIONS["key"], Given(self.table["key_file"], self.place("key_file")))
            return read_key_file(self.table["key_file"], self.place("key_file"))
        variable = PRESETS[preset_name].key_variable
        # A vendor's key from the environment is sent to that vendor's address only.
        if variable is None or recognise(url) != preset_name or _AUTH_HEADERS & {name.lower() for name in headers}:
            return None
        if not self.environ.get(variable, "").strip():
            raise SettingsError(
                f"The upstream {self.name} needs a key: set {variable}, give --upstream-key-file FILE, "
                f'or write key = "env:NAME" in [upstreams.{self.name}].'
            )
        return resolve(f"env:{variable}", f"The key of {self.name}", self.environ)

    def mapping(self, key: str) -> dict[str, str]:
        """Return `headers`, `query` or `models`: names to text, secret in the first two."""
        table = self.table.get(key, {})
        if key == "headers" and isinstance(table, dict):
            for name in table:
                if not _HEADER.match(name):
                    raise SettingsError(f"{name!r} in {self.place(key)} is not a header's name.")
        if key != "models":
            return resolve_all(table, self.place(key), self.environ)
        if not isinstance(table, dict) or not all(isinstance(value, str) and value for value in table.values()):
            raise SettingsError(f'{self.place(key)} must be a table of aliases such as {{ fast = "gpt-4o-mini" }}.')
        return dict(table)


def check_url(value: object, where: str) -> tuple[str, dict[str, str]]:
    """Return a base URL without its last slash, and its query. Raise SettingsError, which repeats no secret."""
    wanted = f"{where} must be a URL such as http://localhost:8000/v1"
    if not isinstance(value, str):
        raise SettingsError(f"{wanted}.")
    try:
        parts = urlsplit(value.strip())
        port_is_valid = parts.port is None or parts.port > 0
    except ValueError:
        raise SettingsError(f"{wanted}.") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_valid or parts.fragment:
        raise SettingsError(f"{wanted}.")
    if parts.username is not None or parts.password is not None:
        raise SettingsError(f"{where} holds a user name or password; give it as key or headers instead.")
    path = parts.path.rstrip("/")
    for endpoint in ("/chat/completions", "/responses", "/messages", "/models"):
        if path.endswith(endpoint):
            raise SettingsError(f"{where} must be the base URL, without {endpoint}.")
    return urlunsplit((parts.scheme, parts.netloc, path, "", "")), dict(parse_qsl(parts.query, keep_blank_values=True))
