-- Callers choose ids, and may choose many that end alike: the index holds the beginning of an id, too, behind its end.
DROP INDEX items_by_id;
CREATE INDEX items_by_id ON items (substr(id, -48), substr(id, 1, length(id) - 48), thread);
