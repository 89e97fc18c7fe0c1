-- The format of a response's journal, so that a version which cannot read it says so.
ALTER TABLE responses ADD COLUMN format INTEGER NOT NULL DEFAULT 1;
