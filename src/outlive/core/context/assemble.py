"""The context of a model call: history and new input as one list of items that no upstream refuses.

An abort may leave calls without outputs and outputs without calls; models' servers answer such a context with an error,
and would do so for ever. So (D6b): a call of ours that never became whole is left out (callers' own are made whole by
`finish_calls`), a whole call without an output gets a placeholder, an output without its call is left out, and every
output stands right behind the calls it answers. A call that has an output is whole, whatever its status says (D25).

The model is to go on from the newest output. So messages between a call and its output are moved before the turn of
that call; and a call whose output comes after later turns of the model is repeated there, right before its output.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

import msgspec

from outlive.core.events import Json

_MOST_ID = 59  # characters of the id that a repeated call keeps: servers take 64
PLACEHOLDER_OUTPUT = "No output: this call was not carried out."

# Tuples, not sets: a field of a stored item may hold anything, also what has no hash.
UNFINISHED = ("in_progress", "incomplete")
CALLERS = ("user", "system", "developer")
# Items that only this server understands: to a model they are function calls and outputs, under their own ids.
_KINDS = ("mcp_call", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response")
# Types that are no calls of a client's, with or without a `call_id`. Programs are run by the model's server.
_NO_CALLS = ("program", "program_output", "message", "reasoning", *_KINDS)

# A screenshot of one empty pixel: the output of a computer's call can be nothing else.
_NO_SCREENSHOT = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII="
)
# Placeholder outputs by the type of the call, in the form that each has on the wire.
_PLACEHOLDERS: dict[str, Json] = {
    "function_call": {"type": "function_call_output", "output": PLACEHOLDER_OUTPUT},
    "custom_tool_call": {"type": "custom_tool_call_output", "output": PLACEHOLDER_OUTPUT},
    "local_shell_call": {"type": "local_shell_call_output", "output": PLACEHOLDER_OUTPUT},
    "shell_call": {
        "type": "shell_call_output",
        "output": [{"stdout": "", "stderr": PLACEHOLDER_OUTPUT, "outcome": {"type": "exit", "exit_code": 1}}],
    },
    "apply_patch_call": {"type": "apply_patch_call_output", "status": "failed", "output": PLACEHOLDER_OUTPUT},
    "computer_call": {
        "type": "computer_call_output",
        "output": {"type": "computer_screenshot", "image_url": _NO_SCREENSHOT},
    },
    "tool_search_call": {"type": "tool_search_output", "execution": "client", "status": "completed", "tools": []},
}


def assemble(history: Sequence[Json], input: Sequence[Json], names: Names | None = None) -> list[Json]:
    """Return the whole context, oldest first, without repeats (D24) and with every call answered (D6b)."""
    whole = (*history, *input)
    if _are_messages(whole):  # as in most contexts
        return _drop_repeats(whole)
    items = _repeat_late_calls(_lift(_drop_repeats(as_function_calls(whole, names))))
    answers = _pair(items)
    context: list[Json] = []
    outputs: dict[str, Json] = {}  # of the calls just before, by call_id, in the calls' order
    due = 0  # the position of the first of them; 0: one was not given
    for position, item in enumerate(items):
        calls = is_call(item)
        if outputs and position < due and not calls and _is_models(item):
            context.append(item)
            continue
        # A group of calls ends with the first item that is none; two calls of one id need an output between them.
        if not calls or item["call_id"] in outputs:
            context += outputs.values()
            outputs.clear()
        if not calls:
            if not is_output(item):
                context.append(item)
            continue
        given = answers.get(position, 0)
        if (output := _output_of(item, items[given] if given else None)) is not None:
            due = min(due, given) if outputs else given
            context.append(_finish(item))
            outputs[item["call_id"]] = output
    context += outputs.values()
    return context


def find_stray_output(history: list[Json], input: list[Json]) -> int | None:
    """Return the position in `input` of an output that answers no call at all, not even an unfinished one. There is
    none where a compaction stands for earlier items: the call may have been among them."""
    if _are_messages(input):
        return None
    if any(item.get("type") == "compaction" for item in (*history, *input)):
        return None
    asked = {item["call_id"] for item in (*history, *input) if is_call(item)}
    return next((n for n, item in enumerate(input) if is_output(item) and call_of(item) not in asked), None)


def _drop_repeats(items: Sequence[Json]) -> list[Json]:
    """Keep the first of each item; a reference to an item that is here is a repeat, too."""
    ids = [item_id for item in items if isinstance(item_id := item.get("id"), str)] if len(items) > 1 else []
    if len({*ids}) == len(ids):
        return list(items)
    here = {str(item.get("id")) for item in items if item.get("type") != "item_reference"}
    seen: set[str] = set()
    kept: list[Json] = []
    for item in items:
        if isinstance(item_id := item.get("id"), str):
            if item_id in seen or (item.get("type") == "item_reference" and item_id in here):
                continue
            seen.add(item_id)
        kept.append(item)
    return kept


def _lift(items: list[Json]) -> list[Json]:
    """Move messages between the model's calls and their outputs before the turn in which it made them.

    Some clients send the question again with every output. Behind the output it would be asked again, and so for ever.
    """
    lifted: list[Json] = []
    held: list[Json] = []  # messages behind calls, while an output may still come
    asked: set[str] = set()  # the calls of the model's last turn, which begins at `place`
    place, is_turn = 0, False
    for item in items:
        if is_output(item):
            if held and call_of(item) in asked:
                lifted[place:place] = held
                place, held = place + len(held), []
            lifted.append(item)
            is_turn = False
        elif asked and item.get("role") in CALLERS:
            held.append(item)
            is_turn = False
        else:
            calls = is_call(item)
            if not is_turn:
                lifted += held
                held, asked, place = [], set(), len(lifted)
            if calls:
                asked.add(item["call_id"])
            lifted.append(item)
            is_turn = _is_models(item)
    return lifted + held


def _pair(items: list[Json]) -> dict[int, int]:
    """Map the position of each call with an output to the position of the output.

    An output answers the last call before it with its call_id: some models count their calls from zero every turn.
    """
    asked: dict[str, int] = {}
    answers: dict[int, int] = {}
    for position, item in enumerate(items):
        if is_call(item):
            asked[item["call_id"]] = position
        elif is_output(item) and (call := asked.pop(call_of(item) or "", None)) is not None:
            answers[call] = position
    return answers


def _repeat_late_calls(items: list[Json]) -> list[Json]:
    """Put a copy of a call before its output, if the model has had another turn since it made the call.

    Behind the old call, the output would be followed by the model's later words, and the model asked to go on from
    those. The old call gets a placeholder, as it had when the model answered in between.
    """
    turn, is_turn = 0, False  # the number of the model's turn, and True while it lasts
    turns: list[int] = []
    for item in items:
        was_turn, is_turn = is_turn, _is_models(item)
        turn += is_turn and not was_turn
        turns.append(turn)
    late = {output: call for call, output in _pair(items).items() if turns[output] > turns[call]}
    repeated: list[Json] = []
    outputs = 0  # position in `repeated` at which the outputs begin that stand last
    for position, item in enumerate(items):
        if not is_output(item):
            outputs = len(repeated) + 1
        elif position in late:
            call = items[late[position]]
            renamed = {} if call.get("id") is None else {"id": f"{call['id'][:_MOST_ID]}_late"}
            repeated.insert(outputs, {**call, **renamed})
            outputs += 1
        repeated.append(item)
    return repeated


def _output_of(call: Json, given: Json | None) -> Json | None:
    """Return the output to send with the call; None when the call is to be left out."""
    if given is not None:
        return given if "call_id" in given else {**given, "call_id": call["call_id"]}
    if call.get("status") in UNFINISHED:
        return None
    kind = str(call.get("type"))
    unknown = {"type": f"{kind}_output", "output": PLACEHOLDER_OUTPUT}
    return {**_PLACEHOLDERS.get(kind, unknown), "call_id": call["call_id"]}


def is_made_up(output: Json) -> bool:
    """Return True for the placeholder of a call whose type is unknown here."""
    call_type = str(output.get("type")).removesuffix("_output")
    return output.get("output") == PLACEHOLDER_OUTPUT and call_type not in _PLACEHOLDERS


def is_pair(call: Json, output: Json) -> bool:
    """Return True if the output is of the type that answers calls of this type."""
    kind = "tool_search_call_output" if output.get("type") == "tool_search_output" else output.get("type")
    return f"{call.get('type')}_output" == kind


def _finish(item: Json) -> Json:
    if item.get("status") in UNFINISHED and (is_call(item) or item.get("type") == "mcp_call"):
        return {**item, "status": "completed"}
    return item


def finish_calls(items: Sequence[Json]) -> list[Json]:
    """Return the caller's own items with every call as completed: only calls of ours can be unfinished (D6b)."""
    return list(items) if _are_messages(items) else list(map(_finish, items))


