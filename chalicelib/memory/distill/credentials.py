"""Secrets in a fact: keys, card numbers, passwords, codes and seed phrases. Pure.

Keys are known by their shape, cards by Luhn's sum, the rest by what they are called: a label such
as 'password' with something behind it that may be one. So 'uses a password manager' holds none,
and neither does 'his password is too long'; 'his password is swordfish' does.
"""

import re
from typing import Final

# what vendors' keys look like
_KEYS: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"\b[srp]k[-_](?=[\w-]*\d)[\w-]{12,}",  # OpenAI, Anthropic, Stripe
        r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}",  # AWS
        r"\b(?:gh[opsur]|hf|npm|pal|glpat|dop_v1|shpat|whsec)[-_][\w-]{16,}",
        r"\bgithub_pat_\w{16,}",
        r"\bxox[a-z]-[\w-]{8,}",  # Slack
        r"\bAIza[\w-]{24,}",  # Google
        r"\bSG\.[\w-]{16,}\.[\w-]{16,}",  # SendGrid
        r"\bey[JK][\w-]{8,}\.[\w-]{8,}",  # JSON web tokens
        r"\b\d{8,10}:[\w-]{30,}",  # Telegram bots
        r"-----BEGIN [A-Z0-9 ]+-----",
        r"\b[Bb]earer\s+(?=\S*\d)[\w.~+/=-]{16,}",
        r"\b[a-z][a-z0-9+.-]*://[^\s/:@]+:[^\s/@]+@",  # a URL with its password
    )
)

# tokens of no known shape: long, and letters and digits in turn more often than names have them
_TOKEN: Final = re.compile(r"[A-Za-z0-9+/_=-]{24,}")
_TURN: Final = re.compile(r"(?<=[A-Za-z])(?=\d)|(?<=\d)(?=[A-Za-z])")
_TURNS_AT_LEAST: Final = 5
_UUID: Final = re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")

_DIGITS: Final = re.compile(r"(?<![\w.])(\+|00)?(\d+(?:[ .-]\d+)*)(?!\w)")
_CARD: Final = range(13, 20)
_PHONE_AT_MOST: Final = 15
_PHONE: Final = re.compile(
    r"(?:phone|mobile|cell|call(?:ed)? (?:at|on|under)|whatsapp|sms|telefon\w*|teléfono|tel\.?"
    r"|handy|cellulare|celular|móvil|portable|nomor|hp|телефон\w*|电话|手机|電話|هاتف|전화)\W*"
    r"(?:\w+\W+){0,3}$",
    re.IGNORECASE,
)

# What a secret of letters is called. `\b` does not help where no spaces are written.
_PASSWORDS: Final = (
    r"(?:pass(?:word|wd|code|phrase|key)|pwd?|passwort|kennwort|passwörter|wachtwoord|l[öo]senord"
    r"|adgangskode|passord|salasana|hasło|haslo|heslo|jelszó|parol[ăae]|şifre(?:m|si)?"
    r"|mot de passe|mdp|contraseñas?|clave secreta|senha(?! de espera)|palavra[- ]passe"
    r"|kata ?sandi|mật khẩu|парол[ьяею]\w?|κωδικός|पासवर्ड|รหัสผ่าน"
    r"|كلمة (?:المرور|السر)|كلمه المرور|סיסמ[הא]|密[码碼]|口令|パスワード|暗証番号|비밀번호|암호)"
)
# what a key is called: what is behind it must look like one
_TOKENS: Final = (
    r"(?:(?:api|secret|access|private|licen[cs]e)[- _]?(?:access[- _]?)?(?:key|token)s?"
    r"|api[- ]?schlüssel|clé api|clave (?:de )?api|chiave api|chave (?:de )?api|client secret"
    r"|auth(?:entication|orization)? token|密钥|api密[钥鑰])"
)
# what a secret of digits is called
_CODES: Final = (
    r"(?:pin(?:[- ]?(?:code|number|nummer))?|cv[vc]2?|otp|tan|mfa code|2fa code|"
    r"(?:verification|security|one[- ]time|login|log-in|access|auth(?:entication)?|door|alarm"
    r"|unlock|confirmation|backup|sms|safe|lock|gate|entry)[- ](?:pass)?code"
    r"|codice (?:di (?:verifica|sicurezza|accesso)|pin|otp)"
    r"|código (?:de )?(?:verificación|verificação|seguridad|segurança|acceso|acesso|pin)"
    r"|code (?:de )?(?:vérification|sécurité|confirmation|pin|secret)"
    r"|(?:bestätigungs|sicherheits|zugangs|einmal|tür)-?code|geheimzahl"
    r"|kode (?:verifikasi|otp|pin|keamanan)|pin-?код\w?|пин(?:-?код\w?)?|код подтверждения"
    r"|doğrulama kodu|رمز (?:التحقق|الدخول|الأمان)|الرقم السري"
    r"|验证码|驗證碼|校验码|認証コード|確認コード|인증 ?(?:번호|코드))"
)
_SEEDS: Final = (
    r"(?:(?:seed|recovery|backup|mnemonic|wallet)[- ](?:phrase|words)|mnemonic"
    r"|frase (?:semilla|de recuperación|de recuperação|di recupero|seed)"
    r"|phrase (?:de récupération|secrète)|seed-?phrase|wiederherstellungs(?:phrase|wörter)"
    r"|助记词|助記詞|сид-?фраз\w|ニーモニック|시드 ?(?:구문|문구))"
)

