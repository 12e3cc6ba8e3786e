"""Page tokens: where a list goes on, as an opaque text."""

import base64
import binascii
from typing import Any, Final

import orjson

from chalicelib.errors import InvalidField
from chalicelib.ids import Prefix, is_id

PAGING: Final = {
    "pageSize": "How many, 50 if absent, at most 200.",
    "pageToken": "Where to go on: `X-Next-Page-Token` of the page before.",
}
"""What a list's query has, as its document tells it."""


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


def read_id_token(token: str | None, prefix: Prefix) -> str | None:
    """The id that a token of a list in the order of ids names; as `read_token`."""
    place = read_token(token, 1)
    if place is None:
        return None
    if not is_id(str(place[0]), prefix):
        raise bad_token()
    return str(place[0])


def bad_token() -> InvalidField:
    """The error for a token that no list of the kind has given."""
    return InvalidField.of("pageToken", "is not a token that a list of this kind gave")
