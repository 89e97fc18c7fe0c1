-- A comparison by IS NOT DISTINCT FROM or IS NOT TRUE uses no index: while tables are young and small, all their indexes
-- look alike to the database, and a plan that was made then must still be a good one when they are large.

-- append_events --
-- The fence is what is checked, so it must not be raised meanwhile: the leases are locked, in order, until the commit.
-- The worker ($7) is checked too: a promoted standby may have lost a claim, and then two would hold the same fence.
-- Rows of stale leases are left out, and their places in the arrays given back.
WITH held AS MATERIALIZED (
    SELECT l.response, l.fence FROM leases l
     WHERE l.response = ANY ($1::bigint[]) AND ($7::text IS NULL OR l.worker IS NULL OR l.worker = $7)
     ORDER BY l.response FOR SHARE),
written AS (
    INSERT INTO events (response, first, count, at, frames)
    SELECT g.response, g.first, g.count, g.at, g.frames
      FROM unnest($1::bigint[], $2::int[], $3::int[], $4::int[], $5::float8[], $6::bytea[])
           AS g(response, fence, first, count, at, frames)
      JOIN held h ON h.response = g.response AND h.fence = g.fence)
SELECT array_agg(g.number::int) FROM unnest($1::bigint[], $2::int[]) WITH ORDINALITY AS g(response, fence, number)
 WHERE NOT EXISTS (SELECT 1 FROM held h WHERE h.response = g.response AND h.fence = g.fence);

-- hold_leases --
-- The same in two steps, for what may be there already: the leases first ...
SELECT response, fence FROM leases
 WHERE response = ANY ($1::bigint[]) AND ($2::text IS NULL OR worker IS NULL OR worker = $2) ORDER BY response FOR SHARE;

-- drop_events --
-- ... then what was appended before and never heard of; the same bytes are appended again in this transaction.
DELETE FROM events e USING unnest($1::bigint[], $2::int[]) AS g(response, first)
 WHERE e.response = g.response AND e.first >= g.first;

-- find_journal_ends --
-- How far journals go, after a reconnection: with the response's id, for a key may mean another response by now.
SELECT r.key, coalesce((SELECT e.first + e.count - 1 FROM events e WHERE e.response = r.key
                         ORDER BY e.first DESC LIMIT 1), -1)
  FROM unnest($1::bigint[], $2::text[]) AS g(key, id) JOIN responses r ON r.key = g.key AND r.id = g.id;

-- admit_all --
-- Accept several responses.
SELECT refusal, detail, key, thread, first
  FROM admit_all($1::admission[], $2::bigint[], $3::text[], $4::text[], $5::int[]);

-- find_admitted --
-- After an admission that was in doubt: what became of it.
SELECT r.id, r.key, r.thread, r.first, l.fence
  FROM responses r LEFT JOIN leases l ON l.response = r.key WHERE r.id = ANY ($1::text[]);

-- close_all --
-- End several responses.
SELECT close_all($1::closing[], $2::bigint[], $3);

-- save_checkpoint --
-- What whoever takes the response over must know.
UPDATE leases SET notes = $1
 WHERE response = $2 AND fence = $3 AND ($4::text IS NULL OR worker IS NULL OR worker = $4);

-- release_leases --
-- No attempt is counted for a run that was given up on purpose.
UPDATE leases l SET worker = NULL, attempts = greatest(attempts - 1, 0)
  FROM unnest($1::bigint[], $2::int[]) AS g(response, fence)
 WHERE l.response = g.response AND l.fence = g.fence
   AND ($3::text IS NULL OR l.worker IS NULL OR l.worker = $3);

-- confirm_leases --
-- Still its own, or freed and not claimed since: then its own again, and only that is written.
WITH given AS (SELECT * FROM unnest($2::bigint[], $3::int[]) AS g(response, fence)),
regained AS (
    UPDATE leases l SET worker = $1 FROM given g
     WHERE l.response = g.response AND l.fence = g.fence AND l.worker IS NULL RETURNING l.response)
SELECT l.response FROM leases l JOIN given g ON l.response = g.response AND l.fence = g.fence WHERE l.worker = $1
UNION ALL SELECT response FROM regained;

