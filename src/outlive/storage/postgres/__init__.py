"""The ports on a Postgres database that any number of nodes share."""
