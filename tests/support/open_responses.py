"""Open Responses as JSON schemas: a check of responses, of its closed list of 24 events, and of the answers of
WebSockets and compaction. Written from the specification's facts; objects may have more fields than it names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jsonschema import Draft202012Validator

Json = dict[str, Any]

STRING: Json = {"type": "string"}
INTEGER: Json = {"type": "integer"}
NUMBER: Json = {"type": "number"}
BOOLEAN: Json = {"type": "boolean"}
ANY: Json = {}


def null_or(schema: Json) -> Json:
    return {"anyOf": [schema, {"type": "null"}]}


def const(value: str) -> Json:
    return {"const": value}


def enum(*values: str) -> Json:
    return {"enum": list(values)}


def array(items: Json) -> Json:
    return {"type": "array", "items": items}


def one_of(*schemas: Json) -> Json:
    return {"anyOf": list(schemas)}


def shape(optional: Json | None = None, **required: Json) -> Json:
    """An object with these fields, all of which must be there but the optional ones."""
    properties = {**required, **(optional or {})}
    return {"type": "object", "properties": properties, "required": list(required)}


# -- content

_CITATION = shape(type=const("url_citation"), url=STRING, start_index=INTEGER, end_index=INTEGER, title=STRING)
_TOP = shape(token=STRING, logprob=NUMBER, bytes=array(INTEGER))
_LOGPROB = shape(token=STRING, logprob=NUMBER, bytes=array(INTEGER), top_logprobs=array(_TOP))
PART = one_of(
    shape(type=const("input_text"), text=STRING),
    shape({"logprobs": array(_LOGPROB)}, type=const("output_text"), text=STRING, annotations=array(_CITATION)),
    shape(type=const("text"), text=STRING),
    shape(type=const("summary_text"), text=STRING),
    shape(type=const("reasoning_text"), text=STRING),
    shape(type=const("refusal"), refusal=STRING),
    shape(type=const("input_image"), image_url=null_or(STRING), detail=enum("low", "high", "auto")),
    shape({"filename": STRING, "file_url": STRING}, type=const("input_file")),
)

# -- items

_STATUS = enum("in_progress", "completed", "incomplete")
_MESSAGE = shape(
    {"phase": enum("commentary", "final_answer")},
    type=const("message"),
    id=STRING,
    status=_STATUS,
    role=enum("user", "assistant", "system", "developer"),
    content=array(one_of(PART, shape(type=const("input_video"), video_url=STRING))),
)
_FUNCTION_CALL = shape(
    type=const("function_call"), id=STRING, call_id=STRING, name=STRING, arguments=STRING, status=_STATUS
)
_FUNCTION_OUTPUT = shape(
    type=const("function_call_output"), id=STRING, call_id=STRING, output=one_of(STRING, array(PART)), status=_STATUS
)
_REASONING = shape(
    {"content": array(PART), "encrypted_content": STRING}, type=const("reasoning"), id=STRING, summary=array(PART)
)
_COMPACTION = shape({"created_by": STRING}, type=const("compaction"), id=STRING, encrypted_content=STRING)
ITEM = one_of(_MESSAGE, _FUNCTION_CALL, _FUNCTION_OUTPUT, _REASONING, _COMPACTION)

# -- the response

_TOOL = shape(
    type=const("function"),
    name=STRING,
    description=null_or(STRING),
    parameters=null_or({"type": "object"}),
    strict=null_or(BOOLEAN),
)
_MODE = enum("none", "auto", "required")
_CHOICE = shape({"name": STRING}, type=const("function"))
_TEXT = shape(
    {"verbosity": enum("low", "medium", "high")},
    format=one_of(
        shape(type=const("text")),
        shape(type=const("json_object")),
        # It types the echoed schema as null, which no server's echo is.
        shape(type=const("json_schema"), name=STRING, description=null_or(STRING), schema=ANY, strict=BOOLEAN),
    ),
)
USAGE = shape(
    input_tokens=INTEGER,
    output_tokens=INTEGER,
    total_tokens=INTEGER,
    input_tokens_details=shape(cached_tokens=INTEGER),
    output_tokens_details=shape(reasoning_tokens=INTEGER),
)
RESPONSE = shape(
    id=STRING,
    object=const("response"),
    created_at=INTEGER,
    completed_at=null_or(INTEGER),
    status=STRING,
    incomplete_details=null_or(shape(reason=STRING)),
    model=STRING,
    previous_response_id=null_or(STRING),
    instructions=null_or(STRING),
    output=array(ITEM),
    error=null_or(shape(code=STRING, message=STRING)),
    tools=array(_TOOL),
    tool_choice=one_of(_MODE, _CHOICE, shape(type=const("allowed_tools"), tools=array(_CHOICE), mode=_MODE)),
    truncation=enum("auto", "disabled"),
    parallel_tool_calls=BOOLEAN,
    text=_TEXT,
    top_p=NUMBER,
    presence_penalty=NUMBER,
    frequency_penalty=NUMBER,
    top_logprobs=INTEGER,
    temperature=NUMBER,
    reasoning=null_or(
        shape(
            effort=null_or(enum("none", "minimal", "low", "medium", "high", "xhigh")),
            summary=null_or(enum("concise", "detailed", "auto")),
        )
    ),
    usage=null_or(USAGE),
    max_output_tokens=null_or(INTEGER),
    max_tool_calls=null_or(INTEGER),
    store=BOOLEAN,
    background=BOOLEAN,
    service_tier=STRING,
    metadata=ANY,
    safety_identifier=null_or(STRING),
    prompt_cache_key=null_or(STRING),
)
COMPACTED = shape(id=STRING, object=const("response.compaction"), output=array(ITEM), created_at=INTEGER, usage=USAGE)

# -- events

_IN_ITEM = {"item_id": STRING, "output_index": INTEGER}
_IN_PART = {**_IN_ITEM, "content_index": INTEGER}
_IN_SUMMARY = {**_IN_ITEM, "summary_index": INTEGER}
_PADDING = {"obfuscation": STRING}
_ERROR = shape(
    {"headers": {"type": "object"}}, type=STRING, code=null_or(STRING), message=STRING, param=null_or(STRING)
)

# Each event's own fields, besides `type` and `sequence_number`: those it must have, and those it may.
_FIELDS: dict[str, tuple[Json, Json]] = {
    **{
        f"response.{status}": ({"response": RESPONSE}, {})
        for status in ("created", "queued", "in_progress", "completed", "failed", "incomplete")
    },
    "response.output_item.added": ({"output_index": INTEGER, "item": null_or(ITEM)}, {}),
    "response.output_item.done": ({"output_index": INTEGER, "item": null_or(ITEM)}, {}),
    "response.content_part.added": ({**_IN_PART, "part": PART}, {}),
    "response.content_part.done": ({**_IN_PART, "part": PART}, {}),
    "response.output_text.delta": ({**_IN_PART, "delta": STRING}, {"logprobs": array(_LOGPROB), **_PADDING}),
    "response.output_text.done": ({**_IN_PART, "text": STRING}, {"logprobs": array(_LOGPROB)}),
    "response.output_text.annotation.added": (
        {**_IN_PART, "annotation_index": INTEGER, "annotation": null_or(_CITATION)},
        {},
    ),
    "response.refusal.delta": ({**_IN_PART, "delta": STRING}, {}),
    "response.refusal.done": ({**_IN_PART, "refusal": STRING}, {}),
    "response.function_call_arguments.delta": ({**_IN_ITEM, "delta": STRING}, _PADDING),
    "response.function_call_arguments.done": ({**_IN_ITEM, "arguments": STRING}, {}),
    "response.reasoning_summary_part.added": ({**_IN_SUMMARY, "part": PART}, {}),
    "response.reasoning_summary_part.done": ({**_IN_SUMMARY, "part": PART}, {}),
    "response.reasoning_summary_text.delta": ({**_IN_SUMMARY, "delta": STRING}, _PADDING),
    "response.reasoning_summary_text.done": ({**_IN_SUMMARY, "text": STRING}, {}),
    "response.reasoning.delta": ({**_IN_PART, "delta": STRING}, _PADDING),
    "response.reasoning.done": ({**_IN_PART, "text": STRING}, {}),
    "error": ({"error": _ERROR}, {}),
}
EVENTS = {
    name: shape(optional, type=const(name), sequence_number=INTEGER, **required)
    for name, (required, optional) in _FIELDS.items()
}
WEBSOCKET_ERROR = shape(
    type=const("error"),
    status=INTEGER,
    error=shape({"type": STRING, "param": null_or(STRING)}, code=STRING, message=STRING),
)

_validators = {name: Draft202012Validator(schema) for name, schema in EVENTS.items()}
_response = Draft202012Validator(RESPONSE)
_compacted = Draft202012Validator(COMPACTED)
_websocket_error = Draft202012Validator(WEBSOCKET_ERROR)

assert len(EVENTS) == 24


# -- the check


def check_response(response: Json) -> None:
    """A Response object, whole or on its way."""
    _judge(_response, response, "response")


def check_event(event: Json) -> None:
    """One event of the closed list."""
    validator = _validators.get(event.get("type", ""))
    assert validator is not None, f"{event.get('type')} is not an event of Open Responses"
    _judge(validator, event, event["type"])


def check_stream(events: Sequence[Json]) -> None:
    """All events of a stream; an `error` must be followed by `response.failed`."""
    for event, following in zip(events, [*events[1:], {}], strict=True):
        check_event(event)
        assert event["type"] != "error" or following.get("type") == "response.failed", "an error that nothing follows"


def check_compacted(resource: Json) -> None:
    """Check the answer of POST /v1/responses/compact."""
    _judge(_compacted, resource, "compaction")


def check_websocket_error(frame: Json) -> None:
    _judge(_websocket_error, frame, "error")


def _judge(validator: Draft202012Validator, value: Json, what: str) -> None:
    # Of a union, the branch that got furthest has the most useful error.
    complaints = [
        f"{what}.{'.'.join(map(str, error.absolute_path))}: {error.message[:300]}"
        for error in validator.iter_errors(value)
    ]
    assert not complaints, "\n".join(complaints)
