-- The time at which a response is to end at the latest, if its request set one, for those that are still queued then.
ALTER TABLE leases ADD COLUMN deadline REAL;
CREATE INDEX leases_overdue ON leases (deadline) WHERE worker IS NULL AND deadline IS NOT NULL;
