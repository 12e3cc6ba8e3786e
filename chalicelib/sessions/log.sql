-- watch_session --
-- Registers this process as a reader of the session and tells where the log stands, in one
-- statement under the head's lock: a writer either came before and is in what this sees, or comes
-- after and sees the watch.
UPDATE session_heads SET watchers = watchers || jsonb_build_object(pal.process(), %(until)s::float8)
WHERE session_id = %(session_id)s
RETURNING status, running_turn, queued_turn, generation, next_seq, turn_seq, kept_seq

-- unwatch_session --
-- Only the entry this is about: a reader may have come back in the meantime and made a new one.
UPDATE session_heads SET watchers = watchers - pal.process()
WHERE session_id = %(session_id)s AND (watchers ->> pal.process())::float8 = %(until)s

-- read_events --
SELECT seq, kind, turn_id, generation, start, text, data
FROM session_events WHERE session_id = %(session_id)s AND seq > %(after)s
ORDER BY seq LIMIT %(most)s

-- first_event --
SELECT min(seq) FROM session_events WHERE session_id = %(session_id)s AND turn_id = %(turn_id)s

-- finished_turn --
-- What a reader gets whose place in the log is gone: how the turn it was in ended, else the last one.
SELECT t.id, t.status, t.generation, m.content, t.tokens_in, t.tokens_out, t.cost_usd,
       t.message_id, t.finish_reason, t.error, t.error_code, t.tokens_cached
FROM turns t LEFT JOIN messages m ON m.id = t.message_id
WHERE t.session_id = %(session_id)s AND t.status IN ('completed', 'failed', 'cut')
  AND (%(turn_id)s::text IS NULL OR t.id = %(turn_id)s)
ORDER BY t.ordinal DESC LIMIT 1

-- count_stream --
-- The row goes in before the count: two that come together may both be refused, never both pass.
WITH made AS (
    INSERT INTO open_streams (id, tenant_id, key_id, until)
    VALUES (%(id)s, pal.tenant(), %(key_id)s, now() + make_interval(secs => %(seconds)s))
)
SELECT count(*) + 1 FROM open_streams WHERE key_id = %(key_id)s AND until > now()

-- renew_streams --
UPDATE open_streams SET until = now() + make_interval(secs => %(seconds)s) WHERE id = ANY(%(ids)s)

-- forget_stream --
DELETE FROM open_streams WHERE id = %(id)s

-- feed_heads --
SELECT session_id, next_seq, busy FROM pal.feed_heads(%(sessions)s)

-- renew_watch --
SELECT pal.renew_watch(%(sessions)s, %(process)s, %(until)s)

-- purge --
SELECT pal.purge(make_interval(secs => %(age)s), %(most)s)
