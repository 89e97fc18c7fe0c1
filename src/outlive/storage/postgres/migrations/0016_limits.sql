-- How many runs that are not stored (`store: false`, chat completions) each owner with a limit has on each node: numbers only.
-- They mean nothing after a crash of the database, so they are in no log; nodes write them again.
CREATE UNLOGGED TABLE unstored_runs (
    worker  text NOT NULL,
    owner   text NOT NULL,  -- its name
    running int NOT NULL,
    PRIMARY KEY (worker, owner)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE INDEX unstored_runs_of_owner ON unstored_runs (owner);

-- The time at which a response is to end at the latest, if its request set one, for those that are still queued then.
ALTER TABLE leases ADD COLUMN deadline float8;
CREATE INDEX leases_overdue ON leases (deadline) WHERE worker IS NULL AND deadline IS NOT NULL;