-- free_leases --
-- Whoever has no row, or one that has expired, is dead. What is locked is being written or taken just now. Rows of the
-- long dead go too.
WITH forgotten AS (DELETE FROM workers WHERE expires_at < clock_timestamp() - interval '1 hour')
UPDATE leases SET worker = NULL WHERE response IN (
    SELECT l.response FROM leases l
     WHERE l.worker IS NOT NULL AND NOT EXISTS (
           SELECT 1 FROM workers w WHERE w.name = l.worker AND w.expires_at > clock_timestamp())
     ORDER BY l.response FOR UPDATE SKIP LOCKED)
RETURNING response;

-- count_queued --
-- How many wait for a worker, by owner.
SELECT owner, count(*) FROM leases WHERE worker IS NULL GROUP BY owner;

-- find_queued --
-- Foreground first, then oldest; what another node is taking just now is left to it.
SELECT response, owner FROM leases WHERE worker IS NULL AND owner <> ALL ($1::text[])
 ORDER BY background, response LIMIT $2 FOR UPDATE SKIP LOCKED;

-- lock --
-- One node at a time decides what an owner with a quota may run.
SELECT pg_advisory_xact_lock($1);

-- count_running --
-- How many of these owners' responses run, on all nodes.
SELECT owner, count(*) FROM leases WHERE worker IS NOT NULL AND owner = ANY ($1::text[]) GROUP BY owner;

-- find_running --
-- The lease of a response that has not ended. Waits for an append under way: what it writes is written before the fence.
SELECT l.response, l.worker IS NULL AS waits FROM leases l
 WHERE l.response = (SELECT key FROM responses WHERE id = $1) FOR UPDATE;

-- take_leases --
-- Raising the fence shuts out whoever held it before; the attempt is counted now, not when it succeeds.
WITH taken AS (
    UPDATE leases SET worker = $1, fence = fence + 1, attempts = attempts + $2 WHERE response = ANY ($3::bigint[])
    RETURNING response, fence, attempts, notes, request, sealed),
started AS (
    UPDATE responses SET status = 'in_progress' WHERE key = ANY ($3::bigint[]) AND status = 'queued')
SELECT r.id, r.key, t.fence, r.owner, t.request, r.thread, r.first, r.input_end, t.attempts, t.notes, r.background, t.sealed
  FROM taken t JOIN responses r ON r.key = t.response ORDER BY r.background, r.key;

-- find_taken --
-- After a claim that was in doubt: whether it holds.
SELECT count(*) FROM leases l JOIN responses r ON r.key = l.response, unnest($2::text[], $3::int[]) AS g(id, fence)
 WHERE r.id = g.id AND l.fence = g.fence AND l.worker = $1;

-- drop_unanswered --
-- The creating connections have had their answers.
DELETE FROM unanswered WHERE response IN (SELECT key FROM responses WHERE id = ANY ($1::text[]));

-- lock_deletable --
-- A response to be deleted, with the place of its items.
SELECT r.key, r.thread, r.first, EXISTS (SELECT 1 FROM leases l WHERE l.response = r.key) AS runs
  FROM responses r WHERE r.id = $1 AND r.owner IS NOT DISTINCT FROM $2 AND r.hidden IS NOT TRUE FOR UPDATE OF r;

-- delete_responses --
-- Deleted: nobody finds them from now on.
UPDATE responses SET hidden = true WHERE key = ANY ($1::bigint[]);

-- make_holes --
-- No chain may reach past what was deleted (D22).
UPDATE threads t SET hole = least(coalesce(t.hole, g.hole), g.hole)
  FROM (SELECT key, min(first) AS hole FROM unnest($1::bigint[], $2::int[]) AS a(key, first) GROUP BY key) g
 WHERE t.key = g.key;

-- lock_threads --
-- In order, before several are changed.
SELECT key FROM threads WHERE key = ANY ($1::bigint[]) ORDER BY key FOR UPDATE;

-- read_journal --
-- A page of what was committed.
SELECT ended, first, count, frames FROM read_journal($1, $2, $3);

