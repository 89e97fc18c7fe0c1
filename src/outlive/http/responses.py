"""/v1/responses: create, retrieve, follow, cancel, delete, list, and a response's own input."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec

from outlive.core.errors import InvalidRequest, OutliveError, ShuttingDown, UpstreamFault
from outlive.core.events import Json
from outlive.engine.admission import Accepted, Submission
from outlive.engine.delivery.reader import Reader, StreamInterrupted
from outlive.engine.engine import Engine
from outlive.http import sse
from outlive.http.errors import STATUS_OF_CODE, encode, envelope, name_of_fault, status_of_fault, type_of_fault
from outlive.http.queue import find_places
from outlive.http.request import (
    Call,
    ClientDisconnected,
    Reply,
    json_reply,
    list_reply,
    read_bool,
    read_int,
    read_paging,
)
from outlive.ports.catalog import Page, Record

MAX_WAIT_SECONDS = 60.0
# No response has so many events, and every database can count so far.
MAX_NUMBER = 1 << 53
# What lists leave out of a response: the parts that may be long.
LONG_FIELDS = ("output", "tools", "instructions")
STATUSES = ("queued", "in_progress", "completed", "failed", "cancelled", "incomplete")


class Final(msgspec.Struct):
    """What decides how a plain create is answered."""

    status: str
    error: Json | None = None


_final = msgspec.json.Decoder(Final)


async def create(call: Call) -> Reply | None:
    retries = call.header(b"x-stainless-retry-count")
    body = await call.json()
    arrival = Submission(
        owner=call.owner,
        body=body,
        large=call.large,
        idempotency_key=call.header(b"idempotency-key"),
        retry_count=int(retries) if retries is not None and retries.isdecimal() and len(retries) < 10 else None,
        confirm=call.confirm,
    )
    accepted = await admit(call.engine, arrival)
    if not accepted.request.store:
        return await _answer_fleeting(call, accepted)
    answering = call.engine.door.answering
    answering.add(accepted.response_id)
    try:
        return await _answer(call, accepted)
    finally:
        answering.discard(accepted.response_id)


async def admit(engine: Engine, arrival: Submission) -> Accepted:
    try:
        return await engine.door.admit(arrival)
    except (OutliveError, ClientDisconnected):
        if arrival.large:
            # Some of it may have been written ahead; of a request that was refused nothing may stay in a file.
            engine.sweeper.wake()
        raise


async def retrieve(call: Call) -> Reply | None:
    response_id, query = call.params["id"], dict(call.query())
    follow = read_bool(query.get("stream"), "stream")
    after = _read_after(query, follow)
    wait = _read_wait(query)
    record = await call.engine.catalog.response(call.owner, response_id)
    if follow:
        await sse.stream(call, call.engine.reader.follow(response_id, after))
        return None
    if record.snapshot is None and wait:
        with contextlib.suppress(StreamInterrupted):  # the server is leaving: say how far it is
            await call.engine.reader.wait_end(response_id, wait)
        record = await call.engine.catalog.response(call.owner, response_id)
    return await _show(call, record)


async def cancel(call: Call) -> Reply:
    response_id = call.params["id"]
    record = await call.engine.catalog.response(call.owner, response_id)
    if record.snapshot is None:
        await call.engine.worker.cancel(response_id)
        record = await call.engine.catalog.response(call.owner, response_id)
    return await _show(call, record)


async def delete(call: Call) -> Reply:
    response_id = call.params["id"]
    await call.engine.delete(call.owner, response_id)
    return json_reply({"id": response_id, "object": "response", "deleted": True})


async def list_input_items(call: Call) -> Reply:
    page = await call.engine.catalog.input_items(call.owner, call.params["id"], read_paging(call.query()))
    return list_reply(page)


async def list_all(call: Call) -> Reply:
    query = call.query()
    statuses = [status for name, value in query if name == "status" for status in value.split(",")]
    for status in statuses:
        if status not in STATUSES:
            raise InvalidRequest(f"status must be one of {', '.join(STATUSES)}, not {status!r}.", param="status")
    records, more = await call.engine.catalog.responses(
        call.owner, read_paging(query), statuses=statuses, conversation=dict(query).get("conversation")
    )
    headers = await call.engine.reader.headers([record.response_id for record in records if record.snapshot is None])
    places = await find_places(call.engine, records)
    # Final objects may be long, and a page may hold a hundred of them.
    data = await asyncio.to_thread(
        lambda: [_summary(each, headers.get(each.response_id), places.get(each.response_id)) for each in records]
    )
    return list_reply(Page(data, more))


# -- answering a create


async def _answer(call: Call, accepted: Accepted) -> Reply | None:
    """The answer to a stored create: the admitted object, a stream, or the end."""
    engine, request = call.engine, accepted.request
    if request.stream:
        delivered = await sse.stream(call, engine.reader.follow(accepted.response_id))
    elif request.background:
        delivered = await _deliver(call, await _admitted(call, accepted))
    else:
        final = await _wait(call, accepted, engine.reader)
        delivered = final is not None and await _deliver(call, final)
    if delivered and call.may_be_repeated:
        await engine.ledger.mark_answered(accepted.response_id)
    return None


async def _deliver(call: Call, reply: Reply) -> bool:
    """Answer; False when the client will ask again because it did not get it (D17)."""
    left = call.has_left()
    await call.reply(reply)
    return not call.may_be_repeated or (not left and await call.outlet.is_taken())


async def _answer_fleeting(call: Call, accepted: Accepted) -> Reply | None:
    reader = call.engine.fleeting_reader
    try:
        if accepted.request.stream:
            await sse.stream(call, reader.follow(accepted.response_id))
            return None
        return await _wait(call, accepted, reader)
    finally:
        call.engine.fleeting.stop(accepted.response_id)


async def _admitted(call: Call, accepted: Accepted) -> Reply:
    if accepted.fold is not None:
        return Reply(accepted.fold.snapshot(), headers={"openai-poll-after-ms": "500"})
    return await _show(call, await call.engine.catalog.response(call.owner, accepted.response_id))


async def _wait(call: Call, accepted: Accepted, reader: Reader) -> Reply | None:
    """Read to the end, and answer with the final object; None when the client has gone."""
    cursor = reader.follow(accepted.response_id, accepted.fold.last if accepted.fold is not None else -1)
    with sse.attention(call, cursor):
        try:
            while not cursor.ended and not cursor.stopped:
                await cursor.read()
        except StreamInterrupted:
            raise _unfinished(accepted) from None
        if cursor.stopped:
            return None
        cause, final = cursor.cause, cursor.final
    if final is None:
        record = await call.engine.catalog.response(call.owner, accepted.response_id)
        final = record.snapshot or b""
    return _conclude(accepted.response_id, final, cause)


def _conclude(response_id: str, final: bytes, cause: UpstreamFault | None) -> Reply:
    """A plain create that does not complete is an error that names the response (D21)."""
    end = _final.decode(final)
    if end.status in ("completed", "incomplete"):
        return Reply(final)
    headers = {"x-should-retry": "false"}
    if end.status == "cancelled":
        body = envelope(f"Response {response_id} was cancelled.", "invalid_request_error", None, "response_cancelled")
        return Reply(encode(body), 400, headers)
    error = end.error or {}
    param, code = (None, error.get("code")) if cause is None else name_of_fault(cause)
    status = status_of_fault(cause) if cause is not None else STATUS_OF_CODE.get(code or "", 502)
    if cause is not None and cause.retry_after is not None:
        headers["retry-after"] = str(max(1, round(cause.retry_after)))
    message = f"{error.get('message') or 'The response failed.'} (response {response_id})"
    return Reply(encode(envelope(message, type_of_fault(status), param, code)), status, headers)


def _unfinished(accepted: Accepted) -> ShuttingDown:
    kept = "is kept: retrieve it in a moment" if accepted.request.store else "was not stored: ask again in a moment"
    error = ShuttingDown(f"The server is shutting down; response {accepted.response_id} {kept}.")
    error.should_retry = False
    return error


# -- showing one


async def _show(call: Call, record: Record) -> Reply:
    if record.snapshot is not None:
        return Reply(record.snapshot)
    fold = await call.engine.reader.fold(record.response_id)
    age = call.engine.clock.now() - record.created_at
    # A run that is young may end soon; one that has been going for minutes will hardly end in the next second.
    poll = int(min(max(age * 100, 250), 5000))
    headers = {} if fold.ended else {"openai-poll-after-ms": str(poll)}
    if fold.status == "queued" and (place := (await find_places(call.engine, [record])).get(record.response_id)):
        return json_reply({**fold.response(), "outlive": place}, headers)
    return Reply(fold.snapshot(), headers=headers)


def _summary(record: Record, header: Json | None, place: Json | None) -> Json:
    body: Json = msgspec.json.decode(record.snapshot or b"{}") if header is None else header
    shown = {name: value for name, value in body.items() if name not in LONG_FIELDS}
    if shown.get("status") == "queued":
        shown["status"] = record.status  # it may have begun since the event that this header is from
    return shown if place is None else {**shown, "outlive": place}


def _read_after(query: dict[str, str], follow: bool) -> int:
    if "starting_after" not in query:
        return -1
    if not follow:
        raise InvalidRequest("starting_after needs stream=true.", param="starting_after")
    after = read_int(query["starting_after"], "starting_after")
    if after < 0:
        raise InvalidRequest(
            "starting_after must not be negative.", param="starting_after", code="integer_below_min_value"
        )
    return min(after, MAX_NUMBER)


def _read_wait(query: dict[str, str]) -> float:
    if "wait" not in query:
        return 0.0
    try:
        wait = float(query["wait"])
    except ValueError:
        wait = -1.0
    if not 0 <= wait <= MAX_WAIT_SECONDS:
        raise InvalidRequest(f"wait must be a number of seconds, {MAX_WAIT_SECONDS:g} at most.", param="wait")
    return wait
