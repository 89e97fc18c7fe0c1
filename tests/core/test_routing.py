"""Routing: a model name leads to one upstream, or is refused."""

from __future__ import annotations

import pytest

from outlive.core.errors import InvalidRequest
from outlive.core.routing import route

ONE = {"openrouter": {"fast": "meta-llama/Llama-3"}}
TWO = {"openai": {"fast": "gpt-4o-mini", "both": "a"}, "vllm": {"big": "org/Big", "both": "b"}}


@pytest.mark.parametrize("model", ["gpt-4o", "openrouter/auto", "meta-llama/Llama-3", "/", ""])
def test_one_upstream_is_given_every_name_as_it_is(model: str) -> None:
    assert route(model, ONE) == ("openrouter", model)


def test_one_upstream_still_has_aliases() -> None:
    assert route("fast", ONE) == ("openrouter", "meta-llama/Llama-3")


@pytest.mark.parametrize(
    ("model", "found"),
    [
        ("gpt-4o", ("openai", "gpt-4o")),
        ("vllm/org/Model", ("vllm", "org/Model")),
        ("openai/gpt-4o", ("openai", "gpt-4o")),
        ("meta-llama/Llama-3", ("openai", "meta-llama/Llama-3")),
        ("fast", ("openai", "gpt-4o-mini")),
        ("big", ("vllm", "org/Big")),
        ("vllm/big", ("vllm", "org/Big")),
        ("vllm/fast", ("vllm", "fast")),
        ("vllm/both", ("vllm", "b")),
        ("vllm", ("openai", "vllm")),
    ],
)
def test_with_several_a_prefix_or_an_alias_chooses_and_the_first_takes_the_rest(
    model: str, found: tuple[str, str]
) -> None:
    assert route(model, TWO) == found


@pytest.mark.parametrize("model", ["both", "vllm/"])
def test_an_ambiguous_or_incomplete_name_is_refused(model: str) -> None:
    with pytest.raises(InvalidRequest, match="openai/MODEL, vllm/MODEL") as caught:
        route(model, TWO)
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


def test_without_upstreams_every_model_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        route("x", {})
