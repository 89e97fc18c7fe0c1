"""Load the settings of a process from all their sources, the tables of the TOML file among them, and check them."""

import contextlib
import ipaddress
import logging
import os
import re
import ssl
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit, urlunsplit

import msgspec

from outlive.config import database_url
from outlive.config.network import find_proxy, is_loopback
from outlive.config.presets import PRESETS, recognise
from outlive.config.settings import FIELDS, Given, Settings, convert, read_options
from outlive.config.sources import Sources, gather, read_key_file, read_key_lines, resolve, unknown
from outlive.core.errors import SettingsError, require
from outlive.core.owners import Oidc, Policy
from outlive.core.requests.checks import Limits
from outlive.core.usage import Price, PriceTable
from outlive.ports.backend import Upstream
from outlive.ports.toolbox import ToolServer

log = logging.getLogger("outlive")

MIN_SEAL_KEY = 32
# Characters of an owner's key: fewer are refused where other machines can try; fewer than the second are warned of.
LEAST_KEY = 8
SAFE_KEY = 16

_OWNER = re.compile(r"[A-Za-z0-9_.@-]{1,64}\Z")

_TABLES: dict[str, Any] = {"upstreams": Upstream, "mcp": ToolServer, "prices": Price, "owners": Policy}
_OPTIONS = {kind: read_options(struct) for kind, struct in _TABLES.items()}
# The keys of [upstreams.NAME] and of [mcp.LABEL] that are fields with one value, or with a list of names.
_NO_QUIRKS = ("name", "url", "key", "any_model", "proxy")
_QUIRKS = [name for name, each in _OPTIONS["upstreams"].items() if each.is_plain and name not in _NO_QUIRKS]
_MCP_FIELDS = ("url", "transport", "require_approval", "seconds", "allowed_tools", "idempotent_tools")
KEYS = ("preset", "url", "key", "key_file", "headers", "query", "models", "default", *_QUIRKS)
# The keys of tables that are not the fields of their struct.
_KEYS_OF = {"upstreams": KEYS, "mcp": (*_MCP_FIELDS, "headers", "authorization")}
_MILLION = 1_000_000  # tokens, which prices are for
_TLS_FILES = ("ca_file", "client_cert", "client_key")
_OWN_LABEL = "outlive"  # the label of the server's own tools

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")
_LABEL = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+\Z")
_AUTH_HEADERS = frozenset({"authorization", "api-key", "x-api-key", "x-goog-api-key"})


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
        upstreams=_read_upstreams(sources, settings.silence_seconds),
        mcp=_read_tool_servers(sources, settings.tool_seconds),
        owners={name: make_policy(name, table) for name, table in _read_tables(sources, "owners", "NAME").items()},
        prices=_read_prices(sources),
    )


def _read_keys(sources: Sources) -> dict[str, list[str]]:
    """Return the keys by owner, from [keys], from NAME=KEY,NAME=KEY or from a list of NAME=KEY."""
    given = sources.given.get("keys")
    if given is None:
        return {}
    if isinstance(given.value, dict):
        lists = {owner: keys if isinstance(keys, list) else [keys] for owner, keys in given.value.items()}
        pairs: list[tuple[str, object]] = [(owner, key) for owner, keys in lists.items() for key in keys]
    else:
        require(given.lax, f'{given.where} must be a table: [keys] with lines such as alice = "env:ALICE_KEY".')
        texts: Iterable[str] = given.value.split(",") if isinstance(given.value, str) else given.value  # type: ignore[assignment]
        split = [text.strip().partition("=") for text in texts]
        # A text without "=" may be a bare key, so it is not repeated.
        wanted = f"{given.where} must be written NAME=KEY, such as alice=env:ALICE_KEY."
        require(all(equals for _, equals, _ in split), wanted)
        pairs = [(owner, key) for owner, _, key in split]
    owners: dict[str, list[str]] = {}
    owner_of: dict[str, str] = {}
    for owner, value in pairs:
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


# -- the tables of the TOML file


