"""The public interface for agents that are served as models: the request, the context, and what may be yielded."""

from outlive.served_agents.channel import AgentError
from outlive.served_agents.function import AgentContext, AgentRequest, CallFailed, ReasoningText

__all__ = ["AgentContext", "AgentError", "AgentRequest", "CallFailed", "ReasoningText"]
