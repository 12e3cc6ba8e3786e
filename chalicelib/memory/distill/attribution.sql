-- owners --
-- Who has these handles. A handle that no one has is no one's: none is made here.
SELECT h.channel, h.handle, h.person_id
FROM unnest(%(channels)s::text[], %(handles)s::text[]) AS g (channel, handle)
JOIN person_handles h
    ON h.tenant_id = pal.tenant() AND h.channel = g.channel AND h.handle = g.handle

-- namesakes --
-- Of each name how many have it, and one of them.
SELECT name_key, count(*), min(id) FROM people
WHERE tenant_id = pal.tenant() AND name_key = ANY (%(names)s) AND merged_into IS NULL
GROUP BY name_key
