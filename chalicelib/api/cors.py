"""Which browser pages may call: those of PAL_CORS_ORIGINS, on every answer, errors included."""

from collections.abc import Collection
from typing import Final

_METHODS: Final = "GET, POST, PUT, DELETE, OPTIONS"
_ALLOWED: Final = "Authorization, Content-Type, Idempotency-Key, Last-Event-ID"
_EXPOSED: Final = "X-Request-Id, X-Next-Page-Token, Retry-After, Idempotent-Replayed"


def cors_headers(origin: str | None, allowed: Collection[str]) -> dict[str, str]:
    """Headers for an answer to this Origin; to another origin than the allowed ones, none."""
    if not allowed:
        return {}
    if origin not in allowed or origin is None:
        return {"Vary": "Origin"}
    return {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Expose-Headers": _EXPOSED,
        "Vary": "Origin",
    }


def preflight_headers(origin: str | None, allowed: Collection[str]) -> dict[str, str]:
    """Headers for an OPTIONS request, which needs no key."""
    headers = cors_headers(origin, allowed)
    if "Access-Control-Allow-Origin" in headers:
        headers["Access-Control-Allow-Methods"] = _METHODS
        headers["Access-Control-Allow-Headers"] = _ALLOWED
        headers["Access-Control-Max-Age"] = "600"
    return headers
