-- Read-only access to one response or conversation, until it expires or is removed.
CREATE TABLE tickets (
    id         text PRIMARY KEY,
    owner      text NOT NULL,
    target     text NOT NULL,  -- the id of a response or conversation
    expires_at float8 NOT NULL,
    digest     bytea NOT NULL  -- of its secret
);
CREATE INDEX tickets_by_expiry ON tickets (expires_at);
