-- A comparison by IS NOT DISTINCT FROM or IS NOT TRUE uses no index. While tables are new and small, all their indexes look
-- alike to the planner, and a plan that was made then must still be good when they are large.

-- append_events --
-- Appends events. Returns the indexes of those rows whose leases are stale.
SELECT append_events($1::bigint[], $2::int[], $3::int[], $4::int[], $5::float8[], $6::bytea[], $7::text);

-- hold_leases --
-- The same in two steps, for events that may be there already: the leases first ...
SELECT response, fence FROM leases
 WHERE response = ANY ($1::bigint[]) AND ($2::text IS NULL OR worker IS NULL OR worker = $2) ORDER BY response FOR SHARE;

-- drop_events --
-- ... then the events of an append whose commit was not confirmed; the same bytes are appended again in this
-- transaction.
DELETE FROM events e USING unnest($1::bigint[], $2::int[]) AS g(response, first)
 WHERE e.response = g.response AND e.first >= g.first;

-- find_journal_ends --
-- The last numbers of journals, after a reconnection. With the response's id, for after a failover a key may stand for
-- another response.
SELECT r.key, coalesce((SELECT e.first + e.count - 1 FROM events e WHERE e.response = r.key
                         ORDER BY e.first DESC LIMIT 1), -1)
  FROM unnest($1::bigint[], $2::text[]) AS g(key, id) JOIN responses r ON r.key = g.key AND r.id = g.id;

-- admit_all --
-- Admits several responses.
SELECT refusal, detail, key, thread, first, format
  FROM admit_all($1::admission[], $2::bigint[], $3::text[], $4::text[], $5::int);

-- find_admitted --
-- After an admission that was in doubt: what came of it.
SELECT r.id, r.key, r.thread, r.first, r.format
  FROM responses r WHERE r.id = ANY ($1::text[]);

-- close_all --
-- Ends several responses.
SELECT close_all($1::closing[], $2::bigint[], $3);

-- save_checkpoint --
-- The state that the next worker starts from.
UPDATE leases SET notes = $1
 WHERE response = $2 AND fence = $3 AND ($4::text IS NULL OR worker IS NULL OR worker = $4);

-- release_leases --
-- No attempt is counted for a run that was released on purpose.
UPDATE leases l SET worker = NULL, attempts = greatest(attempts - 1, 0)
  FROM unnest($1::bigint[], $2::int[]) AS g(response, fence)
 WHERE l.response = g.response AND l.fence = g.fence
   AND ($3::text IS NULL OR l.worker IS NULL OR l.worker = $3);

-- confirm_leases --
-- Still held by this worker, or freed and not claimed since: then it gets them back, and only that is written.
WITH given AS (SELECT * FROM unnest($2::bigint[], $3::int[]) AS g(response, fence)),
regained AS (
    UPDATE leases l SET worker = $1 FROM given g
     WHERE l.response = g.response AND l.fence = g.fence AND l.worker IS NULL RETURNING l.response)
SELECT l.response FROM leases l JOIN given g ON l.response = g.response AND l.fence = g.fence WHERE l.worker = $1
UNION ALL SELECT response FROM regained;

-- free_leases --
-- A worker without a row, or with one that has expired, is dead. Locked leases are being changed at this moment. Rows of workers that have been dead for long are removed,
-- and what a dead one ran without storing it is over.
WITH forgotten AS (DELETE FROM workers WHERE expires_at < clock_timestamp() - interval '1 hour'),
over AS (DELETE FROM unstored_runs u WHERE NOT EXISTS (
           SELECT 1 FROM workers w WHERE w.name = u.worker AND w.expires_at > clock_timestamp()))
UPDATE leases SET worker = NULL WHERE response IN (
    SELECT l.response FROM leases l
     WHERE l.worker IS NOT NULL AND NOT EXISTS (
           SELECT 1 FROM workers w WHERE w.name = l.worker AND w.expires_at > clock_timestamp())
     ORDER BY l.response FOR UPDATE SKIP LOCKED)
RETURNING response;

-- count_queued --
-- The number of queued responses by owner.
SELECT owner, count(*) FROM leases WHERE worker IS NULL GROUP BY owner;

-- find_queued --
-- Foreground first, then oldest, with the bytes of the request; without those that another node is taking at this moment, or
-- still appends to (see `await_appends`).
SELECT l.response, l.owner, octet_length(l.request) + (
           SELECT coalesce(sum(octet_length(i.body)), 0) FROM responses r JOIN items i
               ON i.thread = r.thread AND i.position >= r.first AND i.position < r.input_end WHERE r.key = l.response)
  FROM (SELECT response, owner, request, fence FROM leases WHERE worker IS NULL AND owner <> ALL ($1::text[])
         ORDER BY background, response LIMIT $2 FOR UPDATE SKIP LOCKED) l
 WHERE l.fence = 0 OR pg_try_advisory_xact_lock(1869968492, (l.response % 2147483647)::int);

-- lock --
-- An advisory lock until the end of the transaction.
SELECT pg_advisory_xact_lock($1);

-- count_running --
-- What these owners run on all nodes, stored or not.
SELECT o.owner, count_running(o.owner, '') FROM unnest($1::text[]) AS o(owner);

-- share_running --
-- Sets, and adds to, how many runs of an owner that are not stored a node holds.
SELECT added, waits FROM share_running($1, $2, $3, $4, $5, $6);

