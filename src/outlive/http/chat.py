"""/v1/chat/completions, a stateless pass-through that refuses state (D12), and /v1/models."""

import contextlib
import json
from dataclasses import dataclass

from outlive.core.context.window import BYTES_PER_TOKEN, estimate_item
from outlive.core.errors import InvalidRequest, UpstreamFault
from outlive.core.events import Json
from outlive.core.requests.body import encode_raw
from outlive.core.usage import read_count
from outlive.http.request import Reply, Request, json_reply, while_connected

END_BYTES = 4096  # of an answer, in which its usage is looked for
CHUNK_BYTES = 400  # of a chunk, around the text in it
# Fields that ask for state, and what to do instead.
STATEFUL = {
    "previous_response_id": "it continues a stored response",
    "conversation": "it names a stored conversation",
    "conversation_id": "it names a stored conversation",
    "background": "a response that outlives its connection must be stored",
    "store": "completions are not stored here",
    "outlive": "its options are for stored responses",
}


@dataclass(slots=True)
class PassedBytes:
    """What is known of an answer that was passed on: its last bytes, its size, and its chunks if it is a stream."""

    end: bytes = b""
    size: int = 0
    chunks: int = 0

    def add(self, piece: bytes) -> None:
        self.end = piece if len(piece) >= END_BYTES else (self.end + piece)[-END_BYTES:]
        self.size += len(piece)
        self.chunks += piece.count(b"data:")

    def estimate(self) -> int:
        """Estimate its tokens: one in each chunk, or more if chunks are long."""
        return max(self.chunks, (self.size - self.chunks * CHUNK_BYTES) // BYTES_PER_TOKEN)


async def create(request: Request) -> None:
    """Pass a Chat Completions request through to its upstream."""
    body = await _read(request)
    given = await request.work(_estimate, body.get("messages"))
    if request.size and "messages" in body:
        # Encoded already, and not on the event loop.
        body["messages"] = await request.work(encode_raw, body["messages"])
    async with request.engine.hold_slot(request.owner, "a chat completion"):
        passed = await while_connected(request, request.engine.pass_through(request.owner, body, request.origin()))
        model: str = body["model"]
        del body  # it may be large, and the answer may take long
        request.release_body()
        answer = PassedBytes()
        request.connection.watch(passed.close)
        try:
            await request.start(passed.status, passed.headers.pop("content-type", "application/json"), passed.headers)
            with request.while_valid(passed.close), contextlib.suppress(OSError, UpstreamFault):
                async for piece in passed.body():
                    answer.add(piece)
                    await request.send({"type": "http.response.body", "body": piece, "more_body": True})
                await request.send({"type": "http.response.body", "body": b""})
            # A broken upstream ends the stream without a last chunk, so that the client sees that it is not whole.
        finally:
            request.connection.watch(None)
            passed.close()
            if passed.status < 400:
                usage, estimated = _find_usage(answer.end), (given, answer.estimate())
                reported = usage["input_tokens"] or usage["output_tokens"]
                request.engine.count_chat(request.owner, model, usage, (0, 0) if reported else estimated)


async def _read(request: Request) -> Json:
    body = await request.object()
    if not isinstance(body.get("model"), str) or not body["model"]:
        raise InvalidRequest("model is required.", param="model", code="missing_required_parameter")
    for field, why in STATEFUL.items():
        if body.get(field) not in (None, False) and not request.lenient_chat:
            message = f"{field} is not supported on /v1/chat/completions, which keeps no state: {why}. "
            message += "Use /v1/responses, which honours it."
            raise InvalidRequest(message, param=field, code="unsupported_parameter")
        if field in body and (field != "store" or request.lenient_chat):
            del body[field]
    return body


def _estimate(messages: object) -> int:
    """Estimate the tokens of messages, for an answer that does not report them."""
    return sum(estimate_item(each) for each in messages if isinstance(each, dict)) if isinstance(messages, list) else 0


def _find_usage(end: bytes) -> Json:
    """Return the usage in the last bytes of an answer, whole or streamed, in the shape of the Responses API."""
    _, found, after = end.rpartition(b'"usage"')
    try:
        usage = json.JSONDecoder().raw_decode(after.decode("utf-8", "replace").lstrip(" :\r\n\t"))[0] if found else {}
    except ValueError:
        usage = {}
    usage = usage if isinstance(usage, dict) else {}
    given, written = read_count(usage, "prompt_tokens"), read_count(usage, "completion_tokens")
    details = {"cached_tokens": read_count(usage.get("prompt_tokens_details"), "cached_tokens")}
    return {"input_tokens": given, "input_tokens_details": details, "output_tokens": written}


async def list_models(request: Request) -> Reply:
    body: Json = {"object": "list", "data": await request.engine.list_models(request.owner)}
    if any(name == "client_version" for name, _ in request.query):
        # Codex asks for a list in a form of its own, with the prompts of its models. An empty one makes it use what it
        # has; without one it logs an error and asks again.
        body["models"] = []
    return json_reply(body)
