"""Tools of type `mcp`: which server's tools a request wants, which of them, and whether a person is asked first."""

from __future__ import annotations

from outlive.core.events import Json
from outlive.core.requests.checks import (
    check_bool,
    check_enum,
    check_list,
    check_name,
    check_object,
    check_str,
    refuse_missing,
    refuse_type,
)
from outlive.core.requests.limits import Limits

MAX_LABEL = 64
MAX_URL = 4096
MAX_SECRET = 16 * 1024
MAX_HEADERS = 64

_APPROVALS = ("always", "never")


def parse_server(tool: Json, param: str, limits: Limits) -> Json:
    """One entry of `tools`. What was null counts as left out."""
    entry = {name: value for name, value in tool.items() if value is not None}
    if "server_label" not in entry:
        refuse_missing(f"{param}.server_label")
    check_name(entry["server_label"], f"{param}.server_label", MAX_LABEL)
    for name in ("server_url", "connector_id", "tunnel_id"):
        if name in entry:
            check_str(entry[name], f"{param}.{name}", least=1, most=MAX_URL)
    for name in ("server_description", "authorization"):
        if name in entry:
            check_str(entry[name], f"{param}.{name}", most=MAX_SECRET)
    if "headers" in entry:
        _check_headers(entry["headers"], f"{param}.headers")
    if "allowed_tools" in entry:
        _check_filter(entry["allowed_tools"], f"{param}.allowed_tools", limits)
    if "require_approval" in entry:
        _check_approval(entry["require_approval"], f"{param}.require_approval", limits)
    return entry


def allows(entry: Json, name: str, read_only: bool) -> bool:
    """Whether the entry lets the model call a tool of its server."""
    allowed = entry.get("allowed_tools")
    return allowed is None or _matches(allowed, name, read_only)


def needs_approval(entry: Json, name: str, read_only: bool, default: str) -> bool:
    """Whether a person is asked before the tool is called. Where both lists name it, or neither does, one is asked."""
    wish = entry.get("require_approval", default)
    if isinstance(wish, str):
        return wish == "always"
    never = wish.get("never")
    always = wish.get("always")
    if always is not None and _matches(always, name, read_only):
        return True
    if never is not None:
        return not _matches(never, name, read_only)
    return always is None


def _matches(wanted: list[str] | Json, name: str, read_only: bool) -> bool:
    if isinstance(wanted, list):
        return name in wanted
    names, reads = wanted.get("tool_names"), wanted.get("read_only")
    return (names is None or name in names) and (reads is None or reads == read_only)


def _check_headers(value: object, param: str) -> None:
    headers = check_object(value, param)
    check_list(list(headers), param, MAX_HEADERS, "headers")
    for name, text in headers.items():
        check_str(name, param, least=1, most=256)
        check_str(text, f"{param}.{name}", most=MAX_SECRET)


def _check_filter(value: object, param: str, limits: Limits) -> None:
    if type(value) is list:
        _check_names(value, param, limits)
        return
    if type(value) is not dict:
        refuse_type(value, param, "an array of names or an object")
    if value.get("tool_names") is not None:
        _check_names(value["tool_names"], f"{param}.tool_names", limits)
    if value.get("read_only") is not None:
        check_bool(value["read_only"], f"{param}.read_only")


def _check_names(value: object, param: str, limits: Limits) -> None:
    for n, name in enumerate(check_list(value, param, limits.max_tools, "names")):
        check_str(name, f"{param}[{n}]", least=1, most=256)


def _check_approval(value: object, param: str, limits: Limits) -> None:
    if type(value) is not dict:
        check_enum(value, param, _APPROVALS)
        return
    for name in _APPROVALS:
        if value.get(name) is not None:
            _check_filter(value[name], f"{param}.{name}", limits)