-- find_running_unstored --
-- What a node has set there.
SELECT owner, running FROM unstored_runs WHERE worker = $1;

-- find_deleted --
-- Deleted responses that wait, or that a worker runs.
SELECT r.id FROM leases l JOIN responses r ON r.key = l.response WHERE (l.worker = $1 OR l.worker IS NULL) AND r.hidden;

-- find_overdue --
-- Queued responses that should have ended by a time, in the order of their deadlines.
SELECT r.id FROM leases l JOIN responses r ON r.key = l.response WHERE l.worker IS NULL AND l.deadline <= $1
 ORDER BY l.deadline LIMIT $2;

-- find_running --
-- The lease of a response that has not ended.
SELECT l.response, l.worker IS NULL AS waits FROM leases l
 WHERE l.response = (SELECT key FROM responses WHERE id = $1) FOR UPDATE;

-- take_leases --
-- The raised fence shuts out the worker that held the lease before. The attempt is counted now, not when it succeeds.
WITH taken AS (
    UPDATE leases SET worker = $1, fence = fence + 1, attempts = attempts + $2 WHERE response = ANY ($3::bigint[])
    RETURNING response, fence, attempts, notes, request, sealed),
started AS (
    UPDATE responses SET status = 'in_progress', runs = concat_ws(',', runs, json_build_array(
               round(extract(epoch FROM clock_timestamp()), 3), $1::text, $2::int)::text)
     WHERE key = ANY ($3::bigint[]))
SELECT r.id, r.key, t.fence, r.owner, t.request, r.thread, r.first, r.input_end, t.attempts, t.notes, r.background, t.sealed,
       r.format
  FROM taken t JOIN responses r ON r.key = t.response ORDER BY r.background, r.key;

-- find_taken --
-- After a claim that was in doubt: whether it took effect.
SELECT count(*) FROM leases l JOIN responses r ON r.key = l.response, unnest($2::text[], $3::int[]) AS g(id, fence)
 WHERE r.id = g.id AND l.fence = g.fence AND l.worker = $1;

-- drop_unanswered --
-- The creating connections have had their answers.
DELETE FROM unanswered WHERE response IN (SELECT key FROM responses WHERE id = ANY ($1::text[]));

-- find_deletable --
-- A response to be deleted, with the position of its items.
SELECT r.key, r.thread, r.first, EXISTS (SELECT 1 FROM leases l WHERE l.response = r.key) AS runs
  FROM responses r WHERE r.id = $1 AND r.owner IS NOT DISTINCT FROM $2 AND r.hidden IS NOT TRUE FOR UPDATE OF r;

-- delete_response --
-- Deleted: no query finds it from now on. Its bytes are erased later.
UPDATE responses SET hidden = true, expired_at = NULL WHERE key = $1;

-- make_hole --
-- No chain may continue past a deleted item (D22).
UPDATE threads SET hole = least(hole, $1) WHERE key = $2;

-- lock_threads --
-- In order, before several are changed. An admission that continues a family (a thread with all its forks) locks its first
-- thread too, so either it is seen by those that hold this lock or it sees what they did.
SELECT key FROM threads WHERE key = ANY ($1::bigint[]) ORDER BY key FOR UPDATE;

-- read_journal --
-- A page of committed rows.
SELECT ended, first, count, frames, at FROM read_journal($1, $2, $3, $4);

-- read_journals --
-- The same for several responses.
SELECT j.ended, j.first, j.count, j.frames, j.at, g.number::int - 1
  FROM unnest($1::text[], $2::int[]) WITH ORDINALITY AS g(id, wanted, number)
  LEFT JOIN LATERAL read_journal(g.id, g.wanted, $3, $4) j ON true ORDER BY g.number, j.first;

-- read_history --
-- One indexed range per thread: the items before a position, newest first.
SELECT i.body FROM segments($1, $2) s CROSS JOIN LATERAL (
    SELECT body, position FROM items WHERE thread = s.thread AND position < s.upto ORDER BY position DESC OFFSET 0) i
 ORDER BY s.number, i.position DESC;

-- read_input --
-- A response's own input.
SELECT body FROM items WHERE thread = $1 AND position >= $2 AND position < $3 ORDER BY position;

-- locate_in_conversation --
-- The insertion point of a response that will not be stored.
SELECT * FROM locate_in_conversation($1, $2, false);

-- locate_after --
-- The same after a response.
SELECT * FROM locate_after($1, $2);

-- add_pieces --
-- A part of a large request that is about to be accepted.
INSERT INTO stash (holder, item, piece, bytes) SELECT $1, * FROM unnest($2::int[], $3::int[], $4::bytea[]);

-- move_staged_items --
-- Items of a large request move to their positions.
SELECT move_staged_items($1, $2::text[], $3::int[], $4, $5, NULL);

-- find_response --
-- A response as readers see it.
SELECT r.id, r.status, r.created_at, s.body FROM responses r LEFT JOIN snapshots s ON s.response = r.key
 WHERE r.id = $1 AND r.owner IS NOT DISTINCT FROM $2 AND r.hidden IS NOT TRUE;

-- find_status --
-- The status of a response, if it exists.
SELECT status FROM responses WHERE id = $1 AND owner IS NOT DISTINCT FROM $2 AND hidden IS NOT TRUE;

-- find_queue_places --
-- The places in the queue of those given responses that are queued.
SELECT w.id, w.place FROM (
    SELECT r.id, row_number() OVER (ORDER BY l.background, l.response)::int AS place
      FROM leases l JOIN responses r ON r.key = l.response WHERE l.worker IS NULL) w
 WHERE w.id = ANY ($1::text[]);

