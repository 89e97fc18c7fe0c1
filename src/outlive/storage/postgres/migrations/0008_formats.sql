-- The format of a response's journal, so that a version which cannot read it says so.
ALTER TABLE responses ADD COLUMN format int NOT NULL DEFAULT 1;
-- The newest format that a node reads: none may write a newer one while this node runs.
ALTER TABLE workers ADD COLUMN reads int NOT NULL DEFAULT 1;
