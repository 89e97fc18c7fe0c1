"""An upstream that speaks Chat Completions over HTTP."""

import asyncio
import re
from collections.abc import Awaitable

from outlive.core.recovery import OpenText
from outlive.core.requests.create import CreateResponse
from outlive.dialects.backend import FunctionsBackend
from outlive.dialects.chat.request import check, render
from outlive.dialects.chat.translator import ChatTranslator, to_chunk
from outlive.dialects.transport.endpoint import CHAT_PATH
from outlive.dialects.transport.http1 import Connection
from outlive.ports.backend import ModelCall

# Fields that vLLM's /tokenize reads.
_TOKENIZED = ("model", "messages", "tools", "chat_template_kwargs", "chat_template", "add_generation_prompt")


class ChatBackend(FunctionsBackend):
    path = CHAT_PATH
    enough = re.compile(rb'"finish_reason"\s*:\s*"')  # then only the usage can be missing

    def check(self, request: CreateResponse) -> None:
        check(request, self.upstream)

    def translator(self, call: ModelCall) -> ChatTranslator:
        return ChatTranslator(call, self._ids, self.read_fault)

    def _ask(self, call: ModelCall) -> Awaitable[Connection]:
        return self._post(call, lambda: render(call, self.upstream))

    def _to_chunks(self, body: bytes, resume: OpenText | None) -> list[bytes]:
        return [to_chunk(body, resume, self.read_fault)]

    async def count(self, call: ModelCall) -> int | None:
        if self.upstream.tokenizer == "none":
            return None
        body = await asyncio.to_thread(render, call, self.upstream)
        if self.upstream.tokenizer == "llamacpp":
            return await self._ask_count(f"{CHAT_PATH}/input_tokens", {**body, "stream": False}, body)
        return await self._ask_count("../tokenize", {**body, "add_generation_prompt": True}, _TOKENIZED, "count")
