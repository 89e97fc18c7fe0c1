-- Functions for work of several steps, so that it takes one round trip. They belong to the program, not to the schema:
-- each version of this file has a Postgres schema of its own (see schema.py), so that nodes of two versions never share
-- a function. A refusal is returned, not raised: it must not undo the rest of its transaction.

-- As in queries.sql, a comparison by IS NOT DISTINCT FROM should use no index.
-- To avoid deadlocks, locks are always taken in this order, and by key within each step: advisory locks, leases,
-- conversations, threads.

-- A thread and the threads that it was forked from, newest first. A thread that was erased with all its items is nothing
-- but a hole.
CREATE FUNCTION segments(of_thread bigint, below int)
RETURNS TABLE (number int, thread bigint, upto int, hole int) LANGUAGE sql STABLE AS $$
    WITH RECURSIVE lineage AS (
        SELECT 1 AS number, of_thread AS thread, below AS upto, t.parent, t.fork,
               CASE WHEN t.key IS NULL THEN -1 ELSE least(t.hole, t.expired_from) END AS hole
          FROM (SELECT 1) one LEFT JOIN threads t ON t.key = of_thread
        UNION ALL
        SELECT l.number + 1, l.parent, l.fork, t.parent, t.fork,
               CASE WHEN t.key IS NULL THEN -1 ELSE least(t.hole, t.expired_from) END
          FROM lineage l
          -- One by one: a plan made while there were few threads would scan them all for each.
          LEFT JOIN LATERAL (
              SELECT p.key, p.parent, p.fork, p.hole, p.expired_from FROM threads p WHERE p.key = l.parent OFFSET 0) t ON true
         WHERE l.parent IS NOT NULL)
    SELECT l.number, l.thread, l.upto, l.hole FROM lineage l
$$;


-- The point where new items go: after `first` in `thread`, or (thread NULL) in a new thread that may be a fork.
CREATE TYPE insertion_point AS (
    refusal text, detail text,
    thread bigint, first int, root bigint, parent bigint, fork int, conversation bigint
);

-- In a conversation. A caller that adds items holds the conversation's lock; a caller that only reads (`locking` false)
-- does not see a turn that has not ended (D6).
CREATE FUNCTION locate_in_conversation(of_owner text, conversation_id text, locking boolean)
RETURNS insertion_point LANGUAGE plpgsql AS $$
DECLARE
    s insertion_point;
    it record;
BEGIN
    SELECT c.key, c.thread, t.head, r.id AS running, r.first INTO it
      FROM conversations c JOIN threads t ON t.key = c.thread LEFT JOIN responses r ON r.key = c.running
     WHERE c.id = conversation_id AND c.owner IS NOT DISTINCT FROM of_owner AND c.hidden IS NOT TRUE;
    IF it.key IS NULL THEN
        s.refusal := 'no conversation';
    ELSIF it.running IS NOT NULL AND locking THEN
        s.refusal := 'locked';
        s.detail := it.running;
    ELSE
        s.thread := it.thread;
        s.first := CASE WHEN it.running IS NULL THEN it.head ELSE it.first END;
        s.conversation := it.key;
    END IF;
    RETURN s;
END $$;

-- After a response: in its thread if no item has followed it yet, otherwise in a fork (D22).
CREATE FUNCTION locate_after(of_owner text, parent_id text) RETURNS insertion_point LANGUAGE plpgsql AS $$
DECLARE
    s insertion_point;
    p record;
BEGIN
    SELECT r.status, r.thread, r.last, r.conversation IS NOT NULL AS in_conversation, t.root, t.head INTO p
      FROM responses r LEFT JOIN threads t ON t.key = r.thread
     WHERE r.id = parent_id AND r.owner IS NOT DISTINCT FROM of_owner AND r.hidden IS NOT TRUE;
    IF p.status IS NULL THEN
        s.refusal := 'no parent';
    ELSIF p.status IN ('queued', 'in_progress') THEN
        s.refusal := 'parent unfinished';
        s.detail := p.status;
    ELSIF p.status = 'failed' THEN
        s.refusal := 'parent failed';
    ELSIF EXISTS (SELECT 1 FROM segments(p.thread, p.last) g WHERE g.hole < g.upto) THEN
        s.refusal := 'parent incomplete';
    ELSE
        s.root := coalesce(p.root, p.thread);
        IF p.head = p.last AND NOT p.in_conversation THEN
            s.thread := p.thread;
            s.first := p.last;
        ELSE
            s.first := 0;
            s.parent := p.thread;
            s.fork := p.last;
        END IF;
    END IF;
    RETURN s;