-- find_runs --
-- The nodes and the extent of those given responses that exist.
SELECT r.id, r.created_at, r.ended_at,
       coalesce(r.events, (SELECT e.first + e.count FROM events e WHERE e.response = r.key ORDER BY e.first DESC LIMIT 1)),
       r.runs, l.worker, l.attempts, l.notes
  FROM responses r LEFT JOIN leases l ON l.response = r.key WHERE r.id = ANY ($1::text[]);

-- find_input --
-- The positions of a response's own input.
SELECT thread, first, input_end FROM responses WHERE id = $1 AND owner IS NOT DISTINCT FROM $2 AND hidden IS NOT TRUE;

-- find_key --
-- The digest and the target that an Idempotency-Key was first used for.
SELECT digest, target FROM idempotency WHERE owner = $1 AND kind = $2 AND key = $3;

-- save_key --
-- An older row is replaced.
SELECT save_key($1, $2, $3, $4, $5, $6);

-- find_unanswered --
-- Responses to the same body, newest first.
SELECT r.id FROM unanswered u JOIN responses r ON r.key = u.response
 WHERE u.owner = $1 AND u.digest = $2 AND u.created_at >= $3 AND NOT r.hidden AND r.status <> 'failed'
 ORDER BY u.response DESC;

-- find_conversation --
-- A conversation with its lock: the id of the response that runs in it.
SELECT c.id, c.metadata, c.created_at, c.key, c.thread, r.id
  FROM conversations c LEFT JOIN responses r ON r.key = c.running
 WHERE c.id = $1 AND c.owner IS NOT DISTINCT FROM $2 AND c.hidden IS NOT TRUE;

-- has_conversation --
-- After a create that was in doubt: whether it took effect.
SELECT id FROM conversations WHERE id = $1;

-- hold_conversation --
-- Changes of a conversation are made one after the other.
SELECT 1 FROM conversations WHERE id = $1 AND owner IS NOT DISTINCT FROM $2 AND hidden IS NOT TRUE FOR UPDATE;

-- start_thread --
-- A new thread.
INSERT INTO threads (head, used_at) VALUES ($1, $2) RETURNING key;

-- find_head --
-- The position of a thread's next item.
SELECT head FROM threads WHERE key = $1;

-- move_head --
-- The position of the next item.
UPDATE threads SET head = $1 WHERE key = $2;

-- find_repeats --
-- Which of these items the thread holds already (D24).
SELECT g.n - 1 FROM unnest($2::text[]) WITH ORDINALITY AS g(id, n)
  JOIN items i ON i.id = g.id AND i.thread IS NOT DISTINCT FROM $1;

-- add_items --
-- Items at their positions.
INSERT INTO items (thread, position, id, response, body)
SELECT $1, $2 + g.n - 1, g.id, NULL, g.body FROM unnest($3::text[], $4::bytea[]) WITH ORDINALITY AS g(id, body, n);

-- add_conversation --
-- A new conversation on a new thread.
INSERT INTO conversations (id, owner, created_at, used_at, thread, metadata) VALUES ($1, $2, $3, $3, $4, $5);

-- use_conversation --
-- Its retention time starts again (D18).
UPDATE conversations SET used_at = $1 WHERE id = $2;

-- update_conversation --
-- Replaces the metadata.
UPDATE conversations SET metadata = $1 WHERE key = $2;

-- delete_conversation --
-- Deleted: no query finds it from now on. Its bytes are erased later.
UPDATE conversations SET hidden = true, expired_at = NULL WHERE key = $1;

-- item_position --
-- The position of an item; ids are unique within a thread only.
SELECT position FROM items WHERE id = $2 AND thread IS NOT DISTINCT FROM $1;

-- list_responses --
-- A page of an owner's responses. Long final objects are left out: a page may have a hundred.
SELECT t.id, t.status, t.created_at, CASE WHEN octet_length(s.body) <= 65536 THEN s.body END, t.owner
  FROM responses t LEFT JOIN snapshots s ON s.response = t.key WHERE {where} ORDER BY t.key {order} LIMIT {limit};

-- list_conversations --
-- A page of an owner's conversations.
SELECT t.id, t.metadata, t.created_at, t.key, t.thread, NULL, NULL, t.owner
  FROM conversations t WHERE {where} ORDER BY t.key {order} LIMIT {limit};

-- scan_responses --
-- Some responses of an owner, each with whether it may match.
SELECT t.key, t.created_at, {matches}, t.about FROM responses t WHERE {where} ORDER BY t.key {order} LIMIT {most};

-- response_contains --
position({}::bytea IN coalesce(t.about, (SELECT s.body FROM snapshots s WHERE s.response = t.key),
                               (SELECT l.request FROM leases l WHERE l.response = t.key))) > 0

-- scan_conversations --
-- Some conversations of an owner, each with whether it may match.
SELECT t.key, t.created_at, {matches}, t.metadata FROM conversations t WHERE {where} ORDER BY t.key {order} LIMIT {most};

-- conversation_contains --
position({}::bytea IN t.metadata) > 0

-- find_about --
-- The content of a response without a column for it, of an older version: in its final object, or in its request.
SELECT coalesce((SELECT body FROM snapshots WHERE response = $1), (SELECT request FROM leases WHERE response = $1));

