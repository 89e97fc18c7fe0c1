-- The model and the metadata that a request named, as JSON, for lists that filter by them. NULL: of an older version.
ALTER TABLE responses ADD COLUMN about BLOB;
-- A response whose request said how long it is kept: the time, unless it is used until then. NULL: as the settings have it.
ALTER TABLE responses ADD COLUMN expires_at REAL;
CREATE INDEX responses_to_expire ON responses (expires_at) WHERE expires_at IS NOT NULL AND hidden = 0;
