"""Orders to a model in what passes for a fact. Pure.

A fact says something of a person: 'Prefers short replies'. An order speaks to whoever reads it:
'Ignore earlier instructions', 'You must …', 'Always send …'. It counts where a clause begins, so
that 'tends to ignore rules' and 'believes you must try' are facts. How replies should be is a
preference in any mood ('Never use bullet lists'), so the lists hold only what acts on something
else or sets the reader's rules. In tongues whose imperative is also 'he does', more is asked for.
"""

import re
from collections.abc import Iterable
from typing import Final

# where a clause begins
_CLAUSE: Final = re.compile(
    r"^\s*|[\n.!?;:,。！？，；：–—\"'“”„«»‘(\[{*>#|]\s*|(?<!\w)-\s+"
    r"|\b(?:and|then|please|also|now|remember|und|bitte|dann|poi|per favore|luego|por favor|puis"
    r"|s['’]il (?:te|vous) pla[iî]t|dan|tolong|и|пожалуйста)\s+",
    re.IGNORECASE,
)

# marks by which a text would leave its place, or speak in the place of another; anywhere
_MARKS: Final = (
    r"</?\s*(?:memor(?:y|ies)|system|assistant|user|tool|notes?|context|instructions?|prompt"
    r"|distillates?|facts?|transcript|background|human)\b[^>\n]{0,80}>",
    r"<\|[^|\n]{1,40}\|>",
    r"\[/?(?:INST|SYS|SYSTEM)\]",
    r"<</?SYS>>",
    r"(?:^|\n)\s*#{1,6}\s*(?:system|instructions?|assistant|developer)\b",
    r"(?:^|\n)\s*(?:system(?: (?:message|prompt|note))?|assistant)\s*[:：]",
    r"(?-i:\b(?:SYSTEM|ASSISTANT|DEVELOPER)(?: (?:MESSAGE|PROMPT|NOTE))?\s*[:：])",
)

_RULES: Final = (
    r"(?:instructions?|rules?|prompts?|guidelines?|directives?|directions?|commands?"
    r"|polic(?:y|ies)|constraints?|restrictions?)"
)

# orders to drop what was told before; anywhere, unless quoted in the telling
_DROPS: Final = (
    r"\b(?:ignore|disregard|forget|override|overrule|bypass|discard)\s+(?:(?:all|any|the|of|my)\s+)*"
    r"(?:previous|prior|earlier|above|preceding|your|system|safety|existing|initial|original)\s+"
    rf"(?:\w+\s+){{0,2}}{_RULES}",
    r"\b(?:ignorier\w*|vergiss|vergesst|missachte)\s+(?:\w+\s+){0,3}(?:vorherig|früher|bisherig"
    r"|obig|vorig)\w*\s+\w+",
    r"\b(?:ignora|ignorate|dimentica)\s+(?:\w+\s+){0,3}(?:istruzioni|regole)\s+(?:precedent"
    r"|di sopra)",
    r"\b(?:ignora|ignorad|olvida)\s+(?:\w+\s+){0,3}(?:instrucciones|reglas|órdenes)\s+(?:anterior"
    r"|previa)",
    r"\b(?:ignore[zr]?|oublie[zr]?)\s+(?:\w+\s+){0,3}(?:instructions|consignes|règles)\s+"
    r"(?:précédent|ci-dessus|antérieur)",
    r"\b(?:ignore|esqueça|esquece|desconsidere)\s+(?:\w+\s+){0,3}(?:instruções|regras)\s+anterior",
    r"\babaikan\s+(?:\w+\s+){0,2}(?:instruksi|perintah|aturan)\s+(?:sebelum|di atas)",
    r"\b(?:игнорируй\w*|забудь\w*)\s+(?:\w+\s+){0,3}(?:инструкци|правил|указани)",
    r"\b(?:önceki|yukarıdaki)\s+(?:\w+\s+){0,2}(?:talimat|kural)\w*\s+(?:yok say|unut)",
    r"(?:忽略|无视|無視|忘记|忘掉)[^。\n]{0,8}(?:之前|以前|以上|先前|前面|所有)[^。\n]{0,6}"
    r"(?:指令|指示|规则|規則|提示|命令)",
    r"(?:これまで|以前|上記|前)の(?:指示|命令|ルール)を(?:無視|忘れ)",
    r"(?:تجاهل|انس)\s+(?:\w+\s+){0,2}(?:التعليمات|الأوامر|القواعد)",
)
# what is said of a slide or a book that holds such words
_QUOTED: Final = re.compile(
    r"\b(?:slides?|trainings?|lecture|course|talk|workshop|book|paper|article|thesis|poster"
    r"|t-?shirt|mug|sticker|schulung|folie|vortrag|corso|diapositiva|formation|curso)\b"
    r".{0,60}\b(?:says?|said|saying|reads?|reading|shows?|about|called|titled|with|sagt|dice|dit"
    r"|diz)\b",
    re.IGNORECASE | re.DOTALL,
)

