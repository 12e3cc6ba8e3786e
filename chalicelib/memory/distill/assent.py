"""Whether someone says yes to what they were told. Pure.

Only a plain yes counts: one that a message opens with, or, where they were asked, a mere closing
word or sign. What is neither a yes nor a no is none: 'I will think about it.'
"""

import re
import unicodedata
from typing import Final

from chalicelib.memory.distill.words import first_words, words_of

_YES: Final = """
    yes, yeah, yea, yep, yup, aye, precisely, indeed, absolutely, definitely, certainly, of course,
    agreed, exactly right, that is right, that's right, that is correct, that's correct,
    that is true, that's true, thats right, it is true, it's true, you are right,
    you're right, go ahead, please do, sounds good, great idea,
    jawohl, genau, stimmt, das stimmt, ganz genau, korrekt, natürlich, gerne, freilich,
    das ist richtig, so ist es,
    oui, ouais, exactement, tout à fait, bien sûr, d'accord, c'est ça, c'est exact, c'est vrai,
    c'est cela, absolument, volontiers, en effet,
    esatto, esattamente, infatti, certamente, è vero, è così, proprio così, d'accordo, volentieri,
    naturalmente,
    exacto, exactamente, correcto, cierto, así es, eso es, es verdad, por supuesto, de acuerdo,
    claro que sí, efectivamente, desde luego,
    sim, exato, isso mesmo, isso aí, é verdade, com certeza, pois é, está certo, correto,
    да, ага, угу, верно, точно, конечно, именно, так и есть, правильно, давай, давайте,
    iya, betul, benar, tentu, tentu saja, setuju, boleh,
    evet, aynen, doğru, tabii, kesinlikle, elbette, olur,
    نعم, أيوه, ايوا, أجل, صحيح, بالضبط, بالتأكيد, طبعا, بلى, هذا صحيح,
    हाँ, हां, जी हाँ, जी हां, सही, सही है, बिल्कुल, बिलकुल,
    zgadza się, oczywiście, igen, desigur, jazeker, klopt, inderdaad, japp, precis, stämmer, juist,
    kyllä, joo, ναι, ακριβώς, σωστά, כן, נכון, vâng, đúng, bəli
"""
# A yes only where nothing but more of it follows in its clause: 'right now', 'si vivo a Roma', and
# what is a yes in one tongue and another word in the next ('ja' is 'I' in Polish).
_DOUBTFUL: Final = """
    right, true, sure, sure thing, correct, exactly, perfect, ja, jo, jep, klar, richtig, doch,
    perfekt, exact, parfait, si, certo, giusto, perfetto, claro, perfecto, isso, perfeito, ya,
    tepat, так, правда, отлично, اي, जी, tak, ano, da
"""
_NO: Final = """
    no nope nah not isn never wrong false nein nicht kein keine falsch nee niet geen non pas jamais
    mica sbagliato nao não nunca jamás nie nej inte ikke nei nem ei tidak bukan gak enggak jangan
    нет не ні hayır yok değil لا ليس كلا नहीं नही मत όχι δεν לא không
"""
# with these someone ends a conversation as often as they agree
_ENDING: Final = """
    ok okay k thanks thank you thx ty cheers cool nice great good got it please danke dank gut bitte
    grazie va bene gracias vale merci bien obrigado obrigada valeu terima kasih oke makasih
    спасибо ок понятно хорошо teşekkürler tamam شكرا حسنا تمام bedankt tack dzięki धन्यवाद ठीक है
    谢谢 謝謝 好的 行 可以 감사 합니다 해요
"""
# what a yes may stand behind, and what is none
_BEFORE: Final = """
    oh ah aha hm hmm mm mmm mhm uh um well so lol haha wow hey hi bye see later ach na also tja hej
    dag ciao eh beh mah allora adios hola pues bueno salut au revoir bah ben tchau ну а о ой пока
"""
_UNSPACED_YES: Final = re.compile(
    r"是(?=的|[\s，。,.!！、]|$)|[对對](?![不了于於方面])|[没沒][错錯]|[当當]然(?!不|没|沒)"
    r"|[确確]实|確實|的[确確]|正是|嗯(?![？?…])"
    r"|はい|ええ(?!と|っ)|うん(?!ん)|そう(?=です(?!か)|だ(?!っけ|と)|[、。！!\s]|$)|その通り|もちろん"
    r"|네+(?!\w)|예+(?!\w)|응+(?!\w)|맞(?=아|습|다|네|$)|그래(?!\w)|그래요|물론|ใช่(?!ไหม|มั้ย|หรือ)"
)
_UNSPACED_NO: Final = re.compile(r"[不否]|[没沒](?![错錯])|いいえ|いや|ちが|違|아니|ไม่")
_ASKED: Final = re.compile(r"[?？؟]\W*$")
_NO_SIGNS: Final = frozenset("👎❌🚫✖🤔🤷😕🙄😐😬🙅")
_CLAUSE: Final = re.compile(r"[.,;:!?…()\"“”«»—–。，、！？；：।؟،؛\r\n]+")
_SENTENCE: Final = re.compile(r"[.!?。！？؟।\n]+")
_NO_WITHIN: Final = 3
_ENDS_WITHIN: Final = 8
_LOOKED_AT: Final = 200