END $$;


-- Everything that the admission of a response writes.
CREATE TYPE admission AS (
    id text, owner text, status text, background boolean, at float8, conversation text, parent text,
    request bytea, frames bytea, short_frames bytea, count int, worker text, sealed bytea,
    key text, digest bytea, retry_digest bytea,
    item_ids text[], item_bodies bytea[], -- the bodies are NULL when they are staged
    with_ids boolean,                     -- the caller named the items, and may have sent them before (D24)
    about bytea, expires_at float8, deadline float8,
    until float8,                         -- by the database's clock: later the caller may have retried elsewhere
    most_running int, most_queued int     -- of its owner; 0: no limit
);
CREATE TYPE admitted AS (refusal text, detail text, key bigint, thread bigint, first int, format int);

-- The owner of a lease is the name alone, without an end user (see core/owners.py): limits count by it.
-- Counts what an owner runs on all nodes that are alive, stored or not, besides what one of them runs and does not store.
CREATE FUNCTION count_running(of_owner text, besides text) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT count(*) FROM leases l WHERE l.owner = of_owner AND l.worker IS NOT NULL)
         + (SELECT coalesce(sum(u.running), 0) FROM unstored_runs u JOIN workers w ON w.name = u.worker
             WHERE u.owner = of_owner AND u.worker <> besides AND w.expires_at > clock_timestamp());
END $$;

-- Sets how many runs of an owner that are not stored a node holds, and adds those of `wanted` that all nodes together may
-- run (`most` 0: no limit). `waits`: responses of the owner are queued.
CREATE FUNCTION share_running(of_owner text, as_worker text, held int, wanted int, most int, lock bigint, OUT added int, OUT waits boolean)
LANGUAGE plpgsql AS $$
BEGIN
    added := wanted;
    IF wanted > 0 AND most > 0 THEN
        PERFORM pg_advisory_xact_lock(lock);
        added := greatest(0, least(wanted, most - held - count_running(of_owner, as_worker)));
    END IF;
    IF held + added > 0 THEN
        INSERT INTO unstored_runs AS u (owner, worker, running) VALUES (of_owner, as_worker, held + added)
        ON CONFLICT (worker, owner) DO UPDATE SET running = excluded.running;
    ELSE
        DELETE FROM unstored_runs u WHERE u.worker = as_worker AND u.owner = of_owner;
    END IF;
    waits := EXISTS (SELECT 1 FROM leases l WHERE l.owner = of_owner AND l.worker IS NULL);
END $$;

-- Checks whether an owner, with its end users, may have one more running, or whether one more may be queued, on all nodes
-- together. `quota` is how many may be queued (NULL: no limit), `queued` the number of queued responses.
CREATE FUNCTION check_quota(a admission, quota int, queued int) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    of_owner text := split_part(a.owner, chr(31), 1);
BEGIN
    IF a.worker IS NOT NULL THEN
        IF a.most_running > 0 AND count_running(of_owner, '') >= a.most_running THEN
            RETURN 'must wait';
        END IF;
    ELSE
        IF queued >= quota THEN
            RETURN 'too many';
        END IF;
        IF a.most_queued > 0 AND
           (SELECT count(*) FROM leases l WHERE l.worker IS NULL AND l.owner = of_owner) >= a.most_queued THEN
            RETURN 'too many of owner';
        END IF;
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION admit(a admission, quota int, queued int, in_format int) RETURNS admitted LANGUAGE plpgsql AS $$
DECLARE
    made admitted;
    s insertion_point;
    earlier record;
    kept int[]; -- the indexes of the given items that are new
    lineage record;
