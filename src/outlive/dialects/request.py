"""Parts of requests that dialects share: what the caller asked for, and content, calls and outputs of items."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import ClassVar

import msgspec

from outlive.core.context.assemble import call_of, is_call, is_output
from outlive.core.errors import InvalidRequest
from outlive.core.events import Json
from outlive.core.requests.create import CreateResponse
from outlive.dialects.client_tools import BY_ITEM
from outlive.dialects.offer import Names, describe_found, make_safe, name_of_call
from outlive.dialects.translator import is_json
from outlive.ports.backend import ModelCall

# Items that are not sent: the outcome of hosted tools is in the assistant's own words anyway, of calls by this server
# `assemble` has made function calls, and the tools of `additional_tools` are sent with the others. (A search
# of the client's has a `call_id`, and is sent as a call.)
_LEFT_OUT = frozenset({
    "code_interpreter_call", "file_search_call", "image_generation_call", "web_search_call", "mcp_approval_request",
    "mcp_approval_response", "mcp_call", "mcp_list_tools", "reasoning", "additional_tools", "tool_search_call",
    "tool_search_output", "program", "program_output",
})  # fmt: skip

# Fields that describe an item itself and are not for the model.
_ENVELOPE = frozenset({"id", "type", "status", "call_id", "caller", "created_by", "is_error"})
_make_getter = lru_cache(attrgetter)  # one for each list of names


def keep(fields: Json, *left_out: str) -> Json:
    """Return the fields that are not null, but those that are to be left out."""
    return {name: value for name, value in fields.items() if value is not None and name not in left_out}


def read_given(request: CreateResponse, names: Sequence[str]) -> Json:
    """Return the parameters of these names that the caller has given."""
    values = _make_getter(*names)(request)
    if values.count(None) == len(names):
        return {}  # as in most requests
    return {name: value for name, value in zip(names, values, strict=True) if value is not None}


def read_limit(call: ModelCall, most: int) -> int:
    """Return the tokens that may still be written: at least one."""
    return max(1, most - (call.resume.deltas if call.resume is not None else 0))


def wants_logprobs(request: CreateResponse) -> bool:
    return bool(request.top_logprobs) or "message.output_text.logprobs" in request.include


def wants_summary(request: CreateResponse) -> bool:
    """Return True if reasoning is to be a summary: most clients look for it nowhere else, and ask for one."""
    return bool((asked := request.reasoning) and (asked.get("summary") or asked.get("generate_summary")))


# Extras that clients of the Responses API send beside what it documents (Codex, about itself); strict servers of other
# APIs would refuse the whole request for them.
_RESPONSES_ONLY = frozenset({"client_metadata"})


def read_extra(request: CreateResponse) -> Json:
    """Return the fields that are unknown here, for the upstream."""
    return request.extra and {name: value for name, value in request.extra.items() if name not in _RESPONSES_ONLY}


class ItemReader(msgspec.Struct, eq=False, kw_only=True):
    """Makes messages of items. `strict`: InvalidRequest names an item, or content, that cannot be sent; otherwise it is
    left out, or a text stands for it, so that what is in a history already cannot block the conversation (D25)."""

    offered: Names = {}  # of functions that are called otherwise than their tool
    strict: bool = False
    readers: ClassVar[Mapping[str, Callable[[Json], Json]]]  # of parts, by type
    server: ClassVar[str] = "this model's server"
    hints: ClassVar[Mapping[str, str]] = {}  # what to do instead of sending an item of a type

    def take(self, item: Json) -> None:
        kind = str(item.get("type"))
        if kind == "message":
            self._take_message(item)
        elif kind == "reasoning":
            self._take_reasoning(item)
        elif is_output(item):
            self._take_output(str(call_of(item)), item)
        elif is_call(item):
            self._take_call(item["call_id"], *read_call(item, self.offered))
        elif self.strict and kind not in _LEFT_OUT and ":" not in kind:  # a vendor's own kinds are `vendor:kind`
            message = f"Items of type '{kind}' cannot be sent to {self.server}{self.hints.get(kind, '')}."
            raise InvalidRequest(message, param="type", code="unsupported_parameter")

    def _take_message(self, item: Json) -> None: ...

    def _take_reasoning(self, item: Json) -> None: ...

    def _take_call(self, call_id: str, name: str, arguments: object) -> None: ...

    def _take_output(self, call_id: str, item: Json) -> None: ...

    def check(self, items: list[Json]) -> None:
        """Raise InvalidRequest naming the first of an input's items that cannot be sent."""
        for n, item in enumerate(items):
            try:
                # A user's message of texts, which most inputs are, can be sent to every server.
                if item.get("role") != "user" or item.get("type") != "message" or not read_texts(item.get("content")):
                    self.take(item)
            except InvalidRequest as error:
                raise refuse_at(f"input[{n}]", error) from error

    def _read_parts(self, content: object, field: str = "content") -> Iterator[tuple[Json, Json]]:
        """Yield each part of `field`, with what its type's reader makes of it."""
        if isinstance(content, str):
            content = [text_part(content)]
        for n, part in enumerate(content if isinstance(content, list) else ()):
            try:
                kind = part.get("type") if isinstance(part, dict) else None
                if (read := self.readers.get(kind) if isinstance(kind, str) else None) is None:
                    message = f"Content of type '{kind}' cannot be sent to this model's server."
                    raise InvalidRequest(message, param="type")
                yield part, read(part)
            except InvalidRequest as error:
                if self.strict:
                    raise refuse_at(f"{field}[{n}]", error) from error
                yield {}, text_part(name_unsendable(part))

    def _read_output(self, item: Json) -> Iterator[tuple[Json, Json]]:
        return self._read_parts(read_output(item, self.readers, self.offered), "output")

    def _as_texts(self, parts: list[Json], subject: str) -> list[Json]:
        """Return the parts of a message that can only have text in it."""
        if all(part["type"] == "text" for part in parts):
            return parts
        if self.strict:
            raise InvalidRequest(f"{subject} can only have text in it.", param="content")
        return [part if part["type"] == "text" else text_part(name_unsendable(part)) for part in parts]


