-- What the next worker must know of a run is more than its joints: they become a part of its notes.
ALTER TABLE leases RENAME COLUMN joints TO notes;
UPDATE leases SET notes = '{"joints":' || notes || '}';
ALTER TABLE leases ALTER COLUMN notes SET DEFAULT '{}';
