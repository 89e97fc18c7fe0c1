-- Keys that were made while servers run. Those of the settings are not here.
CREATE TABLE keys (
    id           TEXT PRIMARY KEY,
    owner        TEXT NOT NULL,
    role         TEXT NOT NULL,     -- user, read or admin
    acts_for     INTEGER NOT NULL,  -- 1: its requests may name an end user
    digest       BLOB NOT NULL,     -- SHA-256 of the key: drawn from 256 bits, it needs no salt and no slow hash
    created_at   REAL NOT NULL,
    expires_at   REAL,
    last_used_at REAL,              -- within a minute
    revoked_at   REAL
) STRICT, WITHOUT ROWID;
-- Changes of keys and owners; no secret and no content.
CREATE TABLE audit (
    key     INTEGER PRIMARY KEY AUTOINCREMENT,
    at      REAL NOT NULL,
    actor   TEXT NOT NULL,  -- the owner whose key was used, or the command line
    action  TEXT NOT NULL,
    subject TEXT NOT NULL,  -- the id of a key, or the name of an owner
    detail  TEXT NOT NULL
) STRICT;