-- list_items --
-- A page of a thread's items.
SELECT body FROM items WHERE thread = $1 AND position >= $2 AND position < $3 ORDER BY position {order} LIMIT $4;

-- find_owner --
-- The owner of a response or conversation, for admins.
SELECT owner FROM responses WHERE id = $1 AND hidden IS NOT TRUE UNION ALL SELECT owner FROM conversations WHERE id = $1 AND hidden IS NOT TRUE;

-- find_response_key --
-- The row after which a page begins.
SELECT key FROM responses WHERE id = $1 AND owner IS NOT DISTINCT FROM $2;

-- find_conversation_key --
-- The row after which a page begins.
SELECT key FROM conversations WHERE id = $1 AND owner IS NOT DISTINCT FROM $2;

-- read_item --
-- One item.
SELECT body FROM items WHERE id = $2 AND thread IS NOT DISTINCT FROM $1;

-- read_named --
-- Items by their ids, in the order of the ids.
SELECT i.body FROM unnest($2::text[]) WITH ORDINALITY AS g(id, n)
  JOIN items i ON i.id = g.id AND i.thread IS NOT DISTINCT FROM $1 ORDER BY g.n;

-- read_named_in --
-- The same for a conversation by its id.
SELECT i.body FROM unnest($2::text[]) WITH ORDINALITY AS g(id, n) JOIN items i ON i.id = g.id
 WHERE i.thread IS NOT DISTINCT FROM (SELECT thread FROM conversations WHERE id = $1) ORDER BY g.n;

-- drop_item --
-- An item deleted through its conversation.
DELETE FROM items WHERE id = $2 AND thread IS NOT DISTINCT FROM $1 RETURNING 1;

-- expire_responses --
-- Ended and unused since then; a chain counts as used when any of its responses became a parent. Of one owner and its
-- end users, or of all owners but some.
SELECT r.key FROM responses r
  LEFT JOIN threads t ON t.key = r.thread LEFT JOIN threads root ON root.key = t.root
 WHERE NOT r.hidden AND r.created_at < $1 AND r.ended_at < $1 AND (r.expires_at IS NULL OR $3::text IS NOT NULL)
   AND ($3::text IS NULL OR split_part(r.owner, chr(31), 1) = $3) AND split_part(r.owner, chr(31), 1) <> ALL ($4::text[])
   AND greatest(coalesce(t.used_at, 0), coalesce(root.used_at, 0)) < $1
 ORDER BY r.created_at LIMIT $2;

-- expire_timed_responses --
-- Those whose requests said how long they are kept after their last use: as long as from their creation to `expires_at`.
SELECT r.key FROM responses r
  LEFT JOIN threads t ON t.key = r.thread LEFT JOIN threads root ON root.key = t.root
 WHERE NOT r.hidden AND r.expires_at < $1 AND r.ended_at IS NOT NULL
   AND greatest(r.ended_at, t.used_at, root.used_at) + r.expires_at - r.created_at < $1
 ORDER BY r.expires_at LIMIT $2;

-- expire_conversations --
-- Unused since then, with nothing running, likewise.
SELECT key FROM conversations WHERE NOT hidden AND running IS NULL AND used_at < $1
   AND ($3::text IS NULL OR split_part(owner, chr(31), 1) = $3) AND split_part(owner, chr(31), 1) <> ALL ($4::text[])
 LIMIT $2;

-- hide_responses --
-- They have expired, unless they were used since they were found, or another node changes them at this moment: no query
-- finds them from now on, until they are restored.
UPDATE responses SET hidden = true, expired_at = $2 WHERE key IN (
    SELECT r.key FROM responses r LEFT JOIN threads t ON t.key = r.thread LEFT JOIN threads root ON root.key = t.root
     WHERE r.key = ANY ($1::bigint[]) AND NOT r.hidden AND greatest(coalesce(t.used_at, 0), coalesce(root.used_at, 0)) < $3
       FOR UPDATE OF r SKIP LOCKED)
RETURNING key, thread, first;

-- hide_conversations --
-- They have expired, likewise.
UPDATE conversations SET hidden = true, expired_at = $2 WHERE key IN (
    SELECT key FROM conversations WHERE key = ANY ($1::bigint[]) AND NOT hidden AND running IS NULL AND used_at < $3
       FOR UPDATE SKIP LOCKED)
RETURNING key, thread, 0;

-- hide_items --
-- No chain may continue past an expired item (D22).
UPDATE threads SET expired_from = least(expired_from, $1) WHERE key = $2;

-- find_expired_responses --
-- Those that expired within a time, with the position of their items.
SELECT key, thread, first FROM responses WHERE expired_at BETWEEN $1 AND $2 LIMIT $3 FOR UPDATE SKIP LOCKED;

-- find_expired_conversations --
-- Those that expired within a time, with the position of their items.
SELECT key, thread, 0 FROM conversations WHERE expired_at BETWEEN $1 AND $2 LIMIT $3 FOR UPDATE SKIP LOCKED;

-- restore_response --
-- It has not expired after all.
UPDATE responses SET hidden = false, expired_at = NULL WHERE key = $1;

-- restore_conversation --
-- It has not expired after all.
UPDATE conversations SET hidden = false, expired_at = NULL WHERE key = $1;

-- restore_items --
-- Chains may continue. What else has expired in this thread makes a hole when it is deleted, and is whole until then.
UPDATE threads SET expired_from = NULL WHERE key = $1;

