"""Registry of the dialects: makes the backend of an upstream."""

from outlive.core.ids import IdSource
from outlive.dialects.anthropic.backend import AnthropicBackend
from outlive.dialects.chat.backend import ChatBackend
from outlive.dialects.responses.backend import ResponsesBackend
from outlive.dialects.transport.http1 import HttpPool
from outlive.ports.backend import Backend, Upstream


def make_backend(upstream: Upstream, pool: HttpPool, ids: IdSource) -> Backend:
    if upstream.dialect == "anthropic":
        return AnthropicBackend(upstream, pool, ids)
    if upstream.dialect == "responses":
        return ResponsesBackend(upstream, pool, ids)
    return ChatBackend(upstream, pool, ids)
