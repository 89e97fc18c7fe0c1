-- find_key --
-- The digest and the target that an Idempotency-Key was first used for.
SELECT digest, target FROM idempotency WHERE owner = ? AND kind = ? AND key = ?;

-- save_key --
-- A key whose response failed may be used again, so an older row is replaced.
INSERT OR REPLACE INTO idempotency (owner, kind, key, digest, target, used_at) VALUES (?, ?, ?, ?, ?, ?);

-- find_status --
-- The status of a response, if it exists.
SELECT status FROM responses WHERE id = ? AND owner = ? AND hidden = 0;

-- locate_in_conversation --
-- Where a response goes in a conversation, or why it cannot (if `?3`, because another one runs there): a refusal and its
-- detail, then thread, first, root, parent, fork and conversation. A turn that has not ended belongs to no history (D6).
SELECT CASE WHEN c.key IS NULL THEN 'no conversation' WHEN r.key IS NOT NULL AND ?3 THEN 'locked' END, r.id,
       c.thread, CASE WHEN r.key IS NULL THEN t.head ELSE r.first END, NULL, NULL, NULL, c.key
  FROM (SELECT 1)
       LEFT JOIN conversations c ON c.id = ?1 AND c.owner = ?2 AND c.hidden = 0
       LEFT JOIN threads t ON t.key = c.thread
       LEFT JOIN responses r ON r.key = c.running;

-- locate_after --
-- The same for a response that continues another one: in its thread if no item has followed it yet, otherwise in a fork
-- (D22). No part of the chain may be a hole; a thread that was erased with all its items is nothing else.
WITH RECURSIVE p AS MATERIALIZED (
    SELECT r.status, r.thread, r.last, t.root, t.head = r.last AND r.conversation IS NULL AS is_last
      FROM responses r LEFT JOIN threads t ON t.key = r.thread WHERE r.id = ?1 AND r.owner = ?2 AND r.hidden = 0),
lineage (upto, parent, fork, hole) AS (
    SELECT p.last, t.parent, t.fork,
           CASE WHEN t.key IS NULL THEN -1 ELSE coalesce(min(t.hole, t.expired_from), t.hole, t.expired_from) END
      FROM p LEFT JOIN threads t ON t.key = p.thread
    UNION ALL
    SELECT l.fork, t.parent, t.fork,
           CASE WHEN t.key IS NULL THEN -1 ELSE coalesce(min(t.hole, t.expired_from), t.hole, t.expired_from) END
      FROM lineage l LEFT JOIN threads t ON t.key = l.parent WHERE l.parent IS NOT NULL)
SELECT CASE WHEN p.status IS NULL THEN 'no parent'
            WHEN p.status IN ('queued', 'in_progress') THEN 'parent unfinished'
            WHEN p.status = 'failed' THEN 'parent failed'
            WHEN EXISTS (SELECT 1 FROM lineage WHERE hole < upto) THEN 'parent incomplete' END,
       p.status, iif(p.is_last, p.thread, NULL), iif(p.is_last, p.last, 0), coalesce(p.root, p.thread),
       iif(p.is_last, NULL, p.thread), iif(p.is_last, NULL, p.last), NULL
  FROM (SELECT 1) LEFT JOIN p ON 1;

-- find_conversation --
-- A conversation with its lock: the id and the first position of the response that runs in it.
SELECT c.id, c.metadata, c.created_at, c.key, c.thread, r.id, r.first
  FROM conversations c LEFT JOIN responses r ON r.key = c.running
 WHERE c.id = ? AND c.owner = ? AND c.hidden = 0;

-- add_thread --
-- A new thread, or a fork of one.
INSERT INTO threads (root, parent, fork, head, used_at) VALUES (?, ?, ?, ?, ?);

-- start_thread --
-- A new thread.
INSERT INTO threads (head, used_at) VALUES (?1, ?2) RETURNING key;

-- find_head --
-- The position of a thread's next item.
SELECT head FROM threads WHERE key = ?1;

-- move_head --
-- The position of the next item.
UPDATE threads SET head = ? WHERE key = ?;

-- use_thread --
-- To be a parent renews the whole chain (D18).
UPDATE threads SET used_at = ? WHERE key = ?;

-- find_holder --
-- The first thread of a range that holds an item, and its position there (D24). Items are indexed by the end of their
-- ids, which holds the time, and then by the rest. The plus keeps the database from using an index of the id itself.
SELECT thread, position FROM items INDEXED BY items_by_id
 WHERE substr(id, -48) = substr(?1, -48) AND substr(id, 1, length(id) - 48) = substr(?1, 1, length(?1) - 48)
   AND +id = ?1 AND thread BETWEEN ?2 AND ?3 ORDER BY thread LIMIT 1;

-- find_lineage --
-- A thread and the threads that it was forked from, newest first, each with the position up to which it counts.
WITH RECURSIVE lineage (thread, upto, parent, fork) AS (
    SELECT ?1, ?2, t.parent, t.fork FROM (SELECT 1) LEFT JOIN threads t ON t.key = ?1
    UNION ALL
    SELECT l.parent, l.fork, t.parent, t.fork
      FROM lineage l LEFT JOIN threads t ON t.key = l.parent WHERE l.parent IS NOT NULL)
SELECT thread, upto FROM lineage;

-- add_response --
-- A response as it was admitted.
INSERT INTO responses
       (id, owner, status, background, created_at, conversation, thread, first, input_end, last, request, runs, format,
        about, expires_at, era)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, coalesce((SELECT max(key) FROM events), 0) >> 12);

-- add_item --
-- One item at its position.
INSERT INTO items (thread, position, id, response, body) VALUES (?, ?, ?, ?, ?);

-- lock_conversation --
-- Held until the response's terminal transaction.
UPDATE conversations SET running = ?, used_at = ? WHERE key = ?;

