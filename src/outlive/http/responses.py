"""/v1/responses: create, retrieve, follow, cancel, delete, list, a response's own input, and its timeline."""

import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple

import msgspec

from outlive.core.errors import InvalidRequest, ShuttingDown, Unauthenticated, UpstreamFault
from outlive.core.events import DONE_FRAME, Json, add_ids
from outlive.core.requests.checks import (
    check_conversation_id,
    check_response_id,
    check_value,
    make_check,
    refuse_missing,
    refuse_unsupported,
)
from outlive.core.requests.create import CreateResponse, Personality, parse_create
from outlive.core.usage import NOTHING_USED
from outlive.engine.admission import Submission
from outlive.engine.delivery.reader import Cursor, StreamInterrupted, WriteNow
from outlive.engine.engine import Created, View
from outlive.http.errors import describe_fault, envelope, retry_after
from outlive.http.openapi import MAX_NUMBER, MAX_WAIT_SECONDS, STATUSES
from outlive.http.request import (
    PIECE_BYTES,
    Reply,
    Request,
    json_reply,
    list_owned,
    read_bool,
    read_int,
    while_connected,
)

STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
STREAM_TYPE = "text/event-stream; charset=utf-8"
# "exact" if the model's server has counted, "estimate" if this one has estimated.
COUNTED = "x-outlive-token-count"


class Final(msgspec.Struct):
    """The fields of a final object that decide how a plain create is answered."""

    status: str
    error: Json | None = None


_final = msgspec.json.Decoder(Final)
_check_personality = make_check(Personality)


async def create(request: Request) -> Reply | None:
    """Create a response; answer with a stream, the admitted object, or the final object."""
    key, retries = request.idempotency_key(), request.header(b"x-stainless-retry-count")
    submission = Submission(
        owner=request.owner,
        body=await request.json(),
        size=request.size,
        idempotency_key=key,
        retry_count=int(retries) if retries is not None and retries.isdecimal() and len(retries) < 10 else None,
        is_abandoned=request.is_abandoned,
        origin=request.origin(),
    )
    with await request.engine.create(submission) as created:
        request.release_body()
        request.response_id = created.id
        if (rate := created.accepted.rate) is not None:
            request.extra_headers |= rate.headers()
        if created.request.stream:
            delivered = await stream(request, created.follow())
        elif created.request.background:
            delivered = await _deliver(request, created, _show(await created.show()))
        else:
            reply = await _wait(request, created)
            delivered = reply is not None and await _deliver(request, created, reply)
        if delivered and request.may_be_repeated:
            await created.mark_answered()
        elif not delivered:
            await created.abandon()
    return None


async def retrieve(request: Request) -> Reply | None:
    """Return a response as it stands, or stream it."""
    response_id, query = request.params["id"], dict(request.query)
    follow = read_bool(query.get("stream"), "stream")
    after, ids = _read_start(request, query, follow)
    try:
        wait = float(query.get("wait", 0.0))
    except ValueError:
        wait = -1.0
    if not 0 <= wait <= MAX_WAIT_SECONDS:
        raise InvalidRequest(f"wait must be a number of seconds, {MAX_WAIT_SECONDS:g} at most.", param="wait")
    if follow:
        if ids and await request.engine.has_ended_by(request.owner, response_id, after):
            return Reply(b"", 204)  # ends the reconnecting of an EventSource (D11)
        cursor = await request.engine.follow(request.owner, response_id, after)
        span = await request.engine.trace_resume(request.origin(), response_id)
        with span, request.engine.tickets.watch(request.ticket, cursor.stop):
            await stream(request, cursor, ids)
        return None
    if wait:
        await request.engine.wait_end(request.owner, response_id, wait)
        if request.key.id and not request.engine.keys.is_valid(request.key):
            raise Unauthenticated  # since it began to wait
    await request.reserve_answer()
    return _show(await request.engine.show(request.owner, response_id))


async def cancel(request: Request) -> Reply:
    await request.reserve_answer()
    return _show(await request.engine.cancel(request.owner, request.params["id"]))


async def list_all(request: Request) -> Reply:
    query = dict(request.query)
    statuses = [status for name, value in request.query if name == "status" for status in value.split(",")]
    for status in statuses:
        if status not in STATUSES:
            raise InvalidRequest(f"status must be one of {', '.join(STATUSES)}, not {status!r}.", param="status")
    if (conversation := query.get("conversation")) is not None:
        check_conversation_id(conversation, "conversation")
    details = read_bool(query.get("details"), "details")
    verb = partial(request.engine.list_responses, details=details)
    return await list_owned(request, verb, statuses=statuses, conversation=conversation)


# -- streams: the stored frames, sent as they are, one write per read


class _Watching(NamedTuple):
    """Stops a cursor when the client goes away. (`send` to a dead client succeeds silently.)"""

    request: Request
    cursor: Cursor

    def __enter__(self) -> None:
        self.request.connection.watch(self.cursor.stop)

    def __exit__(self, *_: object) -> None:
        self.request.connection.watch(None)
        self.cursor.close()


async def stream(request: Request, cursor: Cursor, ids: bool = False) -> bool:
    """Send what the cursor reads until the response ends, with `id:` lines if `ids`. Returns True if the client has had
    all of it."""
    send = request.send
    write_now, read = (request.connection.write_now, cursor.read) if not ids else _add_ids(request, cursor)
    with request.while_valid(cursor.stop), _Watching(request, cursor), contextlib.suppress(OSError, StreamInterrupted):
        await request.start(200, STREAM_TYPE, STREAM_HEADERS)
        while (frames := await read()) and not cursor.ended:
            if len(frames) > PIECE_BYTES:
                await request.send_pieces(frames)
            else:
                await send({"type": "http.response.body", "body": frames, "more_body": True})
            await cursor.forward_to(write_now)
        if cursor.ended:
            here = not request.has_left()
            if len(frames) > PIECE_BYTES:
                await request.send_pieces(frames)
                frames = b""
            await send({"type": "http.response.body", "body": frames + DONE_FRAME})
            return here
    # Without a last chunk: a client that still reads must see that this was no clean end (D11).
    request.disconnected = cursor.stopped
    return False


