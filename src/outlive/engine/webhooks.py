"""Webhooks: an owner's endpoints, and the delivery of events to them."""

import asyncio
import contextlib
import logging
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from secrets import token_bytes
from typing import Any, TypeAlias

import msgspec

from outlive import failpoints
from outlive.core.errors import BrokenSeal, Forbidden, InvalidRequest, NotFound, StorageUnavailable, TooMany
from outlive.core.events import Json
from outlive.core.ids import IdSource
from outlive.core.owners import split
from outlive.core.webhooks import GIVE_UP_SECONDS, make_payload, make_secret, pause_after, sign
from outlive.engine.waiting import keep_trying, wait
from outlive.ports.catalog import Page, Paging
from outlive.ports.clock import Clock
from outlive.ports.database import Statements
from outlive.ports.refusals import bad_cursor
from outlive.ports.seal import Seal
from outlive.ports.webhooks import Answer, Delivery, Sender, WebhookEndpoint

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
MAX_ENDPOINTS = 20  # of one owner
# Attempts at once on this node: in all, to one endpoint, and to one whose last attempt failed. Receivers that hang must
# not hold up the others.
OVERALL, TO_ONE, TO_FAILING = 64, 4, 1
SECRET_BYTES = 32
KEPT_SECONDS = 24 * 3600.0  # a secret that was replaced stays valid for so long, if that is asked for
Secrets: TypeAlias = list[tuple[str, float | None]]  # each with its end; None: it has none
NO_SEAL = (
    "This server cannot keep the secret of an endpoint: it has no key to seal it with. Its operator can give it one "
    "with OUTLIVE_SEAL_KEY or --seal-key-file."
)


