"""What one call is about: what to send, whom to, and how patiently."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from openai import AsyncOpenAI, OpenAI, Timeout

from outlive.client.core import UNSUCCESSFUL
from outlive.client.params import CreateParams, RetrieveParams
from outlive.client.patience import Patience, Progress
from outlive.client.token import Token

KEY_HEADER = "Idempotency-Key"
CONNECT_SECONDS = 10.0
# The id of no response, to be asked for when only the answer's headers count.
NOBODY = "resp_nobody"
# Of what was given to create, what a retrieve takes too.
SHARED = ("include", "extra_headers", "extra_query", "timeout")


@dataclass(slots=True, kw_only=True)
class Plan:
    """`create` is None when the response is there already; `token` says which, and from where to read on."""

    create: dict[str, Any] | None = None
    retrieve: dict[str, Any] = field(default_factory=dict)
    token: Token | None = None
    streamed: bool = False
    stored: bool = True
    may_be_outlive: bool = True
    interval: float | None = None
    max_wait: float | None = None
    raise_on: frozenset[str] = frozenset()
    patience: Patience = field(default_factory=Patience)
    progress: Progress = field(default_factory=Progress)

    def polled(self, token: Token) -> Plan:
        """The plan for asking how the same response ended."""
        return replace(self, create=None, token=token, streamed=False)

    def follow_arguments(self, after: int | None) -> dict[str, Any]:
        return self.retrieve | {"stream": True} | ({} if after is None else {"starting_after": after})

    def retrieve_arguments(self, wait: float | None, timeout: float) -> dict[str, Any]:
        """A wait is what the server is asked for, so it does not count against the caller's own timeout."""
        arguments = {name: value for name, value in self.retrieve.items() if name != "include_obfuscation"}
        if wait is not None:
            arguments["extra_query"] = {**(arguments.get("extra_query") or {}), "wait": f"{wait:.3f}"}
        return arguments | {"timeout": _extend(arguments.get("timeout"), wait or 0.0, timeout)}


def plan_create(
    client: OpenAI | AsyncOpenAI,
    create: CreateParams,
    *,
    streamed: bool,
    raise_on: Collection[str],
    patience: Patience,
    progress: Progress | None,
    key: str | None = None,
    interval: float | None = None,
    max_wait: float | None = None,
) -> Plan:
    arguments: dict[str, Any] = dict(create)
    if "stream" in arguments:
        raise TypeError("`stream` is not yours to give: stream() streams, create_and_poll() does not.")
    stored = arguments.get("store") is not False
    if streamed:
        arguments["stream"] = True
        if stored:
            arguments.setdefault("background", True)
    elif arguments.setdefault("background", True) is not True:
        raise ValueError("create_and_poll() runs in the background; for anything else, client.responses.create().")
    if stored:  # only what is stored can be found again by its key
        arguments["extra_headers"] = _add_key(arguments.get("extra_headers"), key)
    shared = {name: arguments[name] for name in SHARED if arguments.get(name) is not None}
    shared["extra_headers"] = _without_key(shared.get("extra_headers"))
    obfuscation = (arguments.get("stream_options") or {}).get("include_obfuscation")
    if obfuscation is not None:
        shared["include_obfuscation"] = obfuscation
    return Plan(
        create=arguments,
        retrieve=shared,
        streamed=streamed,
        stored=stored,
        may_be_outlive=_may_be_outlive(client),
        interval=_positive(interval, "poll_interval_seconds"),
        max_wait=_positive(max_wait, "max_wait_seconds"),
        raise_on=_statuses(raise_on),
        patience=patience,
        progress=progress if progress is not None else Progress(),
    )


def plan_retrieve(
    client: OpenAI | AsyncOpenAI,
    token: Token,
    retrieve: RetrieveParams,
    *,
    raise_on: Collection[str],
    patience: Patience,
    progress: Progress | None,
    interval: float | None = None,
    max_wait: float | None = None,
) -> Plan:
    arguments: dict[str, Any] = dict(retrieve)
    for name in ("stream", "starting_after"):
        if name in arguments:
            raise TypeError(f"`{name}` is not yours to give: it comes from the token.")
    if not token.response_id:
        raise ValueError("The id of the response is empty.")
    return Plan(
        retrieve=arguments,
        token=token,
        may_be_outlive=_may_be_outlive(client),
        interval=_positive(interval, "poll_interval_seconds"),
        max_wait=_positive(max_wait, "max_wait_seconds"),
        raise_on=_statuses(raise_on),
        patience=patience,
        progress=progress if progress is not None else Progress(),
    )


def _may_be_outlive(client: object) -> bool:
    if not isinstance(client, OpenAI | AsyncOpenAI):
        raise TypeError(f"The client must be an OpenAI or an AsyncOpenAI, not a {type(client).__name__}.")
    host = client.base_url.host
    return host != "openai.com" and not host.endswith(".openai.com")


def _add_key(headers: Mapping[str, str] | None, key: str | None) -> dict[str, str]:
    headers = dict(headers or {})
    given = [name for name in headers if name.lower() == KEY_HEADER.lower()]
    if given and key is not None:
        raise TypeError(f"The key is given twice: as idempotency_key and as the header {given[0]}.")
    return headers if given else headers | {KEY_HEADER: key or f"outlive-{uuid.uuid4()}"}


def _without_key(headers: Mapping[str, str] | None) -> dict[str, str]:
    return {name: value for name, value in (headers or {}).items() if name.lower() != KEY_HEADER.lower()}


def _extend(given: float | Timeout | None, wait: float, timeout: float) -> Timeout:
    """The SDK's timeouts for a GET that is held for `wait`: the shorter of ours and the caller's, and the wait."""
    if isinstance(given, Timeout):
        read = timeout if given.read is None else min(timeout, given.read)
        return Timeout(connect=given.connect, read=read + wait, write=given.write, pool=given.pool)
    seconds = timeout if given is None else min(timeout, given)
    return Timeout(seconds + wait, connect=min(seconds, CONNECT_SECONDS))


def _positive(seconds: float | None, name: str) -> float | None:
    if seconds is not None and not 0 <= seconds < float("inf"):
        raise ValueError(f"{name} must be a number of seconds from 0 on, not {seconds!r}.")
    return seconds


def _statuses(raise_on: Collection[str]) -> frozenset[str]:
    wanted = frozenset([raise_on] if isinstance(raise_on, str) else raise_on)
    if unknown := wanted.difference(UNSUCCESSFUL):
        raise ValueError(f"raise_on takes {', '.join(UNSUCCESSFUL)}, not {', '.join(sorted(unknown))}.")
    return wanted
