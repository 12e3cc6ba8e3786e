"""The tree's operations where there is no model to ask: what plain phrases and marks tell. Pure.

Modest on purpose. It sees questions, decisions, commitments and a change of subject where people
say so outright, in the tongues of its lists; it misses what is only meant. To be imported where it
is called: its patterns take as long to make as a small library to load.
"""

import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from chalicelib.context.shapes import Node, Said, Tree
from chalicelib.context.tree import (
    OPERATIONS_AT_MOST,
    Ask,
    Decide,
    InvalidOperation,
    Open,
    Operation,
    Resolve,
    Switch,
    apply_operation,
    path_to,
)
from chalicelib.memory.distill.spoken import spoken
from chalicelib.memory.distill.words import significant, words_of

_READ_AT_MOST: Final = 4_000
_TOPIC_WORDS: Final = 10
_TOPIC_AT_MOST: Final = 80
_LONG: Final = 15
"""A message of so many telling words that shares none with the topic has left it."""
_ALIKE: Final = 0.5
_DECISIONS: Final = 3
_TASKS: Final = 2

# Sentences end at these; a point within a number or an address does not end one.
_SENTENCE: Final = re.compile(
    r".+?(?:(?:(?<!\.)\.(?!\.)|[!?؟।]+)(?=\s|$)|[。！？]+|\n|$)", re.DOTALL
)
_CODE: Final = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`|https?://\S+", re.DOTALL)
_ASKED: Final = re.compile(r"[?？؟]\W*$")

_TRIVIAL: Final = frozenset(
    words_of(
        """
        ok okay k yes yeah yep yup no nope sure fine good great nice cool perfect awesome thanks
        thank you thx ty very much so a lot hi hello hey there morning evening bye please right got
        it alright done lol haha hmm continue go on ahead and of course certainly absolutely
        question
        oke sip siap ya iya tidak baik terima kasih makasih halo hai selamat pagi siang malam lanjut
        danke ja nein gut hallo bitte super alles klar gracias vale si hola bueno bien merci oui non
        bonjour salut d'accord parfait
        """
    )
) | frozenset("好的行可以是对對嗯谢谢謝您你吗嗎哦啊")

_DECIDED: Final = re.compile(
    r"\b(?:let['’]?s (?:go with|use|do it with|stick with|settle on)"
    r"|we(?:['’]ve| have)? (?:decided|agreed|settled on)|i(?:['’]ve| have)? decided"
    r"|we(?:['’]ll| will) (?:use|go with|take|stick with)|i(?:['’]ll| will) go with"
    r"|the decision is|it['’]?s decided|final decision)\b|\b(?:agreed|decided|decision):"
    r"|\b(?:kita (?:pakai|putuskan|sepakat|pilih)|(?:sudah|telah) diputuskan|sepakat|kami putuskan"
    r"|diputuskan)\b"
    r"|\b(?:wir (?:nehmen|haben (?:(?!nicht)[^.?!]){0,60}(?:beschlossen|entschieden|geeinigt)"
    r"|bleiben bei)"
    r"|(?:ist|es ist) (?:beschlossen|entschieden)|beschlossen:)"
    r"|\b(?:(?:hemos|he) decidido|vamos con|usaremos|nos quedamos con|queda decidido|decidido:)"
    r"|\b(?:(?:nous avons|on a|j['’]ai) décidé|on part sur|nous utiliserons|on va utiliser"
    r"|c['’]est décidé|décision :?)"
    r"|我[们們](?:已经|已經)?[决決]定|[决決]定(?:了|用|采用|採用|：|:)|我[们們]就?用|那?就用|就[这這][么麼]定"
    r"|に決め(?:ました|た)|にしましょう",
    re.IGNORECASE,
)
_UNDECIDED: Final = re.compile(
    r"\b(?:if|unless|whether|not sure|don['’]?t think|not yet|before|until|maybe|perhaps|might"
    r"|kalau|jika|belum|mungkin|apakah|wenn|falls|ob|vielleicht|si|todavía|quizás|pas encore"
    r"|peut-être)\b|如果|[还還][没沒]|也[许許]|要不要|是否|もし",
    re.IGNORECASE,
)
_COMMITTED: Final = re.compile(
    r"\bi(?:['’]ll| will| am going to|['’]m going to| need to| have to| must) \w+"
    r"|\bremind me to\b|\b(?:to-?do|action item|task)\s*:"
    r"|\b(?:saya|aku) (?:akan|harus|perlu)\b|\bingatkan (?:saya|aku)\b|\btugas\s*:"
    r"|\bich (?:werde|muss)\b|\berinnere mich\b|\baufgabe\s*:"
    r"|\b(?:voy a|tengo que|debo|recuérdame)\b|\btarea\s*:"
    r"|\b(?:je vais|je dois|il faut que je|rappelle[- ]moi)\b|\btâche\s*:"
    r"|我(?:会|會|要去|需要|得)|提醒我|待[办辦]",
    re.IGNORECASE,
)
# what says no more than how someone talks: 'I will see', 'I have to say'
_IDLE: Final = re.compile(
    r"\bi(?:['’]ll| will| have to| need to| must) (?:say|admit|see|think|be honest|know|ask"
    r"|try that|go with|not|never|take it|wait|let you)\b"
    r"|\b(?:ich werde sehen|voy a ver|je vais voir)\b",
    re.IGNORECASE,
)
_DONE: Final = re.compile(
    r"\b(?:i(?:['’]ve| have)(?: just| already| now)? \w+(?:ed|ne|nt|ght|en)|i (?:just |already )?"
    r"(?:did|finished|booked|sent|bought|called|paid|fixed|wrote|made)|is done|done:|all done)\b"
    r"|\b(?:saya|aku) sudah\b|\bsudah selesai\b|\bich habe .*(?:erledigt|gebucht|gekauft)\b"
    r"|\b(?:ya he|ya está|j['’]ai (?:fini|fait|envoyé|réservé|acheté))\b|已经|已經|做完|搞定",
    re.IGNORECASE,
)
_BACK: Final = re.compile(
    r"\bback to\b|zurück zu|volviendo a|revenir à|kembali ke|回到|[说說]回", re.IGNORECASE
)
_CHANGED: Final = re.compile(
    r"\W*(?:(?:ok(?:ay)?|so|now|also|and|oh|oke)\b\W*)?(?:"
    r"(?:by the way|btw|another (?:thing|question|topic)|on another (?:note|topic)|next topic"
    r"|(?:new|different) (?:topic|subject|question)"
    r"|(?:to )?chang(?:e|ing) (?:the )?(?:topic|subject)"
    r"|let['’]?s (?:talk about|move on to|switch to|get back to|go back to)|moving on(?: to)?"
    r"|back to|unrelated|something else"
    r"|ngomong-ngomong|omong-omong|oh ya|(?:topik|hal) lain|ganti topik|sekarang soal|kembali ke"
    r"|übrigens|(?:ein )?anderes thema|themawechsel|noch etwas|zurück zu"
    r"|por cierto|otra cosa|otro tema|cambiando de tema|volviendo a"
    r"|au fait|autre (?:chose|sujet|question)|changeons de sujet|pour revenir à)\b"
    r"|回到|[说說]回|[顺順]便|另外|[换換][个個][话話][题題]|[对對]了|ところで)[\s,:;.!，：。、-]*",
    re.IGNORECASE,
)


def plain_operations(tree: Tree, said: Sequence[Said]) -> list[Operation]:
    """What these messages, of one turn or a few, do to the tree: at most `OPERATIONS_AT_MOST`.

    They hold against this tree, one after another, so that numbers of nodes that they make
    themselves are right. A reply is looked at for the answer to the question before it only.
    """
    work = _Work(tree)
    for one in said:
        if one.role == "user":
            _hear(work, one)
        elif one.role == "assistant":
            _answer(work, one)
    return work.ops


class _Work:
    """The operations so far, and the tree as it is after them."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.ops: list[Operation] = []
        newest = tree.nodes[-1] if tree.nodes else None
        asked = newest is not None and newest.kind == "open_question" and newest.status == "open"
        self.question = newest.number if newest is not None and asked else None
        """The question that a reply would answer."""

    def do(self, op: Operation, at: datetime) -> bool:
        """Whether it held."""
        if len(self.ops) == OPERATIONS_AT_MOST:
            return False
        try:
            self.tree = apply_operation(self.tree, op, sources=(), at=at)
        except InvalidOperation:
            return False
        self.ops.append(op)
        return True


def _hear(work: _Work, said: Said) -> None:
    text = _readable(said.content)
    changed = _CHANGED.match(text)
    subject = text[changed.end() :] if changed else text
    work.question = None
    if _is_trivial(subject):
        return
    source = (said.id,)
    _place(work, said, subject, sign=changed[0] if changed else "")
    sentences = list(_sentences(subject))
    decided = [one for one in sentences if _is_decision(one)][:_DECISIONS]
    for one in decided:
        work.do(Decide(one, sources=source), said.at)
    for one in sentences:
        if _DONE.search(one) and (task := _task_of(work.tree, one)) is not None:
            work.do(Resolve(task.number, one, sources=source), said.at)
    promised = [one for one in sentences if one not in decided and _is_commitment(one)]
    for one in promised[:_TASKS]:
        _note_task(work, one, said)
    questions = [one for one in sentences if _ASKED.search(one) and not _is_trivial(one)]
    # of several the last: the first sentence of a reply answers one at most
    if questions and work.do(Ask(questions[-1], sources=source), said.at):
        work.question = work.tree.count


def _answer(work: _Work, said: Said) -> None:
    if work.question is None:
        return
    sentences = _sentences(_readable(said.content))
    first = next((one for one in sentences if not _is_trivial(one)), None)
    # who asks back has not answered
    if first is not None and not _ASKED.search(first):
        work.do(Resolve(work.question, first, sources=(said.id,)), said.at)
    work.question = None


def _place(work: _Work, said: Said, subject: str, *, sign: str) -> None:
    """Go where this message belongs: stay, or go to a topic that was left, or to a new one.

    `sign` is what it says of that by itself.
    """
    tree, words = work.tree, significant(subject)
    if tree.active is not None:
        gone = len(words) >= _LONG and not words & _words_about(tree, tree.active)
        if not (sign or gone):
            return
    told = [(len(words & about), node) for node, about in _other_topics(tree)]
    shared, best = max(told, key=lambda one: one[0], default=(0, None))
    alike = 0 if _BACK.search(sign) else _ALIKE
    if best is not None and shared and shared >= alike * len(significant(best.text)):
        work.do(Switch(best.number, sources=(said.id,)), said.at)
    else:
        work.do(Open("topic", _beginning(subject), None, sources=(said.id,)), said.at)


def _note_task(work: _Work, text: str, said: Said) -> None:
    """A task below the active node, which stays the active one."""
    here = work.tree.active
    if len(work.ops) > OPERATIONS_AT_MOST - 2:
        return
    if work.do(Open("task", text, sources=(said.id,)), said.at) and here is not None:
        work.do(Switch(here), said.at)


def _other_topics(tree: Tree) -> Iterator[tuple[Node, frozenset[str]]]:
    here = {one.number for one in path_to(tree.nodes, tree.active)}
    for node in tree.nodes:
        if (
            node.kind == "topic"
            and node.status == "open"
            and not node.folded
            and node.number not in here
        ):
            yield node, significant(node.text)


def _words_about(tree: Tree, active: int) -> frozenset[str]:
    """The words of the path, and of what stands below it."""
    path = {one.number for one in path_to(tree.nodes, active)}
    about = [one for one in tree.nodes if one.number in path or one.parent in path]
    return significant(" ".join(f"{one.text} {one.outcome or ''}" for one in about))


def _task_of(tree: Tree, text: str) -> Node | None:
    """The open task that this says is done: one that shares most of its words."""
    words = _stems(text)
    for node in reversed(tree.nodes):
        if node.kind == "task" and node.status == "open" and not node.folded:
            wanted = _stems(node.text)
            if wanted and len(words & wanted) >= _ALIKE * len(wanted):
                return node
    return None


def _stems(text: str) -> set[str]:
    # short enough for 'book' and 'booked' to be one
    return {one[:4] for one in significant(text)}


def _is_decision(text: str) -> bool:
    found = _DECIDED.search(text)
    if found is None or _ASKED.search(text):
        return False
    # a doubt before it undoes it; one behind it is of something else: "we decided not to"
    return not _UNDECIDED.search(text, 0, found.start() + 1) and not _is_trivial(text)


def _is_commitment(text: str) -> bool:
    found = _COMMITTED.search(text)
    if found is None or _ASKED.search(text) or _IDLE.search(text):
        return False
    return not _UNDECIDED.search(text, 0, found.start() + 1)


def _is_trivial(text: str) -> bool:
    return all(word in _TRIVIAL for word in words_of(text))


def _readable(content: str) -> str:
    """Both ends of what someone says themselves: without code, addresses and what they quote."""
    text = content
    if len(text) > _READ_AT_MOST:
        text = f"{text[: _READ_AT_MOST // 2]}\n{text[-_READ_AT_MOST // 2 :]}"
    return spoken(_CODE.sub(" ", text)).strip()


def _sentences(text: str) -> Iterator[str]:
    for found in _SENTENCE.finditer(text):
        if sentence := found[0].strip(" \t\r\n-*•#>"):
            yield sentence


def _beginning(text: str) -> str:
    """The first words of a text, as a topic is called."""
    line = next((one for one in _sentences(text) if not _is_trivial(one)), text)
    words = line.split()
    short = " ".join(words[:_TOPIC_WORDS])
    cut = len(words) > _TOPIC_WORDS or len(short) > _TOPIC_AT_MOST
    return short[:_TOPIC_AT_MOST].rstrip(" .,;:!。，") + ("…" if cut else "")
