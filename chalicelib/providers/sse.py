"""An incremental decoder of server-sent events, exact to the byte.

Bytes are kept until a line is whole, so a chunk may end anywhere: inside a UTF-8 character, a
field name or a CRLF. Rules: https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from collections.abc import Iterator


class SseDecoder:
    """Feed bytes, get (event, data) pairs; one decoder per stream."""

    __slots__ = ("_data", "_event", "_skip_lf", "_started", "_tail")

    def __init__(self) -> None:
        self._tail: list[bytes] = []
        self._event = ""
        self._data: list[bytes] = []
        self._skip_lf = False
        self._started = False

    def feed(self, chunk: bytes) -> Iterator[tuple[str, bytes]]:
        """The events that this chunk completes; `message` where the stream names none."""
        if self._skip_lf and chunk:
            # the last chunk ended in CR, which ended the line: an LF now belongs to it
            chunk = chunk[1:] if chunk[:1] == b"\n" else chunk
            self._skip_lf = False
        if self._started and b"\n" not in chunk and b"\r" not in chunk:
            # joined once, when its line is whole: a long one comes in many chunks
            self._tail.append(chunk)
            return
        buffer = b"".join((*self._tail, chunk))
        if not self._started:
            if len(buffer) < 3 and b"\xef\xbb\xbf".startswith(buffer):
                self._tail = [buffer]
                return
            buffer = buffer.removeprefix(b"\xef\xbb\xbf")
            self._started = True
        if b"\r" in buffer:
            self._skip_lf = buffer.endswith(b"\r")
            buffer = buffer.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = buffer.split(b"\n")
        self._tail = [lines.pop()]
        for line in lines:
            if line:
                self._field(line)
                continue
            if self._data:
                yield self._event or "message", b"\n".join(self._data)
            self._event, self._data = "", []

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._event = value.decode("utf-8", "replace")
        # an empty name is a comment; id and retry mean nothing to a reader that never reconnects
