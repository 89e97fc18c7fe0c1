-- An item is found by its id alone, for requests that refer to it. The same index serves whoever knows the thread.
DROP INDEX items_by_id;
CREATE INDEX items_by_id ON items (id, thread);

-- What the nodes made up for themselves once and must all know.
CREATE TABLE secrets (
    name  text PRIMARY KEY,
    value bytea NOT NULL
);