-- erasable_responses --
-- Deleted, and not being erased by another node.
SELECT r.key, r.id, r.thread, coalesce(t.root, r.thread), r.first, r.last
  FROM responses r LEFT JOIN threads t ON t.key = r.thread
 WHERE r.hidden AND r.expired_at IS NULL AND coalesce(t.root, r.thread) NOT IN
       (SELECT coalesce(ot.root, o.thread) FROM leases l JOIN responses o ON o.key = l.response
          LEFT JOIN threads ot ON ot.key = o.thread)
 ORDER BY r.key LIMIT $1 FOR UPDATE OF r SKIP LOCKED;

-- is_kept --
-- Whether the items of a deleted response stay: they are a turn of a conversation. Read with the lock of their family held.
SELECT 1 FROM responses r JOIN conversations c ON c.id = r.conversation AND NOT c.hidden AND c.thread = r.thread WHERE r.key = $1;

-- erasable_conversations --
-- Deleted, and not being erased by another node.
SELECT c.key, c.id, c.thread, coalesce(t.root, c.thread) FROM conversations c LEFT JOIN threads t ON t.key = c.thread
 WHERE c.hidden AND c.expired_at IS NULL AND coalesce(t.root, c.thread) NOT IN
       (SELECT coalesce(ot.root, o.thread) FROM leases l JOIN responses o ON o.key = l.response
          LEFT JOIN threads ot ON ot.key = o.thread)
 ORDER BY c.key LIMIT $1 FOR UPDATE OF c SKIP LOCKED;

-- busy_families --
-- The families in which something runs, read with their locks held.
SELECT DISTINCT coalesce(ot.root, o.thread) FROM leases l JOIN responses o ON o.key = l.response
  LEFT JOIN threads ot ON ot.key = o.thread WHERE coalesce(ot.root, o.thread) = ANY ($1::bigint[]);

-- erase_events --
-- Rows of a journal from its beginning on, at most so many.
DELETE FROM events WHERE response = $1 AND first IN
       (SELECT first FROM events WHERE response = $1 ORDER BY first LIMIT $2)
RETURNING 1;

-- erase_packs --
-- Blocks of a packed journal, at most so many.
DELETE FROM packs WHERE response = $1 AND first IN (SELECT first FROM packs WHERE response = $1 LIMIT $2) RETURNING 1;

-- find_unpacked --
-- Responses that ended before a time and are not packed, locked against other nodes; none while a node is alive that
-- does not read this format ($2). By the time of their creation, for an index of the end would be changed by each end.
SELECT key FROM responses WHERE format <> 2 AND created_at < $1 AND ended_at < $1 AND NOT hidden
   AND NOT EXISTS (SELECT 1 FROM workers WHERE expires_at > clock_timestamp() AND reads < $2)
 ORDER BY created_at LIMIT $3 FOR UPDATE SKIP LOCKED;

-- read_flushes --
-- Rows of a journal with their times, from a number on.
SELECT first, count, frames, at FROM events WHERE response = $1 AND first >= $2 ORDER BY first LIMIT $3;

-- add_pack --
-- A block of a packed journal.
INSERT INTO packs (response, first, count, block, at) VALUES ($1, $2, $3, $4, $5);

-- release_events --
-- Deletes the rows of a journal that is packed now.
DELETE FROM events WHERE response = $1;

-- mark_packed --
-- From here on readers read the blocks.
UPDATE responses SET format = 2 WHERE key = $1;

-- erase_response_items --
-- Its items, at most so many: input and output are next to each other.
DELETE FROM items WHERE thread = $2 AND position IN
       (SELECT position FROM items WHERE response = $1 AND thread = $2 AND position >= $3 AND position < $4 LIMIT $5)
RETURNING 1;

-- erase_loose_items --
-- Items of a deleted conversation that are not input or output of a remaining response, from a position on, at most so many.
-- Returns their positions.
DELETE FROM items WHERE thread = $1 AND position IN (
    SELECT position FROM items i WHERE thread = $1 AND position >= $2
       AND (response IS NULL OR NOT EXISTS (SELECT 1 FROM responses r WHERE r.key = i.response))
     ORDER BY position LIMIT $3)
RETURNING 1, position;

-- erase_response --
-- The row itself, with its final object.
WITH snapshot AS (DELETE FROM snapshots WHERE response = $1)
DELETE FROM responses WHERE key = $1;

-- erase_unanswered --
-- The record for silent retries.
DELETE FROM unanswered WHERE response = $1;

-- erase_conversation --
-- The row itself.
DELETE FROM conversations WHERE key = $1;

-- erase_keys --
-- The Idempotency-Keys with this target.
DELETE FROM idempotency WHERE target = $1;

-- erase_old_keys --
-- Keys of items, and of targets that were erased long ago, at most so many.
DELETE FROM idempotency WHERE (owner, kind, key) IN
       (SELECT owner, kind, key FROM idempotency WHERE used_at < $1 AND kind <> 'response' LIMIT $2)
RETURNING 1;

-- erase_old_unanswered --
-- Some that are too old for a silent retry.
DELETE FROM unanswered WHERE response IN (SELECT response FROM unanswered WHERE created_at < $1 LIMIT $2) RETURNING 1;

-- erase_thread --
-- A thread without items, conversation or forks. Returns the thread that it was forked from.
DELETE FROM threads WHERE key = $1
   AND NOT EXISTS (SELECT 1 FROM items WHERE thread = $1)
   AND NOT EXISTS (SELECT 1 FROM conversations WHERE thread = $1)
   AND NOT EXISTS (SELECT 1 FROM threads fork WHERE fork.parent = $1)
