"""The months' names, in the languages that a date may be asked for in."""

from typing import Final

_NAMES: Final = """
january february march april may june july august september october november december
jan feb mar apr may jun jul aug sep oct nov dec
januar februar märz april mai juni juli august september oktober november dezember
janvier février mars avril mai juin juillet août septembre octobre novembre décembre
enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre
gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre
janeiro fevereiro março abril maio junho julho agosto setembro outubro novembro dezembro
januari februari maret april mei juni juli agustus september oktober november desember
"""

MONTHS: Final[dict[str, int]] = {
    name: number for line in _NAMES.split("\n") for number, name in enumerate(line.split(), start=1)
}
"""1 to 12 by the name, in lower case."""

AMBIGUOUS: Final = frozenset({"may", "march", "mar", "mars", "mai", "jan", "dec", "sep", "mei"})
"""Words that are something else as well: a month only beside a day, a year or the word "in"."""
