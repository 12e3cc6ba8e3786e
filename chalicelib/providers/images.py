"""What an image is by its bytes, for vendors that refuse one whose stated type is wrong."""

import base64
import binascii
from typing import Any, Final

# the types that models take, by how their files begin; WebP has its length in between
_BEGINNINGS: Final = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}


def media_type(attachment: dict[str, Any]) -> str:
    """The type of an inline image: what its bytes say, else what the caller said of it."""
    try:
        head = base64.b64decode(attachment["data"][:16])
    except binascii.Error:
        head = b""
    for beginning, named in _BEGINNINGS.items():
        if head.startswith(beginning):
            return named
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    return str(attachment["mediaType"])