RETURNING parent;

-- find_outputs --
-- Items by their ids that are output of an owner's response; input may come from anywhere.
SELECT i.body FROM items i JOIN responses r ON r.key = i.response
 WHERE i.id = ANY ($1::text[]) AND r.owner IS NOT DISTINCT FROM $2 AND i.position >= r.input_end
 ORDER BY i.thread, i.position;

-- find_items --
-- Items of an owner by their ids alone; the newest of each id.
SELECT DISTINCT ON (i.id) i.body FROM items i
 WHERE i.id = ANY ($1::text[]) AND (
       EXISTS (SELECT 1 FROM responses r WHERE r.key = i.response AND r.owner = $2 AND NOT r.hidden)
    OR EXISTS (SELECT 1 FROM conversations c WHERE c.thread = i.thread AND c.owner = $2 AND NOT c.hidden))
 ORDER BY i.id, i.thread DESC, i.position DESC;

-- add_secret --
-- The first node draws it.
INSERT INTO secrets (name, value) VALUES ($1, $2) ON CONFLICT DO NOTHING;

-- find_secret --
-- The one that was drawn first.
SELECT value FROM secrets WHERE name = $1;

-- measure_queue --
-- The number of queued responses, and the time at which the oldest was created.
SELECT count(*), min(r.created_at) FROM leases l JOIN responses r ON r.key = l.response WHERE l.worker IS NULL;

-- measure_webhooks --
-- The number of deliveries that wait for an attempt, and the time of the oldest event among them.
SELECT count(*), min(d.created_at) FROM webhook_deliveries d JOIN webhook_endpoints e ON e.id = d.endpoint
 WHERE d.due_at IS NOT NULL AND d.give_up_at > extract(epoch FROM clock_timestamp()) AND e.disabled_at IS NULL;

-- measure_unpacked --
-- The number of ended responses that are not packed, up to a limit, and the time at which the first of them ended.
SELECT count(*), min(ended_at) FROM
       (SELECT ended_at FROM responses WHERE format <> 2 AND ended_at IS NOT NULL AND NOT hidden
         ORDER BY created_at LIMIT $1) AS unpacked;

-- measure_bytes --
-- The size of the database.
SELECT pg_database_size(current_database());

-- measure_nodes --
-- The nodes, their leases, and the seconds until their heartbeats expire.
SELECT w.name, count(l.response), extract(epoch FROM w.expires_at - clock_timestamp())::float8
  FROM workers w LEFT JOIN leases l ON l.worker = w.name GROUP BY w.name;

-- add_ticket --
INSERT INTO tickets (id, owner, target, expires_at, digest) VALUES ($1, $2, $3, $4, $5);

-- remove_ticket --
DELETE FROM tickets WHERE id = $1 AND owner = $2 AND target = $3 RETURNING id;

-- find_ticket --
SELECT id, owner, target, expires_at, digest FROM tickets WHERE id = $1;

-- find_valid_tickets --
SELECT id FROM tickets WHERE id = ANY ($1::text[]) AND expires_at > $2;

-- find_in_conversation --
-- A response, if it belongs to that conversation.
SELECT id FROM responses WHERE id = $1 AND owner IS NOT DISTINCT FROM $2 AND conversation = $3 AND hidden IS NOT TRUE;

-- erase_old_tickets --
DELETE FROM tickets WHERE id IN (SELECT id FROM tickets WHERE expires_at < $1 LIMIT $2) RETURNING 1;

-- add_key --
INSERT INTO keys (id, owner, role, acts_for, digest, created_at, expires_at, last_used_at, revoked_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9);

-- revoke_key --
UPDATE keys SET revoked_at = $1 WHERE id = $2 AND revoked_at IS NULL;

-- note_key_use --
UPDATE keys SET last_used_at = $1::float8 WHERE id = $2 AND (last_used_at IS NULL OR last_used_at < $1::float8);

-- list_keys --
SELECT id, owner, role, acts_for, digest, created_at, expires_at, last_used_at, revoked_at FROM keys ORDER BY created_at, id;

-- count_keys --
-- Each new, revoked or erased key changes one of these numbers. The last one only grows.
SELECT count(*), count(revoked_at), (SELECT count(*) FROM audit WHERE action = 'key.created') FROM keys;

-- add_audit --
INSERT INTO audit (at, actor, action, subject, detail) VALUES ($1, $2, $3, $4, $5);

-- list_audit --
-- The newest changes of keys and owners.
SELECT at, actor, action, subject, detail FROM audit ORDER BY key DESC LIMIT $1;

-- add_usage_sum --
-- What responses with `store: false` used on one day.
INSERT INTO usage AS u (response, owner, end_user, model, upstream, ended_at, status, input_tokens, cached_tokens, output_tokens,
       reasoning_tokens, estimated_input, estimated_output, attempts, tool_calls, responses)
VALUES (NULL, $1, NULL, $2, $3, $4, '', $5, $6, $7, $8, $9, $10, $11, $12, $13)
ON CONFLICT (owner, model, upstream, ended_at) WHERE response IS NULL DO UPDATE SET
       input_tokens = u.input_tokens + excluded.input_tokens, cached_tokens = u.cached_tokens + excluded.cached_tokens,
       output_tokens = u.output_tokens + excluded.output_tokens,
       reasoning_tokens = u.reasoning_tokens + excluded.reasoning_tokens,
       estimated_input = u.estimated_input + excluded.estimated_input,
       estimated_output = u.estimated_output + excluded.estimated_output,
       attempts = u.attempts + excluded.attempts, tool_calls = u.tool_calls + excluded.tool_calls,
       responses = u.responses + excluded.responses;

