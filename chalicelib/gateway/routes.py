"""Finds the Chalice route of a path, as API Gateway does before it calls the function."""

from collections.abc import Iterable
from urllib.parse import quote, unquote


class RouteTable:
    """Chalice's route patterns, by their number of segments."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._by_length: dict[int, list[tuple[str, list[str]]]] = {}
        for pattern in sorted(patterns):
            segments = pattern.removeprefix("/").split("/")
            self._by_length.setdefault(len(segments), []).append((pattern, segments))

    def match(self, path: str) -> tuple[str, dict[str, str]] | None:
        """(pattern, path parameters) of a path as it was sent, None if no route has it.

        A slash at its end changes nothing; one that is percent-encoded separates nothing.
        """
        if not path.startswith("/"):
            return None
        given = [unquote(part) for part in path[1:].removesuffix("/").split("/")]
        for pattern, segments in self._by_length.get(len(given), []):
            params = {}
            for wanted, got in zip(segments, given, strict=True):
                if wanted.startswith("{"):
                    if not got:
                        break
                    params[wanted.strip("{}")] = got
                elif wanted != got:
                    break
            else:
                return pattern, params
        return None


def fill(pattern: str, params: dict[str, str]) -> str:
    """The one way to write the path that matched: percent-encoded only where it must be."""
    return pattern.format_map({name: quote(value, safe="") for name, value in params.items()})
