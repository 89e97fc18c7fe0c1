-- Migrations have the same numbers on both databases. Here the index holds whole ids already.
COMMENT ON INDEX items_by_id IS 'whole ids, which callers may choose';
