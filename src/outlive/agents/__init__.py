"""Durable agents for the openai-agents SDK: background models, fail-fast checks, and runs that survive their process.

No fork and no patch: models, a provider for RunConfig, and DurableRun. They work against Outlive and, within its
limits, against OpenAI. Install them with `pip install 'outlive[agents]'`; docs/agents.md tells the whole story.
"""

from __future__ import annotations

try:
    import agents as _agents  # noqa: F401
except ImportError as missing:
    raise ImportError("outlive.agents needs the openai-agents SDK: pip install 'outlive[agents]'") from missing

from outlive.agents.errors import ResponseCancelled, ResponseFailed, ResponseIncomplete
from outlive.agents.provider import DurableProvider
from outlive.agents.responses import DurableResponsesModel
from outlive.agents.runs import DurableRun
from outlive.agents.settings import AUTO_MODELS, Durability
from outlive.agents.strict import StrictChatCompletionsModel, StrictModel, StrictProvider, check_stateless
from outlive.client import ConnectionLost, Patience, PollTimeout

__all__ = [
    "AUTO_MODELS",
    "ConnectionLost",
    "Durability",
    "DurableProvider",
    "DurableResponsesModel",
    "DurableRun",
    "Patience",
    "PollTimeout",
    "ResponseCancelled",
    "ResponseFailed",
    "ResponseIncomplete",
    "StrictChatCompletionsModel",
    "StrictModel",
    "StrictProvider",
    "check_stateless",
]
