-- Everything a single server keeps. Content is stored as bytes (JSON text may hold what SQL text may not).

-- Keys of threads and responses are never used again (AUTOINCREMENT): an item, a fork or a stale lease may outlive what
-- its key stood for, and must not come to mean something else.

-- A line of items: a conversation, or a chain of responses. A fork inherits its parent's items below `fork`.
CREATE TABLE threads (
    key     INTEGER PRIMARY KEY AUTOINCREMENT,
    root    INTEGER,            -- the first thread of the family; NULL: this one
    parent  INTEGER,
    fork    INTEGER,
    head    INTEGER NOT NULL,   -- where the next item goes
    hole    INTEGER,            -- from this position on, something was deleted: no chain may reach past it (D22)
    used_at REAL NOT NULL
);
CREATE INDEX forks ON threads (parent) WHERE parent IS NOT NULL;

CREATE TABLE responses (
    key          INTEGER PRIMARY KEY AUTOINCREMENT,
    id           TEXT NOT NULL UNIQUE,
    owner        TEXT NOT NULL,
    status       TEXT NOT NULL,
    background   INTEGER NOT NULL,
    created_at   REAL NOT NULL,
    ended_at     REAL,
    hidden       INTEGER NOT NULL DEFAULT 0,  -- deleted or expired; its bytes go when no run needs them
    conversation TEXT,
    thread       INTEGER NOT NULL,
    first        INTEGER NOT NULL,            -- its input items lie from here ...
    input_end    INTEGER NOT NULL,            -- ... to before here, its output items follow ...
    last         INTEGER NOT NULL,            -- ... to before here
    era          INTEGER NOT NULL,            -- its events lie from this era on ...
    last_era     INTEGER,                     -- ... to this one, once it has ended
    request      BLOB,                        -- until it has ended
    snapshot     BLOB                         -- once it has ended
);
CREATE INDEX responses_of_owner ON responses (owner, key);
CREATE INDEX responses_in_conversation ON responses (conversation, key) WHERE conversation IS NOT NULL;
CREATE INDEX responses_hidden ON responses (key) WHERE hidden = 1;
CREATE INDEX responses_ended ON responses (ended_at) WHERE hidden = 0;

CREATE TABLE leases (
    response   INTEGER PRIMARY KEY,
    owner      TEXT NOT NULL,
    background INTEGER NOT NULL,
    worker     TEXT,                -- NULL: anyone may claim it
    fence      INTEGER NOT NULL,
    attempts   INTEGER NOT NULL,
    joints     TEXT NOT NULL        -- JSON list of sequence numbers
);
CREATE INDEX leases_waiting ON leases (background, response) WHERE worker IS NULL;

-- One row per (response, flush): 1..n frames, the very bytes that were sent.
CREATE TABLE events (
    key      INTEGER PRIMARY KEY,
    response INTEGER NOT NULL,
    first    INTEGER NOT NULL,
    count    INTEGER NOT NULL,
    at       REAL NOT NULL,
    frames   BLOB NOT NULL
);
-- By era (4,096 rows), and only then by response: what many responses write at one time lies on few pages of the index,
-- and a commit has to write only those. A response knows the eras that its rows are in.
CREATE UNIQUE INDEX events_in_order ON events (key >> 12, response, first);

CREATE TABLE items (
    thread   INTEGER NOT NULL,
    position INTEGER NOT NULL,
    id       TEXT NOT NULL,
    response INTEGER,               -- NULL: put there through the conversation's own endpoints
    body     BLOB NOT NULL,
    PRIMARY KEY (thread, position)
) WITHOUT ROWID;
CREATE INDEX items_by_id ON items (thread, id);

-- The items of large requests, in pieces (see stash.py); a holder is who they were accepted with.
CREATE TABLE stash (
    key    INTEGER PRIMARY KEY,
    holder TEXT NOT NULL,
    number INTEGER NOT NULL,
    bytes  BLOB NOT NULL,
    UNIQUE (holder, number)
);
CREATE TABLE holders (id TEXT PRIMARY KEY) WITHOUT ROWID;

CREATE TABLE conversations (
    key        INTEGER PRIMARY KEY,
    id         TEXT NOT NULL UNIQUE,
    owner      TEXT NOT NULL,
    created_at REAL NOT NULL,
    used_at    REAL NOT NULL,
    hidden     INTEGER NOT NULL DEFAULT 0,
    thread     INTEGER NOT NULL,
    running    INTEGER,             -- the response that holds the lock
    metadata   BLOB NOT NULL
);
CREATE INDEX conversations_of_owner ON conversations (owner, key);
CREATE INDEX conversations_of_thread ON conversations (thread);
CREATE INDEX conversations_hidden ON conversations (key) WHERE hidden = 1;

CREATE TABLE idempotency (
    owner   TEXT NOT NULL,
    kind    TEXT NOT NULL,          -- what was created: response, conversation, or items of a conversation
    key     TEXT NOT NULL,
    digest  BLOB NOT NULL,
    target  TEXT NOT NULL,          -- the id of what was created (of items: their ids, comma separated)
    used_at REAL NOT NULL,
    PRIMARY KEY (owner, kind, key)
) WITHOUT ROWID;
CREATE INDEX idempotency_of_target ON idempotency (target);
-- Keys of responses go with their responses; the others are forgotten by age.
CREATE INDEX idempotency_of_others ON idempotency (used_at) WHERE kind <> 'response';

-- Responses whose creating connection has not had its whole answer yet: what a silent SDK retry may find.
CREATE TABLE unanswered (
    response   INTEGER PRIMARY KEY,
    owner      TEXT NOT NULL,
    digest     BLOB NOT NULL,
    created_at REAL NOT NULL
);
CREATE INDEX unanswered_by_digest ON unanswered (owner, digest);
