-- Rows of journals may be compressed (format 3). To be packed are all journals that are not blocks (format 2).
CREATE INDEX responses_unpacked ON responses (ended_at) WHERE format <> 2 AND ended_at IS NOT NULL;

-- Raising a fence waits for the appends under way, which share this lock of their response until their commit. Here and not
-- in the statements, so that it holds for nodes of every version. A response that never ran (fence 0) has no appends.
CREATE FUNCTION await_appends() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(1869968492, (OLD.response % 2147483647)::int);
    RETURN NEW;
END $$;
CREATE TRIGGER await_appends BEFORE UPDATE OF fence ON leases FOR EACH ROW
    WHEN (OLD.fence > 0 AND OLD.fence <> NEW.fence) EXECUTE FUNCTION await_appends();

-- Erased rows are freed early, for these tables are large or change fast, and a fifth of them (the default) is much.
ALTER TABLE events SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 5000);
ALTER TABLE packs SET (autovacuum_vacuum_scale_factor = 0.05, toast.autovacuum_vacuum_scale_factor = 0.05);
ALTER TABLE snapshots SET (autovacuum_vacuum_scale_factor = 0.05, toast.autovacuum_vacuum_scale_factor = 0.05);
-- Final objects from 2 KB on are compressed, but stay in their rows: each is written once, and read rarely.
ALTER TABLE snapshots SET (toast_tuple_target = 128);
ALTER TABLE snapshots ALTER COLUMN body SET STORAGE MAIN;
ALTER TABLE items SET (autovacuum_vacuum_scale_factor = 0.05, toast.autovacuum_vacuum_scale_factor = 0.05);
ALTER TABLE responses SET (autovacuum_vacuum_scale_factor = 0.05);
ALTER TABLE threads SET (autovacuum_vacuum_scale_factor = 0.05);
