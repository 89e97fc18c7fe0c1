"""An upstream that speaks Chat Completions over HTTP."""

import asyncio
import re
from collections.abc import AsyncGenerator

from outlive.core.requests.create import CreateResponse
from outlive.dialects.backend import FunctionsBackend
from outlive.dialects.chat.request import check, render
from outlive.dialects.chat.translator import ChatTranslator, to_chunk
from outlive.dialects.transport.endpoint import CHAT_PATH
from outlive.dialects.transport.stream import read_stream
from outlive.ports.backend import ModelCall, OnChunks

# After it only the usage can be missing, and an answer is whole without that.
_FINISH = re.compile(rb'"finish_reason"\s*:\s*"')
# Fields that vLLM's /tokenize reads.
_TOKENIZED = ("model", "messages", "tools", "chat_template_kwargs", "chat_template")


class ChatBackend(FunctionsBackend):
    path = CHAT_PATH

    def check(self, request: CreateResponse) -> None:
        check(request, self.upstream)

    def translator(self, call: ModelCall) -> ChatTranslator:
        return ChatTranslator(call, self._ids, self.read_fault)

    def stream(self, call: ModelCall, on_chunks: OnChunks | None = None) -> AsyncGenerator[list[bytes], None]:
        return read_stream(
            self,
            lambda: self._post(call, lambda: render(call, self.upstream)),
            on_chunks,
            whole=lambda body: [to_chunk(body, call.resume, self.read_fault)],
            enough=_FINISH,
        )

    async def count(self, call: ModelCall) -> int | None:
        if self.upstream.tokenizer == "none":
            return None
        body = await asyncio.to_thread(render, call, self.upstream)
        if self.upstream.tokenizer == "llamacpp":
            return await self._ask_count(f"{CHAT_PATH}/input_tokens", {**body, "stream": False})
        asked = {name: body[name] for name in _TOKENIZED if name in body} | {"add_generation_prompt": True}
        return await self._ask_count("../tokenize", asked, "count")