@dataclass(eq=False)
class Webhooks:
    """Manages endpoints, and sends what is due to them."""

    _database: Statements
    _sender: Sender
    _seal: Seal | None
    _clock: Clock
    _ids: IdSource
    _worker: str
    _wanted: asyncio.Event = field(default_factory=asyncio.Event)
    _has_any: bool = False  # any owner had an endpoint at the last poll
    _running: Counter[str] = field(default_factory=Counter)  # attempts by endpoint
    _failing: set[str] = field(default_factory=set)  # endpoints whose last attempt failed
    attempts: Counter[str] = field(default_factory=Counter)  # by outcome, for the metrics

    # -- endpoints

    async def create(self, owner: str, fields: Json) -> Json:
        """Add an endpoint. Returns it with its secret, which is shown this once."""
        self._sender.check(fields["url"])
        now, endpoint_id = self._clock.now(), self._ids.new("we")
        own: Json = {"id": endpoint_id, "owner": _name_owner(owner), "created_at": now, "updated_at": now}
        secret, kept = await self._make_secret(endpoint_id)
        endpoint = WebhookEndpoint(**own, **fields, **kept)
        if not await self._database.change("add_webhook", *to_row(endpoint), MAX_ENDPOINTS):
            raise InvalidRequest(f"You have {MAX_ENDPOINTS} webhook endpoints already; delete one first.")
        self._has_any = True
        return _show(endpoint) | {"signing_secret": secret}

    async def get(self, owner: str, endpoint_id: str) -> Json:
        return _show(await self._find(owner, endpoint_id))

    async def list_endpoints(self, owner: str, paging: Paging) -> Page:
        name = _name_owner(owner)
        if paging.after is not None and not await self._database.fetch("find_webhook", paging.after, name):
            raise bad_cursor(paging.after)
        rows = await self._database.fetch("list_webhooks", name, paging.after or "", paging.limit + 1)
        return Page([_show(endpoint) for endpoint in to_endpoints(rows[: paging.limit])], len(rows) > paging.limit)

    async def update(self, owner: str, endpoint_id: str, fields: Json) -> Json:
        """Change fields of an endpoint. One that was disabled is sent events again."""
        if "url" in fields:
            self._sender.check(fields["url"])
        return _show(await self._change(await self._find(owner, endpoint_id), fields | {"disabled_at": None}))

    async def rotate(self, owner: str, endpoint_id: str, keep_old: bool) -> Json:
        """Give an endpoint a new secret; the one before stays valid for a day, or ends at once."""
        endpoint = await self._find(owner, endpoint_id)
        before = (await self._open(endpoint))[:1] if keep_old else []
        secret, kept = await self._make_secret(endpoint_id, before)
        return _show(await self._change(endpoint, kept)) | {"signing_secret": secret}

    async def delete(self, owner: str, endpoint_id: str) -> None:
        name = _name_owner(owner)
        if not await self._database.change("remove_webhook", endpoint_id, name):
            raise _not_found(endpoint_id)
        while await self._database.change("drop_deliveries_to", name, endpoint_id):
            pass

    async def test(self, owner: str, endpoint_id: str, event_type: str) -> int:
        """Send an example of an event. Returns the status of the answer. Raises InvalidRequest if there is none."""
        endpoint = await self._find(owner, endpoint_id)
        body = make_payload(event_type, self._ids.new("resp"), self._clock.now())
        if self._running[endpoint.id] >= TO_ONE:
            raise TooMany("Enough is being sent to this endpoint already. Try again later.")
        self._running[endpoint.id] += 1
        try:
            answer = await self._send(endpoint, self._ids.new("wh"), body)
        finally:
            self._running[endpoint.id] -= 1
        if answer.status is None:
            raise InvalidRequest(f"The endpoint did not answer: {answer.reason}.", code="webhook_unreachable")
        return answer.status

    async def _find(self, owner: str, endpoint_id: str) -> WebhookEndpoint:
        rows = await self._database.fetch("find_webhook", endpoint_id, _name_owner(owner))
        if not rows:
            raise _not_found(endpoint_id)
        return to_endpoints(rows)[0]

    async def _change(self, endpoint: WebhookEndpoint, fields: Json) -> WebhookEndpoint:
        changed = msgspec.structs.replace(endpoint, **fields)
        if changed != endpoint:
            changed = msgspec.structs.replace(changed, updated_at=self._clock.now())
            if not await self._database.change("save_webhook", *to_row(changed)):
                raise _not_found(endpoint.id)  # deleted since
            self._wanted.set()
        return changed

    async def _make_secret(self, endpoint_id: str, before: Sequence[str] = ()) -> tuple[str, Json]:
        """Make a secret. Returns it, and the fields that keep it, together with those before, which end in a day."""
        if self._seal is None:
            raise InvalidRequest(NO_SEAL)
        secret = make_secret(token_bytes(SECRET_BYTES))
        valid: Secrets = [(secret, None), *((text, self._clock.now() + KEPT_SECONDS) for text in before)]
        # In a thread, as below: the first time a key file is read and a large library loaded.
        sealed = await asyncio.to_thread(self._seal.close, msgspec.json.encode(valid), _purpose(endpoint_id))
        return secret, {"hint": secret[-4:], "sealed": sealed}

    async def _open(self, endpoint: WebhookEndpoint) -> list[str]:
        """Return the secrets that are valid now, the newest first. Raises BrokenSeal."""
        if self._seal is None:
            raise BrokenSeal
        content = await asyncio.to_thread(self._seal.open, endpoint.sealed, _purpose(endpoint.id))
        now = self._clock.now()
        found = msgspec.json.decode(content, type=Secrets)
        return [secret for secret, until in found if until is None or until > now]

    # -- deliveries

    async def list_deliveries(self, owner: str, endpoint_id: str, paging: Paging) -> Page:
        """List deliveries, newest first; with an empty `endpoint_id` those to all of an owner's endpoints."""
        name = _name_owner(owner)
        if paging.after is not None and not await self._database.fetch("find_delivery", paging.after, name):
            raise bad_cursor(paging.after)
        rows = await self._database.fetch("list_deliveries", name, endpoint_id, paging.after or "", paging.limit + 1)
        now, found = self._clock.now(), to_deliveries(rows[: paging.limit])
        return Page([_show_delivery(each, now) for each in found], len(rows) > paging.limit)

    async def redeliver(self, owner: str, delivery_id: str) -> Json:
        """Send a delivery once more, whatever became of it."""
        now = self._clock.now()
        rows = await self._database.change("redeliver", delivery_id, _name_owner(owner), now, now + GIVE_UP_SECONDS)
        if not rows:
            raise NotFound(f"Webhook delivery with id '{delivery_id}' not found.")
        self._wanted.set()
        return _show_delivery(to_deliveries(rows)[0], now)

    def wake(self) -> None:
        """Look for deliveries now: a response has ended here."""
        if self._has_any:
            self._wanted.set()

    async def run(self) -> None:
        """Send what is due until cancelled."""
        self._running.clear()
        await self._database.change("release_deliveries", self._worker)  # what a bug made it forget
        async with asyncio.TaskGroup() as group:
            while True:
                with contextlib.suppress(StorageUnavailable):  # the next poll comes soon
                    self._has_any = bool(await self._database.fetch("has_webhooks"))
                    if self._has_any:
                        await self._start_due(group)
                await wait(self._wanted, POLL_SECONDS)

    async def _start_due(self, group: asyncio.TaskGroup) -> None:
        now = self._clock.now()
        endpoints = to_endpoints(await self._database.fetch("find_due_webhooks", now))
        random.shuffle(endpoints)  # none is always the last
        for endpoint in endpoints:
            most = TO_FAILING if endpoint.id in self._failing else TO_ONE
            free = min(most - self._running[endpoint.id], OVERALL - self._running.total())
            if free > 0:
                # Those that no living worker is sending. Of one response the earlier event goes first.
                rows = await self._database.change("claim_deliveries", endpoint.id, self._worker, now, free)
                for delivery in to_deliveries(rows):
                    self._running[endpoint.id] += 1
                    group.create_task(self._deliver(endpoint, delivery))

    async def _deliver(self, endpoint: WebhookEndpoint, delivery: Delivery) -> None:
        try:
            began = self._clock.monotonic()
            body = make_payload(delivery.event_type, delivery.response_id, delivery.created_at)
            try:
                answer = await self._send(endpoint, delivery.id, body)
            except Exception:
                # A bug that one endpoint brings to light must not stop the deliveries of all owners.
                log.exception("sending webhook failed", extra={"endpoint_id": endpoint.id})
                answer = Answer(None, "this server could not send it")
            failpoints.hit("after-webhook-sent")
            await self._record(endpoint, delivery, answer, self._clock.monotonic() - began)
        finally:
            self._running[endpoint.id] -= 1
            self._wanted.set()

    async def _send(self, endpoint: WebhookEndpoint, delivery_id: str, body: bytes) -> Answer:
        try:
            valid = await self._open(endpoint)
        except BrokenSeal:
            return Answer(None, "the secret was sealed with another key")
        at = int(self._clock.now())
        headers = {"webhook-id": delivery_id, "webhook-timestamp": str(at)}
        headers["webhook-signature"] = sign(valid, delivery_id, at, body)
        return await self._sender.send(endpoint.url, headers, body)

    async def _record(self, endpoint: WebhookEndpoint, delivery: Delivery, answer: Answer, seconds: float) -> None:
        """Record an attempt, and decide about the next."""
        now = self._clock.now()
        entry = {"at": now, "status_code": answer.status, "reason": answer.reason, "seconds": round(seconds, 3)}
        due_at, outcome = None, "delivered"
        if answer.is_ok:
            self._failing.discard(endpoint.id)
        else:
            outcome = "failed"
            self._failing.add(endpoint.id)
            due_at = now + pause_after(delivery.attempts, random.random(), answer.retry_after)
            if answer.status == 410 or due_at >= delivery.give_up_at:
                due_at, outcome = None, "given_up"
                fields = {"endpoint_id": endpoint.id, "response_id": delivery.response_id, "status": answer.status}
                log.warning("giving up webhook delivery", extra=fields)
        self.attempts[outcome] += 1

        async def write() -> None:
            if answer.status == 410:  # its deliveries stay until it is saved again, or they are erased
                await self._database.change("disable_webhook", endpoint.id, now)
            delivered_at, attempt = now if answer.is_ok else None, msgspec.json.encode(entry).decode()
            await self._database.change("record_attempt", delivery.id, due_at, delivered_at, attempt)

        await keep_trying(write, self._clock)