# Between label and value. Up to five words may say whose or what for: 'for the office Wi-Fi'.
_FOR: Final = r"(?:[ ]+(?!(?:is|are|was|è|es|ist|est|é)\b)[\w'’&-]+){0,5}?"
_IS: Final = (
    r"(?:\s*(?:[:=：→]|->|—)\s*|\s*-\s+"
    r"|\s+(?:is|are|was|will be|used to be|remains|equals|reads|(?:re)?set to|changed to"
    r"|è|era|es|ist|war|lautet|est|était|é|adalah|ialah|jest|to|je|är|er|on|είναι|là|это|هي|هو)"
    r"\s*(?:now|still|currently|jetzt|ahora|adesso|agora)?\s*[:：]?\s+"
    r"|\s*(?:是|为|為|は|은|는|が)\s*[:：]?\s*)"
)
_LABELLED: Final = re.compile(
    rf"(?:(?<!\w)|(?<=[^\x00-\u02ff])){_PASSWORDS}(?!\w*[- ]?manag){_FOR}({_IS})(\S.*)",
    re.IGNORECASE,
)
# without a link: right behind it, or behind one or two words that say whose or what for
_BARE: Final = re.compile(
    rf"(?:(?<!\w)|(?<=[^\x00-\u02ff])){_PASSWORDS}"
    r"(?=\s*[,(]?\s*(\S+)(?:\s+(\S+))?(?:\s+(\S+))?)(?P<managed>\w*[- ]?manag)?",
    re.IGNORECASE,
)
# the other way round: '… is my password', 'uses … as the login password'
_VALUE_FIRST: Final = re.compile(
    r"(?P<value>[\"'“«„][^\"'”»“]{2,60}[\"'”»“]|\S+)\s+"
    r"(?:is|was|as|ist|war|als|è|come|es|como|est|comme|é|adalah|sebagai)\s+"
    rf"(?:(?!about\b)[\w'’-]+\s+){{0,3}}?{_PASSWORDS}(?!\w)(?![- ]manag)",
    re.IGNORECASE,
)
_KEYED: Final = re.compile(rf"(?<!\w){_TOKENS}{_FOR}(?:{_IS}|\s+)(\S+)", re.IGNORECASE)
_CODED: Final = re.compile(
    rf"(?:(?<!\w)|(?<=[^\x00-\u02ff])){_CODES}(?:{_FOR}{_IS}|\s*[,(#]?\s*)[\"'“«„(]?"
    r"((?=[A-Za-z-]*\d)[A-Za-z\d-]{3,12})(?!\w)",
    re.IGNORECASE,
)
_SEEDED: Final = re.compile(rf"{_SEEDS}{_FOR}{_IS}(\S+(?:[ ,]+\S+){{3,}})", re.IGNORECASE)
_ENDS_IN_LABEL: Final = re.compile(
    rf"(?:(?<!\w)|(?<=[^\x00-\u02ff]))(?:({_PASSWORDS})|({_CODES})|({_SEEDS})|({_TOKENS}))"
    r"(?: (?:for|of|to|at)\b.*)?$",
    re.IGNORECASE,
)

