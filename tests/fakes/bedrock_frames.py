"""Frames of `application/vnd.amazon.eventstream`: lengths, headers, payload and two checksums."""

import json
from binascii import crc32
from collections.abc import Mapping
from struct import pack
from typing import Any

_STRING = 7


def frame(headers: Mapping[str, str], payload: bytes) -> bytes:
    """One message; every header is a string."""
    told = b"".join(
        pack("!B", len(name.encode()))
        + name.encode()
        + pack("!BH", _STRING, len(value.encode()))
        + value.encode()
        for name, value in headers.items()
    )
    prelude = pack("!II", 4 + 4 + 4 + len(told) + len(payload) + 4, len(told))
    message = prelude + pack("!I", crc32(prelude)) + told + payload
    return message + pack("!I", crc32(message))


def event(kind: str, payload: Mapping[str, Any]) -> bytes:
    """An event of the service, such as `contentBlockDelta`."""
    return _message({":event-type": kind, ":message-type": "event"}, payload)


def exception(kind: str, payload: Mapping[str, Any]) -> bytes:
    """An error that the service describes, such as `throttlingException`."""
    return _message({":exception-type": kind, ":message-type": "exception"}, payload)


def error(code: str, message: str) -> bytes:
    """An error that the service does not describe."""
    headers = {":error-code": code, ":error-message": message, ":message-type": "error"}
    return frame(headers, b"")


def _message(headers: dict[str, str], payload: Mapping[str, Any]) -> bytes:
    told = headers | {":content-type": "application/json"}
    return frame(told, json.dumps(payload, separators=(",", ":")).encode())
