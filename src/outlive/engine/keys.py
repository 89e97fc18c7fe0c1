"""Access: keys that are made and revoked while the server runs, found in memory and kept up to date with the database;
and stream tickets, short-lived and read-only, for pages that must not hold a key."""

import contextlib
import hmac
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256

from msgspec.structs import astuple

from outlive.core.errors import InvalidRequest, NotFound, Unauthenticated
from outlive.core.events import Json
from outlive.core.ids import IdSource
from outlive.core.usage import DAY
from outlive.ports.clock import Clock
from outlive.ports.database import Change, Statements
from outlive.ports.storage import AuditEntry, Key, Role, Ticket

# Seconds between two writes of when keys were last used.
NOTE_SECONDS = 60.0
SECRET_BYTES, TICKET_BYTES = 32, 24
PREFIX = "olk_"  # by which programs that look for leaked secrets recognise a key
MAX_DAYS = 36_500

_OWNER = re.compile(r"[A-Za-z0-9_.@-]{1,64}")


def digest_of(secret: str) -> bytes:
    # A plain hash: what was drawn from 256 bits cannot be guessed, however fast the guesses are.
    return sha256(secret.encode("utf-8", "replace")).digest()


@dataclass(eq=False)
class Keys:
    """The keys of a database as this process knows them. Each change is written into the audit log, in the same
    transaction."""

    _database: Statements
    clock: Clock
    _ids: IdSource
    exist: bool = False  # there are keys, or were: from then on a request needs one
    _seen: tuple[int, ...] = (0, 0, 0)
    _by_digest: dict[bytes, Key] = field(default_factory=dict)
    _valid: dict[str, Key] = field(default_factory=dict)  # by id
    _uses: dict[str, float] = field(default_factory=dict)  # since they were last written
    _noted_at: float = -NOTE_SECONDS
    _watched: dict[object, tuple[Key, Callable[[], None]]] = field(default_factory=dict)

    async def create(self, actor: str, owner: str, role: Role, days: float | None, acts_for: bool) -> Json:
        """Store a new key, and return it with the key itself, which is shown only here. Raises InvalidRequest for an
        owner's name, a role or a time that cannot be."""
        if not _OWNER.fullmatch(owner):
            message = "An owner's name has 1 to 64 letters, digits, '_', '.', '@' and '-'; no others."
            raise InvalidRequest(message, param="owner")
        if role not in ("user", "read", "admin"):
            raise InvalidRequest(f"role must be user, read or admin, not {role!r}.", param="role")
        if days is not None and not 0 < days <= MAX_DAYS:
            raise InvalidRequest(f"The days must be more than 0, and {MAX_DAYS} at most.", param="expires_in_days")
        now, secret = self.clock.now(), PREFIX + secrets.token_urlsafe(SECRET_BYTES)
        expires_at = None if days is None else now + days * DAY
        key = Key(self._ids.new("key"), owner, role, acts_for, digest_of(secret), now, expires_at)
        detail = f"owner {owner}, role {role}" + ", acts for end users" * acts_for
        detail += "" if days is None else f", for {days:g} days"
        entry = AuditEntry(now, actor, "key.created", key.id, detail)
        await self._database.change_all("add key", [("add_key", astuple(key)), ("add_audit", entry)])
        await self.refresh()
        return describe(key) | {"key": secret}

    async def revoke(self, actor: str, key_id: str) -> Json:
        """Revoke a key. Raises NotFound for one that does not exist; to revoke it again changes nothing."""
        key = next((key for key in await self._load() if key.id == key_id), None)
        if key is None:
            raise NotFound(f"Key with id '{key_id}' not found.")
        if key.revoked_at is None:
            entry = AuditEntry(self.clock.now(), actor, "key.revoked", key_id, f"owner {key.owner}, role {key.role}")
            await self._database.change_all("revoke key", [("revoke_key", (entry.at, key_id)), ("add_audit", entry)])
            await self.refresh()
        return {"id": key_id, "object": "key.deleted", "deleted": True}

    async def find_all(self) -> list[Json]:
        return [describe(key) for key in await self._load()]

    async def _load(self) -> list[Key]:
        """Return all keys, oldest first; those that were revoked or have expired too."""
        rows = await self._database.fetch("list_keys")
        return [Key(row[0], row[1], row[2], bool(row[3]), *row[4:]) for row in rows]

    async def list_audit(self, limit: int) -> list[Json]:
        """Return the newest entries of the audit log, newest first."""
        rows = await self._database.fetch("list_audit", limit)
        return [AuditEntry(*row)._asdict() | {"at": int(row[0])} for row in rows]

    # -- as requests need them

    def find(self, digest: bytes) -> Key | None:
        """Find a valid key, and note that it was used."""
        key = self._by_digest.get(digest)
        if key is None or not self.is_valid(key):
            return None
        self._uses[key.id] = self.clock.now()
        return key

    def find_void(self, digest: bytes) -> tuple[Key | None, str]:
        """Find a key that is not valid any more, and say why."""
        key = self._by_digest.get(digest)
        if key is None or self.is_valid(key):
            return None, ""
        return key, "key_expired" if key.id in self._valid else "key_revoked"

    def is_valid(self, key: Key) -> bool:
        """Return True if a key has neither expired nor, as far as is known here, been revoked."""
        if key.expires_at is not None and key.expires_at <= self.clock.now():
            return False
        return not key.id or key.id in self._valid

    def has_owner(self, owner: str) -> bool:
        return any(key.owner == owner and self.is_valid(key) for key in self._valid.values())

    def watch(self, key: Key, stop: Callable[[], None]) -> contextlib.ExitStack:
        """Call `stop` once the key is not valid any more, until the block ends."""
        watch, block = object(), contextlib.ExitStack()
        self._watched[watch] = key, stop
        block.callback(self._watched.pop, watch)
        return block

    async def refresh(self) -> None:
        """Read the keys if they changed, stop what void ones have open, and write when keys were used."""
        # The number of keys, of revoked ones, and of all that were ever made: every change changes one.
        (row,) = await self._database.fetch("count_keys")
        if (seen := tuple(row)) != self._seen:
            keys = await self._load()
            self._valid = {key.id: key for key in keys if key.revoked_at is None}
            self._by_digest = {key.digest: key for key in keys}
            self._seen, self.exist = seen, any(seen)
        for key, stop in list(self._watched.values()):
            if not self.is_valid(key):
                stop()
        if self._uses and self.clock.monotonic() - self._noted_at >= NOTE_SECONDS:
            uses, self._uses, self._noted_at = self._uses, {}, self.clock.monotonic()
            changes: list[Change] = [("note_key_use", (at, key_id)) for key_id, at in sorted(uses.items())]
            await self._database.change_all("note key use", changes)