# Words with which something is said of a password, and not the password. The first word behind the
# label counts, in small letters; what is quoted or holds a digit is a value all the same.
_SAID_OF_IT: Final = """
    a about again all also always an and another any as at be because been being better
    by complex complicated compromised confidential different difficult easy empty enough expired
    expiring for forgotten from getting gone good handled hard hers his important in incorrect
    insecure invalid just kept known leaked like long lost managed mandatory mine missing more
    necessary needed never new no not obsolete often ok old on only optional or out outdated
    pointless private protected really recycled required reset rotated safe same saved secret secure
    sensitive set shared short simple since so something stolen stored strong stuck synced that the
    there theirs to too unique unknown unsafe up updated used very weak when with without written
    wrong yours changed changing hidden blank none
    zu sehr nicht sicher unsicher schwach stark vergessen weg abgelaufen in im auf der die das ein
    eine lang kurz falsch unbekannt neu alt immer nie gespeichert geändert
    troppo molto non sicura debole forte scaduta dimenticata persa salvata in lunga corta nuova
    demasiado muy no segura débil fuerte caducada olvidada guardada en larga corta la el una un
    trop très pas sûr faible fort expiré oublié perdu enregistré dans long court le un une
    muito não segura fraca forte expirada esquecida guardada em longa curta
    terlalu sangat tidak aman lemah kuat lupa hilang tersimpan di
    слишком очень не надёжный слабый хранится забыт в
"""
_TOLD_OF_IT: Final = frozenset(_SAID_OF_IT.split())
_TOLD_OF_IT_UNSPACED: Final = ("太", "很", "不", "忘", "存", "保存", "强", "弱", "安全", "长", "短")
_NO_VALUE: Final = re.compile(r"[*•.x_-]+|n/?a|\[?redacted\]?|\?+", re.IGNORECASE)
_MIXED: Final = re.compile(r"[^\W\d_]\S*\d|\d\S*[^\W\d_]|\w[#$%^*_=+]\w")
_QUOTES: Final = "\"'“”„«»‘’`「」『』"
_NAMES_WITH_DIGITS: Final = frozenset({"1password", "lastpass2", "2fa", "u2f", "fido2", "web3"})

# 12 to 24 words of a wallet: small, 3 to 8 letters each, and none that sentences are held by
_SMALL_WORDS: Final = re.compile(r"(?:(?:\d{1,2}[.)]\s*)?[a-z]{3,8}[ ,\n]+){11,}[a-z]{3,8}")
_SMALL_ONES: Final = """
    and are but for from has have her his its not the their they was were who with into than that
    den der die das und mit für von nicht les des est une pour avec dans qui los las con para por
    una del che per non con della sono dan yang untuk dengan het een niet van
"""
_HOLDS_SENTENCES: Final = frozenset(_SMALL_ONES.split())


def holds_secret(topic: str, content: str) -> bool:
    """Whether one of the two holds a secret, or the topic names one that the content is."""
    both = f"{topic}\n{content}"
    return (
        any(key.search(both) for key in _KEYS)
        or _has_token(both)
        or _has_card(both)
        or _has_labelled(topic)
        or _has_labelled(content)
        or _is_named(topic, content)
        or _has_seed(content)
    )


def _has_token(text: str) -> bool:
    without = _UUID.sub(" ", text)
    return any(
        len(_TURN.findall(token[0])) >= _TURNS_AT_LEAST for token in _TOKEN.finditer(without)
    )


def _has_card(text: str) -> bool:
    for run in _DIGITS.finditer(text):
        groups = re.split(r"[ .-]", run[2])
        called = run[1] or _PHONE.search(text[max(0, run.start() - 40) : run.start()])
        if called and sum(map(len, groups)) <= _PHONE_AT_MOST:
            continue
        for start in range(len(groups)):
            for end in range(start + 1, min(start + _CARD.stop, len(groups) + 1)):
                if _is_card(groups[start:end]):
                    return True
    return False


