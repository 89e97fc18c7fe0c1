-- What the next worker must know of a run grows beyond its joints: a JSON object, with the joints as one of its fields.
ALTER TABLE leases RENAME COLUMN joints TO notes;
UPDATE leases SET notes = CASE notes WHEN '[]' THEN '{}' ELSE json_object('joints', json(notes)) END;
