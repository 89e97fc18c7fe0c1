"""Everything of one owner, on either database: for the commands that erase and export it."""

import asyncio
from collections.abc import AsyncIterator

import msgspec

from outlive.core.events import Json
from outlive.core.owners import SEPARATOR, join, split
from outlive.ports.database import Statements

# Looks after what is being cancelled: a server notices within five seconds.
MOST_LOOKS, LOOK_SECONDS = 40, 0.25


class SqlOwner:
    """Everything of one owner and its end users, or of one end user."""

    def __init__(self, database: Statements, name: str, end_user: str | None) -> None:
        self._database = database
        self._name, self._end_user = name, end_user
        whole = (name, name + SEPARATOR, name + chr(ord(SEPARATOR) + 1))  # its end users lie between the last two
        self._match = whole if end_user is None else (join(name, end_user), "", "")

    async def erase(self, *, usage: bool) -> dict[str, int]:
        """Delete everything but usage, and that too if asked to. Returns how many of each there were, and how many have
        not ended: a server cancels those within seconds, or when it starts, and erases the bytes within a minute."""
        # Keys first, so that little begins meanwhile.
        tables = ["keys", "webhook_endpoints", "owner_policies"] if self._end_user is None else []
        erased = dict.fromkeys(("responses", "conversations"), 0)
        for table in [*tables, "idempotency", "unanswered", "tickets"]:
            erased[table] = len(await self._database.change("erase_owner_rows", *self._match, table=table))
        erased["webhook_deliveries"] = len(await self._database.change("erase_owner_deliveries", *self._match))
        for kind in ("responses", "conversations"):
            while rows := await self._database.change(f"erase_owner_{kind}", *self._match):
                erased[kind] += len(rows)
        for _ in range(MOST_LOOKS):
            ((erased["running"],),) = await self._database.fetch("count_running_of", *self._match)
            if not erased["running"]:
                break
            await asyncio.sleep(LOOK_SECONDS)
        # Those of what has just been cancelled.
        erased["webhook_deliveries"] += len(await self._database.change("erase_owner_deliveries", *self._match))
        if usage:
            erased["usage"] = len(await self._database.change("erase_owner_usage", self._name, self._end_user))
        return erased

    async def export(self) -> AsyncIterator[Json]:
        """Yield every ended response with its input, every conversation with its items, and the usage records."""
        for kind in ("response", "conversation"):
            last = 0
            while rows := await self._database.fetch(f"export_{kind}s", *self._match, last):
                last = rows[-1][0]
                for _, object_id, owner, body, thread, first, end, *created in rows:
                    items = await self._database.load("read_input", thread, first, end)
                    about = {"type": kind, "id": object_id, "end_user": split(owner)[1]}
                    if kind == "response":
                        yield about | {"response": msgspec.Raw(body), "input": items}
                    else:
                        yield about | {"created_at": int(created[0]), "metadata": msgspec.Raw(body), "items": items}
        last = 0
        while rows := await self._database.fetch("export_usage", self._name, self._end_user, last):
            last = rows[-1][0]
            for _, record in rows:
                yield msgspec.json.decode(record)
