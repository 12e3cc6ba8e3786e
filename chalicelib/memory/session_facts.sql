-- session_facts --
-- The active facts that may be told in a session, the newest of each kind: of its person, of
-- others, of the tenant. In a group what was said there. Without one what its person said in
-- private, and of themself also what was said in groups or by no one known; who speaks in a session
-- is someone, known or not, so an unknown one's words are not the tenant's own, and one stranger's
-- are not the next one's. With `ids` those of them only.
SELECT d.id, d.topic, d.content, d.said_at, d.confidence, d.origin, d.person_id,
       -- whom no one knows is called what the key tells
       CASE WHEN d.person_id IS NULL THEN split_part(d.topic_key, E'\x1f', 2)
            ELSE (SELECT p.name FROM people p
                  WHERE p.tenant_id = d.tenant_id AND p.id = d.person_id) END
FROM (
    (SELECT * FROM memory_distillates
     WHERE tenant_id = pal.tenant() AND person_id = %(person_id)s AND superseded_by IS NULL
       AND CASE WHEN %(group_id)s::text IS NOT NULL THEN group_id = %(group_id)s
                ELSE group_id IS NOT NULL OR said_by = %(person_id)s
                     OR said_by IS NULL AND source_kind <> 'session' END
       AND (%(ids)s::text[] IS NULL OR id = ANY (%(ids)s))
     ORDER BY said_at DESC, id DESC LIMIT %(most)s)
    UNION ALL
    (SELECT * FROM memory_distillates
     WHERE tenant_id = pal.tenant() AND said_by = %(person_id)s AND superseded_by IS NULL
       AND %(group_id)s::text IS NULL AND group_id IS NULL
       AND person_id IS DISTINCT FROM %(person_id)s
       AND (%(ids)s::text[] IS NULL OR id = ANY (%(ids)s))
     ORDER BY said_at DESC, id DESC LIMIT %(most)s)
    UNION ALL
    (SELECT * FROM memory_distillates
     WHERE tenant_id = pal.tenant() AND group_id = %(group_id)s AND superseded_by IS NULL
       AND (%(person_id)s::text IS NULL OR person_id IS DISTINCT FROM %(person_id)s)
       AND (%(ids)s::text[] IS NULL OR id = ANY (%(ids)s))
     ORDER BY said_at DESC, id DESC LIMIT %(most)s)
    UNION ALL
    (SELECT * FROM memory_distillates
     WHERE tenant_id = pal.tenant() AND person_id IS NULL AND group_id IS NULL AND said_by IS NULL
       AND superseded_by IS NULL AND source_kind = 'remember'
       AND (%(ids)s::text[] IS NULL OR id = ANY (%(ids)s))
     ORDER BY said_at DESC, id DESC LIMIT %(most)s / 3)
) AS d
