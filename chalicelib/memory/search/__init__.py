"""Search over what is remembered: events by words, people, days and meaning, and facts."""

from chalicelib.memory.search.service import Search

__all__ = ["Search"]