BEGIN
    IF a.key IS NOT NULL THEN
        -- A key whose response failed, or was deleted, may be used again.
        SELECT i.digest, i.target INTO earlier FROM idempotency i JOIN responses r ON r.id = i.target
         WHERE i.owner = a.owner AND i.kind = 'response' AND i.key = a.key
           AND r.owner IS NOT DISTINCT FROM a.owner AND r.hidden IS NOT TRUE AND r.status <> 'failed';
        IF earlier.target IS NOT NULL THEN
            made.refusal := CASE WHEN earlier.digest = a.digest THEN 'attached' ELSE 'conflict' END;
            made.detail := earlier.target;
            RETURN made;
        END IF;
    END IF;

    IF extract(epoch FROM clock_timestamp()) > a.until THEN
        made.refusal := 'late';
        RETURN made;
    END IF;

    IF a.conversation IS NOT NULL THEN
        s := locate_in_conversation(a.owner, a.conversation, true);
    ELSIF a.parent IS NOT NULL THEN
        s := locate_after(a.owner, a.parent);
    ELSE
        s.first := 0;
    END IF;
    made.refusal := coalesce(s.refusal, check_quota(a, quota, queued));
    made.detail := s.detail;
    IF made.refusal IS NOT NULL THEN
        RETURN made;
    END IF;

    IF a.with_ids AND coalesce(s.thread, s.parent) IS NOT NULL THEN
        -- To send an item again that the thread holds already is a no-op (D24). A map from threads to their ends: one
        -- lookup for each item, however many forks there are.
        SELECT jsonb_object_agg(l.thread, l.upto) AS ends, min(l.thread) AS oldest, max(l.thread) AS newest INTO lineage
          FROM segments(coalesce(s.thread, s.parent), coalesce(s.fork, s.first)) l;
        SELECT coalesce(array_agg(g.n ORDER BY g.n), '{}') INTO kept
          FROM unnest(a.item_ids) WITH ORDINALITY AS g(id, n)
         WHERE NOT EXISTS (SELECT 1 FROM items i
                            WHERE i.id = g.id AND i.thread BETWEEN lineage.oldest AND lineage.newest
                              AND i.position < (lineage.ends ->> i.thread::text)::int);
    ELSE
        SELECT coalesce(array_agg(n), '{}') INTO kept FROM generate_series(1, cardinality(a.item_ids)) n;
    END IF;
    IF kept = '{}' AND s.thread IS NOT NULL AND s.conversation IS NULL THEN
        -- A response without input gets a fork: no item would show that its position in a chain is taken.
        s.parent := s.thread;
        s.fork := s.first;
        s.thread := NULL;
        s.first := 0;
    END IF;

    IF s.root IS NOT NULL THEN
        UPDATE threads t SET used_at = a.at WHERE t.key = s.root; -- to be a parent renews the whole chain (D18)
    END IF;
    IF s.thread IS NULL THEN
        INSERT INTO threads (root, parent, fork, head, used_at)
        VALUES (s.root, s.parent, s.fork, s.first + cardinality(kept), a.at) RETURNING threads.key INTO s.thread;
    ELSE
        UPDATE threads t SET head = s.first + cardinality(kept) WHERE t.key = s.thread;
    END IF;
    made.thread := s.thread;
    made.first := s.first;
    made.format := in_format;
    INSERT INTO responses (id, owner, status, background, created_at, conversation, thread, first, input_end, last, format,
                           about, expires_at, runs)
    VALUES (a.id, a.owner, a.status, a.background, a.at, a.conversation, s.thread, s.first,
            s.first + cardinality(kept), s.first + cardinality(kept), in_format,
            a.about, a.expires_at,
            CASE WHEN a.worker IS NOT NULL THEN json_build_array(a.at, a.worker, 1)::text END) RETURNING responses.key INTO made.key;
    -- With a worker: taken at once, which counts as the first attempt. Without: queued for any worker to claim.
    INSERT INTO leases (response, owner, background, worker, fence, attempts, request, sealed, deadline)
    VALUES (made.key, split_part(a.owner, chr(31), 1), a.background, a.worker, (a.worker IS NOT NULL)::int, (a.worker IS NOT NULL)::int,
            a.request, a.sealed, a.deadline);
    INSERT INTO events (response, first, count, at, frames) VALUES (made.key, 0, a.count, a.at, CASE in_format WHEN 3 THEN coalesce(a.short_frames, a.frames) ELSE a.frames END);
    IF a.item_bodies IS NOT NULL THEN
        INSERT INTO items (thread, position, id, response, body)
        SELECT s.thread, s.first + k.number - 1, a.item_ids[k.n], made.key, a.item_bodies[k.n]
          FROM unnest(kept) WITH ORDINALITY AS k(n, number);
    ELSE
        PERFORM move_staged_items(a.id, a.item_ids, kept, s.thread, s.first, made.key);
    END IF;
    IF a.key IS NOT NULL THEN
        PERFORM save_key(a.owner, 'response', a.key, a.digest, a.id, a.at);
    END IF;
    IF a.retry_digest IS NOT NULL THEN
        INSERT INTO unanswered (response, owner, digest, created_at) VALUES (made.key, a.owner, a.retry_digest, a.at);
    END IF;
    IF s.conversation IS NOT NULL THEN
        -- Held until the response's terminal transaction.
        UPDATE conversations c SET running = made.key, used_at = a.at WHERE c.key = s.conversation;
    END IF;
    RETURN made;
