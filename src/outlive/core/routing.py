"""Routing of a model name to an upstream, and to the upstream's own name of the model."""

from collections.abc import Iterable, Mapping

from outlive.core.errors import InvalidRequest

# Upstreams by name, each with its aliases of models and its own names of these.
Aliases = Mapping[str, Mapping[str, str]]


def route(model: str, upstreams: Aliases) -> tuple[str, str]:
    """Return the upstream's name and the model's name there; the first upstream gets what no other claims.

    One upstream is given every name as it is. With several, an alias wins, then a prefix that is an upstream's
    name (other slashes, as in `meta-llama/Llama-3`, belong to the model).
    """
    if not upstreams:
        raise InvalidRequest("There is no upstream to answer.", param="model", code="model_not_found")
    first = next(iter(upstreams))
    if len(upstreams) == 1:
        return first, upstreams[first].get(model, model)
    prefix, slash, rest = model.partition("/")
    if slash and prefix in upstreams:
        if not rest:
            raise _not_found(model, upstreams)
        return prefix, upstreams[prefix].get(rest, rest)
    claims = [name for name, aliases in upstreams.items() if model in aliases]
    if len(claims) > 1:
        raise _not_found(model, claims)
    return (claims[0], upstreams[claims[0]][model]) if claims else (first, model)


def _not_found(model: str, upstreams: Iterable[str]) -> InvalidRequest:
    names = ", ".join(f"{upstream}/MODEL" for upstream in upstreams)
    message = f"The model {model!r} is ambiguous or incomplete; name the upstream too: {names}."
    return InvalidRequest(message, param="model", code="model_not_found")