-- unlock_conversation --
-- Part of the terminal transaction.
UPDATE conversations SET running = NULL, used_at = ? WHERE id = ? AND running = ?;

-- add_lease --
-- With a worker: taken at once, which counts as the first attempt. Without: queued for any worker to claim. The owner is
-- the name alone, without an end user: limits count by it.
INSERT INTO leases (response, owner, background, worker, fence, attempts, notes, sealed, deadline)
VALUES (?, ?, ?, ?, ?, ?, '{}', ?, ?);

-- add_events --
-- Events of a response whose lease is known to be held.
INSERT INTO events (response, first, count, at, frames) VALUES (?, ?, ?, ?, ?);

-- append_events --
-- Writes nothing when the fence was raised: a paused worker may wake after another has taken its lease.
INSERT INTO events (response, first, count, at, frames)
SELECT ?1, ?4, ?5, ?3, ?6 FROM leases WHERE response = ?1 AND fence = ?2;

-- holds_lease --
-- Checks that the fence was not raised.
SELECT 1 FROM leases WHERE response = ? AND fence = ?;

-- add_unanswered --
-- A record for silent retries of the SDK to find (D17).
INSERT INTO unanswered (response, owner, digest, created_at) VALUES (?, ?, ?, ?);

-- drop_unanswered --
-- The creating connection has had its answer.
DELETE FROM unanswered WHERE response = (SELECT key FROM responses WHERE id = ?);

-- find_unanswered --
-- Responses to the same body, newest first.
SELECT r.id FROM unanswered u JOIN responses r ON r.key = u.response
 WHERE u.owner = ? AND u.digest = ? AND u.created_at >= ? AND r.hidden = 0 AND r.status <> 'failed'
 ORDER BY u.response DESC;

-- free_leases --
-- At start: the lock on the file shows that every worker that held a lease is gone.
UPDATE leases SET worker = NULL WHERE worker IS NOT NULL;

-- confirm_lease --
-- Still held, or freed and not claimed since.
UPDATE leases SET worker = ?1 WHERE response = ?2 AND fence = ?3 AND (worker = ?1 OR worker IS NULL);

-- count_queued --
-- The number of queued responses by owner.
SELECT owner, count(*) FROM leases WHERE worker IS NULL GROUP BY owner;

-- find_queued --
-- Foreground first, then oldest. The owners at their limit are given as a JSON list.
SELECT response FROM leases
 WHERE worker IS NULL AND owner NOT IN (SELECT value FROM json_each(?))
 ORDER BY background, response LIMIT ?;

-- take_lease --
-- The raised fence shuts out the worker that held the lease before. The attempt is counted now, not when it succeeds.
UPDATE leases SET worker = ?, fence = fence + 1, attempts = attempts + ? WHERE response = ?;

-- start_response --
-- Lists can filter by this status. The time and the node are for the timeline.
UPDATE responses SET status = 'in_progress', runs = coalesce(runs || ',', '') ||
       json_array(round((julianday('now') - 2440587.5) * 86400.0, 3), ?, ?) WHERE key = ?;

-- find_claim --
-- Everything that a worker needs to run a response it has taken.
SELECT r.id, r.key, l.fence, r.owner, r.request, r.thread, r.first, r.input_end, l.attempts, l.notes, r.background,
       l.sealed, r.format
  FROM leases l JOIN responses r ON r.key = l.response WHERE l.response = ?;

-- find_running --
-- The key of a response that has not ended, and whether it is queued.
SELECT l.response, l.worker IS NULL FROM responses r JOIN leases l ON l.response = r.key WHERE r.id = ?;

-- find_deleted --
-- Deleted responses that wait, or that a worker runs. (CROSS JOIN keeps the order: the few leases first.)
SELECT r.id FROM leases l CROSS JOIN responses r ON r.key = l.response
 WHERE (l.worker = ?1 OR l.worker IS NULL) AND r.hidden = 1;

-- find_overdue --
-- Queued responses that should have ended by a time, in the order of their deadlines.
SELECT r.id FROM leases l CROSS JOIN responses r ON r.key = l.response WHERE l.worker IS NULL AND l.deadline <= ?1
 ORDER BY l.deadline LIMIT ?2;

-- save_checkpoint --
-- The state that the next worker starts from.
UPDATE leases SET notes = ? WHERE response = ? AND fence = ?;

-- release_lease --
-- No attempt is counted for a run that was released on purpose.
UPDATE leases SET worker = NULL, attempts = max(attempts - 1, 0) WHERE response = ? AND fence = ?;

-- find_turn --
-- Where the output of a response goes, and whether it goes there: not if its conversation is gone.
SELECT r.thread, r.first, r.input_end, r.conversation, CASE WHEN r.conversation IS NULL OR EXISTS
       (SELECT 1 FROM conversations c WHERE c.id = r.conversation AND c.hidden = 0) THEN 1 ELSE 0 END
  FROM responses r WHERE r.key = ?;

-- end_response --
-- The final object; the request is no longer needed. The era is that of its newest event. (RETURNING would take
-- longer than to read the row before.)
UPDATE responses SET status = ?, snapshot = ?, ended_at = ?, events = ?, request = NULL, last = ?, last_era = ? >> 12
 WHERE key = ?;

-- drop_lease --
-- Ended, if the lease is still held: no worker may write any more.
DELETE FROM leases WHERE response = ? AND fence = ?;

-- move_items --
-- A failed turn moves to a thread of its own.
UPDATE items SET thread = ?, position = position - ? WHERE thread = ? AND position >= ? AND position < ?;

-- move_response --
-- The response moves with its items.
UPDATE responses SET thread = ?, first = 0, input_end = input_end - first, last = last - first WHERE key = ?;

-- delete_response --
-- Deleted: no query finds it from now on. Its bytes are erased later.
UPDATE responses SET hidden = 1, expired_at = NULL WHERE key = ?;

