"""Memory: who people are across channels, and the timeline of what was said."""
