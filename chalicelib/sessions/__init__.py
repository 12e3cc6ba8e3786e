"""Sessions: the turn queue, the engine that runs turns, and the feed of their events."""
