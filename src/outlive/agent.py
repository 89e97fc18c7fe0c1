"""For those who serve an agent of their own: what an agent's function is given, and what it may yield."""

from __future__ import annotations

from outlive.adapters.agents.function import CallFailed, Context, Reasoning, Request
from outlive.adapters.agents.teller import AgentError

__all__ = ["AgentError", "CallFailed", "Context", "Reasoning", "Request"]