-- read_journals --
-- The same of several responses.
SELECT j.ended, j.first, j.count, j.frames, g.number::int - 1
  FROM unnest($1::text[], $2::int[]) WITH ORDINALITY AS g(id, wanted, number)
  LEFT JOIN LATERAL read_journal(g.id, g.wanted, $3) j ON true ORDER BY g.number, j.first;

-- read_history --
-- One indexed range per segment: the items before a place, oldest first.
SELECT i.body FROM segments($1, $2) s CROSS JOIN LATERAL (
    SELECT body, position FROM items WHERE thread = s.thread AND position < s.upto ORDER BY position OFFSET 0) i
 ORDER BY s.number DESC, i.position;

-- read_input --
-- A response's own input.
SELECT body FROM items WHERE thread = $1 AND position >= $2 AND position < $3 ORDER BY position;

-- locate_in_conversation --
-- Where a response that will not be stored would stand.
SELECT * FROM locate_in_conversation($1, $2, false);

-- locate_after --
-- The same after a response.
SELECT * FROM locate_after($1, $2);

-- add_pieces --
-- A part of a large request that is about to be accepted.
INSERT INTO stash (holder, item, piece, bytes) SELECT $1, * FROM unnest($2::int[], $3::int[], $4::bytea[]);

-- move_staged_items --
-- Items of a large request go to their places.
SELECT unstash($1, $2::text[], $3::int[], $4, $5, NULL);

-- find_response --
-- A response as readers see it.
SELECT r.id, r.status, r.created_at, s.body FROM responses r LEFT JOIN snapshots s ON s.response = r.key
 WHERE r.id = $1 AND r.owner IS NOT DISTINCT FROM $2 AND r.hidden IS NOT TRUE;

-- find_status --
-- Whether a response is there, and how far it is.
SELECT status FROM responses WHERE id = $1 AND owner IS NOT DISTINCT FROM $2 AND hidden IS NOT TRUE;

-- find_queue_places --
-- In which place of the queue those are that wait.
SELECT w.id, w.place FROM (
    SELECT r.id, row_number() OVER (ORDER BY l.background, l.response)::int AS place
      FROM leases l JOIN responses r ON r.key = l.response WHERE l.worker IS NULL) w
 WHERE w.id = ANY ($1::text[]);

-- find_input --
-- Where a response's own input lies.
SELECT thread, first, input_end FROM responses WHERE id = $1 AND owner IS NOT DISTINCT FROM $2 AND hidden IS NOT TRUE;

-- find_key --
-- What an Idempotency-Key was first used for.
SELECT digest, target FROM idempotency WHERE owner = $1 AND kind = $2 AND key = $3;

-- save_key --
-- An older row gives way.
SELECT save_key($1, $2, $3, $4, $5, $6);

-- find_unanswered --
-- Responses made from the same body, newest first.
SELECT r.id FROM unanswered u JOIN responses r ON r.key = u.response
 WHERE u.owner = $1 AND u.digest = $2 AND u.created_at >= $3 AND NOT r.hidden AND r.status <> 'failed'
 ORDER BY u.response DESC;

-- find_conversation --
-- A conversation with its lock: the id of the response that runs in it.
SELECT c.id, c.metadata, c.created_at, c.key, c.thread, r.id
  FROM conversations c LEFT JOIN responses r ON r.key = c.running
 WHERE c.id = $1 AND c.owner IS NOT DISTINCT FROM $2 AND c.hidden IS NOT TRUE;

-- has_conversation --
-- After a creation that was in doubt: whether it was made.
SELECT id FROM conversations WHERE id = $1;

-- lock_conversation --
-- Whoever changes it goes one after the other.
SELECT 1 FROM conversations WHERE id = $1 AND owner IS NOT DISTINCT FROM $2 AND hidden IS NOT TRUE FOR UPDATE;

-- add_thread --
-- A new line of items.
INSERT INTO threads (head, used_at) VALUES ($1, $2) RETURNING key;

-- find_head --
-- Where the next item of a line goes.
SELECT head FROM threads WHERE key = $1;

-- move_head --
-- The next item goes there.
UPDATE threads SET head = $1 WHERE key = $2;

-- find_repeats --
-- Which of these items the line holds already (D24).
SELECT DISTINCT i.id FROM segments($1, $2) s JOIN items i
    ON i.id = ANY ($3::text[]) AND i.thread IS NOT DISTINCT FROM s.thread AND i.position < s.upto;

