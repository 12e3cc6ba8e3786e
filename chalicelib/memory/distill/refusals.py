"""What no fact may be, whoever said it: a secret, or an order to the models that read it. Pure.

The lists are in `credentials` and `commands`. Of secrets a doubtful one is refused: it would be
shown in every conversation to come. Of orders a doubtful one is kept, since facts are shown as
notes that nobody is bound by, and a preference that is lost is asked for again.
"""

import unicodedata
from typing import Final, Literal

Reason = Literal["secret", "instruction"]

_HYPHENS: Final = dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2212"), "-")


def refusal(topic: str, content: str) -> Reason | None:
    """Why this may not be stored; None where it may."""
    # imported when used: their patterns take 20 ms to make, which every cold start would wait for
    from chalicelib.memory.distill.commands import commands
    from chalicelib.memory.distill.credentials import holds_secret

    topic, content = _plain(topic), _plain(content)
    if holds_secret(topic, content):
        return "secret"
    if commands(topic) or commands(content):
        return "instruction"
    return None


def _plain(text: str) -> str:
    """One form of each letter, and nothing between letters that is not to be seen."""
    folded = unicodedata.normalize("NFKC", text).translate(_HYPHENS)
    return "".join(each for each in folded if unicodedata.category(each) != "Cf").strip()