def _read_upstreams(sources: Sources, silence_seconds: float) -> list[Upstream]:
    """Return all upstreams, first the one that gets unclaimed model names. Empty: use the embedded model."""
    tables = _read_tables(sources, "upstreams", "NAME")
    for name in tables:
        require(_NAME.match(name), f"The upstream name {name!r} may hold only letters, digits, '_', '.' and '-'.")
    if (chosen := sources.given.get("upstream")) is not None:
        tables = _choose(chosen, tables)
    # The key and the dialect of flags and variables win over those of the TOML file.
    given = sources.given
    file, key, dialect = given.get("upstream_key_file"), given.get("upstream_key"), given.get("upstream_dialect")
    if file is not None and (key is None or file.where.startswith("--")):
        _find_only(tables, file, "key").update(key=read_key_file(str(file.value), file.where))
    elif key is not None:
        _find_only(tables, key, "key").update(key=resolve(key.value, key.where, sources.environ))
    if dialect is not None:
        _find_only(tables, dialect, "dialect").update(dialect=convert(_OPTIONS["upstreams"]["dialect"], dialect))
    built = [_UpstreamTable("upstreams", name, tables[name], sources.environ).build(silence_seconds) for name in tables]
    defaults = [name for name, table in tables.items() if table.get("default") is True]
    require(len(defaults) <= 1, f"Only one upstream can be the default, not {' and '.join(defaults)}.")
    return sorted(built, key=lambda upstream: upstream.name not in defaults)


def _read_tables(sources: Sources, kind: str, placeholder: str) -> dict[str, dict[str, Any]]:
    """Return copies of the tables `[KIND.*]` of the TOML file, by their own names."""
    given = sources.given.get(kind)
    if given is None:
        return {}
    if not isinstance(given.value, dict) or not all(isinstance(table, dict) for table in given.value.values()):
        raise SettingsError(f"{given.where} must be tables: [{kind}.{placeholder}].")
    return {name: dict(table) for name, table in given.value.items()}


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
    wanted = f"a URL such as http://localhost:8000/v1, or one of {names}"
    raise SettingsError(f"{chosen.where} must be {wanted}; not {value!r}.")


def _find_only(tables: dict[str, dict[str, Any]], given: Given, key: str) -> dict[str, Any]:
    """Return the only table, without what a flag replaces in it. Raise SettingsError if there are several, or none."""
    subject = f"which of {', '.join(tables)} it is for" if tables else "what it is for"
    choose = f"choose with --upstream URL, or set {key} in [upstreams.NAME]"
    require(len(tables) == 1, f"{given.where} does not say {subject}; {choose}.")
    (table,) = tables.values()
    if key == "key":
        table.pop("key_file", None)
    return table


class _Table(msgspec.Struct):
    """One table [KIND.NAME]; each value is checked when it is read, and an error names its place."""

    kind: str
    name: str
    table: dict[str, Any]
    environ: Mapping[str, str]

    def __post_init__(self) -> None:
        known = _KEYS_OF.get(self.kind, _OPTIONS[self.kind])
        for key in self.table:
            if key not in known:
                raise unknown(self.place(key), key, list(known))

    def place(self, key: str) -> str:
        return "--upstream" if self.name == "upstream" and key == "url" else f"{key} in [{self.kind}.{self.name}]"

    def read(self, keys: Iterable[str], lax: bool = False) -> dict[str, Any]:
        """Return the values of those of the keys that the table has. `lax`: texts may stand for other values."""
        present = [key for key in keys if key in self.table]
        return {key: convert(_OPTIONS[self.kind][key], Given(self.table[key], self.place(key), lax)) for key in present}

    def secrets(self, key: str) -> dict[str, str]:
        """Resolve every value of a table of secrets."""
        table, place = self.table.get(key, {}), self.place(key)
        require(isinstance(table, dict), f'{place} must be a table such as {{ name = "value" }}.')
        return {name: resolve(value, f"{name} of {place}", self.environ) for name, value in table.items()}


