-- What has expired is hidden first, and deleted a day later: a wrong clock must not destroy anything. NULL: not expired,
-- or deleted.
ALTER TABLE responses ADD COLUMN expired_at REAL;
ALTER TABLE conversations ADD COLUMN expired_at REAL;
-- From this position on, something has expired: like a hole, but it may be taken back.
ALTER TABLE threads ADD COLUMN expired_from INTEGER;

CREATE INDEX responses_expired ON responses (expired_at) WHERE expired_at IS NOT NULL;
CREATE INDEX conversations_expired ON conversations (expired_at) WHERE expired_at IS NOT NULL;
DROP INDEX responses_hidden;
DROP INDEX conversations_hidden;
CREATE INDEX responses_deleted ON responses (key) WHERE hidden = 1 AND expired_at IS NULL;
CREATE INDEX conversations_deleted ON conversations (key) WHERE hidden = 1 AND expired_at IS NULL;
