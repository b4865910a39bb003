"""Forms of English words that stemming keeps apart: "bought" answers "What did I buy?", "colour" is "color". Pure.

Irregular verbs, without forms that are another common word ("rose", "ground"), the spellings of two countries, and the
words for relatives. They count as one in a question, so what is stored stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Final

from graphweft_workers.text.terms import terms

_VERBS: Final = """\
arise arose arisen, awake awoke awoken, beat beaten, become became, begin began begun, bend bent, bite bit bitten,
blow blew blown, break broke broken, breed bred, bring brought, build built, burn burnt, buy bought, catch caught,
choose chose chosen, cling clung, come came, creep crept, deal dealt, dig dug, draw drew drawn, dream dreamt, drink
drank drunk, drive drove driven, eat ate eaten, fall fell fallen, feed fed, feel felt, fight fought, find found, flee
fled, fly flew flown, forbid forbade forbidden, forget forgot forgotten, forgive forgave forgiven, freeze froze
frozen, get got gotten, give gave given, go went gone, grow grew grown, hang hung, hear heard, hide hid hidden, hold
held, keep kept, kneel knelt, know knew known, lead led, lean leant, leap leapt, learn learnt, leave left, lend lent,
lose lost, make made, mean meant, meet met, mistake mistook mistaken, overcome overcame, pay paid, prove proven,
rebuild rebuilt, ride rode ridden, ring rang rung, run ran, say said, see saw seen, seek sought, sell sold, send sent,
sew sewn, shake shook shaken, shine shone, show shown, shrink shrank shrunk, sing sang sung, sink sank sunk, sit sat,
sleep slept, slide slid, smell smelt, sow sown, speak spoke spoken, spell spelt, spend spent, spin spun, spoil spoilt,
stand stood, steal stole stolen, stick stuck, sting stung, strike struck, strive strove, swear swore sworn, sweep
swept, swell swollen, swim swam swum, swing swung, take took taken, teach taught, tear tore torn, tell told, think
thought, throw threw thrown, undergo underwent, understand understood, undertake undertook, wake woke woken, wear wore
worn, weave wove woven, weep wept, win won, withdraw withdrew withdrawn, write wrote written"""
_SPELLINGS: Final = """\
favourite favorite, favour favor, colour color, honour honor, neighbour neighbor, neighbourhood neighborhood, flavour
flavor, behaviour behavior, humour humor, labour labor, rumour rumor, harbour harbor, armour armor, odour odor, savour
savor, vapour vapor, endeavour endeavor, glamour glamor, centre center, theatre theater, metre meter, kilometre
kilometer, litre liter, fibre fiber, grey gray, catalogue catalog, dialogue dialog, programme program, jewellery
jewelry, organise organize, organisation organization, realise realize, recognise recognize, apologise apologize,
specialise specialize, memorise memorize, analyse analyze, licence license, defence defense, offence offense, practise
practice, travelled traveled, travelling traveling, traveller traveler, cancelled canceled, modelling modeling,
counselling counseling, counsellor counselor, pyjamas pajamas, grandma
grandmother granny, grandpa grandfather, mum mom mother mummy mommy mama, dad father daddy papa, aeroplane airplane,
doughnut donut, yoghurt yogurt, whisky whiskey, cosy cozy, mould mold, plough plow, enrol enroll, email mail,
wifi fi, fulfil fulfill, ageing aging, moustache mustache, tonne ton, kerb curb,
sceptical skeptical, manoeuvre maneuver"""


def _groups(written: str) -> Iterable[frozenset[str]]:
    for group in written.split(","):
        stems = frozenset(terms(group))
        if len(stems) > 1:
            yield stems


def _table() -> Mapping[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    for group in chain(_groups(_VERBS), _groups(_SPELLINGS)):
        for stem in group:
            found[stem] = found.get(stem, frozenset()) | group
    return found


_FORMS: Final = _table()


def forms_of(asked: Sequence[str]) -> dict[str, frozenset[str]]:
    """Return, for each term of a question that has other forms, all its forms, but for those that it asks for, too."""
    found: dict[str, frozenset[str]] = {}
    for term in asked:
        if (forms := _FORMS.get(term)) is not None:
            found[term] = forms - (frozenset(asked) - {term})
    return found