class _UpstreamTable(_Table):
    """A table [upstreams.NAME], of which `build` makes an Upstream."""

    def build(self, silence_seconds: float) -> Upstream:
        named = self.table.get("preset", self.name if self.name in PRESETS else None)
        names = ", ".join(PRESETS)
        require(named in (None, *PRESETS), f"{self.place('preset')} must be one of {names}, not {named!r}.")
        written = self.table.get("url", PRESETS[named].url if named else None)
        require(written is not None, f"The upstream {self.name} has no address: {PRESETS[named or 'generic'].note}.")
        url, query = check_url(written, self.place("url"))
        preset_name = named or recognise(url)
        fields = {"silence_seconds": silence_seconds} | PRESETS[preset_name].quirks | self.read(_QUIRKS)
        self.adjust_to_dialect(fields)
        self.check_tls(url, fields)
        headers = self.secrets("headers")
        for name in headers:
            require(_HEADER.match(name), f"{name!r} in {self.place('headers')} is not a header's name.")
        key = self.key(preset_name, url, headers)
        query |= self.secrets("query")
        models = self.table.get("models", {})
        is_table = isinstance(models, dict) and all(isinstance(value, str) and value for value in models.values())
        require(is_table, f'{self.place("models")} must be a table of aliases such as {{ fast = "gpt-4o-mini" }}.')
        proxy = find_proxy(url, self.environ)
        return Upstream(
            name=self.name, url=url, key=key, headers=headers, query=query, models=dict(models), proxy=proxy, **fields
        )

    def check_tls(self, url: str, fields: dict[str, Any]) -> None:
        """Raise SettingsError for files of certificates and keys that cannot be used."""
        files = {key: str(Path(fields[key]).expanduser()) for key in _TLS_FILES if key in fields}
        fields |= files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        place = f"The TLS files of [upstreams.{self.name}]"
        require(not files or url.startswith("https:"), f"{place} need a url that begins with https.")
        has_cert = "client_key" not in files or "client_cert" in files
        require(has_cert, f"{self.place('client_key')} needs client_cert too.")
        try:
            if "ca_file" in files:
                context.load_verify_locations(files["ca_file"])
            if "client_cert" in files:
                context.load_cert_chain(files["client_cert"], files.get("client_key"), password="")
        except OSError as error:
            wrong = "one is not PEM, or the key does not belong to the certificate"
            reason = wrong if isinstance(error, ssl.SSLError) else error.strerror
            raise SettingsError(f"{place} ({', '.join(files)}) cannot be used: {reason}.") from error

    def adjust_to_dialect(self, fields: dict[str, Any]) -> None:
        """Adjust the settings that a dialect does not have, or has another default for."""
        dialect = fields.get("dialect", "chat")
        if dialect == "anthropic":
            fields.setdefault("key_header", "x-api-key")
        reattaches = fields.get("reattach") and dialect != "responses"
        require(not reattaches, f'{self.place("reattach")} needs dialect = "responses".')
        if dialect != "chat" and fields.get("continuation", "none") not in ("none", "prefill"):
            wrong = f"{self.place('continuation')} can only be none or prefill in this dialect."
            require("continuation" not in self.table, wrong)
            fields["continuation"] = "prefill"  # the preset's value is for Chat Completions

    def key(self, preset_name: str, url: str, headers: Mapping[str, str]) -> str | None:
        both = "key" in self.table and "key_file" in self.table
        require(not both, f"[upstreams.{self.name}] has both key and key_file; give one of them.")
        if "key" in self.table:
            return resolve(self.table["key"], self.place("key"), self.environ)
        if "key_file" in self.table:
            place = self.place("key_file")
            return read_key_file(convert(_OPTIONS["upstreams"]["key"], Given(self.table["key_file"], place)), place)
        variable = PRESETS[preset_name].key_variable
        # A vendor's key from the environment is sent to that vendor's address only.
        if variable is None or recognise(url) != preset_name or _AUTH_HEADERS & {name.lower() for name in headers}:
            return None
        ways = f'give --upstream-key-file FILE, or write key = "env:NAME" in [upstreams.{self.name}]'
        is_set = self.environ.get(variable, "").strip()
        require(is_set, f"The upstream {self.name} needs a key: set {variable}, {ways}.")
        return resolve(f"env:{variable}", f"The key of {self.name}", self.environ)


