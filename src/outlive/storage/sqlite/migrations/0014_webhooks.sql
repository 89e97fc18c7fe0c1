-- Addresses that an owner has events of its responses sent to.
CREATE TABLE webhook_endpoints (
    id          TEXT PRIMARY KEY,
    owner       TEXT NOT NULL,  -- its name alone: an endpoint gets the events of all its end users
    name        TEXT NOT NULL,
    url         TEXT NOT NULL,
    event_types TEXT NOT NULL,  -- a JSON list
    created_at  REAL NOT NULL,
    updated_at  REAL NOT NULL,
    hint        TEXT NOT NULL,  -- the end of its secret
    sealed      BLOB NOT NULL,  -- its secrets: the newest, and one before that may still be valid
    disabled_at REAL            -- it answered that it is gone
) STRICT, WITHOUT ROWID;
CREATE INDEX webhook_endpoints_of_owner ON webhook_endpoints (owner);

-- Events for endpoints: to be sent, or sent. Written with the terminal event of their response.
CREATE TABLE webhook_deliveries (
    key          INTEGER PRIMARY KEY,
    id           TEXT NOT NULL UNIQUE,       -- the header webhook-id of every attempt
    owner        TEXT NOT NULL,
    endpoint     TEXT NOT NULL,
    response     TEXT NOT NULL,              -- the id of the response
    event        TEXT NOT NULL,
    created_at   REAL NOT NULL,
    give_up_at   REAL NOT NULL,
    attempts     INTEGER NOT NULL DEFAULT 0,
    due_at       REAL,                       -- the next attempt; NULL: there is none
    worker       TEXT,                       -- the node that is sending it
    delivered_at REAL,
    log          TEXT NOT NULL DEFAULT '[]'  -- the attempts: a JSON list of time, status, reason and duration
) STRICT;
CREATE INDEX webhook_deliveries_due ON webhook_deliveries (endpoint, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX webhook_deliveries_of_response ON webhook_deliveries (response);
CREATE INDEX webhook_deliveries_of_owner ON webhook_deliveries (owner, key);
CREATE INDEX webhook_deliveries_by_age ON webhook_deliveries (give_up_at);
