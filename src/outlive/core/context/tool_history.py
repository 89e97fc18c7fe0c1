"""Calls that a server made itself, rendered as function calls: the only kind that every model's server knows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from outlive.core.events import Json

REFUSED = "This call was not made: the person who was asked did not approve it."

_BLOCKS = msgspec.json.Decoder(list[Json])
_KINDS = frozenset({"mcp_call", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response"})

# The names under which the model knows tools that have another name, by label and name.
Names = Mapping[tuple[str, str], str]


def as_function_calls(items: Sequence[Json], names: Names | None = None) -> Sequence[Json]:
    """Replace the items that only this server understands by function calls and their outputs."""
    if not any(item.get("type") in _KINDS for item in items):
        return items
    answers = {item["approval_request_id"]: item for item in items if item.get("type") == "mcp_approval_response"}
    made = {item.get("approval_request_id") for item in items if item.get("type") == "mcp_call"}
    return list(_convert(items, answers, made, names or {}))


def _convert(items: Sequence[Json], answers: Mapping[str, Json], made: set[object], names: Names) -> Iterator[Json]:
    for item in items:
        kind = item.get("type")
        if kind == "mcp_call":
            if (output := _read_outcome(item)) is not None:
                yield _as_function(item, names)
                yield _as_output(item, output)
        elif kind == "mcp_approval_request":
            # An approved one is followed by its call; one without an answer gets a placeholder from `assemble`.
            if item["id"] not in made:
                yield _as_function(item, names)
                if (answer := answers.get(item["id"])) is not None and answer.get("approve") is not True:
                    yield _as_output(item, _refuse(answer))
        elif kind not in _KINDS:
            yield item


def _as_function(item: Json, names: Names) -> Json:
    name = str(item.get("name"))
    return {
        "id": item["id"],
        "type": "function_call",
        "call_id": item["id"],
        "name": names.get((str(item.get("server_label")), name), name),
        "arguments": item.get("arguments") or "{}",
        "status": "completed",
    }


def _as_output(item: Json, output: str) -> Json:
    return {"type": "function_call_output", "call_id": item["id"], "output": output}


def _refuse(answer: Json) -> str:
    reason = answer.get("reason")
    return f"{REFUSED} Their reason: {reason}" if reason else REFUSED


def _read_outcome(item: Json) -> str | None:
    """Return the outcome of a call as text; None when it is unknown."""
    error = item.get("error")
    if error is not None:
        return f"The call failed. {_read_error(error)}"
    output = item.get("output")
    if output is None:
        return None
    return _strip_data(output if isinstance(output, str) else msgspec.json.encode(output).decode())


def _strip_data(output: str) -> str:
    """Replace images and sounds in an output by their size: as base64 text they would only fill the model's window."""
    if not output.startswith("[{") or ('"data":"' not in output and '"blob":"' not in output):
        return output
    try:
        blocks = _BLOCKS.decode(output)
    except msgspec.DecodeError:
        return output
    return msgspec.json.encode([_describe(block) for block in blocks]).decode()


def _describe(block: Json) -> Json:
    resource = block.get("resource") or {}
    data, kind = block.get("data") or resource.get("blob"), block.get("mimeType") or resource.get("mimeType")
    if not isinstance(data, str) or kind is None:
        return block
    return {"type": block.get("type"), "mimeType": kind, "bytes": len(data) * 3 // 4}


def _read_error(error: object) -> str:
    if not isinstance(error, dict):
        return str(error)
    content = error.get("content")
    if isinstance(content, list):
        texts = [part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)]
        if texts:
            return "\n".join(texts)
    if isinstance(error.get("message"), str):
        return str(error["message"])
    return content if isinstance(content, str) else msgspec.json.encode(error).decode()