-- add_items --
-- Items at their places.
INSERT INTO items (thread, position, id, response, body)
SELECT $1, $2 + g.n - 1, g.id, NULL, g.body FROM unnest($3::text[], $4::bytea[]) WITH ORDINALITY AS g(id, body, n);

-- add_conversation --
-- A new conversation on a new thread.
INSERT INTO conversations (id, owner, created_at, used_at, thread, metadata) VALUES ($1, $2, $3, $3, $4, $5);

-- use_conversation --
-- Kept from now on for as long as conversations are kept (D18).
UPDATE conversations SET used_at = $1 WHERE id = $2;

-- update_conversation --
-- Replaces the metadata.
UPDATE conversations SET metadata = $1 WHERE key = $2;

-- delete_conversations --
-- Deleted: nobody finds them from now on.
UPDATE conversations SET hidden = true WHERE key = ANY ($1::bigint[]);

-- item_position --
-- Where an item stands; ids are unique within a thread only.
SELECT position FROM items WHERE id = $2 AND thread IS NOT DISTINCT FROM $1;

-- list_responses --
-- The head of a statement that the catalog completes.
SELECT t.id, t.status, t.created_at, s.body FROM responses t LEFT JOIN snapshots s ON s.response = t.key

-- list_conversations --
-- The same.
SELECT t.id, t.metadata, t.created_at, t.key, t.thread, NULL FROM conversations t

-- find_response_key --
-- The row after which a page begins.
SELECT key FROM responses WHERE id = $1 AND owner IS NOT DISTINCT FROM $2;

-- find_conversation_key --
-- The same.
SELECT key FROM conversations WHERE id = $1 AND owner IS NOT DISTINCT FROM $2;

-- read_item --
-- One item.
SELECT body FROM items WHERE id = $2 AND thread IS NOT DISTINCT FROM $1;

-- read_named --
-- Items by their ids, in the order of the ids.
SELECT i.body FROM unnest($2::text[]) WITH ORDINALITY AS g(id, n)
  JOIN items i ON i.id = g.id AND i.thread IS NOT DISTINCT FROM $1 ORDER BY g.n;

-- read_named_in --
-- The same, of a conversation by its id.
SELECT i.body FROM unnest($2::text[]) WITH ORDINALITY AS g(id, n) JOIN items i ON i.id = g.id
 WHERE i.thread IS NOT DISTINCT FROM (SELECT thread FROM conversations WHERE id = $1) ORDER BY g.n;

-- drop_item --
-- An item deleted through its conversation.
DELETE FROM items WHERE id = $2 AND thread IS NOT DISTINCT FROM $1;

-- expire_responses --
-- Ended and unused since then; a chain counts as used when any of its responses was a parent. What another node is
-- hiding just now is left to it.
SELECT r.key, r.thread, r.first FROM responses r
  LEFT JOIN threads t ON t.key = r.thread LEFT JOIN threads root ON root.key = t.root
 WHERE NOT r.hidden AND r.created_at < $1 AND r.ended_at < $1
   AND greatest(coalesce(t.used_at, 0), coalesce(root.used_at, 0)) < $1
 ORDER BY r.created_at LIMIT $2 FOR UPDATE OF r SKIP LOCKED;

-- expire_conversations --
-- Unused since then and with nothing running.
SELECT key, thread FROM conversations WHERE NOT hidden AND running IS NULL AND used_at < $1
 LIMIT $2 FOR UPDATE SKIP LOCKED;

-- erasable_responses --
-- Hidden, and nobody else is erasing them.
SELECT r.key, r.id, r.thread, r.first, r.last, coalesce(t.root, r.thread) AS root, t.key IS NULL AS gone,
       EXISTS (SELECT 1 FROM conversations c WHERE c.id = r.conversation AND NOT c.hidden AND c.thread = r.thread) AS kept
  FROM responses r LEFT JOIN threads t ON t.key = r.thread
 WHERE r.hidden AND coalesce(t.root, r.thread) NOT IN
       (SELECT coalesce(ot.root, o.thread) FROM leases l JOIN responses o ON o.key = l.response
          LEFT JOIN threads ot ON ot.key = o.thread)
 ORDER BY r.key LIMIT $1 FOR UPDATE OF r SKIP LOCKED;

