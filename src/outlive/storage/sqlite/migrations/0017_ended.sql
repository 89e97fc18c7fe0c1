-- One index in place of two for responses that have ended: to expire, and to pack. It has none that has not ended.
DROP INDEX responses_ended;
DROP INDEX responses_unpacked;
CREATE INDEX responses_ended ON responses (format, ended_at) WHERE hidden = 0 AND ended_at IS NOT NULL;