def _are_messages(items: Sequence[Json]) -> bool:
    for item in items:  # noqa: SIM110 - a generator takes longer than the rest of a short context
        if item.get("type") != "message":
            return False
    return True


def is_call(item: Json) -> bool:
    return isinstance(item.get("call_id"), str) and item.get("type") not in _NO_CALLS and not is_output(item)


def call_of(output: Json) -> str | None:
    """Return the `call_id` of the call that an output answers. That of a local shell may have it as its own id."""
    call_id = output.get("call_id")
    if call_id is None and output.get("type") == "local_shell_call_output":
        call_id = output.get("id")
    return call_id if isinstance(call_id, str) else None


def _is_models(item: Json) -> bool:
    """Return True for everything that a model made in its turn: reasoning, text and calls."""
    return item.get("role") not in CALLERS and not is_output(item)


def is_output(item: Json) -> bool:
    """Return True for the output of a call. A program, and a search for tools without a `call_id`, are run by the
    model's server; the output that it made goes back to it like any other item."""
    kind = str(item.get("type"))
    if not kind.endswith("_output") or kind == "program_output":
        return False
    return kind != "tool_search_output" or item.get("call_id") is not None


# -- calls that a server made itself, as function calls: the only kind that every model's server knows

REFUSED = "This call was not made: the person who was asked did not approve it."

