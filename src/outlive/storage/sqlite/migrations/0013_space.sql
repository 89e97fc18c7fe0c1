-- Rows of journals may be compressed (format 3). To be packed are all journals that are not blocks (format 2).
DROP INDEX responses_to_pack;
CREATE INDEX responses_unpacked ON responses (ended_at) WHERE format <> 2 AND ended_at IS NOT NULL;
