"""Presets, and the upstreams made of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outlive.config.load import load
from outlive.config.presets import PRESETS, recognise
from outlive.core.errors import SettingsError
from outlive.ports.backend import Upstream

KEYS = {preset.key_variable: "k" for preset in PRESETS.values() if preset.key_variable}


def load_preset(name: str) -> Upstream:
    (upstream,) = load({"upstream": name}, KEYS).upstreams
    return upstream


@pytest.mark.parametrize(
    ("name", "url", "key", "limit", "developer", "store", "continuation"),
    [
        ("openai", "https://api.openai.com/v1", "k", "max_completion_tokens", True, True, "none"),
        ("anthropic", "https://api.anthropic.com/v1", "k", "max_completion_tokens", False, False, "none"),
        ("gemini", "https://generativelanguage.googleapis.com/v1beta/openai", "k", "max_tokens", False, False, "none"),
        ("openrouter", "https://openrouter.ai/api/v1", "k", "max_tokens", False, False, "none"),
        ("ollama", "http://localhost:11434/v1", None, "max_tokens", False, False, "none"),
        ("vllm", "http://localhost:8000/v1", None, "max_completion_tokens", False, False, "continue_final_message"),
        ("llamacpp", "http://localhost:8080/v1", None, "max_tokens", False, False, "prefill"),
        ("lmstudio", "http://localhost:1234/v1", None, "max_tokens", False, False, "none"),
    ],
)
def test_a_presets_name_selects_its_upstream(
    name: str, url: str, key: str | None, limit: str, developer: bool, store: bool, continuation: str
) -> None:
    upstream = load_preset(name)
    assert (upstream.name, upstream.url, upstream.key) == (name, url, key)
    assert (upstream.max_tokens_field, upstream.developer_role, upstream.sends_store) == (limit, developer, store)
    header = "x-api-key" if name == "anthropic" else "authorization"
    assert (upstream.continuation, upstream.key_header) == (continuation, header)


def test_azure_is_recognised_and_gets_its_key_header() -> None:
    (upstream,) = load({"upstream": "https://me.openai.azure.com/openai/v1?api-version=preview"}, KEYS).upstreams
    assert (upstream.url, upstream.query) == ("https://me.openai.azure.com/openai/v1", {"api-version": "preview"})
    assert (upstream.key, upstream.key_header, upstream.max_tokens_field) == ("k", "api-key", "max_completion_tokens")


def test_every_preset_names_fields_of_an_upstream() -> None:
    fields = set(Upstream.__struct_fields__)
    assert all(set(preset.quirks) <= fields for preset in PRESETS.values())


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://api.openai.com/v1", "openai"),
        ("https://me.openai.azure.com/openai/v1", "azure"),
        ("https://API.anthropic.com/v1", "anthropic"),
        ("https://api.openai.com.evil.example/v1", "generic"),
        ("https://evil-openai.azure.com.example/v1", "generic"),
        ("http://localhost:8000/v1", "generic"),
    ],
)
def test_vendors_are_recognised_by_their_address(url: str, name: str) -> None:
    assert recognise(url) == name


def test_an_unknown_server_gets_the_generic_quirks() -> None:
    (upstream,) = load({"upstream": "http://somewhere:9/v1"}, {}).upstreams
    assert (upstream.max_tokens_field, upstream.developer_role, upstream.sends_store) == ("max_tokens", False, False)


def load_table(tmp_path: Any, text: str) -> Upstream:
    file = tmp_path / "o.toml"
    file.write_text(text)
    (upstream,) = load({"config": str(file)}, KEYS).upstreams
    return upstream


def test_a_vendors_key_from_the_environment_is_sent_to_that_vendor_only(tmp_path: Any) -> None:
    assert load_table(tmp_path, "[upstreams.openai]").key == "k"
    assert load_table(tmp_path, '[upstreams.openai]\nurl = "https://proxy.example/v1"').key is None
    assert load_table(tmp_path, '[upstreams.x]\npreset = "azure"\nurl = "https://proxy.example/v1"').key is None


def test_an_authorization_header_replaces_the_key(tmp_path: Any) -> None:
    text = '[upstreams.openai]\nheaders = { Authorization = "Bearer other" }'
    assert load_table(tmp_path, text).key is None


def test_a_table_with_a_presets_name_gets_its_quirks(tmp_path: Any) -> None:
    assert load_table(tmp_path, '[upstreams.vllm]\nurl = "http://gpu:8000/v1"').continuation == "continue_final_message"
    text = '[upstreams.vllm]\nurl = "http://gpu:8000/v1"\ncontinuation = "none"'
    assert load_table(tmp_path, text).continuation == "none"


def test_a_vendor_without_its_key_is_refused() -> None:
    with pytest.raises(SettingsError, match="needs a key: set ANTHROPIC_API_KEY"):
        load({"upstream": "https://api.anthropic.com/v1"}, {})


# -- dialects


def test_presets_choose_dialect_and_reasoning_input() -> None:
    assert (load_preset("openai").dialect, load_preset("openai").reasoning_input) == ("responses", "encrypted")
    assert (load_preset("anthropic").dialect, load_preset("vllm").dialect, load_preset("gemini").dialect) == (
        "anthropic",
        "chat",
        "chat",
    )
    assert {load_preset(name).reasoning_input for name in ("vllm", "llamacpp", "ollama", "lmstudio")} == {"plain"}


@pytest.mark.parametrize(("name", "continuation"), [("vllm", "prefill"), ("llamacpp", "prefill"), ("ollama", "none")])
def test_a_dialect_from_flag_or_variable_replaces_the_presets(name: str, continuation: str) -> None:
    (flagged,) = load({"upstream": name, "upstream_dialect": "responses"}, {}).upstreams
    (from_variable,) = load({"upstream": name}, {"OUTLIVE_UPSTREAM_DIALECT": "responses"}).upstreams
    assert flagged == from_variable
    # The continuation of a preset is for Chat Completions; this dialect has only `prefill`.
    assert (flagged.dialect, flagged.continuation) == ("responses", continuation)


def write(path: Path, *lines: str) -> dict[str, str]:
    file = path / "outlive.toml"
    file.write_text("\n".join(["[upstreams.x]", 'url = "http://x/v1"', *lines]))
    return {"config": str(file)}


def test_reattach_is_on_only_where_it_is_set(tmp_path: Path) -> None:
    (upstream,) = load(write(tmp_path, 'dialect = "responses"', "reattach = true"), {}).upstreams
    assert upstream.reattach
    assert not load_preset("openai").reattach, "an upstream stores a run only if the settings ask for it"


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["reattach = true"], 'reattach in .upstreams.x. needs dialect = "responses"'),
        (['dialect = "responses"', 'continuation = "prefix"'], "can only be none or prefill in this dialect"),
        (['dialect = "gopher"'], "must be one of chat, responses, anthropic"),
        (['reasoning_input = "loud"'], "must be one of any, encrypted, plain"),
    ],
)
def test_contradicting_upstream_keys_are_refused(tmp_path: Path, lines: list[str], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        load(write(tmp_path, *lines), {})


def test_a_dialect_without_an_upstream_is_refused() -> None:
    with pytest.raises(SettingsError, match="--upstream-dialect does not say what it is for; choose with --upstream"):
        load({"upstream_dialect": "responses"}, {})