_BLOCKS = msgspec.json.Decoder(list[Json])

# The names under which the model knows tools that have another name, by label and name.
Names = Mapping[tuple[str, str], str]


def as_function_calls(items: Sequence[Json], names: Names | None = None) -> Sequence[Json]:
    """Replace the items that only this server understands by function calls and their outputs."""
    if not any(item.get("type") in _KINDS for item in items):
        return items
    made = {approval_of(item) for item in items if item.get("type") == "mcp_call"}
    waiting: dict[str | None, Json] = {}  # requests for an approval, by their id
    converted: list[Json] = []
    for item in items:
        kind = item.get("type")
        if kind == "mcp_call":
            converted.append(_as_function(item, names or {}))
            if (output := _read_outcome(item)) is not None:
                converted.append(_as_output(item, output))
        elif kind == "mcp_approval_request":
            # An approved one is followed by its call; one without an answer gets a placeholder from `assemble`.
            if item["id"] not in made:
                waiting[item["id"]] = item
                converted.append(_as_function(item, names or {}))
        elif kind == "mcp_approval_response":
            if item.get("approve") is not True and (asked := waiting.pop(approval_of(item), None)) is not None:
                reason = item.get("reason")
                converted.append(_as_output(asked, f"{REFUSED} Their reason: {reason}" if reason else REFUSED))
        elif kind not in _KINDS:
            converted.append(item)
    return converted


def approval_of(item: Json) -> str | None:
    """Return the id of the approval request that an item belongs to; None for one that names none."""
    request_id = item.get("approval_request_id")
    return request_id if isinstance(request_id, str) else None


def _as_function(item: Json, names: Names) -> Json:
    name, arguments = str(item.get("name")), item.get("arguments")
    return {
        "id": item["id"],
        "type": "function_call",
        "call_id": item["id"],
        "name": names.get((str(item.get("server_label")), name), name),
        "arguments": arguments if isinstance(arguments, str) and arguments else "{}",
        "status": "incomplete" if item.get("status") in UNFINISHED else "completed",
    }


def _as_output(item: Json, output: str) -> Json:
    return {"type": "function_call_output", "call_id": item["id"], "output": output}


def _read_outcome(item: Json) -> str | None:
    """Return the outcome of a call as text; None when it is unknown. Images and sounds in an output are replaced by
    their size: as base64 text they would only fill the model's window."""
    if (error := item.get("error")) is not None:
        return f"The call failed. {_read_error(error)}"
    if (output := item.get("output")) is None:
        return None
    text = output if isinstance(output, str) else msgspec.json.encode(output).decode()
    if text.startswith("[{") and ('"data":"' in text or '"blob":"' in text):
        with contextlib.suppress(msgspec.DecodeError):
            return msgspec.json.encode([_describe(block) for block in _BLOCKS.decode(text)]).decode()
    return text


def _describe(block: Json) -> Json:
    resource = block.get("resource")
    resource = resource if isinstance(resource, dict) else {}
    data, kind = block.get("data") or resource.get("blob"), block.get("mimeType") or resource.get("mimeType")
    if not isinstance(data, str) or kind is None:
        return block
    return {"type": block.get("type"), "mimeType": kind, "bytes": len(data) * 3 // 4}


def _read_error(error: object) -> str:
    if not isinstance(error, dict):
        return str(error)
    content, message = error.get("content"), error.get("message")
    parts = content if isinstance(content, list) else []
    if texts := [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]:
        return "\n".join(texts)
    found = message if isinstance(message, str) else content
    return found if isinstance(found, str) else msgspec.json.encode(error).decode()