-- find_deletable --
-- A response to be deleted, with the position of its items.
SELECT r.key, r.thread, r.first, l.response IS NOT NULL
  FROM responses r LEFT JOIN leases l ON l.response = r.key WHERE r.id = ? AND r.owner = ? AND r.hidden = 0;

-- make_hole --
-- No chain may continue past a deleted item (D22).
UPDATE threads SET hole = min(coalesce(hole, ?1), ?1) WHERE key = ?2;

-- find_row --
-- The first number of the row that holds a wanted number, if that row is in this era.
SELECT max(first) FROM events WHERE key >> 12 = ? AND response = ? AND first <= ?;

-- read_events --
-- The rows of a journal in one era, from a number on.
SELECT first, count, frames, at FROM events WHERE key >> 12 = ? AND response = ? AND first >= ? ORDER BY first;

-- find_journal --
-- The key of a response, whether its journal is complete, the eras of its rows, and their format.
SELECT key, ended_at IS NOT NULL, era, coalesce(last_era, (SELECT max(key) FROM events) >> 12, era), format
  FROM responses WHERE id = ?;

-- list_journals --
-- The journals of all responses that are not deleted, with the eras and the format of their rows, and what else clients are shown.
SELECT id, key, era, coalesce(last_era, (SELECT max(key) FROM events) >> 12, era), format, owner, status, snapshot
  FROM responses WHERE hidden = 0 ORDER BY key;

-- read_packs --
-- The blocks of a packed journal, from the one that holds a number on.
SELECT first, count, block, at FROM packs WHERE response = ?1 AND first >=
       coalesce((SELECT max(first) FROM packs WHERE response = ?1 AND first <= ?2), 0) ORDER BY first;

-- find_unpacked --
-- Responses that ended before a time and are not packed, with the eras of their rows; the first to end of each format first.
-- (Formats are listed, so that the index is used.)
SELECT key, era, last_era FROM responses WHERE format IN (1, 3) AND ended_at < ? AND hidden = 0 LIMIT ?;

-- mark_packed --
-- From here on readers read the blocks.
UPDATE responses SET format = 2 WHERE key = ?;

-- add_pack --
-- A block of a packed journal.
INSERT INTO packs (response, first, count, block, at) VALUES (?, ?, ?, ?, ?);

-- find_releasable --
-- The next rows of journals: the last key, how many belong to packed journals, and the oldest time.
SELECT max(key), sum(packed), min(at) FROM
       (SELECT e.key, e.at, coalesce(r.format = 2, 0) AS packed FROM events e LEFT JOIN responses r ON r.key = e.response
         WHERE e.key > ? ORDER BY e.key LIMIT ?);

-- release_events --
-- Deletes those rows in a range of keys that belong to packed journals.
DELETE FROM events WHERE key > ? AND key <= ? AND (SELECT format = 2 FROM responses r WHERE r.key = events.response);

-- read_items --
-- One indexed range: the items of a thread below a position, newest first.
SELECT body FROM items WHERE thread = ? AND position < ? ORDER BY position DESC;

-- read_near --
-- The items of a thread that was not forked from another, below a position. NULL: one that is long, or a reference.
SELECT CASE WHEN length(i.body) < 4096 AND substr(i.body, 1, 1) <> x'40' THEN i.body END
  FROM threads t CROSS JOIN items i ON i.thread = t.key
 WHERE t.key = ?1 AND t.parent IS NULL AND i.position < ?2 ORDER BY i.position;

-- read_input --
-- A response's own input.
SELECT body FROM items WHERE thread = ? AND position >= ? AND position < ? ORDER BY position;

-- add_piece --
-- A piece of a large request that has not been accepted yet.
INSERT INTO stash (holder, number, bytes) VALUES (?, ?, ?);

-- read_pieces --
-- The pieces that hold an item.
SELECT bytes FROM stash WHERE holder = ? AND number BETWEEN ? AND ? ORDER BY number;

-- change_piece --
-- With a deleted item overwritten by zeros.
UPDATE stash SET bytes = ? WHERE holder = ? AND number = ?;

-- drop_pieces --
-- The items of the request are erased: some of its pieces. The id of such a request is marked until the last one is gone.
DELETE FROM stash WHERE key IN
       (SELECT s.key FROM holders h CROSS JOIN stash s ON s.holder = substr(h.id, 8)
         WHERE h.id >= 'erased:' AND h.id < 'erased;' LIMIT ?)
RETURNING 1;

-- drop_unaccepted --
-- The pieces of a request that was not accepted, or that held nothing new.
DELETE FROM stash WHERE holder = ?1 AND NOT EXISTS (SELECT 1 FROM holders WHERE id = ?1);

-- accept_pieces --
-- The request was accepted.
INSERT INTO holders (id) VALUES (?);

-- mark_erased --
-- The items of the request are erased.
UPDATE holders SET id = 'erased:' || id WHERE id = ?;

-- has_erased --
-- Whether pieces of such requests may be left.
SELECT 1 FROM holders WHERE id >= 'erased:' AND id < 'erased;' LIMIT 1;

-- drop_erased --
-- No pieces of such requests are left.
DELETE FROM holders WHERE id >= 'erased:' AND id < 'erased;';

-- drop_all_unaccepted --
-- At start: pieces of requests that a crash kept from being accepted, or whose items are erased.
DELETE FROM stash WHERE holder NOT IN (SELECT id FROM holders);

-- find_response --
-- A response as readers see it.
SELECT id, status, created_at, snapshot FROM responses WHERE id = ? AND owner = ? AND hidden = 0;

-- find_queue_places --
-- The places in the queue of those given responses (a JSON list) that are queued.
SELECT r.id, w.place
  FROM (SELECT response, row_number() OVER (ORDER BY background, response) AS place FROM leases WHERE worker IS NULL) w
  JOIN responses r ON r.key = w.response WHERE r.id IN (SELECT value FROM json_each(?));

