"""Routing of a model name to an upstream, and to the upstream's own name of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from outlive.core.errors import InvalidRequest


class Destination(Protocol):
    """The fields of an upstream that routing needs."""

    @property
    def name(self) -> str: ...
    @property
    def models(self) -> Mapping[str, str]:
        """Alias -> the upstream's own name."""
        ...


def route(model: str, upstreams: Sequence[Destination]) -> tuple[str, str]:
    """Return the upstream's name and the model's name there; the first upstream gets what no other claims.

    One upstream is given every name as it is. With several, an alias wins, then a prefix that is an upstream's
    name (other slashes, as in `meta-llama/Llama-3`, belong to the model).
    """
    if len(upstreams) == 1:
        only = upstreams[0]
        return only.name, only.models.get(model, model)
    prefix, slash, rest = model.partition("/")
    named = next((upstream for upstream in upstreams if slash and upstream.name == prefix), None)
    if named is not None:
        if not rest:
            raise _not_found(model, upstreams)
        return named.name, named.models.get(rest, rest)
    claims = [upstream for upstream in upstreams if model in upstream.models]
    if len(claims) > 1:
        raise _not_found(model, claims)
    if claims:
        return claims[0].name, claims[0].models[model]
    if not upstreams:
        raise InvalidRequest("There is no upstream to answer.", param="model", code="model_not_found")
    return upstreams[0].name, model


def _not_found(model: str, upstreams: Sequence[Destination]) -> InvalidRequest:
    names = ", ".join(f"{upstream.name}/MODEL" for upstream in upstreams)
    return InvalidRequest(
        f"The model {model!r} is ambiguous or incomplete; name the upstream too: {names}.",
        param="model",
        code="model_not_found",
    )
