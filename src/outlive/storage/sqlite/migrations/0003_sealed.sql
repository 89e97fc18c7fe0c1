-- The secrets that a run needs for its tools, sealed; they go with the lease.
ALTER TABLE leases ADD COLUMN sealed BLOB;
