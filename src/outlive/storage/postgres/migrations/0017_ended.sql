-- A response that ends is updated in place again: no index contains a column that this changes.
DROP INDEX responses_to_pack;
DROP INDEX responses_unpacked;
CREATE INDEX responses_unpacked ON responses (created_at) WHERE format <> 2;
