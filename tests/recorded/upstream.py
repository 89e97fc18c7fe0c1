"""Scripted model servers and an MCP server on one port, for recording and for the tests of what was recorded.

Built on the standard library alone. The answer of a model depends on its name and on the request, never on earlier
requests, so that a run that was begun while recording can be continued by a test later on. The name up to the first
hyphen chooses the script; the rest keeps requests apart, and is an argument of some scripts.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

Json = dict[str, Any]

SECONDS = 20.0
STORY = [f"word{n} " for n in range(20)]
# The story can be held after so many words.
HOLDS = (5, 9, 13)


class Hold:
    """A place in a script at which it waits until it is released by name."""

    def __init__(self, name: str) -> None:
        self.name = name


class Refusal:
    """An answer with an error status."""

    def __init__(self, status: int, error: Json) -> None:
        self.status = status
        self.error = error


Step = Json | Hold | Refusal
Script = Callable[[str, Json], Iterator[Step]]


class Upstream:
    """The servers, in threads of this process. Scripts wait at every Hold until it is released."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._released: set[str] = set()
        self._all_released = False
        self._reached: list[str] = []
        self._asked: list[tuple[str, Json]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.calls: list[Json] = []  # of tools of the MCP server

    def __enter__(self) -> Self:
        # Looks so often, in seconds, whether it is to stop.
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release_all()
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def release(self, *names: str) -> None:
        with self._changed:
            self._released.update(names)
            self._changed.notify_all()

    def release_all(self) -> None:
        with self._changed:
            self._all_released = True
            self._changed.notify_all()

    def wait_reached(self, name: str, times: int = 1) -> None:
        with self._changed:
            there = self._changed.wait_for(lambda: self._reached.count(name) >= times, SECONDS)
        assert there, f"{name} was not reached {times} times: {self._reached}"

    def hold(self, name: str) -> None:
        with self._changed:
            self._reached.append(name)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._all_released or name in self._released)

    def note(self, path: str, body: Json) -> None:
        with self._changed:
            self._asked.append((path, body))

    def asked(self, model: str) -> list[Json]:
        """Return the path and the body of every request for a model, in order of arrival."""
        with self._changed:
            return [{"path": path, "body": body} for path, body in self._asked if body.get("model") == model]


# -- Chat Completions


def chunk(delta: Json | None = None, finish: str | None = None, **fields: Any) -> Json:
    choice: Json = {"index": 0, "delta": delta or {}, "finish_reason": finish, **fields.pop("choice", {})}
    return {
        "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "upstream-model",
        "choices": [choice], **fields,
    }  # fmt: skip


def text(*pieces: str) -> Iterator[Step]:
    for piece in pieces:
        yield chunk({"content": piece})


def call(index: int, call_id: str, name: str, *pieces: str) -> Iterator[Step]:
    yield chunk({"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": {"name": name}}]})
    for piece in pieces:
        yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})


