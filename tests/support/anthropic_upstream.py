"""An upstream that speaks Anthropic's Messages API: scripted like the other one, and as strict as the real one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from aiohttp import web

from tests.support.upstream import FakeUpstream, Script, Step, UpstreamCall

Json = dict[str, Any]

_FIELDS = {
    "model", "messages", "max_tokens", "stream", "system", "tools", "tool_choice", "thinking", "output_config",
    "temperature", "top_p", "top_k", "stop_sequences", "metadata", "service_tier", "cache_control",
}  # fmt: skip
_COUNTED = {"model", "messages", "system", "tools", "tool_choice", "thinking", "output_config", "cache_control"}
_ID = re.compile(r"[a-zA-Z0-9_-]+\Z")
_UNSUPPORTED = {"minimum", "maximum", "multipleOf", "minLength", "maxLength", "maxItems", "oneOf"}

# -- events, as the API documents them


def event(type_: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (type_.encode(), json.dumps({"type": type_, **fields}).encode())


PING = event("ping")


def start(model: str = "claude-test-1", **usage: int) -> bytes:
    message: Json = {
        "id": "msg_01", "type": "message", "role": "assistant", "content": [], "model": model,
        "stop_reason": None, "stop_sequence": None,
        "usage": {"input_tokens": 5, "output_tokens": 1, "service_tier": "standard", **usage},
    }  # fmt: skip
    return event("message_start", message=message)


def text(index: int, *pieces: str) -> list[Step]:
    return _block(index, {"type": "text", "text": ""}, *({"type": "text_delta", "text": piece} for piece in pieces))


def thought(index: int, *pieces: str, signature: str | None = "sig-1") -> list[Step]:
    deltas: list[Json] = [{"type": "thinking_delta", "thinking": piece} for piece in pieces or ("",)]
    if signature is not None:
        deltas.append({"type": "signature_delta", "signature": signature})
    return _block(index, {"type": "thinking", "thinking": "", "signature": ""}, *deltas)


def redacted(index: int, data: str) -> list[Step]:
    return _block(index, {"type": "redacted_thinking", "data": data})


def use(index: int, id_: str, name: str, *pieces: str) -> list[Step]:
    deltas = ({"type": "input_json_delta", "partial_json": piece} for piece in pieces)
    return _block(index, {"type": "tool_use", "id": id_, "name": name, "input": {}}, *deltas)


def end(reason: str = "end_turn", **usage: Any) -> list[Step]:
    details = usage.pop("stop_details", None)
    delta = {"stop_reason": reason, "stop_sequence": None, "stop_details": details}
    return [event("message_delta", delta=delta, usage={"output_tokens": 7, **usage}), event("message_stop")]


def say(*pieces: str) -> list[Step]:
    """A whole answer of text."""
    return [start(), PING, *text(0, *pieces), *end()]


def _block(index: int, block: Json, *deltas: Json) -> list[Step]:
    return [
        event("content_block_start", index=index, content_block=block),
        *(event("content_block_delta", index=index, delta=delta) for delta in deltas),
        event("content_block_stop", index=index),
    ]


def payload(step: Step) -> bytes:
    """The payload of an event, as a translator gets it."""
    assert isinstance(step, bytes)
    return step.partition(b"\ndata: ")[2].strip()


# -- the server


class AnthropicUpstream(FakeUpstream):
    """Answers 400 to a request that the real API refuses, whatever the script says."""

    def __init__(self) -> None:
        super().__init__()
        self.otherwise = say("Hello", " there")
        self.refusals: list[str] = []
        self.signatures = {"sig-1"}  # of thoughts that it accepts back

    async def _play(self, request: web.Request, asked: UpstreamCall, script: Script) -> web.StreamResponse:
        try:
            examine(asked, self.signatures)
        except ValueError as error:
            self.refusals.append(str(error))
            refusal = {"type": "error", "error": {"type": "invalid_request_error", "message": str(error)}}
            return web.json_response(refusal, status=400)
        if asked.path.endswith("/count_tokens"):
            return web.json_response({"input_tokens": 42})
        return await super()._play(request, asked, script)

    async def _list_models(self, request: web.Request) -> web.Response:
        data = [
            {
                "type": "model", "id": name, "display_name": name.title(), "created_at": "2026-02-19T00:00:00Z",
                "max_input_tokens": 200_000, "max_tokens": 64_000,
            }
            for name in self.models
        ]  # fmt: skip
        return web.json_response({"data": data, "has_more": False, "first_id": None, "last_id": None})


# -- refusals


def examine(asked: UpstreamCall, signatures: set[str]) -> None:
    body, counting = asked.body, asked.path.endswith("/count_tokens")
    _require(asked.headers.get("anthropic-version") is not None, "anthropic-version: header is required")
    _require(asked.path in ("/v1/messages", "/v1/messages/count_tokens"), f"{asked.path}: not found")
    for name in body:
        _require(name in (_COUNTED if counting else _FIELDS), f"{name}: Extra inputs are not permitted")
    for name in ("model", "messages") if counting else ("model", "messages", "max_tokens"):
        _require(name in body, f"{name}: Field required")
    _require(counting or body["max_tokens"] >= 1, "max_tokens: must be greater than or equal to 1")
    _require("system" not in body or bool(str(body["system"]).strip()), "system: text content blocks must be non-empty")
    _require(body.get("temperature", 0) <= 1, "temperature: range: 0..1")
    _examine_messages(body["messages"])
    _examine_tools(body)
    _examine_thinking(body, signatures)
    form = body.get("output_config", {}).get("format")
    if form is not None:
        _require(set(form) == {"type", "schema"}, "output_config.format: Extra inputs are not permitted")
        _examine_schema(form["schema"], "output_config.format.schema")


def _require(condition: object, sentence: str) -> None:
    if not condition:
        raise ValueError(sentence)


def _examine_messages(messages: list[Json]) -> None:
    _require(messages, "messages: at least one message is required")
    _require(messages[0]["role"] == "user", 'messages: first message must use the "user" role')
    seen: set[str] = set()
    waiting: list[str] = []
    for n, message in enumerate(messages):
        role, blocks = message["role"], _blocks(message["content"])
        _require(set(message) == {"role", "content"}, f"messages.{n}: Extra inputs are not permitted")
        _require(role in ("user", "assistant", "system"), f"messages.{n}.role: unexpected")
        _require(blocks, f"messages.{n}: all messages must have non-empty content")
        if role == "system":
            after = messages[n + 1]["role"] if n + 1 < len(messages) else "assistant"
            _require(
                messages[n - 1]["role"] == "user" and after == "assistant", f"messages.{n}: misplaced system message"
            )
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        leading = [block["tool_use_id"] for block in blocks[: len(results)] if block["type"] == "tool_result"]
        _require(
            sorted(leading) == sorted(waiting),
            f"messages.{n}: `tool_use` ids were found without `tool_result` blocks immediately after: {waiting}",
        )
        waiting = [block["id"] for block in blocks if block["type"] == "tool_use"]
        for block in blocks:
            _examine_block(block, role, f"messages.{n}.content")
        for id_ in waiting:
            _require(_ID.match(id_), f"messages.{n}: tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'")
            _require(id_ not in seen, f"messages.{n}: `tool_use` ids must be unique")
            seen.add(id_)
    _require(not waiting, f"messages: `tool_use` ids were found without `tool_result` blocks: {waiting}")
    last = messages[-1]
    if last["role"] == "assistant":
        final = _blocks(last["content"])[-1].get("text", "")
        _require(final == final.rstrip(), "messages: final assistant content cannot end with trailing whitespace")


def _blocks(content: str | list[Json]) -> list[Json]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _examine_block(block: Json, role: str, at: str) -> None:
    kind = block["type"]
    roles = {
        "text": ("user", "assistant", "system"), "image": ("user",), "document": ("user",), "tool_result": ("user",),
        "tool_use": ("assistant",), "thinking": ("assistant",), "redacted_thinking": ("assistant",),
    }  # fmt: skip
    _require(role in roles.get(kind, ()), f"{at}: {kind} blocks are not allowed in {role} messages")
    if kind == "text":
        _require(block["text"].strip(), f"{at}: text content blocks must contain non-whitespace text")
    elif kind == "image":
        _examine_source(block["source"], {"image/jpeg", "image/png", "image/gif", "image/webp"}, at)
    elif kind == "document":
        _examine_source(block["source"], {"application/pdf"}, at)
    elif kind == "tool_use":
        _require(isinstance(block["input"], dict), f"{at}: tool_use.input: Input should be a valid dictionary")
        _require(re.fullmatch(r"[a-zA-Z0-9_-]{1,128}", block["name"]), f"{at}: tool_use.name: bad pattern")
    elif kind == "tool_result":
        _require(set(block) <= {"type", "tool_use_id", "content", "is_error", "cache_control"}, f"{at}: Extra inputs")
        for inner in _blocks(block.get("content", [])):
            _examine_block(inner, "user", f"{at}.tool_result")


def _examine_source(source: Json, kinds: set[str], at: str) -> None:
    if source["type"] == "url":
        _require(set(source) == {"type", "url"} and re.match(r"https?://", source["url"]), f"{at}: bad URL source")
    elif source["type"] == "text":
        _require(source["media_type"] == "text/plain" and isinstance(source["data"], str), f"{at}: bad text source")
    else:
        _require(source["type"] == "base64" and source["media_type"] in kinds, f"{at}: bad base64 source")


def _examine_tools(body: Json) -> None:
    kinds = {block["type"] for message in body["messages"] for block in _blocks(message["content"])}
    tools, choice = body.get("tools"), body.get("tool_choice")
    if {"tool_use", "tool_result"} & kinds:
        _require(tools, "Requests which include `tool_use` or `tool_result` blocks must define tools")
    _require(choice is None or tools, "tool_choice may only be specified while providing tools")
    for n, tool in enumerate(tools or []):
        _require(set(tool) <= {"name", "description", "input_schema", "strict"}, f"tools.{n}: Extra inputs")
        _require(tool["input_schema"].get("type") == "object", f"tools.{n}.custom.input_schema.type: Field required")
        if tool.get("strict"):
            _examine_schema(tool["input_schema"], f"tools.{n}.input_schema")
    if choice is not None:
        allowed = {"type", "disable_parallel_tool_use"} | ({"name"} if choice["type"] == "tool" else set())
        _require(
            choice["type"] in ("auto", "any", "tool", "none") and set(choice) <= allowed, "tool_choice: unexpected"
        )
        _require(choice["type"] != "none" or len(choice) == 1, "tool_choice.none: Extra inputs are not permitted")


def _examine_thinking(body: Json, signatures: set[str]) -> None:
    thinking, model = body.get("thinking", {}), body["model"]
    kind = thinking.get("type")
    old, new = "4-5" in model, "claude" in model and "4-5" not in model
    _require(not (kind == "adaptive" and old), "adaptive thinking is not supported on this model")
    _require(not (kind == "enabled" and new), '"thinking.type.enabled" is not supported for this model.')
    _require(not (old and body.get("output_config", {}).get("effort")), "This model does not support effort")
    prefilled = body["messages"][-1]["role"] == "assistant"
    _require(not (prefilled and new), "This model does not support assistant message prefill.")
    _require(not (prefilled and kind in ("enabled", "adaptive")), "prefill is not supported with thinking")
    if kind == "enabled":
        budget = thinking["budget_tokens"]
        _require(1024 <= budget < body.get("max_tokens", 10**9), "thinking.enabled.budget_tokens: out of range")
        choice = body.get("tool_choice", {}).get("type", "auto")
        _require(choice in ("auto", "none"), "Thinking may not be enabled when tool_choice forces tool use.")
        _examine_last_turn(body["messages"])
    for block in _thoughts(body["messages"]):
        sign = block.get("signature", block.get("data"))
        _require(sign in signatures, f"messages: Invalid `signature` in `{block['type']}` block")


def _examine_last_turn(messages: list[Json]) -> None:
    """With a budget, a turn that is still going on must begin with a thought."""
    if not any(block["type"] == "tool_result" for block in _blocks(messages[-1]["content"])):
        return
    last = [message for message in messages if message["role"] == "assistant"][-1]
    first = _blocks(last["content"])[0]["type"]
    _require(
        first in ("thinking", "redacted_thinking"), f"Expected `thinking` or `redacted_thinking`, but found `{first}`"
    )


def _thoughts(messages: list[Json]) -> Iterator[Json]:
    for message in messages:
        for block in _blocks(message["content"]):
            if block["type"] in ("thinking", "redacted_thinking"):
                yield block


def _examine_schema(schema: object, at: str) -> None:
    if not isinstance(schema, dict):
        return
    bad = _UNSUPPORTED & set(schema)
    _require(not bad, f"{at}: For '{schema.get('type')}' type, properties {sorted(bad)} are not supported")
    if schema.get("type") == "object":
        _require(schema.get("additionalProperties") is False, f"{at}: 'additionalProperties' must be false")
    for name in ("properties", "$defs"):
        for key, value in schema.get(name, {}).items():
            _examine_schema(value, f"{at}.{name}.{key}")
    for value in [schema.get("items"), *schema.get("anyOf", [])]:
        _examine_schema(value, at)
