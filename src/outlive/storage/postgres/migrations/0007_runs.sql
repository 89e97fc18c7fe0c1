-- For the timeline of a response: which nodes took it, when, and whether that counted as an attempt (JSON lists, separated by
-- commas); and, once it has ended, the number of its events.
ALTER TABLE responses ADD COLUMN runs text;
ALTER TABLE responses ADD COLUMN events int;