-- find_runs --
-- The nodes and the extent of those given responses (a JSON list) that exist. A running one's events are in memory.
SELECT r.id, r.created_at, r.ended_at, r.events, r.runs, l.worker, l.attempts, l.notes
  FROM responses r LEFT JOIN leases l ON l.response = r.key WHERE r.id IN (SELECT value FROM json_each(?));

-- find_input --
-- The positions of a response's own input.
SELECT thread, first, input_end FROM responses WHERE id = ? AND owner = ? AND hidden = 0;

-- item_position --
-- The position of an item; ids are unique within a thread only.
SELECT position FROM items INDEXED BY items_by_id
 WHERE substr(id, -48) = substr(?2, -48) AND substr(id, 1, length(id) - 48) = substr(?2, 1, length(?2) - 48)
   AND +id = ?2 AND thread = ?1;

-- find_repeats --
-- Which of these items (a JSON list of ids) the thread holds already (D24).
SELECT g.key FROM json_each(?2) g CROSS JOIN items i INDEXED BY items_by_id
 WHERE substr(i.id, -48) = substr(g.value, -48)
   AND substr(i.id, 1, length(i.id) - 48) = substr(g.value, 1, length(g.value) - 48)
   AND +i.id = g.value AND i.thread = ?1;

-- read_item --
-- One item.
SELECT body FROM items INDEXED BY items_by_id
 WHERE substr(id, -48) = substr(?2, -48) AND substr(id, 1, length(id) - 48) = substr(?2, 1, length(?2) - 48)
   AND +id = ?2 AND thread = ?1;

-- read_named --
-- Items by their ids (a JSON list), in the order of the ids.
SELECT i.body FROM json_each(?2) g CROSS JOIN items i INDEXED BY items_by_id
 WHERE substr(i.id, -48) = substr(g.value, -48)
   AND substr(i.id, 1, length(i.id) - 48) = substr(g.value, 1, length(g.value) - 48)
   AND +i.id = g.value AND i.thread = ?1
 ORDER BY g.key;

-- find_outputs --
-- Items by their ids (a JSON list) that are output of an owner's response; input may come from anywhere.
SELECT i.body FROM json_each(?1) g CROSS JOIN items i JOIN responses r ON r.key = i.response
 WHERE substr(i.id, -48) = substr(g.value, -48) AND +i.id = g.value
   AND r.owner = ?2 AND i.position >= r.input_end
 ORDER BY i.thread, i.position;

-- find_items --
-- Items by their ids alone (a JSON list), from any response or conversation of an owner; the newest of an id is last.
SELECT i.body FROM json_each(?1) g CROSS JOIN items i
  LEFT JOIN responses r ON r.key = i.response LEFT JOIN conversations c ON c.thread = i.thread
 WHERE substr(i.id, -48) = substr(g.value, -48)
   AND substr(i.id, 1, length(i.id) - 48) = substr(g.value, 1, length(g.value) - 48) AND +i.id = g.value
   AND ((r.owner = ?2 AND r.hidden = 0) OR (c.owner = ?2 AND c.hidden = 0))
 ORDER BY i.thread, i.position;

-- list_responses --
-- A page of an owner's responses. Long final objects are left out: a page may have a hundred.
SELECT t.id, t.status, t.created_at, CASE WHEN length(t.snapshot) <= 65536 THEN t.snapshot END, t.owner
  FROM responses t WHERE {where} ORDER BY t.key {order} LIMIT {limit};

-- list_conversations --
-- A page of an owner's conversations.
SELECT t.id, t.metadata, t.created_at, t.key, t.thread, NULL, NULL, t.owner
  FROM conversations t WHERE {where} ORDER BY t.key {order} LIMIT {limit};

-- scan_responses --
-- Some responses of an owner, each with whether it may match.
SELECT t.key, t.created_at, {matches}, t.about FROM responses t WHERE {where} ORDER BY t.key {order} LIMIT {most};

-- response_contains --
instr(coalesce(t.about, t.snapshot, t.request), {}) > 0

-- scan_conversations --
-- Some conversations of an owner, each with whether it may match.
SELECT t.key, t.created_at, {matches}, t.metadata FROM conversations t WHERE {where} ORDER BY t.key {order} LIMIT {most};

-- conversation_contains --
instr(t.metadata, {}) > 0

-- find_about --
-- The content of a response without a column for it, of an older version: in its final object, or in its request.
SELECT coalesce(snapshot, request) FROM responses WHERE key = ?1;

-- list_items --
-- A page of a thread's items.
SELECT body FROM items WHERE thread = ?1 AND position >= ?2 AND position < ?3 ORDER BY position {order} LIMIT ?4;

-- find_owner --
-- The owner of a response or conversation, for admins.
SELECT owner FROM responses WHERE id = ?1 AND hidden = 0 UNION ALL SELECT owner FROM conversations WHERE id = ?1 AND hidden = 0;

-- find_response_key --
-- The row after which a page begins.
SELECT key FROM responses WHERE id = ? AND owner = ?;

-- find_conversation_key --
-- The row after which a page begins.
SELECT key FROM conversations WHERE id = ? AND owner = ?;

-- drop_item --
-- An item deleted through its conversation.
DELETE FROM items INDEXED BY items_by_id
 WHERE substr(id, -48) = substr(?2, -48) AND substr(id, 1, length(id) - 48) = substr(?2, 1, length(?2) - 48)
   AND +id = ?2 AND thread = ?1
RETURNING body;

-- add_conversation --
-- A new conversation on a new thread.
INSERT INTO conversations (id, owner, created_at, used_at, thread, metadata) VALUES (?1, ?2, ?3, ?3, ?4, ?5);

-- use_conversation --
-- Its retention time starts again (D18).
UPDATE conversations SET used_at = ? WHERE id = ?;

-- update_conversation --
-- Replaces the metadata.
UPDATE conversations SET metadata = ? WHERE key = ?;

