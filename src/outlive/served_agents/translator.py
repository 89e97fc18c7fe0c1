"""From an agent's chunks to drafts: text, reasoning, and the calls that the agent makes itself."""

from typing import Any

import msgspec

from outlive.core import toolcalls
from outlive.core.events import AnyDraft, Json
from outlive.core.grammar import OUTPUT_TEXT, REASONING_TEXT
from outlive.core.ids import IdSource
from outlive.core.toolcalls import ToolCall, ToolOutcome
from outlive.core.usage import add_usage
from outlive.dialects.translator import AnswerTranslator, ItemStatus
from outlive.ports.backend import Ending, ModelCall

TEXTS = {"text": OUTPUT_TEXT, "reasoning": REASONING_TEXT}

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(tuple[str, list[Any]]).decode


def encode(kind: str, *values: object) -> bytes:
    """Make a chunk, which `AgentTranslator.feed` reads by its kind."""
    return _encode((kind, values))


class AgentTranslator(AnswerTranslator):
    """Translates one attempt of an agent. One text grows at a time; calls may run in parallel."""

    def __init__(self, call: ModelCall, ids: IdSource, name: str) -> None:
        super().__init__(call, ids)
        self._name = name
        # True: the open text is complete, but closed only when something follows. So the last one's end is in the same
        # commit as the end of the answer, and in a journal with nothing open there is more to come.
        self._complete = False
        self._calls: dict[str, ToolCall] = {}
        self._usage: Json | None = None

    def feed(self, chunk: bytes) -> list[AnyDraft]:
        kind, values = _decode(chunk)
        if kind in TEXTS:
            closed = self._close_text("completed") if self._complete else []
            return closed + self._grow(TEXTS[kind], *values)
        drafts: list[AnyDraft] = getattr(self, f"_feed_{kind}")(*values)
        return drafts

    def end(self) -> tuple[list[AnyDraft], Ending]:
        drafts = self._open_empty() + self._close_text("completed")
        return drafts, Ending("completed", usage=self._usage, model=self._name)

    def usage(self) -> Json | None:
        return self._usage

    def _feed_end_item(self) -> list[AnyDraft]:
        self._complete = self._item is not None
        return []

    def _feed_begin_call(self, item_id: str, name: str, arguments: str) -> list[AnyDraft]:
        drafts = self._close_text("completed")
        call = ToolCall(
            item_id=item_id, output_index=self._count(), label=self._name, name=name, arguments=arguments or "{}"
        )
        self._calls[item_id] = call
        return [*drafts, *toolcalls.announce(call), toolcalls.begin(call)]

    def _feed_finish_call(self, item_id: str, output: str | None, error: Json | None) -> list[AnyDraft]:
        return toolcalls.finish(self._calls.pop(item_id), ToolOutcome(output, error))

    def _feed_usage(self, usage: Json) -> list[AnyDraft]:
        self._usage = add_usage(self._usage, usage)
        return []

    def _close_text(self, status: ItemStatus) -> list[AnyDraft]:
        self._complete = False
        return super()._close_text(status)
