"""An upstream that speaks Anthropic's Messages API over HTTP."""

import asyncio
import re
from functools import partial
from typing import NoReturn

from outlive.core.errors import InvalidRequest, UpstreamFault
from outlive.core.events import Json
from outlive.core.recovery import OpenText
from outlive.core.requests.create import CreateResponse
from outlive.dialects.anthropic.request import check, open_seal, render
from outlive.dialects.anthropic.translator import AnthropicTranslator, to_events
from outlive.dialects.backend import FunctionsBackend
from outlive.dialects.transport.http1 import Connection
from outlive.ports.backend import ModelCall

# The oldest version there is, which the API promises to keep: other servers that speak this dialect know it too, and
# it still has `temperature` and `top_p`. The settings' own header wins.
VERSION = {"anthropic-version": "2023-06-01"}

# Fields that have a bearing on the number of tokens.
COUNTED = ("model", "messages", "system", "tools", "tool_choice", "thinking", "output_config")
# The API's refusal of a thought: from another conversation, altered, or out of its place.
_THOUGHT = re.compile(r"thinking.{0,20}\bblock|block.{0,20}thinking|signature", re.I)


class AnthropicBackend(FunctionsBackend):
    path = "messages"
    headers = VERSION
    list_query = {"limit": "1000"}  # the list would come in pages
    last = re.compile(rb'"type"\s*:\s*"message_stop"')
    enough = re.compile(rb'"stop_reason"\s*:\s*"')

    def check(self, request: CreateResponse) -> None:
        check(request, self.upstream)

    def translator(self, call: ModelCall) -> AnthropicTranslator:
        return AnthropicTranslator(call, self._ids, self.read_fault)

    def _to_chunks(self, body: bytes, resume: OpenText | None) -> list[bytes]:
        return to_events(body, self.read_fault)

    async def pass_through(self, body: Json, headers: dict[str, str] | None = None) -> NoReturn:
        raise InvalidRequest(
            f"The model '{body.get('model')}' cannot be used on /v1/chat/completions: its server ({self.name}) speaks "
            "Anthropic's Messages API. Use /v1/responses.",
            param="model",
            code="unsupported_model",
        )

    async def count(self, call: ModelCall) -> int | None:
        body = await asyncio.to_thread(render, call, self.upstream)
        return await self._ask_count("messages/count_tokens", body, COUNTED)

    async def _ask(self, call: ModelCall) -> Connection:
        """Send back the thoughts of earlier turns, with which the model reasons better. But the API takes one only
        where it was thought, with the same instructions and tools before it, and both may change with every request
        here. When it refuses them, ask once more without: an answer is worth more than the thoughts."""
        try:
            return await self._post(call, partial(render, call, self.upstream))
        except UpstreamFault as fault:
            had_thoughts = call.resume is None and any(map(open_seal, call.items))
            if not had_thoughts or fault.status != 400 or not _THOUGHT.search(fault.message):
                raise
        return await self._post(call, partial(render, call, self.upstream, with_thoughts=False))
