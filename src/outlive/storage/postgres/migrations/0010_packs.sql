-- The journals of responses that ended some time ago, as compressed blocks (see packing.py); format 2 says that the events of a
-- response are there.
CREATE TABLE packs (
    response bigint NOT NULL,
    first    int NOT NULL,
    count    int NOT NULL,
    at       float8 NOT NULL,
    block    bytea STORAGE EXTERNAL NOT NULL,
    PRIMARY KEY (response, first)
) WITH (toast_tuple_target = 8160);
CREATE INDEX responses_to_pack ON responses (ended_at) WHERE format = 1 AND ended_at IS NOT NULL;
