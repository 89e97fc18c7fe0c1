"""Durability settings of models, agents and providers, and their combination."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, TypedDict, cast

from agents import ModelSettings, UserError

Background = bool | Literal["auto"]
OnCancel = Literal["cancel", "detach"]

# Models that reason for minutes, as shell patterns: `background="auto"` runs them in the background.
AUTO_MODELS = ("*-pro", "*-pro-20*", "*deep-research*")
HIGH_EFFORTS = ("high", "xhigh", "max")


class DurabilityOptions(TypedDict, total=False):
    """Keyword arguments of Durability."""

    background: Background | None
    background_poll_interval_seconds: float | None
    background_max_wait_seconds: float | None
    on_cancel: OnCancel | None


NAMES = tuple(DurabilityOptions.__annotations__)


@dataclass(frozen=True, kw_only=True)
class Durability:
    """The four settings; None means not set."""

    background: Background | None = None
    background_poll_interval_seconds: float | None = None
    background_max_wait_seconds: float | None = None
    on_cancel: OnCancel | None = None

    def __post_init__(self) -> None:
        if not (self.background is None or isinstance(self.background, bool) or self.background == "auto"):
            raise UserError(f'background must be True, False or "auto", not {self.background!r}.')
        if self.on_cancel not in (None, "cancel", "detach"):
            raise UserError(f'on_cancel must be "cancel" or "detach", not {self.on_cancel!r}.')
        _check_seconds("background_poll_interval_seconds", self.background_poll_interval_seconds)
        _check_seconds("background_max_wait_seconds", self.background_max_wait_seconds)

    def over(self, defaults: Durability) -> Durability:
        """Return these settings, with `defaults` for those that are not set."""
        given = {name: value for name in NAMES if (value := getattr(self, name)) is not None}
        return dataclasses.replace(defaults, **given)


def split(settings: ModelSettings) -> tuple[Durability, ModelSettings]:
    """Separate an agent's durability settings from the rest, so that none of them is sent to a server."""
    args = dict(settings.extra_args or {})
    body = dict(settings.extra_body) if isinstance(settings.extra_body, Mapping) else {}
    _refuse_twice([name for name in NAMES if args.get(name) is not None and body.get(name) is not None])
    given: dict[str, Any] = {}
    for place in (args, body):
        given |= {name: value for name in NAMES if (value := place.pop(name, None)) is not None}
    if len(args) == len(settings.extra_args or {}) and len(body) == len(cast(Any, settings.extra_body) or {}):
        return Durability(), settings
    return Durability(**given), dataclasses.replace(settings, extra_args=args or None, extra_body=body or None)


def combine(fixed: Durability, agent: Durability, defaults: Durability) -> Durability:
    """Combine the settings of model and agent, which must not overlap and both override a provider's defaults."""
    _refuse_twice([name for name in NAMES if getattr(fixed, name) is not None and getattr(agent, name) is not None])
    return agent.over(fixed.over(defaults))


def wants_background(background: Background | None, settings: ModelSettings, model: str, slow: Sequence[str]) -> bool:
    """Return True if the call runs in the background, which is the default of a durable model."""
    if background != "auto":
        return background is not False
    if is_unstored(settings):
        return False
    effort = settings.reasoning.effort if settings.reasoning is not None else None
    return effort in HIGH_EFFORTS or any(fnmatchcase(model, pattern) for pattern in slow)


def is_unstored(settings: ModelSettings) -> bool:
    """Return True if `store: false` is set, in any of the three places where it can be."""
    body = settings.extra_body if isinstance(settings.extra_body, Mapping) else {}
    return any(each is False for each in (settings.store, (settings.extra_args or {}).get("store"), body.get("store")))


def _refuse_twice(names: list[str]) -> None:
    if names:
        # Worded as the SDK words it for a keyword given in two places, so that one `except` catches both.
        raise TypeError(
            f"responses.create() got multiple values for {', '.join(map(repr, names))}: set it in one place."
        )


def _check_seconds(name: str, value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise UserError(f"{name} must be a number of seconds above zero, not {value!r}.")