def end(reason: str = "stop") -> Iterator[Step]:
    yield chunk(finish=reason)
    yield chunk(choices=[], usage={"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7})


def say(*pieces: str) -> Iterator[Step]:
    yield from text(*pieces)
    yield from end()


def _outputs(body: Json) -> list[str]:
    """Return the outputs of tools since the user last spoke."""
    messages = body["messages"]
    last = max((n for n, message in enumerate(messages) if message["role"] == "user"), default=-1)
    return [str(message["content"]) for message in messages[last + 1 :] if message["role"] == "tool"]


def _yes(model: str, body: Json) -> Iterator[Step]:
    yield from say("Yes", ", indeed.")


def _story(model: str, body: Json) -> Iterator[Step]:
    """Send the story, continuing one that the request ends with."""
    last = body["messages"][-1]
    sent = len(str(last["content"]).split()) if last["role"] == "assistant" else 0
    for n in range(sent, len(STORY)):
        if n in HOLDS:
            yield Hold(f"{model}:{n}")
        yield from text(STORY[n])
    yield from end()


def _late(model: str, body: Json) -> Iterator[Step]:
    """Say nothing before it is released."""
    yield Hold(model)
    yield from say("At", " last")


def _half(model: str, body: Json) -> Iterator[Step]:
    yield from text("Half ", "an ")
    yield Hold(model)
    yield from say("answer")


def _odd(model: str, body: Json) -> Iterator[Step]:
    """Say what databases, JSON and streams each have to escape."""
    yield from say(
        "nul \u0000 ",
        'quote " back \\ ',
        "line\nbreak\r\n\t",
        "\u2028 \u2029 ",
        "d\u00e9j\u00e0 \U0001f600 ",
        "\ud83d half",
    )


def _think(model: str, body: Json) -> Iterator[Step]:
    yield chunk({"reasoning_content": "Let me "})
    yield chunk({"reasoning_content": "think."})
    yield from say("Well", ".")


def _refuse(model: str, body: Json) -> Iterator[Step]:
    yield chunk({"refusal": "I cannot "})
    yield chunk({"refusal": "say that."})
    yield from end()


def _probable(model: str, body: Json) -> Iterator[Step]:
    for token, value in (("Heads", -0.25), (" up", -1.5)):
        entry: Json = {"token": token, "logprob": value, "bytes": list(token.encode())}
        entry["top_logprobs"] = [dict(entry)]
        yield chunk({"content": token}, choice={"logprobs": {"content": [entry], "refusal": None}})
    yield from end()


def _client(model: str, body: Json) -> Iterator[Step]:
    """Call two functions of the client's, then speak of their outputs."""
    if outputs := _outputs(body):
        yield from say("So: ", "; ".join(outputs))
        return
    yield from text("Let me look. ")
    yield from call(0, "call_a", "weather", '{"city": ', '"Paris"}')
    yield from call(1, "call_b", "weather", '{"city": "Rome"}')
    yield from end("tool_calls")


def _calling(model: str, body: Json) -> Iterator[Step]:
    """Be held in the middle of a call's arguments."""
    yield from call(0, "call_h", "weather", '{"city": ')
    yield Hold(model)
    yield chunk({"tool_calls": [{"index": 0, "function": {"arguments": '"Kiel"}'}}]})
    yield from end("tool_calls")


def _custom(model: str, body: Json) -> Iterator[Step]:
    yield from call(0, "call_c", "note", '{"input": "remember ', 'the milk"}')
    yield from end("tool_calls")


def _till(model: str, body: Json) -> Iterator[Step]:
    """Call the server's own tools one after the other; the name ends with the amount to pay."""
    outputs = _outputs(body)
    amount = model.rpartition("-")[2]
    if not outputs:
        yield chunk({"reasoning_content": "A payment."})
        yield from text("Let me pay. ")
        yield from call(0, "call_p", "pay", json.dumps({"amount": int(amount)}))
        yield from end("tool_calls")
    elif len(outputs) == 1:
        yield from call(0, "call_l", "look", json.dumps({"city": amount}))
        yield from end("tool_calls")
    else:
        yield from say("Done: ", outputs[0][:40])


def _both(model: str, body: Json) -> Iterator[Step]:
    """Call a tool of the server's and a function of the client's in one step."""
    if _outputs(body):
        yield from say("Both are done.")
        return
    yield from call(0, "call_s", "look", '{"city": "Oslo"}')
    yield from call(1, "call_w", "weather", '{"city": "Oslo"}')
    yield from end("tool_calls")


def _desk(model: str, body: Json) -> Iterator[Step]:
    """Call the tool of the MCP server that the name ends with."""
    if _outputs(body):
        yield from say("The desk says: ", _outputs(body)[-1])
        return
    yield from text("Asking the desk. ")
    yield from call(0, "call_d", model.rpartition("-")[2], json.dumps({"word": model}))
    yield from end("tool_calls")


def _cut(model: str, body: Json) -> Iterator[Step]:
    """End early, for the reason that the name ends with."""
    yield from text("As far ", "as this")
    yield from end(model.partition("-")[2])


def _fail(model: str, body: Json) -> Iterator[Step]:
    status = int(model.partition("-")[2])
    yield Refusal(status, {"message": f"upstream says {status}", "type": "some_error", "code": None})


def _long(model: str, body: Json) -> Iterator[Step]:
    message = "This model's maximum context length is 10 tokens."
    yield Refusal(400, {"message": message, "type": "invalid_request_error", "code": "context_length_exceeded"})


def _json(model: str, body: Json) -> Iterator[Step]:
    yield from say('{"answer":', ' "yes"}')


def _sum(model: str, body: Json) -> Iterator[Step]:
    """Summarise where a summary is asked for; else answer, held where the name says so."""
    if "replaced by a summary of it. Write" in str(body["messages"][-1]["content"]):
        yield from say("They spoke ", "of the weather.")
        return
    yield from text("Noted")
    if model.endswith("held"):
        yield Hold(model)
    yield from say(".")


CHAT: dict[str, Script] = {
    "yes": _yes, "story": _story, "late": _late, "half": _half, "odd": _odd, "think": _think, "refuse": _refuse,
    "probable": _probable, "client": _client, "calling": _calling, "custom": _custom, "till": _till, "both": _both,
    "desk": _desk, "cut": _cut, "fail": _fail, "long": _long, "json": _json, "sum": _sum,
}  # fmt: skip


# -- Responses


def _whole(model: str, status: str, output: list[Json]) -> Json:
    usage = {
        "input_tokens": 9, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 3}, "total_tokens": 16,
    }  # fmt: skip
    return {
        "id": f"resp_run-{model}", "object": "response", "created_at": 5, "status": status, "error": None,
        "incomplete_details": None, "model": "upstream-model", "output": output, "service_tier": "default",
        "usage": usage if status == "completed" else None,
    }  # fmt: skip


def answer_responses(model: str, body: Json) -> Iterator[Step]:
    """Reason, search, and answer in words: with events of a tool that the upstream runs itself."""
    reasoning: Json = {
        "id": f"rs_{model}", "type": "reasoning", "encrypted_content": "sealed-by-upstream",
        "summary": [{"type": "summary_text", "text": "Searching."}],
    }  # fmt: skip
    search: Json = {
        "id": f"ws_{model}", "type": "web_search_call", "status": "completed",
        "action": {"type": "search", "query": "weather"},
    }  # fmt: skip
    part: Json = {"type": "output_text", "text": "It will rain", "annotations": [], "logprobs": []}
    message: Json = {
        "id": f"msg_{model}", "type": "message", "role": "assistant", "status": "completed", "content": [part],
    }  # fmt: skip
    summary: Json = {"item_id": reasoning["id"], "output_index": 0, "summary_index": 0}
    searching: Json = {"item_id": search["id"], "output_index": 1}
    words: Json = {"item_id": message["id"], "output_index": 2, "content_index": 0}
    first, second = "It will ", "rain"
    events: list[Step] = [
        {"type": "response.created", "response": _whole(model, "in_progress", [])},
        {"type": "response.output_item.added", "output_index": 0, "item": {**reasoning, "summary": []}},
        {
            "type": "response.reasoning_summary_part.added", **summary,
            "part": {"type": "summary_text", "text": ""},
        },
        {"type": "response.reasoning_summary_text.delta", **summary, "delta": "Searching."},
        {"type": "response.reasoning_summary_text.done", **summary, "text": "Searching."},
        {"type": "response.reasoning_summary_part.done", **summary, "part": reasoning["summary"][0]},
        {"type": "response.output_item.done", "output_index": 0, "item": reasoning},
        {"type": "response.output_item.added", "output_index": 1, "item": {**search, "status": "in_progress"}},
        {"type": "response.web_search_call.in_progress", **searching},
        {"type": "response.web_search_call.searching", **searching},
        {"type": "response.web_search_call.completed", **searching},
        {"type": "response.output_item.done", "output_index": 1, "item": search},
        {
            "type": "response.output_item.added", "output_index": 2,
            "item": {**message, "status": "in_progress", "content": []},
        },
        {"type": "response.content_part.added", **words, "part": {**part, "text": ""}},
        {"type": "response.output_text.delta", **words, "delta": first, "logprobs": []},
        *([Hold(model)] if model.startswith("held") else []),
        {"type": "response.output_text.delta", **words, "delta": second, "logprobs": []},
        {"type": "response.output_text.done", **words, "text": first + second, "logprobs": []},
        {"type": "response.content_part.done", **words, "part": part},
        {"type": "response.output_item.done", "output_index": 2, "item": message},
        {"type": "response.completed", "response": _whole(model, "completed", [reasoning, search, message])},
    ]  # fmt: skip
    number = 0
    for event in events:
        if isinstance(event, dict):
            event["sequence_number"] = number
            number += 1
        yield event


# -- Anthropic's Messages


def answer_messages(model: str, body: Json) -> Iterator[Step]:
    """Think, speak, and call the client's function where there is one that was not called yet."""
    start: Json = {
        "id": "msg_01", "type": "message", "role": "assistant", "content": [], "model": "claude-upstream",
        "stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 5, "output_tokens": 1},
    }  # fmt: skip
    yield {"type": "message_start", "message": start}
    yield from _block(
        0,
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "thinking_delta", "thinking": "A city."},
        {"type": "signature_delta", "signature": "signed-by-upstream"},
    )
    yield from _block(1, {"type": "redacted_thinking", "data": "redacted-by-upstream"})
    yield from _block(2, {"type": "text", "text": ""}, {"type": "text_delta", "text": "Let me see."})
    wants = bool(body.get("tools")) and "tool_result" not in json.dumps(body["messages"])
    if wants:
        yield from _block(
            3,
            {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {}},
            {"type": "input_json_delta", "partial_json": '{"city": "Bern"}'},
        )
    reason = "tool_use" if wants else "end_turn"
    yield {
        "type": "message_delta",
        "delta": {"stop_reason": reason, "stop_sequence": None},
        "usage": {"output_tokens": 7},
    }
    yield {"type": "message_stop"}


