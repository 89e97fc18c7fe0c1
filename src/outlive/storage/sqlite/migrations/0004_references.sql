-- An item is found by its id alone, for requests that refer to it. Behind their prefix ids begin with the time they were
-- made at; by that part the index grows at its end, as the one before it did, and it serves whoever knows the thread just
-- as well. (Queries say `substr(id, -48)` to use it.)
DROP INDEX items_by_id;
CREATE INDEX items_by_id ON items (substr(id, -48), thread);

-- What the server made up for itself once and must know again: on every node, and after every restart.
CREATE TABLE secrets (
    name  TEXT PRIMARY KEY,
    value BLOB NOT NULL
) WITHOUT ROWID;
