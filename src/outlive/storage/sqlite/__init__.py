"""The ports on one SQLite file."""