def _block(index: int, block: Json, *deltas: Json) -> Iterator[Step]:
    yield {"type": "content_block_start", "index": index, "content_block": block}
    for delta in deltas:
        yield {"type": "content_block_delta", "index": index, "delta": delta}
    yield {"type": "content_block_stop", "index": index}


# -- MCP

TOOLS: list[Json] = [
    {
        "name": name, "description": f"{name.title()} a word.", "annotations": {"idempotentHint": name == "stamp"},
        "inputSchema": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    }
    for name in ("stamp", "post", "shred")
]  # fmt: skip


def answer_mcp(upstream: Upstream, body: Json, authorization: str | None) -> Json:
    params = body.get("params", {})
    match body["method"]:
        case "initialize":
            about = {"name": "desk", "version": "1"}
            version = params["protocolVersion"]
            return {"result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}}
        case "tools/list":
            return {"result": {"tools": TOOLS}}
        case "tools/call":
            name, word = params["name"], params["arguments"]["word"]
            repeated = params["_meta"]["outlive/repeated"]
            upstream.calls.append({"name": name, "word": word, "repeated": repeated, "authorization": authorization})
            if "held" in word:
                upstream.hold(word)
            said = "The shredder is stuck." if name == "shred" else f"{name} of {word}"
            return {"result": {"content": [{"type": "text", "text": said}], "isError": name == "shred"}}
    return {"error": {"code": -32601, "message": "Method not found"}}


# -- the port


def _handler(upstream: Upstream) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            if path.endswith("/models"):
                self._send(200, {"object": "list", "data": [{"id": "upstream-model", "object": "model"}]})
            elif "/responses/resp_run-" in path:
                model = path.rpartition("/resp_run-")[2]
                after = int(query.partition("starting_after=")[2] or -1)
                self._stream(event for event in answer_responses(model, {}) if _is_after(event, after))
            else:
                self._send(405, {})

        def do_DELETE(self) -> None:
            self._send(200, {"deleted": True})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/mcp":
                self._answer_mcp(body)
                return
            upstream.note(self.path, body)
            model = str(body.get("model"))
            if self.path.endswith("/chat/completions"):
                script = CHAT[model.partition("-")[0]](model, body)
            elif self.path.endswith("/messages"):
                script = answer_messages(model, body)
            elif self.path.endswith("/responses"):
                script = answer_responses(model, body)
            else:
                self._send(404, {"error": {"message": "There is no such thing.", "type": "x", "code": None}})
                return
            first = next(script)
            if isinstance(first, Refusal):
                self._send(first.status, {"error": first.error})
            else:
                self._stream(_chain(first, script))

        def _answer_mcp(self, body: Json) -> None:
            if "id" not in body:
                self._send(202, None)
                return
            answer = answer_mcp(upstream, body, self.headers.get("authorization"))
            self._send(200, {"jsonrpc": "2.0", "id": body["id"], **answer})

        def _stream(self, steps: Iterator[Step]) -> None:
            self.close_connection = True
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            try:
                for step in steps:
                    if isinstance(step, Hold):
                        upstream.hold(step.name)
                    elif isinstance(step, dict):
                        name = f"event: {step['type']}\n" if "type" in step else ""
                        self._write(f"{name}data: {json.dumps(step)}\n\n".encode())
                        # Apart from each other: what comes in one piece may become one event.
                        time.sleep(0.002)
                if "/chat/" in self.path:
                    self._write(b"data: [DONE]\n\n")
                self.wfile.write(b"0\r\n\r\n")
            except OSError:
                pass  # the server was killed

        def _write(self, piece: bytes) -> None:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            self.wfile.flush()

        def _send(self, status: int, body: Json | None) -> None:
            raw = b"" if body is None else json.dumps(body).encode()
            try:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)
            except OSError:
                pass

        def log_message(self, *arguments: object) -> None:
            pass

    return Handler


def _chain(first: Step, rest: Iterator[Step]) -> Iterator[Step]:
    yield first
    yield from rest


def _is_after(event: Step, number: int) -> bool:
    return not isinstance(event, dict) or int(event["sequence_number"]) > number
