"""All ports of one database together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from outlive.ports.bell import Bell
from outlive.ports.catalog import Catalog
from outlive.ports.conversations import Conversations
from outlive.ports.heartbeat import Heartbeat
from outlive.ports.history import History
from outlive.ports.journal import Journal
from outlive.ports.ledger import Ledger
from outlive.ports.retention import Retention


class Storage(msgspec.Struct, frozen=True, kw_only=True):
    """One database, through all its ports."""

    ledger: Ledger
    journal: Journal
    history: History
    catalog: Catalog
    conversations: Conversations
    retention: Retention
    bell: Bell
    heartbeat: Heartbeat
    probe: Callable[[], Awaitable[bool]]
    secret: bytes  # made once per database, and shared by its nodes
    shared: bool  # other nodes may use the same database
