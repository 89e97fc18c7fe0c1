-- The journals of responses that ended some time ago, as compressed blocks (see packing.py); format 2 says that the events of a
-- response are there.
CREATE TABLE packs (
    response bigint NOT NULL,
    first    int NOT NULL,
    count    int NOT NULL,
    at       float8 NOT NULL,
    block    bytea NOT NULL,
    PRIMARY KEY (response, first)
) WITH (toast_tuple_target = 8160);
ALTER TABLE packs ALTER COLUMN block SET STORAGE EXTERNAL;  -- in CREATE TABLE only from Postgres 16 on
CREATE INDEX responses_to_pack ON responses (ended_at) WHERE format = 1 AND ended_at IS NOT NULL;
