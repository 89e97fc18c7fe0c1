"""Parts of requests that dialects share: what the caller asked for, and content, calls and outputs of items."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from outlive.core.errors import InvalidRequest
from outlive.core.events import Json
from outlive.core.requests.create import CreateResponse
from outlive.dialects.client_tools import client_tool_of
from outlive.dialects.offer import Names, describe_found, name_of_call

# Items that are not sent: the outcome of hosted tools is in the assistant's own words anyway, of calls by this server
# `assemble` has made function calls, and the tools of `additional_tools` are sent with the others. (A search
# of the client's has a `call_id`, and is sent as a call.)
LEFT_OUT = frozenset(
    {
        "code_interpreter_call", "file_search_call", "image_generation_call", "web_search_call",
        "mcp_approval_request", "mcp_approval_response", "mcp_call", "mcp_list_tools", "reasoning", "additional_tools",
        "tool_search_call", "tool_search_output", "program", "program_output",
    }
)  # fmt: skip

# Fields that describe an item itself and are not for the model.
_ENVELOPE = frozenset({"id", "type", "status", "call_id", "caller", "created_by", "is_error"})


def wants_logprobs(request: CreateResponse) -> bool:
    return bool(request.top_logprobs) or "message.output_text.logprobs" in request.include


def wants_summary(request: CreateResponse) -> bool:
    """Return True if reasoning is to be a summary: most clients look for it nowhere else, and ask for one."""
    reasoning = request.reasoning or {}
    return bool(reasoning.get("summary") or reasoning.get("generate_summary"))


# Extras that clients of the Responses API send beside what it documents (Codex, about itself); strict servers of other
# APIs would refuse the whole request for them.
_RESPONSES_ONLY = frozenset({"client_metadata"})


def read_extra(request: CreateResponse) -> Json:
    """Return the fields that are unknown here, for the upstream."""
    return {name: value for name, value in request.extra.items() if name not in _RESPONSES_ONLY}


# -- content, calls and outputs of the context


def text_part(text: str) -> Json:
    return {"type": "text", "text": text}


# Readers of parts that are text, by type. No other server than OpenAI's knows refusals, so their text is sent.
TEXT_PARTS: dict[str, Callable[[Json], Json]] = {
    kind: lambda part: text_part(_read_text(part, "text"))
    for kind in ("input_text", "output_text", "text", "summary_text", "reasoning_text")
} | {"refusal": lambda part: text_part(_read_text(part, "refusal"))}


def _read_text(part: Json, name: str) -> str:
    if not isinstance(text := part.get(name), str):
        raise InvalidRequest(f"'{name}' must be a string.", param=name, code="invalid_type")
    return text


def read_parts(
    content: object, field: str, readers: Mapping[str, Callable[[Json], Json]], *, strict: bool = True
) -> Iterator[tuple[Json, Json]]:
    """Yield each part of `field`, with what its type's reader makes of it. Raises InvalidRequest naming a part that
    cannot be sent; unless `strict`, a text that names the part stands for it (D25)."""
    if isinstance(content, str):
        content = [text_part(content)]
    for n, part in enumerate(content if isinstance(content, list) else ()):
        try:
            kind = part.get("type") if isinstance(part, dict) else None
            if (read := readers.get(kind) if isinstance(kind, str) else None) is None:
                raise InvalidRequest(f"Content of type '{kind}' cannot be sent to this model's server.", param="type")
            yield part, read(part)
        except InvalidRequest as error:
            if strict:
                raise refuse_at(f"{field}[{n}]", error) from error
            yield {}, text_part(name_unsendable(part))


def read_role(message: Json) -> str:
    role = message.get("role")
    return str(role) if role in ("user", "assistant", "system", "developer") else "user"


def name_unsendable(part: object) -> str:
    """Return the text that stands for a part of an earlier message that this model's server cannot be sent."""
    fields = part if isinstance(part, dict) else {}
    names = (fields.get(name) for name in ("filename", "file_url", "file_id", "image_url", "video_url"))
    known = next((name for name in names if isinstance(name, str) and name and not name.startswith("data:")), None)
    return f"[{fields.get('type') or 'Content'}{f' {known}' if known else ''}: cannot be sent to this model]"


def check_items(items: list[Json], take: Callable[[Json], None]) -> None:
    """Take each item of an input. Raises InvalidRequest naming the first that is refused."""
    for n, item in enumerate(items):
        try:
            take(item)
        except InvalidRequest as error:
            raise refuse_at(f"input[{n}]", error) from error


def refuse_at(place: str, error: InvalidRequest) -> InvalidRequest:
    """Return the same refusal, with the path of its parameter from that place on."""
    param = f"{place}.{error.param}" if error.param else place
    return InvalidRequest(error.message, param=param, code=error.code)


def refuse_file_id(part: Json) -> None:
    if part.get("file_id") is not None:
        raise InvalidRequest(
            "'file_id' cannot be used here: this server keeps no files. Send the content itself, as data or as a URL.",
            param="file_id",
            code="unsupported_parameter",
        )


def read_image_url(part: Json) -> str:
    refuse_file_id(part)
    url = part.get("image_url")
    if not isinstance(url, str) or not url:
        raise InvalidRequest("An image must be sent as 'image_url'.", param="image_url")
    return url


def read_call(item: Json, names: Names) -> tuple[str, object]:
    """Return the name and the arguments of any item with a `call_id`, as a function's."""
    kind = str(item.get("type"))
    if kind == "function_call":
        return name_of_call(item, names), item.get("arguments")
    if kind == "custom_tool_call":
        return name_of_call(item, names), {"input": item.get("input")}
    if (tool := client_tool_of(kind)) is not None:
        return name_of_call(item, names), tool.read(item)
    return kind.removesuffix("_call"), _strip(item)


class CallIds(msgspec.Struct, eq=False):
    """The ids under which calls are sent, each once: some models count their calls from zero in every turn, and servers
    refuse an id that they have seen."""

    _sent: dict[str, str] = {}  # call_id -> the id of its last call
    _taken: dict[str, int] = {}  # id that was sent -> how often it was asked for

    def add(self, call_id: str, stem: str) -> str:
        """Return the id of a new call: the stem, if no other call has it."""
        sent = stem
        while sent in self._taken:
            self._taken[stem] += 1
            sent = f"{stem}_{self._taken[stem]}"
        self._taken[sent] = 1
        self._sent[call_id] = sent
        return sent

    def find(self, call_id: str) -> str:
        """Return the id of the call that an output answers."""
        return self._sent.get(call_id, call_id)


def read_output(item: Json, parts: Iterable[str], names: Names) -> str | list[Json]:
    """Return a call's output as text, or as a list of parts if all are of the types in `parts`."""
    output, types = item.get("output"), tuple(parts)  # a tuple: the type of an old part may have no hash
    if output is None and item.get("type") == "tool_search_output":
        output = describe_found(item, names)
    elif output is None and item.get("type") == "apply_patch_call_output":
        output = str(item.get("status"))
    elif output is None and "output" not in item:
        output = _strip(item)
    if isinstance(output, dict) and output.get("type") == "computer_screenshot":
        output = [output]
    if isinstance(output, list) and all(isinstance(part, dict) and part.get("type") in types for part in output):
        return output
    return output if isinstance(output, str) else msgspec.json.encode(output).decode()


def _strip(item: Json) -> Json:
    return {name: value for name, value in item.items() if name not in _ENVELOPE}