def _phrases(text: str) -> frozenset[tuple[str, ...]]:
    return frozenset(tuple(words_of(one)) for one in text.split(","))


_YESES: Final = _phrases(_YES)
_DOUBTS: Final = _phrases(_DOUBTFUL)
_NOES: Final = frozenset(words_of(_NO))
_ENDINGS: Final = frozenset(words_of(_ENDING))
_AGREEING: Final = _ENDINGS | {words[0] for words in _YESES | _DOUBTS if len(words) == 1}
_FILLERS: Final = frozenset(words_of(_BEFORE))
_LONGEST: Final = max(map(len, _YESES | _DOUBTS))


def question_of(text: str) -> str:
    """The question that a text ends in, whatever signs come behind it; empty where in none."""
    asked = _ASKED.search(text)
    return _SENTENCE.split(text[: asked.start()])[-1] if asked else ""


def denies(text: str) -> bool:
    """Whether a text opens with a no."""
    if _UNSPACED_NO.match(text.strip()):
        return True
    return not _NOES.isdisjoint(first_words(text, _NO_WITHIN))


def negates(text: str) -> bool:
    """Whether a text has a no anywhere."""
    return _UNSPACED_NO.search(text) is not None or not _NOES.isdisjoint(words_of(text))


def assents(text: str, *, asked: bool) -> bool:
    """Whether this says yes to what was said right before it; `asked`: that was a question."""
    text = text.strip()
    if _ASKED.search(text) or denies(text) or not _NO_SIGNS.isdisjoint(text):
        return False
    return _opens_with_yes(text) or (asked and _closes(text))


def _opens_with_yes(text: str) -> bool:
    if _UNSPACED_YES.match(text):
        return True
    clauses = [words_of(one) for one in _CLAUSE.split(text[:_LOOKED_AT])]
    for number, words in enumerate(clauses):
        later = [word for one in clauses[number + 1 :] for word in one]
        for start, word in enumerate(words):
            if _is_yes(words[start:], words[start:] + later):
                return True
            if word not in _FILLERS | _ENDINGS:
                return False
    return False


def _is_yes(clause: list[str], behind: list[str]) -> bool:
    """Whether a clause opens with a yes that is not taken back; `behind` is all from there."""
    for length in range(min(_LONGEST, len(clause)), 0, -1):
        opening = tuple(clause[:length])
        if opening in _YESES:
            return _NOES.isdisjoint(behind[length : length + _NO_WITHIN - 1])
        if opening in _DOUBTS:
            return _AGREEING.issuperset(clause[length:])
    return False


def _closes(text: str) -> bool:
    words = first_words(text, _ENDS_WITHIN)
    if not words:
        return any(unicodedata.category(each) == "So" for each in text)
    return not _ENDINGS.isdisjoint(words) and (_ENDINGS | _FILLERS).issuperset(words)
