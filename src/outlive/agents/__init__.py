"""Durable agents for the openai-agents SDK: background models, strict models, and runs that survive their process.

No fork and no patch: models, a provider for RunConfig, and DurableRun. They work against Outlive and, within its
limits, against OpenAI. Install them with `pip install 'outlive[agents]'`; docs/agents.md describes them.
"""

try:
    import agents as _agents  # noqa: F401
except ImportError as missing:
    raise ImportError("outlive.agents needs the openai-agents SDK: pip install 'outlive[agents]'") from missing

from outlive.agents.models import (
    DurableProvider,
    DurableResponsesModel,
    StrictChatCompletionsModel,
    StrictModel,
    StrictProvider,
    check_stateless,
)
from outlive.agents.runs import DurableRun
from outlive.agents.settings import AUTO_MODELS, Durability
from outlive.client.errors import ConnectionLost, PollTimeout, ResponseCancelled, ResponseFailed, ResponseIncomplete
from outlive.client.plans import RetryPolicy

__all__ = [
    "AUTO_MODELS", "ConnectionLost", "Durability", "DurableProvider", "DurableResponsesModel", "DurableRun",
    "PollTimeout", "ResponseCancelled", "ResponseFailed", "ResponseIncomplete", "RetryPolicy",
    "StrictChatCompletionsModel", "StrictModel", "StrictProvider", "check_stateless",
]  # fmt: skip