-- list_policies --
SELECT owner, policy FROM owner_policies;

-- set_policy --
INSERT INTO owner_policies (owner, policy) VALUES ($1, $2) ON CONFLICT (owner) DO UPDATE SET policy = excluded.policy;

-- count_minute --
-- Adds to what an owner has asked for in a minute, and returns it for all nodes together. Forgets the owner's minutes
-- before the last one.
WITH forgotten AS (DELETE FROM owner_minutes WHERE owner = $1 AND minute < CAST($2 AS bigint) - 1)
INSERT INTO owner_minutes AS m (owner, minute, requests, tokens) VALUES ($1, $2, $3, $4)
ON CONFLICT (owner, minute) DO UPDATE SET requests = m.requests + excluded.requests, tokens = m.tokens + excluded.tokens
RETURNING requests, tokens;

-- sum_usage --
-- The usage of a time by the columns that are asked for, of all owners, of one, or of one of its end users.
SELECT {columns},
       CAST(sum(input_tokens) AS bigint),
       CAST(sum(cached_tokens) AS bigint),
       CAST(sum(output_tokens) AS bigint),
       CAST(sum(reasoning_tokens) AS bigint),
       CAST(sum(estimated_input) AS bigint),
       CAST(sum(estimated_output) AS bigint),
       CAST(sum(attempts) AS bigint),
       CAST(sum(tool_calls) AS bigint),
       CAST(sum(responses) AS bigint)
  FROM (SELECT usage.*, floor(ended_at / 86400)::bigint AS day FROM usage
         WHERE ended_at >= $1 AND ended_at < $2 AND ($3::text IS NULL OR owner = $3) AND ($4::text IS NULL OR end_user = $4)) AS u
 GROUP BY {columns} ORDER BY {columns};

-- add_webhook --
-- Unless the owner has enough of them ($11).
INSERT INTO webhook_endpoints (id, owner, name, url, event_types, created_at, updated_at, hint, sealed, disabled_at)
SELECT $1::text, $2::text, $3::text, $4::text, $5::text, $6::float8, $7::float8, $8::text, $9::bytea, $10::float8
 WHERE (SELECT count(*) FROM webhook_endpoints WHERE owner = $2) < $11 RETURNING id;

-- save_webhook --
UPDATE webhook_endpoints SET name = $3, url = $4, event_types = $5, created_at = $6, updated_at = $7, hint = $8,
       sealed = $9, disabled_at = $10 WHERE id = $1 AND owner = $2 RETURNING id;

-- find_webhook --
SELECT id, owner, name, url, event_types, created_at, updated_at, hint, sealed, disabled_at
  FROM webhook_endpoints WHERE id = $1 AND owner = $2;

-- list_webhooks --
-- Newest first: their ids sort by their times.
SELECT id, owner, name, url, event_types, created_at, updated_at, hint, sealed, disabled_at
  FROM webhook_endpoints WHERE owner = $1 AND ($2::text = '' OR id < $2) ORDER BY id DESC LIMIT $3;

-- has_webhooks --
SELECT 1 FROM webhook_endpoints LIMIT 1;

-- remove_webhook --
DELETE FROM webhook_endpoints WHERE id = $1 AND owner = $2 RETURNING id;

-- disable_webhook --
UPDATE webhook_endpoints SET disabled_at = $2 WHERE id = $1;

-- drop_deliveries_to --
-- Some of those to an endpoint.
DELETE FROM webhook_deliveries WHERE key IN (SELECT key FROM webhook_deliveries WHERE owner = $1 AND endpoint = $2 LIMIT 500)
RETURNING key;

-- drop_deliveries_of --
-- Those about a response that is deleted.
DELETE FROM webhook_deliveries WHERE response = $1;

-- erase_old_deliveries --
-- Some of those that ended, or were given up, six days before.
DELETE FROM webhook_deliveries WHERE key IN
       (SELECT key FROM webhook_deliveries WHERE give_up_at < $1 - 518400 LIMIT $2)
RETURNING 1;

-- find_due_webhooks --
-- The endpoints for which an attempt is due. One probe of an index for each.
SELECT id, owner, name, url, event_types, created_at, updated_at, hint, sealed, disabled_at FROM webhook_endpoints e
 WHERE disabled_at IS NULL AND EXISTS
       (SELECT 1 FROM webhook_deliveries d WHERE d.endpoint = e.id AND d.due_at <= $1 AND d.give_up_at > $1);

-- claim_deliveries --
-- Due ones that no living node is sending. Events of one response go in their order.
UPDATE webhook_deliveries SET worker = $2::text, attempts = attempts + 1 WHERE key IN
       (SELECT d.key FROM webhook_deliveries d
         WHERE d.endpoint = $1 AND d.due_at <= $3 AND d.give_up_at > $3
           AND NOT EXISTS (SELECT 1 FROM workers w WHERE w.name = d.worker AND w.expires_at > clock_timestamp())
           AND NOT EXISTS (SELECT 1 FROM webhook_deliveries p WHERE p.response = d.response AND p.endpoint = d.endpoint
                              AND p.key < d.key AND p.due_at IS NOT NULL)
         ORDER BY d.due_at LIMIT $4 FOR UPDATE SKIP LOCKED)