END $$;

-- Several at once. `locks` are the advisory locks of Idempotency-Keys and quotas, in order.
CREATE FUNCTION admit_all(given admission[], locks bigint[], in_conversations text[], after_parents text[], quota int)
RETURNS SETOF admitted LANGUAGE plpgsql AS $$
DECLARE
    a admission;
    made admitted;
    name bigint;
    families bigint[];
    queued int;
    in_format int;
BEGIN
    -- Rows are compressed (3) if all nodes that are alive read that; the one that asks may not have beaten yet.
    SELECT CASE WHEN min(w.reads) < 3 THEN 1 ELSE 3 END INTO in_format FROM workers w WHERE w.expires_at > clock_timestamp();
    FOREACH name IN ARRAY locks LOOP
        PERFORM pg_advisory_xact_lock(name);
    END LOOP;
    IF in_conversations <> '{}' THEN
        PERFORM 1 FROM conversations c WHERE c.id = ANY (in_conversations) ORDER BY c.key FOR UPDATE;
    END IF;
    IF after_parents <> '{}' THEN
        -- Also the first threads of their families: erasing locks those before it looks for unfinished runs.
        -- Found one by one: no plan may do it the other way round.
        SELECT array_agg(f.key) INTO families FROM unnest(after_parents) AS g(id)
         CROSS JOIN LATERAL (SELECT r.thread FROM responses r WHERE r.id = g.id OFFSET 0) r
         CROSS JOIN LATERAL (SELECT p.key, p.root FROM threads p WHERE p.key = r.thread OFFSET 0) p
         CROSS JOIN LATERAL unnest(ARRAY[p.key, p.root]) AS f(key);
        PERFORM 1 FROM threads t WHERE t.key = ANY (families) ORDER BY t.key FOR UPDATE;
    END IF;
    FOREACH a IN ARRAY given LOOP
        IF a.worker IS NULL AND quota IS NOT NULL AND queued IS NULL THEN
            -- Counted once, for the queue may be long.
            SELECT count(*) INTO queued FROM leases l WHERE l.worker IS NULL;
        END IF;
        made := admit(a, quota, queued, in_format);
        IF a.worker IS NULL AND made.refusal IS NULL THEN
            queued := queued + 1;
        END IF;
        RETURN NEXT made;
    END LOOP;
END $$;