def _is_card(groups: list[str]) -> bool:
    """Whether these digits are a card's, in groups as people write them; dates are in others."""
    number = "".join(groups)
    if len(number) not in _CARD or number[0] in "01" or len(set(number)) == 1:
        return False
    if len(groups) > 1 and min(map(len, groups)) < 3 and len(set(map(len, groups))) > 1:
        return False
    total = 0
    for place, digit in enumerate(reversed(number)):
        worth = int(digit) * (1 + place % 2)
        total += worth - 9 if worth > 9 else worth
    return total % 10 == 0


def _has_labelled(text: str) -> bool:
    for sentence in re.split(r"\n|(?<=[.!?。！？])\s+", text):
        if (named := _LABELLED.search(sentence)) and _may_be_value(named[2], named[1]):
            return True
        if any(_has_bare(found) for found in _BARE.finditer(sentence)):
            return True
        if any(_is_value(found["value"]) for found in _VALUE_FIRST.finditer(sentence)):
            return True
        if any(_is_chosen(word[1], at_least=8) for word in _KEYED.finditer(sentence)):
            return True
        if _CODED.search(sentence) or _SEEDED.search(sentence):
            return True
    return False


def _may_be_value(rest: str, link: str) -> bool:
    """Whether what is behind a label, linked to it so, may be the secret itself."""
    if rest[0] in _QUOTES and len(rest) > 2:
        return True
    first = rest.split()[0].strip(".,;!?()" + _QUOTES)
    if not first or _NO_VALUE.fullmatch(first):
        return False
    if _is_chosen(first):
        return True
    if first.lower() in _TOLD_OF_IT or first.startswith(_TOLD_OF_IT_UNSPACED):
        return False
    # 'to' and 'on' link also what is no value: 'uses his password to log in'
    return link.strip() not in ("to", "on", "er", "je", "-", "era") or len(rest.split()) == 1


def _is_value(word: str) -> bool:
    """Whether what stands before a label is the secret: it is quoted, or looks thought up."""
    return word[0] in _QUOTES or (_is_chosen(word, at_least=6) and _MIXED.search(word) is not None)


def _has_bare(found: re.Match[str]) -> bool:
    """Whether one of the words behind a label is a secret, though nothing links it to that."""
    first, *others = (word for word in found.groups()[:3] if word is not None)
    if _is_chosen(first):
        return True
    before = first
    for word in others:
        told = before.lower().strip(".,;!?()" + _QUOTES)
        if found["managed"] or told in _TOLD_OF_IT or before.endswith((",", ";")):
            return False
        if _is_chosen(word, at_least=6) and _MIXED.search(word):
            return True
        before = word
    return False


def _is_chosen(word: str, *, at_least: int = 4) -> bool:
    """Whether a word looks thought up: with digits in it, or signs, or capitals within."""
    word = word.strip(".,;:!?()" + _QUOTES)
    if len(word) < at_least or word.lower() in _NAMES_WITH_DIGITS:
        return False
    if re.fullmatch(r"(?:19|20)\d\d|\d+(?:st|nd|rd|th|x|s|h|d|min|%)", word):
        return False
    return (
        any(each.isdigit() for each in word)
        or re.search(r"[a-z][A-Z]|[#$%^*_=+]\w", word) is not None
    )


def _is_named(topic: str, content: str) -> bool:
    """Whether the topic ends in what a secret is called, and the content may be just that."""
    label = _ENDS_IN_LABEL.search(topic)
    if label is None or not content:
        return False
    words = content.split()
    if label[2]:
        return re.search(r"(?<!\w)\d{3,10}(?!\w)", content) is not None
    if label[3]:
        return len(words) >= 4 and not _HOLDS_SENTENCES & set(content.lower().split())
    if any(_is_chosen(word, at_least=6) for word in words):
        return True
    opening = re.sub(r"(?i)^(?:it )?(?:is|it's|=|:)\s+", "", content)
    return bool(label[1]) and len(words) <= 3 and bool(opening) and _may_be_value(opening, ":")


def _has_seed(text: str) -> bool:
    return any(
        not _HOLDS_SENTENCES & set(re.findall(r"[a-z]+", run[0]))
        for run in _SMALL_WORDS.finditer(text)
    )