RETURNING id, endpoint, response, event, created_at, give_up_at, attempts, due_at, delivered_at, log;

-- release_deliveries --
-- Those that a node is no longer sending.
UPDATE webhook_deliveries SET worker = NULL WHERE worker = $1;

-- record_attempt --
-- What became of an attempt; no more attempts are due where it was the last one.
UPDATE webhook_deliveries SET worker = NULL, due_at = $2, delivered_at = $3, log = (log::jsonb || jsonb_build_array($4::text::jsonb))::text
 WHERE id = $1 AND due_at IS NOT NULL;

-- list_deliveries --
-- Newest first, of one endpoint or of all, after a given one.
SELECT id, endpoint, response, event, created_at, give_up_at, attempts, due_at, delivered_at, log FROM webhook_deliveries
 WHERE owner = $1 AND ($2::text = '' OR endpoint = $2)
   AND ($3::text = '' OR key < (SELECT key FROM webhook_deliveries WHERE id = $3 AND owner = $1)) ORDER BY key DESC LIMIT $4;

-- find_delivery --
SELECT id FROM webhook_deliveries WHERE id = $1 AND owner = $2;

-- redeliver --
-- From the first attempt on, under the same id.
UPDATE webhook_deliveries SET attempts = 0, due_at = $3, give_up_at = $4, delivered_at = NULL, worker = NULL
 WHERE id = $1 AND owner = $2
RETURNING id, endpoint, response, event, created_at, give_up_at, attempts, due_at, delivered_at, log;

-- erase_owner_responses --
-- Deletes some responses of an owner: those of its name, and those whose owner lies between two texts, of end users.
UPDATE responses SET hidden = true, expired_at = NULL WHERE key IN (
    SELECT key FROM responses WHERE (NOT hidden OR expired_at IS NOT NULL)
       AND (owner = $1 OR (owner COLLATE "C" > $2 AND owner COLLATE "C" < $3)) LIMIT 500) RETURNING key;

-- erase_owner_conversations --
-- Deletes some conversations of an owner likewise.
UPDATE conversations SET hidden = true, expired_at = NULL WHERE key IN (
    SELECT key FROM conversations WHERE (NOT hidden OR expired_at IS NOT NULL)
       AND (owner = $1 OR (owner COLLATE "C" > $2 AND owner COLLATE "C" < $3)) LIMIT 500) RETURNING key;

-- erase_owner_rows --
-- Deletes an owner's rows of a table.
DELETE FROM {table} WHERE (owner = $1 OR (owner COLLATE "C" > $2 AND owner COLLATE "C" < $3)) RETURNING 1;

-- erase_owner_deliveries --
-- Deletes the deliveries to an owner, and those about its responses or an end user's.
DELETE FROM webhook_deliveries WHERE owner = $1 OR response IN
       (SELECT id FROM responses WHERE owner = $1 OR (owner COLLATE "C" > $2 AND owner COLLATE "C" < $3)) RETURNING 1;

-- erase_owner_usage --
DELETE FROM usage WHERE owner = $1 AND ($2::text IS NULL OR end_user = $2) RETURNING 1;

-- count_running_of --
-- The number of an owner's responses that have not ended.
SELECT count(*) FROM responses WHERE key IN (SELECT response FROM leases) AND (owner = $1 OR (owner COLLATE "C" > $2 AND owner COLLATE "C" < $3));

-- export_usage --
-- Some usage records of an owner, in order, as JSON.
SELECT key, json_build_object(
           'type', 'usage', 'response_id', response, 'end_user', end_user, 'model', model, 'upstream', upstream,
           'ended_at', ended_at, 'status', status, 'input_tokens', input_tokens, 'cached_tokens', cached_tokens,
           'output_tokens', output_tokens, 'reasoning_tokens', reasoning_tokens,
           'estimated_input_tokens', estimated_input, 'estimated_output_tokens', estimated_output,
           'attempts', attempts, 'tool_calls', tool_calls, 'responses', responses)::text
  FROM usage WHERE owner = $1 AND ($2::text IS NULL OR end_user = $2) AND key > $3 ORDER BY key LIMIT 1000;

-- export_responses --
-- Some ended responses of an owner, with the position of their input, in order.
SELECT r.key, r.id, r.owner, s.body, r.thread, r.first, r.input_end FROM responses r LEFT JOIN snapshots s ON s.response = r.key
 WHERE NOT r.hidden AND r.ended_at IS NOT NULL AND r.key > $4 AND (r.owner = $1 OR (r.owner COLLATE "C" > $2 AND r.owner COLLATE "C" < $3)) ORDER BY r.key LIMIT 100;

-- export_conversations --
-- Some conversations of an owner, in order.
SELECT key, id, owner, metadata, thread, 0, 2147483647, created_at FROM conversations
 WHERE NOT hidden AND key > $4 AND (owner = $1 OR (owner COLLATE "C" > $2 AND owner COLLATE "C" < $3)) ORDER BY key LIMIT 100;

-- beat --
-- By the database's clock alone. A row that was removed meanwhile is simply written again.
INSERT INTO workers (name, started_at, expires_at, reads)
VALUES ($1, clock_timestamp(), clock_timestamp() + make_interval(secs => $2), $3)
ON CONFLICT (name) DO UPDATE SET expires_at = excluded.expires_at;

-- stop_beating --
DELETE FROM workers WHERE name = $1;