-- Staged items move to their positions.
CREATE FUNCTION move_staged_items(staging_id text, ids text[], kept int[], to_thread bigint, at_position int, of_response bigint)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO items (thread, position, id, response, body)
    SELECT to_thread, at_position + k.number - 1, ids[k.n], of_response,
           (SELECT string_agg(s.bytes, '' ORDER BY s.piece) FROM stash s WHERE s.holder = staging_id AND s.item = k.n)
      FROM unnest(kept) WITH ORDINALITY AS k(n, number);
    DELETE FROM stash s WHERE s.holder = staging_id;
END $$;

-- An older row is replaced, for its key may be used again.
CREATE FUNCTION save_key(of_owner text, of_kind text, of_key text, of_digest bytea, of_target text, at float8)
RETURNS void LANGUAGE sql AS $$
    INSERT INTO idempotency (owner, kind, key, digest, target, used_at)
    VALUES (of_owner, of_kind, of_key, of_digest, of_target, at)
    ON CONFLICT (owner, kind, key) DO UPDATE SET digest = excluded.digest, target = excluded.target, used_at = excluded.used_at
$$;


-- Appends rows of journals. The fence is checked, so it must not be raised meanwhile. Raising it takes an advisory lock of
-- the response (see 0013_space.sql), which an append shares until its commit: a lock of a row would be written to the log,
-- for each event. The leases are read by a statement of their own, which sees what was committed before the locks were had.
-- The worker is checked too: a promoted standby may have lost a claim, and then two workers would hold the same fence.
-- Rows of stale leases are left out, and their indexes returned.
CREATE FUNCTION append_events(
    responses bigint[], fences int[], firsts int[], counts int[], ats float8[], all_frames bytea[], as_worker text)
RETURNS int[] LANGUAGE plpgsql AS $$
DECLARE
    stale int[];
BEGIN
    IF cardinality(responses) <= 128 THEN
        PERFORM pg_advisory_xact_lock_shared(1869968492, (o.response % 2147483647)::int)
           FROM (SELECT r.response FROM unnest(responses) AS r(response) ORDER BY r.response OFFSET 0) o;
    ELSE -- all nodes together have room for some thousand locks (6,400 by default); those of rows are not counted
        PERFORM 1 FROM leases l WHERE l.response = ANY (responses) ORDER BY l.response FOR SHARE;
    END IF;
    WITH held AS MATERIALIZED (
        SELECT l.response, l.fence FROM leases l
         WHERE l.response = ANY (responses) AND (as_worker IS NULL OR l.worker IS NULL OR l.worker = as_worker)),
    written AS (
        INSERT INTO events (response, first, count, at, frames)
        SELECT g.response, g.first, g.count, g.at, g.frames
          FROM unnest(responses, fences, firsts, counts, ats, all_frames) AS g(response, fence, first, count, at, frames)
          JOIN held h ON h.response = g.response AND h.fence = g.fence)
    SELECT array_agg(g.number::int) INTO stale FROM unnest(responses, fences) WITH ORDINALITY AS g(response, fence, number)
     WHERE NOT EXISTS (SELECT 1 FROM held h WHERE h.response = g.response AND h.fence = g.fence);
    RETURN stale;
END $$;


-- The last events of a response, with everything that must change together with them.
CREATE TYPE closing AS (
    id text, key bigint, fence int, at float8, firsts int[], counts int[], frames bytea[],
    status text, snapshot bytea, item_ids text[], item_bodies bytea[], keep_turn boolean,
    webhook_events text[],
    -- What it used; an owner NULL: no record.
    owner text, end_user text, model text, upstream text, used_at float8, tokens bigint[], attempts int, tool_calls int
);

