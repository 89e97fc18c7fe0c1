-- Read-only access to one response or conversation, until it expires or is removed.
CREATE TABLE tickets (
    id         TEXT PRIMARY KEY,
    owner      TEXT NOT NULL,
    target     TEXT NOT NULL,  -- the id of a response or conversation
    expires_at REAL NOT NULL,
    digest     BLOB NOT NULL   -- of its secret
) STRICT, WITHOUT ROWID;
CREATE INDEX tickets_by_expiry ON tickets (expires_at);
