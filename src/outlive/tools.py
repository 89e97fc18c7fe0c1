"""The public interface for modules of tools: the decorator, the context of a call, and the error for the model."""

from outlive.tooling.functions import ToolContext, ToolError, tool

__all__ = ["ToolContext", "ToolError", "tool"]