-- Returns 'ended', 'stale', or the last number of a journal that ends before these events begin. `as_worker` must hold the
-- lease, unless no worker does (NULL: any may).
CREATE FUNCTION close(c closing, as_worker text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    it record;
    own bigint;
    last_number int;
    turn int := cardinality(c.item_ids);
    total int := c.firsts[cardinality(c.firsts)] + c.counts[cardinality(c.counts)];
BEGIN
    SELECT r.owner, r.thread, r.first, r.input_end, r.conversation,
           r.conversation IS NOT NULL AND NOT EXISTS
               (SELECT 1 FROM conversations v WHERE v.id = r.conversation AND NOT v.hidden) AS conversation_gone
      INTO it FROM leases l JOIN responses r ON r.key = l.response
     WHERE l.response = c.key AND l.fence = c.fence AND r.id = c.id
       AND (as_worker IS NULL OR l.worker IS NULL OR l.worker = as_worker);
    IF it.thread IS NULL THEN
        -- Perhaps this closing was committed already, and only the confirmation was lost.
        RETURN CASE WHEN EXISTS (SELECT 1 FROM snapshots s JOIN events e ON e.response = s.response
                                  WHERE s.response = c.key AND s.body = c.snapshot
                                    AND e.first = c.firsts[cardinality(c.firsts)]
                                    AND e.frames = c.frames[cardinality(c.frames)])
                      OR EXISTS (SELECT 1 FROM snapshots s JOIN responses r ON r.key = s.response
                                  WHERE s.response = c.key AND s.body = c.snapshot AND r.format = 2) THEN 'ended' ELSE 'stale' END;
    END IF;
    -- Those that are there already came with an append whose commit was not confirmed.
    DELETE FROM events e WHERE e.response = c.key AND e.first >= c.firsts[1];
    SELECT e.first + e.count - 1 INTO last_number FROM events e WHERE e.response = c.key ORDER BY e.first DESC LIMIT 1;
    IF last_number < c.firsts[1] - 1 THEN
        RETURN last_number::text;
    END IF;
    INSERT INTO events (response, first, count, at, frames)
    SELECT c.key, g.first, g.count, c.at, g.frames FROM unnest(c.firsts, c.counts, c.frames) AS g(first, count, frames);
    IF NOT c.keep_turn OR it.conversation_gone THEN
        turn := 0;
    ELSE
        INSERT INTO items (thread, position, id, response, body)
        SELECT it.thread, it.input_end + g.n - 1, g.id, c.key, g.body
          FROM unnest(c.item_ids, c.item_bodies) WITH ORDINALITY AS g(id, body, n);
    END IF;
    IF c.keep_turn THEN
        UPDATE threads t SET head = it.input_end + turn WHERE t.key = it.thread;
    END IF;
    INSERT INTO snapshots (response, body) VALUES (c.key, c.snapshot);
    IF c.keep_turn OR (it.first = 0 AND it.conversation IS NULL) THEN
        UPDATE responses p SET status = c.status, ended_at = c.at, events = total, last = it.input_end + turn WHERE p.key = c.key;
    ELSE
        -- A failed turn moves out of its conversation or chain, with its input, to a thread of its own (D6).
        INSERT INTO threads (head, used_at) VALUES (it.input_end - it.first, c.at) RETURNING threads.key INTO own;
        UPDATE items i SET thread = own, position = i.position - it.first
         WHERE i.thread = it.thread AND i.position >= it.first AND i.position < it.input_end;
        UPDATE responses p SET status = c.status, ended_at = c.at, events = total, thread = own, first = 0,
               input_end = it.input_end - it.first, last = it.input_end - it.first WHERE p.key = c.key;
        UPDATE threads t SET head = it.first WHERE t.key = it.thread;
    END IF;
    DELETE FROM leases l WHERE l.response = c.key;
    IF c.owner IS NOT NULL THEN
        INSERT INTO usage (response, owner, end_user, model, upstream, ended_at, status, input_tokens, cached_tokens, output_tokens,
                           reasoning_tokens, estimated_input, estimated_output, attempts, tool_calls, responses)
        VALUES (c.id, c.owner, c.end_user, c.model, c.upstream, c.used_at, c.status, c.tokens[1], c.tokens[2], c.tokens[3],
                c.tokens[4], c.tokens[5], c.tokens[6], c.attempts, c.tool_calls, 1);
    END IF;
    IF it.conversation IS NOT NULL THEN
        UPDATE conversations v SET running = NULL, used_at = c.at WHERE v.id = it.conversation AND v.running = c.key;
    END IF;
    IF EXISTS (SELECT 1 FROM webhook_endpoints) THEN -- most databases have none
        INSERT INTO webhook_deliveries (id, owner, endpoint, response, event, created_at, give_up_at, due_at)
        SELECT 'wh_' || replace(gen_random_uuid()::text, '-', ''), e.owner, e.id, c.id, g.event, c.at, c.at + 259200, c.at
          FROM webhook_endpoints e CROSS JOIN unnest(c.webhook_events) WITH ORDINALITY AS g(event, n)
         WHERE e.owner = split_part(it.owner, chr(31), 1) AND e.disabled_at IS NULL AND e.event_types::jsonb ? g.event
         ORDER BY g.n;
    END IF;
    RETURN 'ended';
END $$;

CREATE FUNCTION close_all(given closing[], keys bigint[], as_worker text) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
    c closing;
    in_conversations text[];
    in_threads bigint[];
BEGIN
    PERFORM 1 FROM leases l WHERE l.response = ANY (keys) ORDER BY l.response FOR UPDATE;
    -- One by one, by key: no plan may do it the other way round.
    SELECT array_agg(r.conversation), array_agg(r.thread) INTO in_conversations, in_threads FROM unnest(keys) AS k(key)
     CROSS JOIN LATERAL (SELECT p.conversation, p.thread FROM responses p WHERE p.key = k.key OFFSET 0) r;
    PERFORM 1 FROM conversations v WHERE v.id = ANY (in_conversations) ORDER BY v.key FOR UPDATE;
    PERFORM 1 FROM threads t WHERE t.key = ANY (in_threads) ORDER BY t.key FOR UPDATE;
    FOREACH c IN ARRAY given LOOP
        RETURN NEXT close(c, as_worker);
    END LOOP;
END $$;


-- The committed rows of a journal from the one that holds the wanted number on, about `max_bytes` of them. Without such
-- rows, a row that only shows whether the response has ended; no row at all: the response does not exist. A journal in a
-- format after `newest` was written by a later version.
CREATE FUNCTION read_journal(response_id text, wanted int, max_bytes int, newest int)
RETURNS TABLE (ended boolean, first int, count int, frames bytea, at float8) LANGUAGE plpgsql STABLE AS $$
DECLARE
    of_response bigint;
    in_format int;
    size int := 0;
BEGIN
    SELECT r.key, r.ended_at IS NOT NULL, r.format INTO of_response, ended, in_format
      FROM responses r WHERE r.id = response_id;
    IF of_response IS NULL THEN
        RETURN;
    ELSIF in_format > newest THEN
        RAISE 'the journal of % has format %, this version reads up to %', response_id, in_format, newest;
    END IF;
    IF in_format = 2 THEN
        RETURN QUERY SELECT true, p.first, p.count, p.block, p.at FROM packs p
         WHERE p.response = of_response AND p.first >= coalesce(
               (SELECT b.first FROM packs b WHERE b.response = of_response AND b.first <= wanted
                 ORDER BY b.first DESC LIMIT 1), 0)
         ORDER BY p.first LIMIT 1 + max_bytes / 65536;
        RETURN;
    END IF;
    FOR first, count, frames, at IN
        SELECT e.first, e.count, e.frames, e.at FROM events e
         WHERE e.response = of_response AND e.first >= coalesce(
               (SELECT b.first FROM events b WHERE b.response = of_response AND b.first <= wanted
                 ORDER BY b.first DESC LIMIT 1), 0)
         ORDER BY e.first
    LOOP
        RETURN NEXT;
        IF first + count > wanted THEN
            -- An event is at least so much longer than it is in a compressed row.
            size := size + octet_length(frames) + CASE in_format WHEN 3 THEN 80 * count ELSE 0 END;
            EXIT WHEN size >= max_bytes;
        END IF;
    END LOOP;
    IF size = 0 THEN
        first := NULL;
        RETURN NEXT;
    END IF;
END $$;