def describe(key: Key) -> Json:
    """Return a key as lists show it."""
    times = {name: getattr(key, name) for name in ("created_at", "expires_at", "last_used_at", "revoked_at")}
    shown: Json = {"id": key.id, "object": "key", "owner": key.owner, "role": key.role, "acts_for": key.acts_for}
    return shown | {name: None if value is None else int(value) for name, value in times.items()}


@dataclass(eq=False)
class Tickets:
    """Gives out tickets, finds them, and cuts the streams of those that were revoked or have expired. A ticket is its
    id and a secret, of which only the digest is stored. Expired ones are erased by `Retention.forget_keys`."""

    _database: Statements
    _clock: Clock
    _ids: IdSource
    _seconds: float  # after which one expires that names no other time
    _streams: dict[Callable[[], None], str] = field(default_factory=dict)  # what stops open ones, and their tickets

    async def create(self, owner: str, target: str, seconds: float | None) -> Json:
        """Store a ticket for a response or conversation that exists, and return it."""
        now, secret = self._clock.now(), secrets.token_urlsafe(TICKET_BYTES)
        ticket = Ticket(self._ids.new("ticket"), owner, target, now + (seconds or self._seconds), digest_of(secret))
        await self._database.change("add_ticket", *astuple(ticket))
        shown = {"id": ticket.id, "object": "ticket", "target": target, "created_at": int(now)}
        return shown | {"expires_at": int(ticket.expires_at), "ticket": f"{ticket.id}.{secret}"}

    async def revoke(self, owner: str, target: str, ticket_id: str) -> None:
        """Revoke a ticket, and cut its streams on this node. Raises NotFound."""
        if not await self._database.change("remove_ticket", ticket_id, owner, target):
            raise NotFound(f"Ticket with id '{ticket_id}' not found.")
        await self.check_once()

    async def find(self, text: str) -> Ticket:
        """Return a valid ticket. Raises Unauthenticated."""
        ticket_id, _, secret = text.partition(".")
        for row in await self._database.fetch("find_ticket", ticket_id):
            ticket = Ticket(*row)
            if hmac.compare_digest(ticket.digest, digest_of(secret)) and ticket.expires_at > self._clock.now():
                return ticket
        raise Unauthenticated("The ticket is not valid: it has expired or was revoked.", code="invalid_ticket")

    async def opens_response(self, ticket: Ticket, response_id: str) -> bool:
        """Return True if the ticket is for this response, or for the conversation that it belongs to."""
        of = (response_id, ticket.owner, ticket.target)
        return ticket.target == response_id or bool(await self._database.fetch("find_in_conversation", *of))

    def watch(self, ticket: Ticket | None, stop: Callable[[], None]) -> contextlib.ExitStack:
        """Call `stop` once the ticket is not valid any more, until the block ends."""
        block = contextlib.ExitStack()
        if ticket is not None:
            self._streams[stop] = ticket.id
            block.callback(self._streams.pop, stop)
        return block

    async def check_once(self) -> None:
        asked = dict(self._streams)
        ids, now = sorted(set(asked.values())), self._clock.now()
        valid = {row[0] for row in await self._database.fetch("find_valid_tickets", ids, now)} if asked else ()
        for stop, ticket_id in asked.items():
            if ticket_id not in valid:
                stop()
