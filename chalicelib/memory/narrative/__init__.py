"""Tier 5: one bounded text of what there is to know of a person, and of a group.

A prompt is given what `store.read_narrative` reads, told by `telling.render_narrative`. The end of
a session calls `keeping.touch`, which takes no model; a `Narrator` has one rewrite what changed.
"""
