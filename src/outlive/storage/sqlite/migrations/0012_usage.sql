-- What responses used, one row each, without content; a row stays when its response is deleted. Of responses with `store: false`
-- there are only sums by owner, model and day: rows without a response, with the beginning of the day in `ended_at`.
CREATE TABLE usage (
    key              INTEGER PRIMARY KEY,
    response         TEXT,
    owner            TEXT NOT NULL,     -- the owner's name
    end_user         TEXT,
    model            TEXT NOT NULL,     -- as requests name it
    upstream         TEXT NOT NULL,
    ended_at         REAL NOT NULL,
    status           TEXT NOT NULL,
    input_tokens     INTEGER NOT NULL,
    cached_tokens    INTEGER NOT NULL,  -- of the input
    output_tokens    INTEGER NOT NULL,
    reasoning_tokens INTEGER NOT NULL,  -- of the output
    estimated_input  INTEGER NOT NULL,  -- tokens of the input that no upstream reported
    estimated_output INTEGER NOT NULL,
    attempts         INTEGER NOT NULL,
    tool_calls       INTEGER NOT NULL,
    responses        INTEGER NOT NULL   -- how many the row stands for
);
CREATE INDEX usage_by_owner ON usage (owner, ended_at);
CREATE UNIQUE INDEX usage_sums ON usage (owner, model, upstream, ended_at) WHERE response IS NULL;

-- What owners may do, as JSON: the keys of [owners.NAME] in the settings, over which these win.
CREATE TABLE owner_policies (
    owner  TEXT PRIMARY KEY,
    policy TEXT NOT NULL
) STRICT, WITHOUT ROWID;
