"""The ports on a Postgres database that any number of nodes share."""

from outlive.storage.postgres.bell import PostgresBell
from outlive.storage.postgres.connection import PostgresDatabase
from outlive.storage.postgres.conversations import PostgresConversations
from outlive.storage.postgres.heartbeat import PostgresHeartbeat
from outlive.storage.postgres.journal import PostgresHistory, PostgresJournal
from outlive.storage.postgres.ledger import PostgresLedger
from outlive.storage.postgres.packing import PostgresPacking
from outlive.storage.postgres.retention import PostgresRetention

__all__ = [
    "PostgresBell",
    "PostgresConversations",
    "PostgresDatabase",
    "PostgresHeartbeat",
    "PostgresHistory",
    "PostgresJournal",
    "PostgresLedger",
    "PostgresPacking",
    "PostgresRetention",
]
