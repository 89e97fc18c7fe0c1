"""Streams of a server that speaks the Responses API: whole answers in the documented shapes, item by item."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

Json = dict[str, Any]
# The events of an item at an output index, and the item as the finished response has it.
ItemEvents = tuple[list[Json], Json]
Item = Callable[[int], ItemEvents]

RUN = "resp_upstream1"
USAGE = {
    "input_tokens": 9, "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
    "output_tokens": 7, "output_tokens_details": {"reasoning_tokens": 3}, "total_tokens": 16,
}  # fmt: skip


def response(status: str, output: list[Json], **fields: Any) -> Json:
    """A Response object with fields unlike ours, so that a test sees it if they pass."""
    return {
        "id": RUN, "object": "response", "created_at": 5, "status": status, "background": False, "error": None,
        "incomplete_details": None, "instructions": "theirs", "metadata": {"theirs": "yes"}, "model": "upstream-model",
        "output": output, "parallel_tool_calls": True, "service_tier": "default", "store": False, "temperature": 1.0,
        "tool_choice": "auto", "tools": [], "top_p": 1.0, "usage": None, **fields,
    }  # fmt: skip


def answer(*items: Item, status: str = "completed", **fields: Any) -> list[Json]:
    """A whole stream, numbered."""
    events: list[Json] = [
        {"type": "response.created", "response": response("in_progress", [])},
        {"type": "response.in_progress", "response": response("in_progress", [])},
    ]
    output: list[Json] = []
    for index, item in enumerate(items):
        item_events, whole = item(index)
        events += item_events
        output.append(whole)
    final = response(status, output, **{"usage": USAGE, **fields})
    return number([*events, {"type": f"response.{status}", "response": final}])


def number(events: Iterable[Json]) -> list[Json]:
    return [{**event, "sequence_number": n} for n, event in enumerate(events)]


def chunks(events: Iterable[Json]) -> list[bytes]:
    return [json.dumps(event).encode() for event in events]


def frames(events: Iterable[Json]) -> list[bytes]:
    return [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events]


# -- items


def wrapped(index: int, begun: Json, inner: list[Json], whole: Json) -> ItemEvents:
    added = {"type": "response.output_item.added", "output_index": index, "item": begun}
    done = {"type": "response.output_item.done", "output_index": index, "item": whole}
    return [added, *inner, done], whole


def message(*pieces: str, id: str = "msg_up1", annotations: list[Json] | None = None, **fields: Any) -> Item:
    def make(index: int) -> ItemEvents:
        text = "".join(pieces)
        at: Json = {"item_id": id, "output_index": index, "content_index": 0}
        part: Json = {"type": "output_text", "annotations": [], "logprobs": [], "text": ""}
        whole_part = {**part, "text": text, "annotations": annotations or []}
        head: Json = {"id": id, "type": "message", "role": "assistant", **fields}
        inner: list[Json] = [{"type": "response.content_part.added", **at, "part": part}]
        for piece in pieces:
            delta = {"type": "response.output_text.delta", **at, "delta": piece, "logprobs": [], "obfuscation": "x8Jq"}
            inner.append(delta)
        for n, annotation in enumerate(annotations or ()):
            event = {"type": "response.output_text.annotation.added", **at, "annotation_index": n}
            inner.append({**event, "annotation": annotation})
        inner += [
            {"type": "response.output_text.done", **at, "text": text, "logprobs": []},
            {"type": "response.content_part.done", **at, "part": whole_part},
        ]
        begun = {**head, "status": "in_progress", "content": []}
        return wrapped(index, begun, inner, {**head, "status": "completed", "content": [whole_part]})

    return make


def reasoning(*summaries: str, id: str = "rs_up1", encrypted: str | None = "sealed-up") -> Item:
    """Reasoning as OpenAI has it: summaries, and the rest encrypted."""

    def make(index: int) -> ItemEvents:
        inner: list[Json] = []
        parts = [{"type": "summary_text", "text": text} for text in summaries]
        for n, part in enumerate(parts):
            at: Json = {"item_id": id, "output_index": index, "summary_index": n}
            empty = {"type": "summary_text", "text": ""}
            inner += [
                {"type": "response.reasoning_summary_part.added", **at, "part": empty},
                {"type": "response.reasoning_summary_text.delta", **at, "delta": part["text"]},
                {"type": "response.reasoning_summary_text.done", **at, "text": part["text"]},
                {"type": "response.reasoning_summary_part.done", **at, "part": part},
            ]
        head: Json = {"id": id, "type": "reasoning"}
        begun = {**head, "encrypted_content": "half-sealed", "summary": []}
        return wrapped(index, begun, inner, {**head, "encrypted_content": encrypted, "summary": parts})

    return make


def plain_reasoning(*pieces: str, id: str = "rs_up1") -> Item:
    """Reasoning as vLLM has it: in plain text, with events of its own making around it."""

    def make(index: int) -> ItemEvents:
        text = "".join(pieces)
        at: Json = {"item_id": id, "output_index": index, "content_index": 0}
        head: Json = {"id": id, "type": "reasoning", "summary": []}
        part = {"type": "reasoning_text", "text": text}
        inner: list[Json] = [{"type": "response.reasoning_part.added", **at, "part": {**part, "text": ""}}]
        inner += [{"type": "response.reasoning_text.delta", **at, "delta": piece} for piece in pieces]
        inner += [
            {"type": "response.reasoning_text.done", **at, "text": text},
            {"type": "response.reasoning_part.done", **at, "part": part},
        ]
        begun = {**head, "status": "in_progress"}
        return wrapped(index, begun, inner, {**head, "content": [part], "status": "completed"})

    return make


def call(*pieces: str, name: str = "weather", id: str = "fc_up1", call_id: str = "call_up1", **fields: Any) -> Item:
    def make(index: int) -> ItemEvents:
        at: Json = {"item_id": id, "output_index": index}
        head: Json = {"id": id, "type": "function_call", "call_id": call_id, "name": name, **fields}
        inner = [{"type": "response.function_call_arguments.delta", **at, "delta": piece} for piece in pieces]
        inner.append({"type": "response.function_call_arguments.done", **at, "arguments": "".join(pieces)})
        begun = {**head, "status": "in_progress", "arguments": ""}
        return wrapped(index, begun, inner, {**head, "status": "completed", "arguments": "".join(pieces)})

    return make


def custom_call(*pieces: str, name: str = "shell", id: str = "ctc_up1", call_id: str = "call_up2") -> Item:
    def make(index: int) -> ItemEvents:
        at: Json = {"item_id": id, "output_index": index}
        head: Json = {"id": id, "type": "custom_tool_call", "call_id": call_id, "name": name}
        inner = [{"type": "response.custom_tool_call_input.delta", **at, "delta": piece} for piece in pieces]
        inner.append({"type": "response.custom_tool_call_input.done", **at, "input": "".join(pieces)})
        begun = {**head, "status": "in_progress", "input": ""}
        return wrapped(index, begun, inner, {**head, "status": "completed", "input": "".join(pieces)})

    return make


def hosted(begun: Json, whole: Json, *events: str | Json) -> Item:
    """An item of a tool that the server runs itself; events by name, or with fields of their own."""

    def make(index: int) -> ItemEvents:
        at: Json = {"item_id": whole["id"], "output_index": index}
        inner = [{"type": event, **at} if isinstance(event, str) else {**at, **event} for event in events]
        return wrapped(index, begun, inner, whole)

    return make


WEB_SEARCH = hosted(
    {"id": "ws_up1", "type": "web_search_call", "status": "in_progress", "action": {"type": "search", "query": "w"}},
    {
        "id": "ws_up1", "type": "web_search_call", "status": "completed",
        "action": {"type": "search", "query": "weather", "sources": [{"type": "url", "url": "https://example.org"}]},
    },
    "response.web_search_call.in_progress", "response.web_search_call.searching", "response.web_search_call.completed",
)  # fmt: skip

FILE_SEARCH = hosted(
    {"id": "fs_up1", "type": "file_search_call", "status": "in_progress", "queries": [], "results": None},
    {"id": "fs_up1", "type": "file_search_call", "status": "completed", "queries": ["weather"], "results": None},
    "response.file_search_call.in_progress", "response.file_search_call.searching",
    "response.file_search_call.completed",
)  # fmt: skip

_CODE = {"id": "ci_up1", "type": "code_interpreter_call", "container_id": "cntr_1", "outputs": None}
CODE_INTERPRETER = hosted(
    {**_CODE, "status": "in_progress", "code": ""},
    {**_CODE, "status": "completed", "code": "1 + 1", "outputs": [{"type": "logs", "logs": "2"}]},
    "response.code_interpreter_call.in_progress",
    {"type": "response.code_interpreter_call_code.delta", "delta": "1 + 1"},
    {"type": "response.code_interpreter_call_code.done", "code": "1 + 1"},
    "response.code_interpreter_call.interpreting", "response.code_interpreter_call.completed",
)  # fmt: skip

IMAGE_GENERATION = hosted(
    {"id": "ig_up1", "type": "image_generation_call", "status": "in_progress", "result": None},
    {"id": "ig_up1", "type": "image_generation_call", "status": "completed", "result": "aW1hZ2U="},
    "response.image_generation_call.in_progress", "response.image_generation_call.generating",
    {
        "type": "response.image_generation_call.partial_image", "partial_image_index": 0, "partial_image_b64": "aW0=",
        "size": "1024x1024", "quality": "low", "background": "opaque", "output_format": "png",
    },
    "response.image_generation_call.completed",
)  # fmt: skip

COMPUTER = hosted(
    {
        "id": "cu_up1", "type": "computer_call", "call_id": "call_up3", "status": "in_progress",
        "action": {"type": "screenshot"}, "pending_safety_checks": [],
    },
    {
        "id": "cu_up1", "type": "computer_call", "call_id": "call_up3", "status": "completed",
        "action": {"type": "screenshot"}, "pending_safety_checks": [],
    },
)  # fmt: skip

MCP_APPROVAL = hosted(
    {"id": "mcpr_up1", "type": "mcp_approval_request", "server_label": "s", "name": "f", "arguments": "{}"},
    {"id": "mcpr_up1", "type": "mcp_approval_request", "server_label": "s", "name": "f", "arguments": "{}"},
)

MCP_LIST = hosted(
    {"id": "mcpl_up1", "type": "mcp_list_tools", "server_label": "s", "tools": []},
    {
        "id": "mcpl_up1", "type": "mcp_list_tools", "server_label": "s",
        "tools": [{"name": "f", "input_schema": {"type": "object"}, "description": "d", "annotations": None}],
    },
    "response.mcp_list_tools.in_progress", "response.mcp_list_tools.completed",
)  # fmt: skip

_MCP = {"id": "mcp_up1", "type": "mcp_call", "server_label": "s", "name": "f", "approval_request_id": None}
MCP_CALL = hosted(
    {**_MCP, "status": "in_progress", "arguments": "", "output": None, "error": None},
    {**_MCP, "status": "completed", "arguments": "{}", "output": "done", "error": None},
    "response.mcp_call.in_progress",
    {"type": "response.mcp_call_arguments.delta", "delta": "{}"},
    {"type": "response.mcp_call_arguments.done", "arguments": "{}"},
    "response.mcp_call.completed",
)  # fmt: skip

# An unknown type of item, and of event.
FUTURE = hosted(
    {"id": "zz_up1", "type": "acme:dream_call", "status": "in_progress", "depth": 0},
    {"id": "zz_up1", "type": "acme:dream_call", "status": "completed", "depth": 3, "seen": {"sheep": ["a", "b"]}},
    {"type": "acme:dream_call.deeper", "depth": 1, "of": {"what": "sleep"}},
)

HOSTED = {
    "web_search": WEB_SEARCH, "file_search": FILE_SEARCH, "code_interpreter": CODE_INTERPRETER,
    "image_generation": IMAGE_GENERATION, "computer": COMPUTER, "mcp approval": MCP_APPROVAL, "mcp list": MCP_LIST,
    "mcp call": MCP_CALL,
}  # fmt: skip