def _read_tool_servers(sources: Sources, seconds: float) -> list[ToolServer]:
    """Return the servers that requests may name by their labels; `seconds` is the default time limit of a call."""
    tables = _read_tables(sources, "mcp", "LABEL")
    allowed = f"may hold only letters, digits, '_' and '-', and not be {_OWN_LABEL!r}"
    for label in tables:
        require(_LABEL.match(label) and label != _OWN_LABEL, f"The label {label!r} of an MCP server {allowed}.")
    servers = []
    for label, given in tables.items():
        table = _Table("mcp", label, given, sources.environ)
        require("url" in given, f"[mcp.{label}] has no url.")
        fields = {"seconds": seconds} | table.read(_MCP_FIELDS)
        is_url = fields["url"].startswith(("http://", "https://"))
        require(is_url, f"{table.place('url')} must be a URL such as https://example.com/mcp.")
        if "authorization" in given:
            fields["authorization"] = resolve(given["authorization"], table.place("authorization"), sources.environ)
        servers.append(ToolServer(label=label, headers=table.secrets("headers"), **fields))
    return servers


def _read_prices(sources: Sources) -> dict[str, Price]:
    """Return the prices of models, from `[prices."MODEL"]`."""
    prices = {}
    for model, given in _read_tables(sources, "prices", '"MODEL"').items():
        table = _Table("prices", model, given, sources.environ)
        for key in ("input", "output"):
            require(key in given, f"[prices.{model}] has no {key}.")
        prices[model] = Price(**table.read(_OPTIONS["prices"]))
    return prices


def make_prices(settings: Settings) -> PriceTable:
    """Return the prices of the settings, and those that are known in US dollars if that is their currency."""
    return PriceTable(settings.prices, settings.currency, look_up if settings.currency == "USD" else None)


@lru_cache(1000)
def look_up(model: str, upstream: str) -> Price | None:
    """Return the price of a well-known model, as `genai-prices` has it where that is installed; the upstream's name may
    be a provider's."""
    try:
        # Takes time and memory that a server without prices need not spend.
        from genai_prices import Usage, calc_price
    except ImportError:
        return None
    used = Usage(input_tokens=_MILLION, output_tokens=_MILLION)
    cached = Usage(input_tokens=_MILLION, cache_read_tokens=_MILLION)
    for provider in (upstream, None):
        with contextlib.suppress(LookupError, ValueError):
            found = calc_price(used, model, provider_id=provider)
            read = calc_price(cached, model, provider_id=provider)
            given, made = float(found.input_price), float(found.output_price)
            return Price(input=given, output=made, cached_input=float(read.total_price))
    return None


def make_policy(name: str, given: dict[str, Any], *, lax: bool = False) -> Policy:
    """Check an owner's policy. `lax`: its values are texts, and an empty one is no value. Raise SettingsError."""
    try:
        kept = [key for key in _OPTIONS["owners"] if not (lax and given.get(key) == "")]
        return Policy(**_Table("owners", name, given, {}).read(kept, lax))
    except ValueError as error:
        raise SettingsError(f"In [owners.{name}], {error}.") from None


def check_url(value: object, where: str) -> tuple[str, dict[str, str]]:
    """Return a base URL without its last slash, and its query. Raise SettingsError, which repeats no secret."""
    wanted = f"{where} must be a URL such as http://localhost:8000/v1."
    try:
        parts = urlsplit(value.strip() if isinstance(value, str) else "")
        is_url = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and not parts.fragment
    except ValueError:
        raise SettingsError(wanted) from None
    require(is_url, wanted)
    has_user = parts.username is not None or parts.password is not None
    require(not has_user, f"{where} holds a user name or password; give it as key or headers instead.")
    path = parts.path.rstrip("/")
    for endpoint in ("/chat/completions", "/responses", "/messages", "/models"):
        require(not path.endswith(endpoint), f"{where} must be the base URL, without {endpoint}.")
    return urlunsplit((parts.scheme, parts.netloc, path, "", "")), dict(parse_qsl(parts.query, keep_blank_values=True))
