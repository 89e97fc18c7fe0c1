"""Storage: the ports on SQLite, Postgres and memory, and the seal of secrets."""
