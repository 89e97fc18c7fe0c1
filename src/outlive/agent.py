"""For those who serve an agent of their own: what an agent's function is given, and what it may yield."""

from __future__ import annotations

from outlive.served_agents.channel import AgentError
from outlive.served_agents.function import CallFailed, Context, Reasoning, Request

__all__ = ["AgentError", "CallFailed", "Context", "Reasoning", "Request"]
