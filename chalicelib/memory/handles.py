"""Handles: what a person is called on a channel, in the one form that it is stored in. Pure.

Phone numbers become E.164, so that a call, a text and a WhatsApp message find one person. They must
come with their country code: there is no country that a number without one could be taken to be of.
"""

import re
import unicodedata
from dataclasses import dataclass
from typing import Final

USER: Final = "user"
"""The channel of a session's `userId`."""

HANDLE_AT_MOST: Final = 200

_NAME_AT_MOST: Final = 200
_PHONES: Final = frozenset({"phone", "sms"})
_WHATSAPP: Final = re.compile(r"(\d{7,15})(?:[._]\d+)?(?::\d+)?@(?:s\.whatsapp\.net|c\.us)")
_WHATSAPP_LID: Final = re.compile(r"(\d{5,20})(?::\d+)?@lid")
_WHATSAPP_NUMBER: Final = re.compile(r"\+?(\d{7,15})", re.ASCII)
_EMAIL: Final = re.compile(r"[^@\s<>,;\"]+@[^@\s<>,;\"]+\.[^@\s<>,;\".]+")
_TELEGRAM: Final = re.compile(r"(?:(?:https?://)?t\.me/|@)?([a-z]\w{2,31})", re.ASCII)
# Mexican mobiles had a 1 behind the country code until 2019, and in WhatsApp's ids still have
_OLD_MEXICAN: Final = re.compile(r"\+521(\d{10})")


class InvalidHandle(ValueError):
    """What is wrong with a handle, in words that go behind its field's name."""


@dataclass(frozen=True, kw_only=True)
class Handle:
    """A handle, normalised in `value`. `contact` is the number or address that it is, if it is one.

    Two handles of one `contact` are likely one person's, whatever their channels.
    """

    channel: str
    value: str
    given: str
    contact: str | None = None

    @property
    def key(self) -> tuple[str, str]:
        """What it is unique by within a tenant."""
        return self.channel, self.value


def read_handle(channel: str, given: str) -> Handle:
    """The handle of a text on a channel, whose name is folded; raises InvalidHandle."""
    channel, text = channel.strip().lower(), given.strip()
    if not text:
        raise InvalidHandle("must not be blank")
    if channel in _PHONES:
        value = _number(text)
    elif channel == "whatsapp":
        value = _whatsapp(text)
    elif channel == "email":
        value = _email(text)
    elif channel == "telegram":
        value = _telegram(text)
    else:
        value = text
    return Handle(channel=channel, value=value, given=given, contact=_contact(channel, value))


def user_handle(user_id: str | None) -> Handle | None:
    """The handle of a session's `userId`; None without one, or if it is blank."""
    if user_id is None or not user_id.strip():
        return None
    return read_handle(USER, user_id)


def fold_name(name: str) -> str:
    """The form in which two spellings of a name are one: by case, width and spaces."""
    # cut, since one character may become eighteen, and an index takes only so much
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())[:_NAME_AT_MOST]


def _number(text: str) -> str:
    import phonenumbers

    text = text.removeprefix("tel:").strip()
    if text.startswith("00"):
        text = "+" + text[2:]
    if not text.startswith(("+", "\N{FULLWIDTH PLUS SIGN}")):
        raise InvalidHandle("must be a phone number with + and its country code")
    try:
        number = phonenumbers.parse(text)
    except phonenumbers.NumberParseException as exc:
        raise InvalidHandle("is not a phone number") from exc
    if number.extension:
        raise InvalidHandle("must be a phone number without an extension")
    plain = phonenumbers.format_number(number, phonenumbers.PhoneNumberFormat.E164)
    if old := _OLD_MEXICAN.fullmatch(plain):
        return "+52" + old[1]
    # not whether it is in use: numbers are given out faster than the library learns of it
    if not phonenumbers.is_possible_number(number):
        raise InvalidHandle("is too long or too short for a phone number of its country")
    return plain


def _whatsapp(text: str) -> str:
    text = text.removeprefix("whatsapp:").lower()
    if hidden := _WHATSAPP_LID.fullmatch(text):
        return f"{hidden[1]}@lid"  # of someone whose number is not shown
    if named := _WHATSAPP.fullmatch(text):
        text = named[1]
    if "@" in text:
        raise InvalidHandle("is not a person's WhatsApp id")
    bare = _WHATSAPP_NUMBER.fullmatch(text)
    if bare is None:
        return _number(text)
    try:
        return _number("+" + bare[1])
    except InvalidHandle:
        return "+" + bare[1]  # an id of WhatsApp's own, whatever the library knows of it


def _email(text: str) -> str:
    text = text.removeprefix("mailto:").lower()
    if not _EMAIL.fullmatch(text):
        raise InvalidHandle("is not an e-mail address")
    return text


def _telegram(text: str) -> str:
    if text.isascii() and text.isdigit() and int(text) > 0:
        return str(int(text))
    if named := _TELEGRAM.fullmatch(text.lower()):
        return "@" + named[1]
    raise InvalidHandle("must be a person's Telegram id or @name")


def _contact(channel: str, value: str) -> str | None:
    if channel in _PHONES or channel == "whatsapp":
        return value if value.startswith("+") else None
    if _EMAIL.fullmatch(value):
        return value.lower()
    if value.startswith("+"):
        try:
            return _number(value)
        except InvalidHandle:
            pass
    return None
