"""Handles and names in their one form, so that one person is found again and two are not mixed."""

import pytest

from chalicelib.memory.handles import InvalidHandle, fold_name, read_handle, user_handle

LID = "123456789012345@lid"


@pytest.mark.parametrize(
    ("channel", "given", "value"),
    [
        pytest.param("phone", " +62 812-3456-7890 ", "+6281234567890", id="spaces-and-dashes"),
        pytest.param("phone", "tel:+14155552671", "+14155552671", id="tel-uri"),
        pytest.param("phone", "0062 812 3456 7890", "+6281234567890", id="two-zeros-for-the-plus"),
        pytest.param("phone", "+44 (0)7911 123456", "+447911123456", id="zero-in-brackets"),
        pytest.param("phone", "+٦٢٨١٢٣٤٥٦٧٨٩٠", "+6281234567890", id="digits-of-another-script"),
        pytest.param("PHONE ", "+14155552671", "+14155552671", id="channel-in-capitals"),
        pytest.param("sms", "+15550001111", "+15550001111", id="number-that-is-not-in-use"),
        pytest.param("whatsapp", "6281234567890", "+6281234567890", id="wa-id"),
        pytest.param(
            "whatsapp", "6281234567890@s.whatsapp.net", "+6281234567890", id="whatsapp-jid"
        ),
        pytest.param("whatsapp", "6281234567890:12@s.whatsapp.net", "+6281234567890", id="device"),
        pytest.param("whatsapp", "6281234567890@c.us", "+6281234567890", id="older-jid"),
        pytest.param("whatsapp", "whatsapp:+6281234567890", "+6281234567890", id="uri"),
        pytest.param("whatsapp", "5215512345678", "+525512345678", id="mexican-with-the-old-1"),
        pytest.param("phone", "+52 55 1234 5678", "+525512345678", id="mexican-without-it"),
        pytest.param("whatsapp", "99912345678", "+99912345678", id="country-the-library-lacks"),
        pytest.param("whatsapp", LID, LID, id="number-that-is-hidden"),
        pytest.param("email", " Ann.Lee@Example.COM ", "ann.lee@example.com", id="e-mail"),
        pytest.param("email", "mailto:ann@example.com", "ann@example.com", id="mailto"),
        pytest.param("email", "ÅSA@exämple.se", "åsa@exämple.se", id="e-mail-beyond-ascii"),
        pytest.param("telegram", "0012345", "12345", id="telegram-id"),
        pytest.param("telegram", "@Ann_Lee", "@ann_lee", id="telegram-name"),
        pytest.param("telegram", "Ann_Lee", "@ann_lee", id="telegram-name-without-the-at"),
        pytest.param("telegram", "https://t.me/Ann_Lee", "@ann_lee", id="telegram-link"),
        pytest.param("user", " Ann ", "Ann", id="user-keeps-its-case"),
        pytest.param("user", "08123", "08123", id="user-that-looks-like-a-number"),
        pytest.param("discord", "Ann#1", "Ann#1", id="channel-nobody-knows"),
    ],
)
def test_handle_has_one_form(channel: str, given: str, value: str) -> None:
    """Lost if red: one person, who is two for as many spellings of their number."""
    handle = read_handle(channel, given)
    assert (handle.channel, handle.value, handle.given) == (channel.strip().lower(), value, given)
    assert read_handle(channel, value).value == value, "the form has itself for its form"


@pytest.mark.parametrize(
    ("channel", "given"),
    [
        pytest.param("phone", "0812 3456 7890", id="no-country-code"),
        pytest.param("phone", "6281234567890", id="no-plus"),
        pytest.param("phone", "+1415555267", id="too-short"),
        pytest.param("phone", "+1415555267199", id="too-long"),
        pytest.param("phone", "+1 415 555 2671 ext. 5", id="extension"),
        pytest.param("phone", "hello", id="no-number"),
        pytest.param("whatsapp", "12036304@g.us", id="whatsapp-group"),
        pytest.param("whatsapp", "status@broadcast", id="whatsapp-status"),
        pytest.param("email", "ann", id="no-at"),
        pytest.param("email", "Ann <ann@example.com>", id="with-a-name"),
        pytest.param("email", "a@b@example.com", id="two-ats"),
        pytest.param("telegram", "-100123", id="telegram-group"),
        pytest.param("telegram", "0", id="telegram-nobody"),
        pytest.param("telegram", "ann lee", id="telegram-with-a-space"),
        pytest.param("telegram", "\N{ARABIC-INDIC DIGIT ONE}2345", id="telegram-other-digits"),
        pytest.param("user", " \t ", id="blank"),
    ],
)
def test_what_is_no_handle_is_refused(channel: str, given: str) -> None:
    """Lost if red: strangers who become one person, through what their apps send for 'unknown'."""
    with pytest.raises(InvalidHandle):
        read_handle(channel, given)


@pytest.mark.parametrize(
    ("channel", "given", "contact"),
    [
        pytest.param("whatsapp", "6281234567890", "+6281234567890", id="whatsapp"),
        pytest.param("user", "+62 812 3456 7890", "+6281234567890", id="user-by-number"),
        pytest.param("user", "Ann@Example.com", "ann@example.com", id="user-by-address"),
        pytest.param("email", "Ann@Example.com", "ann@example.com", id="e-mail"),
        pytest.param("user", "+nobody", None, id="no-number"),
        pytest.param("user", "6281234567890", None, id="may-be-any-number"),
        pytest.param("whatsapp", LID, None, id="hidden-number"),
        pytest.param("telegram", "6281234567890", None, id="telegram-id"),
    ],
)
def test_contact_is_what_channels_share(channel: str, given: str, contact: str | None) -> None:
    """Lost if red: the duplicates that are sure, or strangers who are shown as such."""
    assert read_handle(channel, given).contact == contact


@pytest.mark.parametrize("user_id", [None, "", "  "])
def test_session_without_a_user_is_nobodys(user_id: str | None) -> None:
    """Lost if red: one person who is everyone that did not say who they are."""
    assert user_handle(user_id) is None


@pytest.mark.parametrize(
    ("name", "same"),
    [
        pytest.param("  Ann   LEE ", "ann lee", id="case-and-spaces"),
        pytest.param("\uff21\uff4e\uff4e", "Ann", id="width"),
        pytest.param("Jose\u0301", "Jos\u00e9", id="composed"),
        pytest.param("STRASSE", "Stra\u00dfe", id="sharp-s"),
    ],
)
def test_name_is_compared_folded(name: str, same: str) -> None:
    """Lost if red: a person whom their own name does not find."""
    assert fold_name(name) == fold_name(same)


def test_folded_name_fits_an_index() -> None:
    """Lost if red: a 500 for whoever has a name of many ligatures."""
    assert len(fold_name("\ufdfa" * 200).encode()) < 2_000
