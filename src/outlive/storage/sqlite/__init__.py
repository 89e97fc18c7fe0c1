"""The ports on one SQLite file."""

from outlive.storage.queries import load_queries

SQL = load_queries(__name__)