def _add_ids(request: Request, cursor: Cursor) -> tuple[WriteNow, Callable[[], Awaitable[bytes]]]:
    """Wrap both ways in which frames leave a cursor, so that each frame has its number as `id:`."""
    write_now = request.connection.write_now

    async def read() -> bytes:
        after = cursor.after
        return add_ids(await cursor.read(), after)

    # The cursor moves on once the frames are written.
    return lambda frames: write_now(add_ids(frames, cursor.after)), read


# -- answering a create


async def _deliver(request: Request, created: Created, reply: Reply) -> bool:
    """Send the reply. Returns False if the client will ask again because it did not read it (D17)."""
    left = request.has_left()
    await request.reply(reply)
    if not request.may_be_repeated or not created.request.store:
        return True
    return not left and await request.connection.was_read()


async def _wait(request: Request, created: Created) -> Reply | None:
    """Wait for the end and return the reply to a plain create; None when the client has gone."""
    cursor = created.follow_end()
    with _Watching(request, cursor):
        try:
            await cursor.read_to_end()
        except StreamInterrupted:
            kept = "is kept: retrieve it" if created.request.store else "was not stored: ask again"
            error = ShuttingDown(f"The server is shutting down; response {created.id} {kept} in a moment.")
            error.should_retry = False
            raise error from None
        if cursor.stopped:
            request.disconnected = True
            return None
        cause, final = cursor.cause, cursor.final
    if final is None:
        final = (await request.engine.show(request.owner, created.id)).body
    end = _final.decode(final)
    return Reply(final) if end.status in ("completed", "incomplete") else _describe_failure(created.id, end, cause)


def _describe_failure(response_id: str, end: Final, cause: UpstreamFault | None) -> Reply:
    """Return an error that names the response, which did not complete (D21)."""
    headers = {"x-should-retry": "false"}
    if end.status == "cancelled":
        body = envelope(f"Response {response_id} was cancelled.", "invalid_request_error", None, "response_cancelled")
        return json_reply(body, headers, 400)
    error = end.error or {}
    cause = cause or UpstreamFault(code=error.get("code"))  # it is not in memory any more
    status, type_, param, code = describe_fault(cause)
    headers |= retry_after(cause.retry_after)
    message = f"{error.get('message') or 'The response failed.'} (response {response_id})"
    return json_reply(envelope(message, type_, param, code), headers, status)


def _show(view: View) -> Reply:
    if view.poll_after is None:
        return Reply(view.body)
    return Reply(view.body, headers={"openai-poll-after-ms": str(int(view.poll_after * 1000))})


# -- reading the query


def _read_start(request: Request, query: dict[str, str], follow: bool) -> tuple[int, bool]:
    """Return the number of the event after which a stream begins, and whether it has `id:` lines."""
    ids = read_bool(query.get("sse_ids"), "sse_ids")
    for name, given in (("sse_ids", ids), ("starting_after", "starting_after" in query)):
        if given and not follow:
            raise InvalidRequest(f"{name} needs stream=true.", param=name)
    after, last = -1, request.header(b"last-event-id") if ids else None
    for param, text in (("starting_after", query.get("starting_after")), ("Last-Event-ID", last or None)):
        if text is not None:
            after = read_int(text, param)
            if after < 0:
                raise InvalidRequest(f"{param} must not be negative.", param=param, code="integer_below_min_value")
    return min(after, MAX_NUMBER), ids


# -- questions about a context, which store nothing


async def count_tokens(request: Request) -> Reply:
    """Count the tokens of a context."""
    body = await request.object()
    if (personality := body.pop("personality", None)) is not None:
        check_value(_check_personality, personality, "personality")
    model_given = body.get("model") is not None
    # The input may be left out: an empty context has a length, too.
    parsed = await _parse(request, {**body, "generate": False, "model": body["model"] if model_given else "any"})
    counted = await while_connected(request, request.engine.count_tokens(request.owner, parsed, model_given))
    header = {COUNTED: "exact" if counted.exact else "estimate"}
    return json_reply({"object": "response.input_tokens", "input_tokens": counted.tokens}, header)


async def compact(request: Request) -> Reply:
    """Compact a context."""
    body = await request.object()
    if body.get("conversation") is not None:
        why = "it compacts a chain or an input; use 'context_management' in a conversation."
        refuse_unsupported("conversation", why)
    engine, model = request.engine, body.get("model")
    if model is None and isinstance(parent := body.get("previous_response_id"), str):
        check_response_id(parent, "previous_response_id")
        model = await engine.find_model_of(request.owner, parent)  # which gave the answer that is continued
    if model is None:
        refuse_missing("model")
    parsed = await _parse(request, {**body, "model": model})
    output, usage = await while_connected(request, engine.compact(request.owner, parsed))
    made = {"id": engine.new_id("resp"), "object": "response.compaction", "created_at": int(engine.now())}
    return json_reply({**made, "output": output, "usage": usage or NOTHING_USED})


async def _parse(request: Request, body: Json) -> CreateResponse:
    """Parse a body like a create that is not stored."""
    made = {**body, "store": False, "background": None, "stream": None, "outlive": None}
    parsed = await request.work(parse_create, made, request.engine.ids, request.engine.limits)
    return msgspec.structs.replace(parsed, origin=request.origin())
