"""Echoes: responses that run on other nodes, as readers here see them. One look at the journal serves them all."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from outlive.core.errors import StorageUnavailable
from outlive.core.events import is_last
from outlive.core.fold import Fold
from outlive.engine.delivery.live import LiveResponse, LiveResponses
from outlive.ports.bell import Bell, Ring
from outlive.ports.journal import Batch, Journal
from outlive.ports.ledger import Lease

log = logging.getLogger(__name__)

# What is read of one response in one look.
PAGE_BYTES = 64 * 1024
# The runner may not have heard yet that we want to know: what it commits until then, this second look finds.
SECOND_LOOK_SECONDS = 0.05
# A look that takes longer stands in a connection that is dead without knowing it; the next takes another one.
LOOK_SECONDS = 5.0
# How many responses one look asks for.
LOOK_MANY = 1000


class Echo(LiveResponse):
    """Has no run behind it, only the journal: it advances when somebody has looked."""

    __slots__ = ()

    def __init__(self, response_id: str, after: int) -> None:
        super().__init__(Lease(response_id, 0, 0), Fold(None, after))

    @property
    def id(self) -> str:
        return self.lease.response_id

    def on_chunks(self, batch: Batch) -> None:
        """These events are in the journal; an empty batch: none will ever follow."""
        self.ended = not batch.frames or is_last(batch.frames)
        if batch.frames:
            self.committed = batch.last
            self._keep(batch)
        self.wake()


class Mirrors:
    """The responses that run elsewhere and are read here.

    The bell says when to look; once a second all are looked at anyway, in one query, for a bell may be lost.
    """

    def __init__(self, journal: Journal, lives: LiveResponses, bell: Bell) -> None:
        self._journal = journal
        self._lives = lives
        self._bell = bell
        self._echoes: dict[str, Echo] = {}
        self._due: set[str] = set()
        self._looking: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._echoes)

    def join(self, response_id: str, after: int) -> Echo:
        """The echo to read on from, for a reader that has read the journal up to this number."""
        echo = self._echoes.get(response_id)
        if echo is None or echo.lost or echo.ended:
            echo = self._echoes[response_id] = Echo(response_id, after)
            self._watch_lives(echo)
            self._want(echo)
            self._look_twice(response_id)
        return echo

    # -- what the bell says

    def advanced(self, response_id: str, number: int) -> None:
        echo = self._echoes.get(response_id)
        if echo is not None and number > echo.committed:
            self._look_at(response_id)

    def taken(self, response_id: str) -> None:
        """It runs somewhere else now, where nobody knows yet that it is read here."""
        if (echo := self._echoes.get(response_id)) is not None:
            self._want(echo)
            self._look_twice(response_id)

    # -- now and then

    def want_all(self) -> None:
        """Say again what is read here: whoever runs it stops ringing when that is not said for long."""
        for echo in self._echoes.values():
            self._want(echo)

    def look_at_all(self) -> None:
        """Look whether a ring was lost, and forget what nobody reads any more."""
        for response_id, echo in list(self._echoes.items()):
            if echo.readers == 0:
                del self._echoes[response_id]
        self._due.update(self._echoes)
        self._look()

    def _want(self, echo: Echo) -> None:
        self._bell.ring(Ring("wanted", echo.id, echo.committed))

    # -- looking

    def _look_twice(self, response_id: str) -> None:
        self._look_at(response_id)
        asyncio.get_running_loop().call_later(SECOND_LOOK_SECONDS, self._look_at, response_id)

    def _look_at(self, response_id: str) -> None:
        if response_id in self._echoes:
            self._due.add(response_id)
            self._look()

    def _look(self) -> None:
        if self._due and (self._looking is None or self._looking.done()):
            self._looking = asyncio.create_task(self._look_on())

    async def _look_on(self) -> None:
        """Look until nothing is due: what becomes due during one look is part of the next."""
        while self._due:
            due = [self._due.pop() for _ in range(min(len(self._due), LOOK_MANY))]
            echoes = {each: self._echoes[each] for each in due if each in self._echoes}
            after = {each: echo.committed for each, echo in echoes.items()}
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    news = await self._journal.read_many(after, PAGE_BYTES)
            except (StorageUnavailable, TimeoutError):
                return  # the next round looks at all of them again
            except Exception:
                log.exception("looking at what runs elsewhere failed")
                return
            for response_id, batch in news.items():
                self._tell(echoes[response_id], batch)

    def _tell(self, echo: Echo, batch: Batch | None) -> None:
        if batch is None:
            self._drop(echo)  # it was deleted: its readers find that out by themselves
            return
        echo.on_chunks(batch)
        if echo.ended:
            self._forget(echo)
        elif len(batch.frames) >= PAGE_BYTES:
            self._due.add(echo.id)  # there is more

    # -- when it begins to run here

    def _watch_lives(self, echo: Echo) -> None:
        self._lives.wait(echo.id).add_done_callback(partial(self._lives_moved, echo))

    def _lives_moved(self, echo: Echo, _: asyncio.Future[None]) -> None:
        if self._echoes.get(echo.id) is not echo:
            return
        live = self._lives.get(echo.id)
        if live is not None and not live.lost:
            self._drop(echo)
        else:
            self._watch_lives(echo)
            echo.wake()  # a keep-alive may be due, or the server may be leaving

    def _drop(self, echo: Echo) -> None:
        """Its readers must read on elsewhere."""
        self._forget(echo)
        echo.lose()

    def _forget(self, echo: Echo) -> None:
        if self._echoes.get(echo.id) is echo:
            del self._echoes[echo.id]
