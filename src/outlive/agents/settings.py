"""Durability settings of models, agents and providers, and their combination."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, TypedDict

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
        for name in ("background_poll_interval_seconds", "background_max_wait_seconds"):
            value: object = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not value > 0):
                raise UserError(f"{name} must be a number of seconds above zero, not {value!r}.")


def split(settings: ModelSettings) -> tuple[Durability, ModelSettings]:
    """Separate an agent's durability settings from the rest, so that none of them is sent to a server."""
    args = dict(settings.extra_args or {})
    body = dict(settings.extra_body) if isinstance(settings.extra_body, Mapping) else None
    given = _join(_take_given(args), _take_given(body or {}))
    extra_body = settings.extra_body if body is None else body or None
    return Durability(**given), dataclasses.replace(settings, extra_args=args or None, extra_body=extra_body)


def combine(fixed: Durability, agent: Durability, defaults: Durability) -> Durability:
    """Combine the settings of model and agent, which must not overlap and both override a provider's defaults."""
    given = _join(_take_given(vars(fixed).copy()), _take_given(vars(agent).copy()))
    return dataclasses.replace(defaults, **given)


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


def _take_given(place: dict[str, Any]) -> dict[str, Any]:
    """Remove the settings from a place where they may be, and return those that are set."""
    return {name: value for name in NAMES if (value := place.pop(name, None)) is not None}


def _join(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    if twice := [name for name in one if name in other]:
        # Worded as the SDK words it for a keyword given in two places, so that one `except` catches both.
        names = ", ".join(map(repr, twice))
        raise TypeError(f"responses.create() got multiple values for {names}: set it in one place.")
    return one | other