-- delete_conversation --
-- Deleted: no query finds it from now on. Its bytes are erased later.
UPDATE conversations SET hidden = 1, expired_at = NULL WHERE key = ?;

-- expire_responses --
-- Ended and unused since then; a chain counts as used when any of its responses became a parent. Of one owner and its
-- end users, or of all owners but some.
SELECT r.key FROM responses r
  LEFT JOIN threads t ON t.key = r.thread LEFT JOIN threads root ON root.key = t.root
 WHERE r.hidden = 0 AND r.format IN (1, 2, 3) AND r.ended_at < ?1 AND (r.expires_at IS NULL OR ?3 IS NOT NULL)
   AND (?3 IS NULL OR r.owner = ?3 OR (r.owner > ?3 || char(31) AND r.owner < ?3 || char(32)))
   AND substr(r.owner, 1, instr(r.owner || char(31), char(31)) - 1) NOT IN (SELECT value FROM json_each(?4))
   AND max(coalesce(t.used_at, 0), coalesce(root.used_at, 0)) < ?1 LIMIT ?2;

-- expire_timed_responses --
-- Those whose requests said how long they are kept after their last use: as long as from their creation to `expires_at`.
SELECT r.key FROM responses r
  LEFT JOIN threads t ON t.key = r.thread LEFT JOIN threads root ON root.key = t.root
 WHERE r.hidden = 0 AND r.expires_at < ?1 AND r.ended_at IS NOT NULL
   AND max(r.ended_at, coalesce(t.used_at, 0), coalesce(root.used_at, 0)) + r.expires_at - r.created_at < ?1 LIMIT ?2;

-- expire_conversations --
-- Unused since then, with nothing running, likewise. Reads all conversations: an index would have to follow every turn.
SELECT key FROM conversations
 WHERE hidden = 0 AND running IS NULL AND used_at < ?1 AND (?3 IS NULL OR owner = ?3 OR (owner > ?3 || char(31) AND owner < ?3 || char(32)))
   AND substr(owner, 1, instr(owner || char(31), char(31)) - 1) NOT IN (SELECT value FROM json_each(?4)) LIMIT ?2;

-- hide_responses --
-- They have expired, unless they were used since they were found: no query finds them from now on, until they are restored.
UPDATE responses SET hidden = 1, expired_at = ?2 WHERE key IN (SELECT value FROM json_each(?1)) AND hidden = 0 AND NOT EXISTS
       (SELECT 1 FROM threads t LEFT JOIN threads root ON root.key = t.root
         WHERE t.key = responses.thread AND max(t.used_at, coalesce(root.used_at, 0)) >= ?3) RETURNING key, thread, first;

-- hide_conversations --
-- They have expired, unless they were used since they were found: no query finds them from now on, until they are restored.
UPDATE conversations SET hidden = 1, expired_at = ?2
 WHERE key IN (SELECT value FROM json_each(?1)) AND hidden = 0 AND running IS NULL AND used_at < ?3 RETURNING key, thread, 0;

-- hide_items --
-- No chain may continue past an expired item (D22).
UPDATE threads SET expired_from = min(coalesce(expired_from, ?1), ?1) WHERE key = ?2;

-- find_expired_responses --
-- Those that expired within a time, with the position of their items.
SELECT key, thread, first FROM responses WHERE expired_at BETWEEN ? AND ? LIMIT ?;

-- find_expired_conversations --
-- Those that expired within a time, with the position of their items.
SELECT key, thread, 0 FROM conversations WHERE expired_at BETWEEN ? AND ? LIMIT ?;

-- restore_response --
-- It has not expired after all.
UPDATE responses SET hidden = 0, expired_at = NULL WHERE key = ?;

-- restore_conversation --
-- It has not expired after all.
UPDATE conversations SET hidden = 0, expired_at = NULL WHERE key = ?;

-- restore_items --
-- Chains may continue. What else has expired in this thread makes a hole when it is deleted, and is whole until then.
UPDATE threads SET expired_from = NULL WHERE key = ?;

-- erasable_responses --
-- Deleted, with no unfinished run in the family of their thread (a thread with all its forks), for such a run might
-- need their items. (CROSS JOIN keeps the order: the few leases first, whatever the statistics say.)
SELECT r.key, r.id, r.thread, coalesce(t.root, r.thread), r.first, r.last
  FROM responses r LEFT JOIN threads t ON t.key = r.thread
 WHERE r.hidden = 1 AND r.expired_at IS NULL AND coalesce(t.root, r.thread) NOT IN
       (SELECT coalesce(ot.root, o.thread) FROM leases l CROSS JOIN responses o ON o.key = l.response
          LEFT JOIN threads ot ON ot.key = o.thread)
 LIMIT ?;

-- is_kept --
-- Whether the items of a deleted response stay: they are a turn of a conversation. Read with the lock of their family held.
SELECT 1 FROM responses r JOIN conversations c ON c.id = r.conversation AND c.hidden = 0 AND c.thread = r.thread WHERE r.key = ?;

-- erasable_conversations --
-- Deleted, with no unfinished run in the family of their thread.
SELECT c.key, c.id, c.thread, coalesce(t.root, c.thread) FROM conversations c LEFT JOIN threads t ON t.key = c.thread
 WHERE c.hidden = 1 AND c.expired_at IS NULL AND coalesce(t.root, c.thread) NOT IN
       (SELECT coalesce(ot.root, o.thread) FROM leases l CROSS JOIN responses o ON o.key = l.response
          LEFT JOIN threads ot ON ot.key = o.thread)
 LIMIT ?;

-- busy_families --
-- Those of these families (a JSON list of their first threads) in which something runs.
SELECT DISTINCT coalesce(ot.root, o.thread) FROM leases l CROSS JOIN responses o ON o.key = l.response
  LEFT JOIN threads ot ON ot.key = o.thread WHERE coalesce(ot.root, o.thread) IN (SELECT value FROM json_each(?1));