# -- content, calls and outputs of the context


def text_part(text: str) -> Json:
    return {"type": "text", "text": text}


TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
# Readers of parts that are text, by type. No other server than OpenAI's knows refusals, so their text is sent.
TEXT_PARTS: dict[str, Callable[[Json], Json]] = {
    kind: lambda part: text_part(_read_text(part, "text")) for kind in TEXTS
} | {"refusal": lambda part: text_part(_read_text(part, "refusal"))}


def _read_text(part: Json, name: str) -> str:
    if not isinstance(text := part.get(name), str):
        raise InvalidRequest(f"'{name}' must be a string.", param=name, code="invalid_type")
    return text


def read_texts(content: object) -> list[str] | None:
    """Return the texts of content that is nothing else, as nearly all is; None for any other."""
    if not isinstance(content, list):
        return [content] if isinstance(content, str) else []
    texts: list[str] = []
    for part in content:
        if not isinstance(part, dict) or part.get("type") not in TEXTS or type(text := part.get("text")) is not str:
            return None
        texts.append(text)
    return texts


def read_role(message: Json) -> str:
    role = message.get("role")
    return str(role) if role in ("user", "assistant", "system", "developer") else "user"


def name_unsendable(part: object) -> str:
    """Return the text that stands for a part of an earlier message that this model's server cannot be sent."""
    fields = part if isinstance(part, dict) else {}
    names = (fields.get(name) for name in ("filename", "file_url", "file_id", "image_url", "video_url"))
    known = next((name for name in names if isinstance(name, str) and name and not name.startswith("data:")), None)
    return f"[{fields.get('type') or 'Content'}{f' {known}' if known else ''}: cannot be sent to this model]"


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
    if (tool := BY_ITEM.get(kind)) is not None:
        return name_of_call(item, names), tool.read(item)
    return make_safe(kind.removesuffix("_call")), _strip(item)


def write_arguments(arguments: object) -> str:
    """Return the arguments as JSON: some servers parse those of old calls, and would refuse the whole context."""
    if not isinstance(arguments, str):
        return msgspec.json.encode(arguments or {}).decode()
    if not arguments.strip():
        return "{}"
    return arguments if is_json(arguments) else msgspec.json.encode({"unparsed": arguments}).decode()


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
