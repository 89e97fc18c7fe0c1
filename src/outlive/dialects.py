"""Which backend speaks the dialect of an upstream."""

from __future__ import annotations

from outlive.adapters.backends.anthropic import AnthropicBackend
from outlive.adapters.backends.http1 import Pool
from outlive.adapters.backends.openai_chat import ChatBackend
from outlive.adapters.backends.openai_responses import ResponsesBackend
from outlive.core.ids import IdSource
from outlive.ports.backend import Backend, Upstream


def make_backend(upstream: Upstream, pool: Pool, ids: IdSource) -> Backend:
    if upstream.dialect == "anthropic":
        return AnthropicBackend(upstream, pool, ids)
    if upstream.dialect == "responses":
        return ResponsesBackend(upstream, pool, ids)
    return ChatBackend(upstream, pool, ids)