-- erase_events --
-- Rows of a journal from its beginning on, at most so many: era by era, in which an index has them in their order. (The plus
-- takes the type off the era, for the index has none.)
DELETE FROM events WHERE key IN (
    WITH RECURSIVE eras (era, last) AS (
        SELECT era, coalesce(last_era, (SELECT max(key) FROM events) >> 12, era) FROM responses WHERE key = ?1
        UNION ALL SELECT era + 1, last FROM eras WHERE era < last)
    SELECT e.key FROM eras CROSS JOIN events e INDEXED BY events_in_order
        ON e.key >> 12 = +eras.era AND e.response = ?1 LIMIT ?2)
RETURNING 1;

-- erase_packs --
-- Blocks of a packed journal, at most so many.
DELETE FROM packs WHERE key IN (SELECT key FROM packs WHERE response = ?1 LIMIT ?2) RETURNING 1;

-- erase_response_items --
-- Its items, at most so many: input and output are next to each other. Returns what refers to staged pieces.
DELETE FROM items WHERE thread = ?2 AND position IN
       (SELECT position FROM items WHERE response = ?1 AND thread = ?2 AND position >= ?3 AND position < ?4 LIMIT ?5)
RETURNING CASE WHEN substr(body, 1, 1) = x'40' THEN body END;

-- erase_loose_items --
-- Items of a deleted conversation that are not input or output of a remaining response, from a position on, at most so many.
-- Returns what refers to staged pieces, and the positions.
DELETE FROM items WHERE thread = ?1 AND position IN (
    SELECT position FROM items i WHERE thread = ?1 AND position >= ?2
       AND (response IS NULL OR NOT EXISTS (SELECT 1 FROM responses r WHERE r.key = i.response))
     ORDER BY position LIMIT ?3)
RETURNING CASE WHEN substr(body, 1, 1) = x'40' THEN body END, position;

-- erase_response --
-- The row itself.
DELETE FROM responses WHERE key = ?;

-- erase_unanswered --
-- The record for silent retries.
DELETE FROM unanswered WHERE response = ?;

-- erase_conversation --
-- The row itself.
DELETE FROM conversations WHERE key = ?;

-- erase_keys --
-- The Idempotency-Keys with this target.
DELETE FROM idempotency WHERE target = ?;

-- erase_old_keys --
-- Keys of items, and of targets that were erased long ago, at most so many.
DELETE FROM idempotency WHERE (owner, kind, key) IN
       (SELECT owner, kind, key FROM idempotency WHERE used_at < ?1 AND kind <> 'response' LIMIT ?2)
RETURNING 1;

-- erase_old_unanswered --
-- Some that are too old for a silent retry.
DELETE FROM unanswered WHERE response IN (SELECT response FROM unanswered WHERE created_at < ?1 LIMIT ?2) RETURNING 1;

-- erase_thread --
-- A thread without items, conversation or forks. Returns the thread that it was forked from.
DELETE FROM threads WHERE key = ?1
   AND NOT EXISTS (SELECT 1 FROM items WHERE thread = ?1)
   AND NOT EXISTS (SELECT 1 FROM conversations WHERE thread = ?1)
   AND NOT EXISTS (SELECT 1 FROM threads fork WHERE fork.parent = ?1)
RETURNING parent;

-- add_secret --
-- Unless there is one of that name.
INSERT OR IGNORE INTO secrets (name, value) VALUES (?, ?);

-- find_secret --
-- The one that was drawn first.
SELECT value FROM secrets WHERE name = ?;

-- measure_queue --
-- The number of queued responses, and the time at which the oldest was created.
SELECT count(*), min(r.created_at) FROM leases l JOIN responses r ON r.key = l.response WHERE l.worker IS NULL;

-- measure_webhooks --
-- The number of deliveries that wait for an attempt, and the time of the oldest event among them.
SELECT count(*), min(d.created_at) FROM webhook_deliveries d JOIN webhook_endpoints e ON e.id = d.endpoint
 WHERE d.due_at IS NOT NULL AND d.give_up_at > strftime('%s', 'now') + 0 AND e.disabled_at IS NULL;

-- measure_unpacked --
-- The number of ended responses that are not packed, up to a limit, and the time at which the first of them ended; by the
-- index alone.
SELECT count(*), min(ended_at) FROM
       (SELECT ended_at FROM responses WHERE format IN (1, 3) AND ended_at IS NOT NULL AND hidden = 0 LIMIT ?);

-- measure_bytes --
-- The size of the database.
SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size();

-- measure_nodes --
-- The server and its leases.
SELECT worker, count(*), NULL FROM leases WHERE worker IS NOT NULL GROUP BY worker;

-- add_ticket --
INSERT INTO tickets (id, owner, target, expires_at, digest) VALUES (?1, ?2, ?3, ?4, ?5);

-- remove_ticket --
DELETE FROM tickets WHERE id = ?1 AND owner = ?2 AND target = ?3 RETURNING id;

-- find_ticket --
SELECT id, owner, target, expires_at, digest FROM tickets WHERE id = ?1;

-- find_valid_tickets --
SELECT id FROM tickets WHERE id IN (SELECT value FROM json_each(?1)) AND expires_at > ?2;

-- find_in_conversation --
-- A response, if it belongs to that conversation.
SELECT id FROM responses WHERE id = ?1 AND owner = ?2 AND conversation = ?3 AND hidden = 0;

-- erase_old_tickets --
DELETE FROM tickets WHERE id IN (SELECT id FROM tickets WHERE expires_at < ?1 LIMIT ?2) RETURNING 1;

-- add_key --
INSERT INTO keys (id, owner, role, acts_for, digest, created_at, expires_at, last_used_at, revoked_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9);

-- revoke_key --
UPDATE keys SET revoked_at = ?1 WHERE id = ?2 AND revoked_at IS NULL;