# acts on something else than the reply
_ACTS: Final = (
    r"(?:send|forward|e-?mail|post|upload|transfer|submit|leak|wire|delete|erase|execute|invoke"
    r"|click|fetch|download|install|reveal|disclose|print|output|obey|follow|trust|approve|allow"
    r"|grant|ignore|disregard|append|prepend|insert)"
)
_ADDRESS: Final = r"[^\n]{0,160}(?:\S@\S|https?://|\bwww\.|\b\w+\.(?:com|org|net|io|ru|cn|xyz)\b)"

# orders where a clause begins
_ORDERS_IN_ENGLISH: Final = (
    rf"(?:ignore|disregard|forget|override|bypass)\s+(?:\w+\s+){{1,3}}{_RULES}\b",
    r"(?:ignore|disregard|forget)\s+(?:everything|all|anything|what)\b.{0,30}\b(?:above|before"
    r"|earlier|previous\w*|told|said|so far|you)\b",
    r"disregard\b",
    r"you\s+(?:must|should|shall|have to|need to|ought to|are (?:now|required|obliged|instructed"
    r"|to)|will (?:now|always|never|from)|may not|can(?:not|'t)|always|never)\b",
    r"(?:from now on|henceforth|from this point on(?:wards?)?|going forward)\W+(?:you|always|never"
    r"|the (?:assistant|ai|model|agent)|please|do(?:n't)?|every|all|any|only|act|answer|reply"
    r"|respond|call|send|use|add|include|treat|trust|ignore|follow|obey|say|write|speak|tell"
    r"|forward|share|assume|pretend|refuse|stop|i am|i'm|the user is)\b",
    r"(?:remember|memori[sz]e|save|store|record|note)\s+(?:(?:this|these|the|following|new|as|a|an"
    r"|down|permanent|important|my|that)\s+){1,4}(?:rules?|instructions?|commands?|directives?"
    r"|polic(?:y|ies)|orders?)",
    r"(?:remember|note)\s+(?:that\s+)?you\b",
    r"(?:remember|be sure|make sure|do not forget|don't forget|take care)\s+to\s+always\b",
    r"(?:add|save|store|write|commit|put|insert)\s.{0,60}\b(?:to|in|into)\s+(?:your |the |its |long"
    r"[- ]term )*(?:memory|memories|knowledge base|system prompt)\b",
    r"(?:act|behave|respond|answer)\s+as\s+(?:if you|though you|an? (?:ai|unrestricted))",
    r"pretend\s+(?:to be|that you|you)\b",
    r"(?:always|immediately|secretly|silently|be sure to|make sure to|must always|should always)"
    rf"\s+{_ACTS}\b",
    rf"(?:always|never)\s+\w+\b{_ADDRESS}",
    r"(?:never|do not|don't|must not|must never)\s+(?:refuse|warn|inform|alert|question|verify"
    r"|validate|disclose|reveal|tell (?:the user|anyone|them)|mention this|ask for (?:permission"
    r"|confirmation|approval))\b",
    rf"(?:send|forward|e-?mail|post|upload|transfer|submit|leak|copy|bcc|wire|pay|visit|open)\s{_ADDRESS}",
    r"(?:print|reveal|show|output|repeat|disclose|display|tell me|give me)\s+(?:\w+\s+){0,3}"
    r"(?:system prompt|your (?:prompt|instructions|rules)|hidden (?:prompt|instructions)|api keys?"
    r"|passwords?|secrets?)\b",
    r"(?:attention|note|dear|hey|hi|hello|message|instructions?)\s*(?:to|for)?[,:]?\s*(?:the |all "
    r"|any )?(?:ai|llm|language model|assistant|distiller|extractor|summari[sz]er|chatbot|memory"
    r" (?:system|model))s?(?=\s*[:,.!?\n-]|$| (?:that|who|which|reading)\b)",
    r"(?:the |any )?(?:ai|assistant|distiller|chatbot|llm|language model)\s+(?:must|has to|is"
    r" (?:now )?(?:required|obliged|instructed)|will now)\b",
)
_ORDERS_ELSEWHERE: Final = (
    # German
    r"(?:ab (?:jetzt|sofort)|von (?:nun|jetzt) an|künftig)\s+(?:musst|sollst|wirst|bist|darfst"
    r"|antworte|sende|schicke|sage|nutze|ignoriere)\b",
    r"(?:du (?:musst|sollst|darfst|bist (?:jetzt|nun))|ihr müsst)\b",
    r"(?:merke?|speichere?|behalte)\s+(?:dir\s+)?(?:diese|folgende)\w*\s+(?:regel|anweisung)",
    r"(?:sende|schicke|leite)\s+(?:immer|stets|alle)\b",
    # Italian
    r"(?:d'ora in poi|da ora in poi|da adesso)\W+(?:devi|dovrai|sei|non devi|rispondi)\b",
    r"(?:devi|dovete|dovrai|non devi)\s",
    r"ricorda(?:ti)?\s+(?:di )?(?:questa|la seguente)\s+(?:regola|istruzione)",
    # Spanish, Portuguese
    r"(?:de ahora en adelante|a partir de ahora|a partir de agora|de agora em diante)\W+(?:debes"
    r"|tienes|eres|responde|você deve|deves|ignore)\b",
    r"(?:no )?(?:debes|deberás|tienes que|você deve|tu deves|tens de)\s",
    r"(?:recuerda|memoriza|lembre-se|lembra-te|guarde)\s+(?:de )?(?:esta|estas|essa|a seguinte|la"
    r" siguiente|desta)\s+(?:regla|instrucci|regra|instruç)",
    # French
    r"(?:à partir de maintenant|désormais|dorénavant)\W+(?:tu|vous|réponds|répondez)\b",
    r"(?:tu dois|vous devez|tu devras)\b",
    r"(?:retiens|retenez|souviens-toi de|mémorise[zr]?)\s+(?:cette|la)\s+(?:règle|consigne)",
    # the same words in these: with somewhere to send it
    r"(?:invia|manda|inoltra|envía|envia|envie|mande|reenvía|envoie|envoyez|transfère|transférez"
    rf"|kirim|kirimkan|sende|schicke|leite|отправляй|пересылай|أرسل|ارسل)\s{_ADDRESS}",
    # Indonesian
    r"(?:mulai sekarang|mulai saat ini)\W+(?:kamu|anda|selalu|jangan|kirim|jawab)",
    r"(?:kamu|anda)\s+harus\b",
    r"(?:ingat|simpan)\s+(?:aturan|instruksi|perintah)\b",
    # Russian, Turkish
    r"(?:отныне|с этого момента|теперь)\W+(?:ты|вы|всегда)\b",
    r"(?:ты|вы)\s+(?:долж|обязан)",
    r"запомни(?:те)?\s+(?:это|эту|следующ\w+)\s+(?:правил|инструкци)",
    r"всегда\s+(?:отправляй|пересылай|отвечай|делай)",
    r"(?:bundan sonra|şu andan itibaren)\s+(?:her zaman|sen|asla)\b",
    # Chinese, Japanese, Arabic
    r"(?:从现在开始|從現在開始|从现在起|今后)[，, ]?(?:你|请|請|总是|必须|把)",
    r"(?:你|您)(?:必须|必須|应该|應該|只能|不得|一定要)",
    r"(?:请)?(?:记住|記住|保存)(?:这|以下|下面|此)[^。\n]{0,6}(?:规则|規則|指令|指示)",
    rf"(?:总是|始终|一律|请)?(?:把|将){_ADDRESS}",
    r"(?:今後は|これからは)[^。\n]{0,30}(?:してください|しなさい|せよ)",
    r"من الآن فصاعد",
    r"(?:يجب عليك|يجب أن ت|عليك أن ت)",
    r"(?:تذكر|احفظ)\s+هذه\s+(?:القاعدة|التعليمات)",
)
# to forget it all; where 'forget' is also 'forgets', what the reader knows or was told
_ALL_ELSEWHERE: Final = (
    r"(?:vergiss|vergesst|vergessen sie)\s+(?:bitte\s+)?(?:alles?|sämtliche\w*)\b",
    r"забудь(?:те)?\s+(?:пожалуйста,?\s+)?(?:обо?\s+)?вс[её]",
    r"lupakan(?:lah)?\s+(?:saja\s+)?(?:semua|segala|seluruh)",
    r"(?:olvida|olvídate|olvide|olviden|olvidad|ignora|ignore|borra|elimina)\s+(?:de\s+)?tod[oa]s?\b"
    r"[^.\n]{0,40}?\b(?:sabes|sabéis|sepas|sabe usted|recuerdas|tienes|te|anterior\w*|tus?)\b",
    r"(?:dimentica|dimenticate|scorda|scordati|ignora|cancella)\s+(?:di\s+)?tutt[oaei]\b"
    r"[^.\n]{0,40}?\b(?:sai|sapete|ricordi|hai|ti|precedent\w*|tu[oae]|tuoi)\b",
    r"(?:oublie[sz]?|oubliez|ignore[sz]?|efface[sz]?)\s+tou(?:te?|s|tes)\b"
    r"[^.\n]{0,40}?\b(?:tu|vous|précéd\w*|ci-dessus|tes|vos)\b",
    r"(?:esque[cç]e|esqueça|esqueçam|ignore|ignora|apag[aue]+)\s+(?:de\s+)?(?:tudo|tod[oa]s?)\b"
    r"[^.\n]{0,40}?\b(?:sabes|você|vocês|lembras|te|tua?s?|anterior\w*)\b",
    r"vergeet\s+alles\b[^.\n]{0,40}?\b(?:je|jij|jullie|hiervoor)\b",
    r"zapomnij\s+(?:o\s+)?wszyst",
    r"[^.\n]{0,40}?\bbildi(?:ğin|kleri)\w*\b[^.\n]{0,30}\bunut(?:un|unuz)?\b",
    r"[请請]?忘(?:[记記掉了])?[^。\n]{0,6}[你您][^。\n]{0,20}(?:所有|一切|全部|知道|[记記]得)",
    r"[^。\n]{0,30}(?:全て|すべて|全部|ぜんぶ)(?:を)?忘れ(?:ろ|なさい|てくださ|てくれ|て$|て[。！!])",
    r"(?:모두|모든|전부|다)[^.\n]{0,20}잊어(?:라|줘|버려|주)",
    r"انس[َىي]?\s+(?:كل|جميع)\b",
    r"[^.।\n]{0,60}(?:सब|सब कुछ)\s+भूल\s+जा(?:ओ|इए|एँ|एं)",
)


def _compiled(patterns: Iterable[str]) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(pattern, re.IGNORECASE) for pattern in patterns)


_MARKED: Final = _compiled(_MARKS)
_DROPPED: Final = _compiled(_DROPS)
_ORDERED: Final = _compiled(_ORDERS_IN_ENGLISH + _ORDERS_ELSEWHERE + _ALL_ELSEWHERE)


def commands(text: str) -> bool:
    """Whether this text orders a model to something, or would leave the place it is shown in."""
    if any(mark.search(text) for mark in _MARKED):
        return True
    for drop in _DROPPED:
        if (found := drop.search(text)) and not _is_quoted(text[: found.start()]):
            return True
    clauses = {begin.end() for begin in _CLAUSE.finditer(text)}
    return any(
        order.match(text, begin) and not (order in _ORDERED[:3] and _is_quoted(text[:begin]))
        for order in _ORDERED
        for begin in clauses
    )


def _is_quoted(before: str) -> bool:
    return _QUOTED.search(before) is not None
