-- The journals of responses that ended some time ago, as compressed blocks (see packing.py); format 2 says that the events of a
-- response are there, and that what is left of them in `events` may be deleted.
CREATE TABLE packs (
    key      INTEGER PRIMARY KEY,
    response INTEGER NOT NULL,
    first    INTEGER NOT NULL,
    count    INTEGER NOT NULL,
    at       REAL NOT NULL,
    block    BLOB NOT NULL
);
CREATE UNIQUE INDEX packs_in_order ON packs (response, first);
CREATE INDEX responses_to_pack ON responses (ended_at) WHERE format = 1 AND ended_at IS NOT NULL;