-- note_key_use --
UPDATE keys SET last_used_at = ?1 WHERE id = ?2 AND (last_used_at IS NULL OR last_used_at < ?1);

-- list_keys --
SELECT id, owner, role, acts_for, digest, created_at, expires_at, last_used_at, revoked_at FROM keys ORDER BY created_at, id;

-- count_keys --
-- Each new, revoked or erased key changes one of these numbers. The last one only grows.
SELECT count(*), count(revoked_at), (SELECT count(*) FROM audit WHERE action = 'key.created') FROM keys;

-- add_audit --
INSERT INTO audit (at, actor, action, subject, detail) VALUES (?1, ?2, ?3, ?4, ?5);

-- list_audit --
-- The newest changes of keys and owners.
SELECT at, actor, action, subject, detail FROM audit ORDER BY key DESC LIMIT ?1;

-- add_usage --
-- What a response used, written with its end.
INSERT INTO usage (response, owner, end_user, model, upstream, ended_at, status, input_tokens, cached_tokens, output_tokens,
       reasoning_tokens, estimated_input, estimated_output, attempts, tool_calls, responses)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1);

-- add_usage_sum --
-- What responses with `store: false` used on one day.
INSERT INTO usage (response, owner, end_user, model, upstream, ended_at, status, input_tokens, cached_tokens, output_tokens,
       reasoning_tokens, estimated_input, estimated_output, attempts, tool_calls, responses)
VALUES (NULL, ?1, NULL, ?2, ?3, ?4, '', ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)
ON CONFLICT (owner, model, upstream, ended_at) WHERE response IS NULL DO UPDATE SET
       input_tokens = input_tokens + excluded.input_tokens, cached_tokens = cached_tokens + excluded.cached_tokens,
       output_tokens = output_tokens + excluded.output_tokens,
       reasoning_tokens = reasoning_tokens + excluded.reasoning_tokens,
       estimated_input = estimated_input + excluded.estimated_input,
       estimated_output = estimated_output + excluded.estimated_output,
       attempts = attempts + excluded.attempts, tool_calls = tool_calls + excluded.tool_calls,
       responses = responses + excluded.responses;

-- list_policies --
SELECT owner, policy FROM owner_policies;

-- set_policy --
INSERT INTO owner_policies (owner, policy) VALUES (?1, ?2) ON CONFLICT (owner) DO UPDATE SET policy = excluded.policy;

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
  FROM (SELECT usage.*, CAST(ended_at / 86400 AS INTEGER) AS day FROM usage
         WHERE ended_at >= ?1 AND ended_at < ?2 AND (?3 IS NULL OR owner = ?3) AND (?4 IS NULL OR end_user = ?4)) AS u
 GROUP BY {columns} ORDER BY {columns};

-- add_webhook --
-- Unless the owner has enough of them (?11).
INSERT INTO webhook_endpoints (id, owner, name, url, event_types, created_at, updated_at, hint, sealed, disabled_at)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10
 WHERE (SELECT count(*) FROM webhook_endpoints WHERE owner = ?2) < ?11 RETURNING id;

-- save_webhook --
UPDATE webhook_endpoints SET name = ?3, url = ?4, event_types = ?5, created_at = ?6, updated_at = ?7, hint = ?8,
       sealed = ?9, disabled_at = ?10 WHERE id = ?1 AND owner = ?2 RETURNING id;

-- find_webhook --
SELECT id, owner, name, url, event_types, created_at, updated_at, hint, sealed, disabled_at
  FROM webhook_endpoints WHERE id = ?1 AND owner = ?2;

-- list_webhooks --
-- Newest first: their ids sort by their times.
SELECT id, owner, name, url, event_types, created_at, updated_at, hint, sealed, disabled_at
  FROM webhook_endpoints WHERE owner = ?1 AND (?2 = '' OR id < ?2) ORDER BY id DESC LIMIT ?3;

-- has_webhooks --
SELECT 1 FROM webhook_endpoints LIMIT 1;

-- remove_webhook --
DELETE FROM webhook_endpoints WHERE id = ?1 AND owner = ?2 RETURNING id;

-- disable_webhook --
UPDATE webhook_endpoints SET disabled_at = ?2 WHERE id = ?1;

-- drop_deliveries_to --
-- Some of those to an endpoint.
DELETE FROM webhook_deliveries WHERE key IN (SELECT key FROM webhook_deliveries WHERE owner = ?1 AND endpoint = ?2 LIMIT 500)
RETURNING key;

-- drop_deliveries_of --
-- Those about a response that is deleted.
DELETE FROM webhook_deliveries WHERE response = ?1;

-- erase_old_deliveries --
-- Some of those that ended, or were given up, six days before.
DELETE FROM webhook_deliveries WHERE key IN
       (SELECT key FROM webhook_deliveries WHERE give_up_at < ?1 - 518400 LIMIT ?2)
RETURNING 1;

-- find_due_webhooks --
-- The endpoints for which an attempt is due. One probe of an index for each.
SELECT id, owner, name, url, event_types, created_at, updated_at, hint, sealed, disabled_at FROM webhook_endpoints e
 WHERE disabled_at IS NULL AND EXISTS
       (SELECT 1 FROM webhook_deliveries d WHERE d.endpoint = e.id AND d.due_at <= ?1 AND d.give_up_at > ?1);

-- claim_deliveries --
-- Due ones that no node is sending; any node but this one is gone. Events of one response go in their order.
UPDATE webhook_deliveries SET worker = ?2, attempts = attempts + 1 WHERE key IN
       (SELECT d.key FROM webhook_deliveries d
         WHERE d.endpoint = ?1 AND d.due_at <= ?3 AND d.give_up_at > ?3 AND d.worker IS NOT ?2
           AND NOT EXISTS (SELECT 1 FROM webhook_deliveries p WHERE p.response = d.response AND p.endpoint = d.endpoint
                              AND p.key < d.key AND p.due_at IS NOT NULL)
         ORDER BY d.due_at LIMIT ?4)
