"""Upstreams that are known by name: where they are reached, and the quirks of their servers."""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import urlsplit


class Preset(NamedTuple):
    """What is known of one kind of server before anybody says more."""

    title: str
    url: str | None  # None: every user has an address of his own
    key_variable: str | None  # where the key usually lies; None: the server needs none
    quirks: dict[str, Any]  # fields of Upstream
    hosts: tuple[str, ...] = ()  # addresses (".x" = any host below x) by which it is recognised
    note: str = ""  # what a person must do first


# The dialect nearly every server understands. `max_completion_tokens` is often ignored without a word, which lets an
# answer run on without end, and many chat templates drop `developer` messages.
_PLAIN: dict[str, Any] = {"max_tokens_field": "max_tokens", "developer_role": False}
_LOCAL = _PLAIN | {"reasoning_input": "plain"}
_NEWEST: dict[str, Any] = {"max_tokens_field": "max_completion_tokens", "developer_role": True}

PRESETS: dict[str, Preset] = {
    # Its hosted tools, and reasoning that goes on from turn to turn, are in the Responses API alone. Accounts may keep
    # Chat Completions by default, so those that are passed through get `store: false` too.
    "openai": Preset(
        "OpenAI",
        "https://api.openai.com/v1",
        "OPENAI_API_KEY",
        _NEWEST | {"dialect": "responses", "reasoning_input": "encrypted", "sends_store": True},
        ("api.openai.com",),
    ),
    # Azure keeps completions only when asked to, and older API versions refuse fields they do not know: no `store`.
    "azure": Preset(
        "Azure OpenAI",
        None,
        "AZURE_OPENAI_API_KEY",
        _NEWEST | {"key_header": "api-key", "reasoning_input": "encrypted"},
        (".openai.azure.com", ".services.ai.azure.com", ".cognitiveservices.azure.com"),
        "give its url, https://NAME.openai.azure.com/openai/v1 (a dated API version goes in query.api-version)",
    ),
    "anthropic": Preset(
        "Anthropic",
        "https://api.anthropic.com/v1",
        "ANTHROPIC_API_KEY",
        # Its newest models refuse a prefill. `max_tokens_field` is for whoever sets `dialect` to "chat".
        {
            "dialect": "anthropic",
            "prompt_cache": True,
            "max_tokens_field": "max_completion_tokens",
            "developer_role": False,
        },
        ("api.anthropic.com",),
    ),
    "gemini": Preset(
        "Google Gemini",
        "https://generativelanguage.googleapis.com/v1beta/openai",
        "GEMINI_API_KEY",
        _PLAIN,
        ("generativelanguage.googleapis.com",),
    ),
    "openrouter": Preset(
        "OpenRouter",
        "https://openrouter.ai/api/v1",
        "OPENROUTER_API_KEY",
        _PLAIN,
        ("openrouter.ai",),
    ),
    # Ignores max_completion_tokens. Whether it continues a trailing message depends on the model: the doctor says.
    "ollama": Preset("Ollama", "http://localhost:11434/v1", None, _LOCAL),
    "vllm": Preset(
        "vLLM",
        "http://localhost:8000/v1",
        None,
        {
            "max_tokens_field": "max_completion_tokens",
            "developer_role": False,
            "continuation": "continue_final_message",
            "tokenizer": "vllm",
            "reasoning_input": "plain",
        },
    ),
    # Continues a trailing assistant message unless it was started with --no-prefill-assistant.
    "llamacpp": Preset(
        "llama.cpp", "http://localhost:8080/v1", None, _LOCAL | {"continuation": "prefill", "tokenizer": "llamacpp"}
    ),
    # Refuses the `developer` role.
    "lmstudio": Preset("LM Studio", "http://localhost:1234/v1", None, _LOCAL),
    "generic": Preset(
        "OpenAI-compatible server",
        None,
        None,
        _PLAIN,
        note="give its url, up to and including /v1",
    ),
}


def recognise(url: str) -> str:
    """The preset that an address belongs to; `generic` when it could be anybody's."""
    host = (urlsplit(url).hostname or "").lower()
    for name, preset in PRESETS.items():
        if any(host == known or (known.startswith(".") and host.endswith(known)) for known in preset.hosts):
            return name
    return "generic"
