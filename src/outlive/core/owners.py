"""Owners: who a row belongs to. An application that acts for end users owns the rows of each of them separately.

The rows of an end user carry one text, `OWNER<separator>END_USER`, in the column `owner`. Every query compares that
column with the caller's, so the end users of one owner are as separate as two owners are.
"""

from typing import Any, Literal, NamedTuple

import msgspec

SEPARATOR = "\x1f"  # a control character, which neither names of owners nor headers may contain


# Fields of an element of a list that may hold content, and what an admin sees there.
_HIDDEN: dict[str, Any] = {"text": {}, "tool_choice": {}, "metadata": {}}
_HIDDEN |= {"prompt_cache_key": None, "safety_identifier": None, "user": None}
# Fields that hold none: besides them, a list may have fields of later versions.
_SHOWN = frozenset(
    {"id", "object", "created_at", "completed_at", "status", "model", "background", "store", "conversation", "usage"}
    | {"previous_response_id", "outlive", "frequency_penalty", "presence_penalty", "max_output_tokens", "truncation"}
    | {"max_tool_calls", "parallel_tool_calls", "prompt_cache_retention", "reasoning", "service_tier", "temperature"}
    | {"top_logprobs", "top_p"}
)


class Oidc(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An identity provider whose tokens are taken in place of keys."""

    issuer: str
    audience: str
    owner_claim: str = "sub"  # its value names the owner


def join(owner: str, end_user: str | None) -> str:
    """Return what the rows of an owner, or of one of its end users, carry."""
    return owner if end_user is None else f"{owner}{SEPARATOR}{end_user}"


def name_of(owner: str) -> str:
    """Return the owner's name, by which limits and metrics count: an owner's end users count as one."""
    return owner.partition(SEPARATOR)[0]


def add_owner(thing: dict[str, Any], owner: str) -> dict[str, Any]:
    """Add to a response or conversation whose it is, for admins."""
    name, end_user = split(owner)
    return {**thing, "outlive": {**(thing.get("outlive") or {}), "owner": name, "end_user": end_user}}


def hide_content(thing: dict[str, Any]) -> dict[str, Any]:
    """Return an element of a list without what its owner, or a model, has written."""
    hidden = {name: _HIDDEN[name] for name in _HIDDEN if name in thing}
    for name, kept in (("error", "code"), ("incomplete_details", "reason")):
        if name in thing:
            hidden[name] = thing[name] and {kept: thing[name].get(kept), "message": ""}
    return {name: value for name, value in thing.items() if name in _SHOWN} | hidden


def split(owner: str) -> tuple[str, str | None]:
    """Return the owner's name and the end user, if there is one, of what a row carries."""
    name, separator, end_user = owner.partition(SEPARATOR)
    return name, end_user if separator else None


class Policy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What an owner may do, its end users together. None: as the server's settings have it, or without a limit."""

    storage: Literal["allowed", "never"] = "allowed"  # never: every response is like one with `store: false`
    retention_days: float | None = None  # in place of the days of the settings
    models: list[str] | None = None
    max_running: int | None = None
    max_waiting: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    budget_per_month: float | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, int | float) and (value < 0 or (name == "retention_days" and value == 0)):
                raise ValueError(f"{name} must not be {value:g}")


class RateState(NamedTuple):
    """What is left of an owner's limits per minute; None: no limit."""

    seconds: float  # until the next minute begins
    limits: dict[str, int]  # of requests and tokens
    used: dict[str, int]

    def is_over(self) -> bool:
        return any(self.used[name] >= limit for name, limit in self.limits.items())

    def headers(self) -> dict[str, str]:
        """Return the headers in which OpenAI's API has them."""
        headers = {}
        for name, limit in self.limits.items():
            headers[f"x-ratelimit-limit-{name}"] = str(limit)
            headers[f"x-ratelimit-remaining-{name}"] = str(max(limit - self.used[name], 0))
            headers[f"x-ratelimit-reset-{name}"] = f"{self.seconds:.3g}s"
        return headers