RETURNING id, endpoint, response, event, created_at, give_up_at, attempts, due_at, delivered_at, log;

-- add_deliveries --
-- One event of a response that ends, for each endpoint of its owner that wants it.
INSERT INTO webhook_deliveries (id, owner, endpoint, response, event, created_at, give_up_at, due_at)
SELECT 'wh_' || lower(hex(randomblob(16))), e.owner, e.id, r.id, ?2, ?3, ?3 + 259200, ?3
  FROM webhook_endpoints e CROSS JOIN responses r
 WHERE r.key = ?1 AND substr(r.owner, 1, instr(r.owner || char(31), char(31)) - 1) = e.owner AND e.disabled_at IS NULL
   AND EXISTS (SELECT 1 FROM json_each(e.event_types) t WHERE t.value = ?2);

-- release_deliveries --
-- Those that a node is no longer sending.
UPDATE webhook_deliveries SET worker = NULL WHERE worker = ?1;

-- record_attempt --
-- What became of an attempt; no more attempts are due where it was the last one.
UPDATE webhook_deliveries SET worker = NULL, due_at = ?2, delivered_at = ?3, log = json_insert(log, '$[#]', json(?4))
 WHERE id = ?1 AND due_at IS NOT NULL;

-- list_deliveries --
-- Newest first, of one endpoint or of all, after a given one.
SELECT id, endpoint, response, event, created_at, give_up_at, attempts, due_at, delivered_at, log FROM webhook_deliveries
 WHERE owner = ?1 AND (?2 = '' OR endpoint = ?2)
   AND (?3 = '' OR key < (SELECT key FROM webhook_deliveries WHERE id = ?3 AND owner = ?1)) ORDER BY key DESC LIMIT ?4;

-- find_delivery --
SELECT id FROM webhook_deliveries WHERE id = ?1 AND owner = ?2;

-- redeliver --
-- From the first attempt on, under the same id.
UPDATE webhook_deliveries SET attempts = 0, due_at = ?3, give_up_at = ?4, delivered_at = NULL, worker = NULL
 WHERE id = ?1 AND owner = ?2
RETURNING id, endpoint, response, event, created_at, give_up_at, attempts, due_at, delivered_at, log;

-- erase_owner_responses --
-- Deletes some responses of an owner: those of its name, and those whose owner lies between two texts, of end users.
UPDATE responses SET hidden = 1, expired_at = NULL WHERE key IN (
    SELECT key FROM responses WHERE (hidden = 0 OR expired_at IS NOT NULL)
       AND (owner = ?1 OR (owner > ?2 AND owner < ?3)) LIMIT 500) RETURNING key;

-- erase_owner_conversations --
-- Deletes some conversations of an owner likewise.
UPDATE conversations SET hidden = 1, expired_at = NULL WHERE key IN (
    SELECT key FROM conversations WHERE (hidden = 0 OR expired_at IS NOT NULL)
       AND (owner = ?1 OR (owner > ?2 AND owner < ?3)) LIMIT 500) RETURNING key;

-- erase_owner_rows --
-- Deletes an owner's rows of a table.
DELETE FROM {table} WHERE (owner = ?1 OR (owner > ?2 AND owner < ?3)) RETURNING 1;

-- erase_owner_deliveries --
-- Deletes the deliveries to an owner, and those about its responses or an end user's.
DELETE FROM webhook_deliveries WHERE owner = ?1
    OR response IN (SELECT id FROM responses WHERE owner = ?1 OR (owner > ?2 AND owner < ?3)) RETURNING 1;

-- erase_owner_usage --
DELETE FROM usage WHERE owner = ?1 AND (?2 IS NULL OR end_user = ?2) RETURNING 1;

-- count_running_of --
-- The number of an owner's responses that have not ended.
SELECT count(*) FROM responses WHERE key IN (SELECT response FROM leases) AND (owner = ?1 OR (owner > ?2 AND owner < ?3));

-- export_usage --
-- Some usage records of an owner, in order, as JSON.
SELECT key, json_object(
           'type', 'usage', 'response_id', response, 'end_user', end_user, 'model', model, 'upstream', upstream,
           'ended_at', ended_at, 'status', status, 'input_tokens', input_tokens, 'cached_tokens', cached_tokens,
           'output_tokens', output_tokens, 'reasoning_tokens', reasoning_tokens,
           'estimated_input_tokens', estimated_input, 'estimated_output_tokens', estimated_output,
           'attempts', attempts, 'tool_calls', tool_calls, 'responses', responses)
  FROM usage WHERE owner = ?1 AND (?2 IS NULL OR end_user = ?2) AND key > ?3 ORDER BY key LIMIT 1000;

-- export_responses --
-- Some ended responses of an owner, with the position of their input, in order.
SELECT r.key, r.id, r.owner, r.snapshot, r.thread, r.first, r.input_end FROM responses r
 WHERE r.hidden = 0 AND r.ended_at IS NOT NULL AND r.key > ?4 AND (r.owner = ?1 OR (r.owner > ?2 AND r.owner < ?3)) ORDER BY r.key LIMIT 100;

-- export_conversations --
-- Some conversations of an owner, in order.
SELECT key, id, owner, metadata, thread, 0, 2147483647, created_at FROM conversations
 WHERE hidden = 0 AND key > ?4 AND (owner = ?1 OR (owner > ?2 AND owner < ?3)) ORDER BY key LIMIT 100;

-- set_eras --
-- Of copied events: those of a response may begin in one batch and end in another.
UPDATE responses SET era = CASE WHEN ?1 THEN ?2 ELSE era END,
       last_era = CASE WHEN ended_at IS NULL THEN NULL ELSE ?3 END
 WHERE key = ?4;