def to_row(endpoint: WebhookEndpoint) -> tuple[Any, ...]:
    types = msgspec.json.encode(endpoint.event_types).decode()
    return msgspec.structs.astuple(msgspec.structs.replace(endpoint, event_types=types))


def to_endpoints(rows: list[Any]) -> list[WebhookEndpoint]:
    return [WebhookEndpoint(*[*row[:4], msgspec.json.decode(row[4]), *row[5:]]) for row in rows]


def to_deliveries(rows: list[Any]) -> list[Delivery]:
    return [Delivery(*[*row[:9], msgspec.json.decode(row[9])]) for row in rows]


def _name_owner(owner: str) -> str:
    name, end_user = split(owner)
    if end_user is not None:
        raise Forbidden("Webhooks belong to an owner as a whole: send the request without an end user.")
    return name


def _purpose(endpoint_id: str) -> str:
    return f"webhook endpoint {endpoint_id}"


def _not_found(endpoint_id: str) -> NotFound:
    return NotFound(f"Webhook endpoint with id '{endpoint_id}' not found.")


def _show(endpoint: WebhookEndpoint) -> Json:
    return {
        "id": endpoint.id,
        "object": "webhook_endpoint",
        "name": endpoint.name,
        "url": endpoint.url,
        "event_types": endpoint.event_types,
        "created_at": int(endpoint.created_at),
        "updated_at": int(endpoint.updated_at),
        "signing_secret_hint": f"whsec_...{endpoint.hint}",
        "status": "enabled" if endpoint.disabled_at is None else "disabled",
    }


def _show_delivery(delivery: Delivery, now: float) -> Json:
    waits = delivery.due_at is not None and delivery.give_up_at > now
    return {
        "id": delivery.id,
        "object": "webhook_delivery",
        "webhook_endpoint_id": delivery.endpoint,
        "event_type": delivery.event_type,
        "response_id": delivery.response_id,
        "created_at": int(delivery.created_at),
        "status": "delivered" if delivery.delivered_at is not None else "pending" if waits else "failed",
        "next_attempt_at": delivery.due_at if waits else None,
        "attempts": delivery.log,
    }
