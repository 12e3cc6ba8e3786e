"""An HTTP answer as a text that a model can read, from bytes of which not all may have come."""

import codecs
import re
from dataclasses import dataclass
from email.message import Message
from http import HTTPStatus
from typing import Final

from chalicelib.tools.excerpt import beginning, clean

_TEXT_TYPE: Final = re.compile(
    r"text/.*|.*[/+](json|xml|yaml|x-yaml|javascript|ecmascript|x-www-form-urlencoded|csv"
    r"|x-ndjson|jsonl?|json-seq|graphql|sql|toml)"
)
_BINARY_TYPE: Final = re.compile(r"(image|audio|video|font)/.*|multipart/.*|application/(pdf|zip)")
# what a label may ask for: of Python's codecs some are no character sets, and some are slow
_CHARSET: Final = re.compile(
    r"utf-8(-sig)?|utf-16(-[bl]e)?|utf-32(-[bl]e)?|ascii|iso8859-\d+|cp\d+|koi8-[rut]|mac-\w+"
    r"|gb2312|gbk|gb18030|big5(hkscs)?|shift_jis(_2004|x0213)?|euc_(jp|kr|jis_2004|jisx0213)"
    r"|iso2022_\w+|johab|tis-620|hz"
)
_REASON_AT_MOST: Final = 1000


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came. `cut` says that the body was longer than was read."""

    status: int
    content_type: str
    body: bytes
    cut: bool

    @property
    def says(self) -> str:
        """The status as people say it, such as `404 Not Found`."""
        try:
            return f"{self.status} {HTTPStatus(self.status).phrase}"
        except ValueError:
            return str(self.status)

    def text(self) -> str | None:
        """The body as text; None where it is something else."""
        kind, charset = _read_type(self.content_type)
        if _BINARY_TYPE.fullmatch(kind):
            return None
        labelled = charset is not None or _TEXT_TYPE.fullmatch(kind)
        decoder = codecs.getincrementaldecoder(charset or "utf-8-sig")(
            "replace" if labelled else "strict"
        )
        try:
            # not final, where it was cut: half a character at the end is no wrong one
            text = decoder.decode(self.body, final=not self.cut)
        except UnicodeDecodeError:
            return None
        return clean(text) if labelled or "\x00" not in text else None

    def note(self) -> str:
        """What a model is told of a body that is no text, or is none."""
        if not self.body:
            return f"The server answered {self.says}, without content."
        kind = beginning(_read_type(self.content_type)[0] or "no type", limit=100)
        size = f"more than {len(self.body)}" if self.cut else str(len(self.body))
        return (
            f"The server answered {self.says} with {size} bytes that are no text ({kind}); "
            "they cannot be shown."
        )


def failure(answer: Answer, *, text: str | None) -> str:
    """What a model is told of an answer that is no success; `text` is its body's, if it has one."""
    said = f"The server answered {answer.says}"
    told = (text or "").strip()
    return f"{said}: {beginning(told, limit=_REASON_AT_MOST)}" if told else f"{said}."


def _read_type(header: str) -> tuple[str, str | None]:
    """The media type in lower case, and the codec of its charset where that is one of texts."""
    message = Message()
    message["Content-Type"] = header.encode("ascii", "replace").decode()
    kind = message.get_content_type() if header.strip() else ""
    label = message.get_param("charset")
    if not isinstance(label, str):
        return kind, None
    try:
        codec = codecs.lookup(label).name
    except (LookupError, ValueError):
        return kind, None
    # a mark at the start is no part of the text
    codec = "utf-8-sig" if codec == "utf-8" else codec
    return kind, codec if _CHARSET.fullmatch(codec) else None
