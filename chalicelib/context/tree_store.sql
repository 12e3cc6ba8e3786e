-- read_tree --
-- The state and what is not folded in one; of a session without nodes one row, its number null.
SELECT s.active_node, s.node_count, n.number, n.parent, n.kind, n.text, n.status, n.outcome,
       n.sources, n.folded, n.opened_at, n.closed_at
FROM session_states s
LEFT JOIN session_nodes n ON n.session_id = s.session_id AND NOT n.folded
WHERE s.session_id = %(session_id)s
ORDER BY n.number

-- read_nodes --
SELECT number, parent, kind, text, status, outcome, sources, folded, opened_at, closed_at
FROM session_nodes WHERE session_id = %(session_id)s ORDER BY number

-- hold_session --
-- Before the state: a session that is being deleted takes its rows along in that order.
SELECT FROM sessions WHERE id = %(session_id)s FOR KEY SHARE

-- write_tree --
-- Nothing at all unless the state is still this worker's and open.
WITH kept AS (
    UPDATE session_states SET tree = %(rendered)s, active_node = %(active)s,
        node_count = %(count)s, tree_ordinal = %(ordinal)s
    WHERE session_id = %(session_id)s AND worker = %(lease)s AND sealed_at IS NULL
    RETURNING session_id, tenant_id
), written AS (
    INSERT INTO session_nodes (session_id, tenant_id, number, parent, kind, text, status, outcome,
                               sources, folded, opened_at, closed_at)
    SELECT k.session_id, k.tenant_id, n.number, n.parent, n.kind, n.text, n.status, n.outcome,
           n.sources, n.folded, n.opened_at, n.closed_at
    FROM kept k, jsonb_to_recordset(%(nodes)s) AS n (
        number integer, parent integer, kind text, text text, status text, outcome text,
        sources text[], folded boolean, opened_at timestamptz, closed_at timestamptz)
    ON CONFLICT (session_id, number) DO UPDATE SET
        text = excluded.text, status = excluded.status, outcome = excluded.outcome,
        sources = excluded.sources, folded = excluded.folded, closed_at = excluded.closed_at
)
SELECT FROM kept
