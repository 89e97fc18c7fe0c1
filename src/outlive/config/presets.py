"""Presets: upstreams known by name, with their addresses and the quirks of their servers."""

from typing import Any, NamedTuple
from urllib.parse import urlsplit


class Preset(NamedTuple):
    """The defaults for one kind of server."""

    url: str | None  # None: each user has another address
    key_variable: str | None  # the environment variable of the key; None: needs no key
    quirks: dict[str, Any]  # fields of Upstream
    hosts: tuple[str, ...] = ()  # by which it is recognised besides its url: any host that ends so
    note: str = ""  # what is missing, for the error message about a missing url


# The fields that nearly every server understands. Many ignore `max_completion_tokens`, so that an answer has no limit,
# and many chat templates drop `developer` messages.
_PLAIN: dict[str, Any] = {"max_tokens_field": "max_tokens", "developer_role": False}
_LOCAL = _PLAIN | {"reasoning_input": "plain"}
_NEWEST: dict[str, Any] = {"max_tokens_field": "max_completion_tokens", "developer_role": True}

PRESETS: dict[str, Preset] = {
    # Its hosted tools, and reasoning carried from turn to turn, are in the Responses API only. An account may store
    # Chat Completions by default, so those that are passed through get `store: false` too.
    "openai": Preset(
        "https://api.openai.com/v1",
        "OPENAI_API_KEY",
        _NEWEST | {"dialect": "responses", "reasoning_input": "encrypted", "sends_store": True},
    ),
    # Azure stores completions only on request, and older API versions refuse unknown fields: no `store`.
    "azure": Preset(
        None,
        "AZURE_OPENAI_API_KEY",
        _NEWEST | {"key_header": "api-key", "reasoning_input": "encrypted"},
        (".openai.azure.com", ".services.ai.azure.com", ".cognitiveservices.azure.com"),
        "give its url, https://NAME.openai.azure.com/openai/v1 (a dated API version goes in query.api-version)",
    ),
    # Its newest models refuse a prefill. `max_tokens_field` is for `dialect = "chat"`.
    "anthropic": Preset(
        "https://api.anthropic.com/v1",
        "ANTHROPIC_API_KEY",
        _NEWEST | {"dialect": "anthropic", "prompt_cache": True, "developer_role": False},
    ),
    "gemini": Preset("https://generativelanguage.googleapis.com/v1beta/openai", "GEMINI_API_KEY", _PLAIN),
    "openrouter": Preset("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY", _PLAIN),
    # Ignores max_completion_tokens. Continuing a trailing message depends on the model; `outlive doctor` tests it.
    "ollama": Preset("http://localhost:11434/v1", None, _LOCAL),
    "vllm": Preset(
        "http://localhost:8000/v1",
        None,
        _LOCAL
        | {"max_tokens_field": "max_completion_tokens", "continuation": "continue_final_message", "tokenizer": "vllm"},
    ),
    # Continues a trailing assistant message unless it was started with --no-prefill-assistant.
    "llamacpp": Preset("http://localhost:8080/v1", None, _LOCAL | {"continuation": "prefill", "tokenizer": "llamacpp"}),
    # Refuses the `developer` role.
    "lmstudio": Preset("http://localhost:1234/v1", None, _LOCAL),
    "generic": Preset(None, None, _PLAIN, note="give its url, up to and including /v1"),
}


def recognise(url: str) -> str:
    """Return the name of the preset that has this address, else `generic`."""
    host = (urlsplit(url).hostname or "").lower()
    for name, preset in PRESETS.items():
        # A preset without a key is on the user's own machine, at an address that other servers may have too.
        if host.endswith(preset.hosts) or (preset.key_variable and host == urlsplit(preset.url or "").hostname):
            return name
    return "generic"