-- erasable_conversations --
-- Hidden, and nobody else is erasing them.
SELECT c.key, c.id, c.thread, coalesce(t.root, c.thread) AS root FROM conversations c LEFT JOIN threads t ON t.key = c.thread
 WHERE c.hidden AND coalesce(t.root, c.thread) NOT IN
       (SELECT coalesce(ot.root, o.thread) FROM leases l JOIN responses o ON o.key = l.response
          LEFT JOIN threads ot ON ot.key = o.thread)
 ORDER BY c.key LIMIT $1 FOR UPDATE OF c SKIP LOCKED;

-- lock_families --
-- The first threads of families, in order: an admission that continues a family holds its own, so that either it is seen
-- here or sees what was done here.
SELECT key FROM threads WHERE key = ANY ($1::bigint[]) ORDER BY key FOR UPDATE;

-- busy_families --
-- Those of these families in which something runs, seen with their locks held.
SELECT DISTINCT coalesce(ot.root, o.thread) FROM leases l JOIN responses o ON o.key = l.response
  LEFT JOIN threads ot ON ot.key = o.thread WHERE coalesce(ot.root, o.thread) = ANY ($1::bigint[]);

-- erase_events --
-- Of a journal from its beginning on, so many rows at most.
DELETE FROM events WHERE response = $1 AND first IN
       (SELECT first FROM events WHERE response = $1 ORDER BY first LIMIT $2);

-- has_events --
-- Whether anything is left of a journal.
SELECT EXISTS (SELECT 1 FROM events WHERE response = $1);

-- erase_response_items --
-- Its items: input and output lie side by side.
DELETE FROM items WHERE response = $1 AND thread = $2 AND position >= $3 AND position < $4;

-- erase_loose_items --
-- What a deleted conversation held besides the input and output of responses that still live.
DELETE FROM items WHERE thread = $1 AND (response IS NULL OR NOT EXISTS (SELECT 1 FROM responses r WHERE r.key = items.response));

-- erase_response --
-- The row itself, with its final object and what a silent retry might find.
WITH snapshot AS (DELETE FROM snapshots WHERE response = $1),
retry AS (DELETE FROM unanswered WHERE response = $1)
DELETE FROM responses WHERE key = $1;

-- erase_conversation --
-- The row itself.
DELETE FROM conversations WHERE key = $1;

-- erase_keys --
-- The Idempotency-Keys that pointed at it.
DELETE FROM idempotency WHERE target = $1;

-- erase_old_keys --
-- Keys of items, and whatever is left of things long gone.
DELETE FROM idempotency WHERE used_at < $1 AND kind <> 'response';

-- erase_old_unanswered --
-- Too old for a silent retry.
DELETE FROM unanswered WHERE created_at < $1;

-- erase_thread --
-- A thread that holds nothing any more, is no conversation's, and that no fork goes on from; the one it was forked from.
DELETE FROM threads WHERE key = $1
   AND NOT EXISTS (SELECT 1 FROM items WHERE thread = $1)
   AND NOT EXISTS (SELECT 1 FROM conversations WHERE thread = $1)
   AND NOT EXISTS (SELECT 1 FROM threads fork WHERE fork.parent = $1)
RETURNING parent;

-- find_items --
-- Items by their ids alone, of this owner's; of several with one id the newest.
SELECT DISTINCT ON (i.id) i.body FROM items i
 WHERE i.id = ANY ($1::text[]) AND (
       EXISTS (SELECT 1 FROM responses r WHERE r.key = i.response AND r.owner = $2 AND NOT r.hidden)
    OR EXISTS (SELECT 1 FROM conversations c WHERE c.thread = i.thread AND c.owner = $2 AND NOT c.hidden))
 ORDER BY i.id, i.thread DESC, i.position DESC;

-- add_secret --
-- The first node draws it.
INSERT INTO secrets (name, value) VALUES ($1, $2) ON CONFLICT DO NOTHING;

-- find_secret --
-- The others know it from there.
SELECT value FROM secrets WHERE name = $1;
