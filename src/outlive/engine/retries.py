"""Repeated creates: find the response that an earlier try of the same request made (D17)."""

import asyncio
from dataclasses import dataclass, field

from outlive.core.errors import Conflict
from outlive.ports.bell import Bell, Ring
from outlive.ports.catalog import Catalog
from outlive.ports.clock import Clock
from outlive.ports.ledger import Admission, Admitted

# Age up to which a silent retry attaches to a response; and for how long it waits for the first connection to end.
RETRY_AGE_SECONDS = 900.0
RETRY_WAIT_SECONDS = 1.0
RETRY_STEP_SECONDS = 0.05
# Seconds that another node may take to answer that it holds the connection. One that was killed never answers.
ASK_SECONDS = 0.2


@dataclass(eq=False)
class PendingCreates:
    """The creating connections that still wait for their answer, so that no silent retry takes it from them."""

    _bell: Bell
    alone: bool = True  # no other node could hold a connection
    here: set[str] = field(default_factory=set)  # the responses that connections to this node have created
    _asking: dict[str, asyncio.Future[None]] = field(default_factory=dict)

    async def holds(self, response_id: str) -> bool:
        """Return True if the connection that created this response still waits, on any node."""
        if response_id in self.here or self.alone:
            return response_id in self.here
        if (answer := self._asking.get(response_id)) is None:
            answer = self._asking[response_id] = asyncio.get_running_loop().create_future()
            self._bell.ring(Ring("asking", response_id))
        await asyncio.wait([answer], timeout=ASK_SECONDS)
        self._asking.pop(response_id, None)
        return answer.done()

    def on_asked(self, response_id: str) -> None:
        """Answer another node that asks for a connection."""
        if response_id in self.here:
            self._bell.ring(Ring("answering", response_id))

    def on_answer(self, response_id: str) -> None:
        """Note that another node holds the connection."""
        answer = self._asking.get(response_id)
        if answer is not None and not answer.done():
            answer.set_result(None)


@dataclass(eq=False)
class Retries:
    """Finds earlier tries: by their Idempotency-Key, or for an SDK's silent retry by the body's digest."""

    _catalog: Catalog
    _clock: Clock
    _creates: PendingCreates
    # Admissions under way that an SDK may repeat meanwhile.
    _admitting: dict[tuple[str, bytes], asyncio.Future[Admitted]] = field(default_factory=dict)

    def register(self, admission: Admission, admitting: asyncio.Future[Admitted]) -> None:
        """Have silent retries of this request wait until it is admitted."""
        if admission.retry_digest is None:
            return
        whose = (admission.owner, admission.retry_digest)
        self._admitting[whose] = admitting  # of several, the last is written last
        admitting.add_done_callback(lambda _: self._admitting.get(whose) is admitting and self._admitting.pop(whose))

    async def find_by_key(self, owner: str, key: str, digest: bytes) -> str | None:
        """Return the response made under a key, unless it failed or is gone. Raises Conflict for another body."""
        found = await self._catalog.idempotent(owner, "response", key)
        if found is None or await self._catalog.status(owner, found[1]) in (None, "failed"):
            return None
        if found[0] != digest:
            # Names the response, so that a client that lost the first answer can go on with it.
            message = f"The same Idempotency-Key was used with another body, for response {found[1]}."
            raise Conflict(message, param="Idempotency-Key")
        return found[1]

    async def find_unanswered(self, owner: str, digest: bytes) -> str | None:
        """Return the response whose creating connection died before it was answered. The SDK gives up on a connection
        and asks again: the new one may arrive before the old one's end is noticed."""
        if (admitting := self._admitting.get((owner, digest))) is not None:
            await asyncio.wait([admitting])
        for _ in range(int(RETRY_WAIT_SECONDS / RETRY_STEP_SECONDS)):
            since = self._clock.now() - RETRY_AGE_SECONDS
            found = await self._catalog.unanswered(owner, digest, since)
            for response_id in found:
                if await self._creates.holds(response_id):
                    continue
                # Its connection may have been answered since the query.
                if response_id in await self._catalog.unanswered(owner, digest, since):
                    return response_id
            if not found:
                return None
            await self._clock.sleep(RETRY_STEP_SECONDS)
        return None
