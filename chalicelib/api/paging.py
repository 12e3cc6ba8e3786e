"""Page tokens: where a list goes on, as an opaque text."""

import base64
import binascii
from typing import Any

import orjson

from chalicelib.errors import InvalidField


def next_page(place: list[Any]) -> dict[str, str]:
    """The header with the token of the page behind this place."""
    token = base64.urlsafe_b64encode(orjson.dumps(place)).decode().rstrip("=")
    return {"X-Next-Page-Token": token}


def read_token(token: str | None, parts: int) -> list[Any] | None:
    """The place that a token names, None without one; raises InvalidField."""
    if not token:
        return None
    try:
        place = orjson.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    except (binascii.Error, ValueError) as exc:
        raise bad_token() from exc
    if not isinstance(place, list) or len(place) != parts:
        raise bad_token()
    return place


def bad_token() -> InvalidField:
    """The error for a token that no list of the kind has given."""
    return InvalidField.of("pageToken", "is not a token that a list of this kind gave")
