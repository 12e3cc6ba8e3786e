"""Finds the Chalice route of a path, as API Gateway does before it calls the function."""

from collections.abc import Iterable


class RouteTable:
    """Chalice's route patterns, by their number of segments."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._by_length: dict[int, list[tuple[str, list[str]]]] = {}
        for pattern in sorted(patterns):
            segments = pattern.strip("/").split("/")
            self._by_length.setdefault(len(segments), []).append((pattern, segments))

    def match(self, path: str) -> tuple[str, dict[str, str]] | None:
        """(pattern, path parameters) of a path, None if no route has it."""
        given = path.strip("/").split("/")
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
