"""From an agent's chunks to drafts: text, reasoning, and the calls that the agent makes itself."""

from typing import Any

import msgspec

from outlive.core import toolcalls
from outlive.core.events import AnyDraft
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

    def feed(self, chunk: bytes) -> list[AnyDraft]:
        match _decode(chunk):
            case ("text" | "reasoning") as kind, [piece]:
                closed = self._close_text("completed") if self._complete else []
                return closed + self._grow(TEXTS[kind], piece)
            case "end_item", _:
                self._complete = self._item is not None
            case "begin_call", [item_id, name, arguments]:
                closed = self._close_text("completed")
                place = {"item_id": item_id, "output_index": self._count()}
                call = ToolCall(**place, label=self._name, name=name, arguments=arguments or "{}")
                self._calls[item_id] = call
                return [*closed, *toolcalls.announce(call), toolcalls.begin(call)]
            case "finish_call", [item_id, output, error]:
                return toolcalls.finish(self._calls.pop(item_id), ToolOutcome(output, error))
            case "usage", [usage]:
                self._usage = add_usage(self._usage, usage)
        return []

    def end(self) -> tuple[list[AnyDraft], Ending]:
        drafts = self._open_empty() + self._close_text("completed")
        return drafts, Ending("completed", usage=self._usage, model=self._name)

    def _close_text(self, status: ItemStatus) -> list[AnyDraft]:
        self._complete = False
        return super()._close_text(status)
