"""English words whose forms share no stem: one asks where someone went, they say "go"."""

from typing import Final

# by their stems, as the stemmer of Postgres gives them; a test compares
_FORMS: Final = """
go goe went gone
buy bought
take took taken
get got gotten
make made
see saw seen
give gave given
find found
think thought
tell told
becom becam
leav left
feel felt
bring brought
begin began begun
keep kept
hold held
write wrote written
stand stood
hear heard
mean meant
meet met
run ran
pay paid
sit sat
speak spoke spoken
lose lost
fall fell fallen
send sent
build built
understand understood
draw drew drawn
break broke broken
spend spent
rise rose risen
drive drove driven
wear wore worn
choos chose chosen
eat ate eaten
win won
teach taught
catch caught
sing sang sung
swim swam swum
fli flew flown
ride rode ridden
sleep slept
sell sold
fight fought
throw threw thrown
drink drank drunk
forget forgot forgotten
know knew known
come came
say said
show shown
bite bit bitten
hide hid hidden
wake woke woken
shoot shot
steal stole stolen
ring rang rung
shake shook shaken
tear tore torn
bend bent
lend lent
seek sought
deal dealt
dig dug
hang hung
stick stuck
strike struck
sweep swept
swing swung
grow grew grown
blow blew blown
freez froze frozen
child children
man men
woman women
person peopl
foot feet
tooth teeth
mous mice
wife wive
life live
knife knive
leaf leav
"""

FORMS: Final[dict[str, tuple[str, ...]]] = {}
"""By each stem, all the stems of its word, its own first."""

for _line in _FORMS.split("\n"):
    for _stem in _line.split():
        FORMS[_stem] = tuple(
            dict.fromkeys((_stem, *FORMS.get(_stem, ()), *(one for one in _line.split())))
        )
