"""The words of a text in a form in which two texts can be compared, whatever their tongue. Pure.

A word is known by its first five letters, so that 'allergy' and 'allergic' are one; numbers stay
whole; what is written without spaces (Chinese, Japanese, Korean, Thai) counts by the character.
"""

import re
import unicodedata
from typing import Final

_STEM: Final = 5
_SHORTEST: Final = 3

_UNSPACED: Final = (
    "\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u109f\u1780-\u17ff"  # Burmese, Khmer
    "\u30a1-\u30fa\u30fc"  # Katakana; Hiragana mostly holds words together
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
    "\U00020000-\U0003ffff"
)
_INDIC: Final = "\u0900-\u0963\u0966-\u0dff"  # their vowel signs are no letters to `\w`
_WORD: Final = re.compile(rf"[{_UNSPACED}]|(?:[^\W_{_UNSPACED}\u3041-\u309f]|[{_INDIC}])+")
_ALONE: Final = re.compile(rf"[{_UNSPACED}]")

# What holds sentences together, and what facts are told with: these say nothing of whose words a
# fact is in. Without accents, as words are compared.
_COMMON: Final = """
    the and for with from that this these those there here what which who whom whose when where why
    how are was were been being has have had does did doing done will would can could may might must
    shall should not but nor than then also too very just only more most much many some any all each
    every both about into onto over under after before again once his her hers him she they them
    their its you your yours our ours mine myself himself herself themselves user person someone
    people thing one other another since until while because yes okay like likes liked liking love
    loves loved prefer prefers preferred preference preferences want wants wanted need needs needed
    live lives lived living work works worked working use uses used using make makes made take takes
    took taking get gets got getting goes going went gone come comes know knows think thinks said
    says say tell tells told call calls called name named try tries keep keeps enjoy enjoys hate
    hates favourite favorite interested interest good great nice well new now today currently
    usually often always never sometimes
    der die das den dem des ein eine einen einem einer und oder aber nicht kein keine ist sind war
    waren wird werden hat haben hatte mit von aus bei nach seit fur auf uber unter ich sie wir ihr
    ihm ihn sein seine mein meine dein deine sich auch noch nur sehr mag mochte gern gerne lebt
    wohnt arbeitet heisst ja doch
    che non per con una uno gli della delle dello degli dei del dal nel nella sono era sei hai mio
    mia suo sua tuo tua anche molto piu solo piace vive lavora chiama preferisce vuole
    los las una unos para por con del que como muy mas pero sin sus ella ellos soy eres esta este
    son tiene gusta vive trabaja llama prefiere quiere
    les des une est sont avec pour dans sur pas que qui mais aime vit travaille prefere elle ils son
    ses mon mes tes plus tres
    uma dos das com para por que nao mais muito ele ela seu sua gosta mora trabalha prefere
    yang dan dari untuk dengan tidak ini itu ada adalah saya dia aku kamu anda suka tinggal bekerja
    het een van voor met niet zijn heeft houdt woont werkt
    och att det som inte med den har till
    это что как для или его она они мне мой моя нет был была есть любит живет работает зовут
    bir icin ile cok daha ben sen
    على في من الى إلى عن مع هذا هذه انا هو هي
    और यह वह हैं हूँ हूं नहीं मैं में मेरा मेरी मेरे आप आपका आपकी आपके आपको उसे उसका उसकी उसके उन्हें उनका
    उनकी उनके इस उस लिए साथ भी बहुत पसंद करता करती करते रहता रहती रहते
"""
_UNSPACED_COMMON: Final = (
    "的了是我你他她它们們在有不和也就都很這这那吗呢吧啊会會要想用说說喜欢歡人个個"
)


def significant(text: str) -> frozenset[str]:
    """The words of a text that say what it is about."""
    return frozenset(_key(word) for word in words_of(text) if not _is_common(word))


def is_exact(word: str) -> bool:
    """Whether this, of `significant`, is a number or holds one."""
    return any(each.isdigit() for each in word)


def first_words(text: str, most: int) -> list[str]:
    """The words that a text begins with, folded and whole."""
    return words_of(text[:200])[:most]


def words_of(text: str) -> list[str]:
    """All words of a text, folded and whole."""
    return _WORD.findall(_folded(text))


def _folded(text: str) -> str:
    """Without case, width and accents; as it was where it is plain.

    The vowel signs of Indic scripts are marks as well, but no accents: these combine.
    """
    if text.isascii():
        return text.lower()
    spread = unicodedata.normalize("NFKD", text.casefold())
    bare = "".join(each for each in spread if not unicodedata.combining(each))
    return unicodedata.normalize("NFC", bare)  # Korean comes apart otherwise


def _key(word: str) -> str:
    return word if is_exact(word) else word[:_STEM]


_COMMON_WORDS: Final = frozenset(words_of(_COMMON)) | frozenset(_UNSPACED_COMMON)


def _is_common(word: str) -> bool:
    if word in _COMMON_WORDS:
        return True
    return len(word) < _SHORTEST and not _ALONE.match(word) and not is_exact(word)
