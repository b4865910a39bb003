"""How long a text holds by what it says itself: "until Friday", "for two weeks", "my trial ends on 5 May". Pure.

In English, German, Spanish and French. The days count from the one on which it was said, whenever it is asked for. In
doubt a text holds without an end: what is past ("I was in Rome until Friday"), how long something has lasted ("for
two weeks now", "seit zwei Wochen"), and a time of the day ("until 8"). Of what may mean two days, the later one counts:
"until May" ends with May.
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Final, NamedTuple

from graphweft_workers.retrieval.empty_turns import tells_nothing
from graphweft_workers.retrieval.periods import (
    COUNT,
    COUNTS,
    LOOSE,
    MONTH,
    MONTHS,
    ROMANCE_COUNT,
    ROMANCE_MONTH,
    ROMANCE_MONTHS,
    ROMANCE_UNIT,
    ROMANCE_WEEKDAYS,
    UNIT,
    UNIT_OF,
    WEEKDAYS,
    YEAR,
    count_of,
    is_romance,
    names_of,
    number_of,
)

_LONGEST: Final = 300
"""Characters: a longer text tells more than what ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedTime:
    """The first and the last day of what a text tells, such as ``2026-12-04``; empty if it says none."""

    begins: str = ""
    ends: str = ""

    def holds(self, first: str, last: str) -> bool:
        """Tell whether it holds on one of the days from ``first`` to ``last``."""
        return self.begins <= last and (not self.ends or first <= self.ends)


ALWAYS: Final = StatedTime()


def stated_time(text: str, said: str) -> StatedTime:
    """Return when a text holds that was said at a time such as ``2026-12-01T10:00:00Z``.

    Each of its parts that tells something must say its end; the last one counts.
    """
    if len(text) > _LONGEST:
        return ALWAYS
    low = text.casefold()
    if not any(name in low for name in _NAMES) and _NUMBER.search(low) is None and not is_romance(low):
        return ALWAYS
    try:
        day = date.fromisoformat(said[:10])
        parts = [part for each in _PART.split(text) if (part := each.strip(" !,;")) and _tells(part)]
        found = [_time_of(part.casefold().replace("\u2019", "'"), day) for part in parts]
    except (ValueError, OverflowError):  # no time, or days beyond the last year
        return ALWAYS
    if not found or (None, None) in found:
        return ALWAYS
    begins = [each[0] for each in found]
    ends = [each[1] for each in found]
    return StatedTime(
        begins=max((each.isoformat() for each in begins if each is not None), default=""),
        ends="" if None in ends else max(each.isoformat() for each in ends if each is not None),
    )


type _Days = tuple[date | None, date | None]
"""The first and the last day; None for none."""
type _Reader = Callable[[re.Match[str], date], _Days | None]
type _Table = Sequence[tuple[re.Pattern[str], _Reader]]


def _tells(part: str) -> bool:
    return _GREETING.fullmatch(part) is None and not tells_nothing(part, "user")


class _Forms(NamedTuple):
    """The forms of words of two languages."""

    never: re.Pattern[str]
    past: re.Pattern[str]
    present: re.Pattern[str]
    change: re.Pattern[str]
    starts: _Table
    until: _Table
    during: _Table
    coming: _Table = ()
    future: re.Pattern[str] = re.compile(r"(?!)")


def _time_of(part: str, said: date) -> _Days:
    """Return the days of a part of a text, in small letters."""
    found = _time_by(_GERMANIC, part, said)
    return _time_by(_ROMANCE, part, said) if found == (None, None) and is_romance(part) else found


def _time_by(forms: _Forms, part: str, said: date) -> _Days:
    if forms.never.search(part) or forms.past.search(part):
        return None, None
    begin = _first(forms.starts, part, said)
    end = _first(forms.until, part, said)
    if end is None and forms.present.search(part) and (during := _first(forms.during, part, said)) is not None:
        begin, end = begin or during, None if forms.change.search(part) else during
    if begin is None and end is None and (forms.future.search(part) or forms.change.search(part)):
        begin = _first(forms.coming, part, said)
    first, last = begin[0] if begin else None, end[1] if end else None
    if last is not None and last < said:
        return None, None
    return first if first is not None and first > said else None, last


def _first(patterns: _Table, part: str, said: date) -> _Days | None:
    """Return the days of the first pattern that finds some."""
    for pattern, read in patterns:
        for match in pattern.finditer(part):
            if (found := read(match, said)) is not None:
                return found
    return None


def _day(match: re.Match[str], said: date) -> _Days | None:
    """Return the days that the group ``day`` names: the first one such from the day on which it was said."""
    for pattern, read in (*_DAYS, *_ROMANCE_DAYS):
        if (found := pattern.fullmatch(match["day"])) is not None:
            return read(found, said)
    return None


def _date(match: re.Match[str], said: date) -> _Days | None:
    parts = match.groupdict()
    month = int(parts["number"]) if parts.get("number") else number_of(match["month"], MONTHS, ROMANCE_MONTHS)
    year = int(parts["year"]) if parts.get("year") else None
    day = int(parts["of_month"]) if parts.get("of_month") else None
    for each in range(said.year, said.year + 5) if year is None else (year,):  # 29 February
        try:
            first = date(each, month, day or 1)
        except ValueError:
            continue
        last = first if day else _end_of_month(first)
        if year is not None or last >= said:
            return first, last
    return None


def _of_month(match: re.Match[str], said: date) -> _Days | None:
    """Return "the 15th" of this month or the next."""
    day = int(match["of_month"] or match["am"])
    for months in range(3):
        first = _months_on(said.replace(day=1), months)
        if 1 <= day <= _end_of_month(first).day and (found := first.replace(day=day)) >= said:
            return found, found
    return None


def _weekday(match: re.Match[str], said: date) -> _Days:
    """Return the next such day; "next Friday" may be that of this week, or of the next."""
    number = number_of(match["weekday"], WEEKDAYS, ROMANCE_WEEKDAYS) - 1
    coming = said + timedelta(days=(number - said.weekday() - 1) % 7 + 1)
    if match["next"]:
        monday = said + timedelta(days=7 - said.weekday())
        return coming, max(coming, monday + timedelta(days=number))
    return coming, coming


def _weekend(match: re.Match[str], said: date) -> _Days:
    """Return Saturday and Sunday, or what is left of them."""
    sunday = said + timedelta(days=6 - said.weekday() + (7 if match.groupdict().get("next") else 0))
    return max(said, sunday - timedelta(days=1)), sunday


def _calendar(match: re.Match[str], said: date) -> _Days:
    """Return this week, month or year, or the next; ``end`` stands for its last day."""
    on = 1 if match.groupdict().get("next") else 0
    unit = UNIT_OF[match["unit"]]
    if unit == "w":
        first = said + timedelta(days=7 * on - said.weekday())
        last = first + timedelta(days=6)
    elif unit == "m":
        first = _months_on(said.replace(day=1), on)
        last = _end_of_month(first)
    else:
        first, last = date(said.year + on, 1, 1), date(said.year + on, 12, 31)
    return (last, last) if match.groupdict().get("end") else (max(first, said), last)


def _year(match: re.Match[str], said: date) -> _Days:
    return date(int(match["year"]), 1, 1), date(int(match["year"]), 12, 31)


def _days_on(days: int) -> _Reader:
    def read(_: re.Match[str], said: date) -> _Days:
        return said + timedelta(days=days), said + timedelta(days=days)

    return read


def _span(match: re.Match[str], said: date) -> _Days:
    """Return so many days, weeks, months or years from the day on which it was said; "a few" may be one more."""
    count = count_of(match["count"]) + (match["count"] in LOOSE)
    unit = UNIT_OF[match["unit"]]
    days = {"d": 1, "w": 7}.get(unit)
    if days is not None:
        return said, said + timedelta(days=count * days)
    return said, _months_on(said, count * (1 if unit == "m" else 12))


def _after_span(match: re.Match[str], said: date) -> _Days:
    last = _span(match, said)[1]
    return last, last


def _months_on(day: date, months: int) -> date:
    month = day.year * 12 + day.month - 1 + months
    year, number = divmod(month, 12)
    return date(year, number + 1, min(day.day, monthrange(year, number + 1)[1]))


def _end_of_month(day: date) -> date:
    return day.replace(day=monthrange(day.year, day.month)[1])


_NAMES: Final = (
    "day", "week", "month", "year", "night", "morning", "evening", "tag", "mittwoch", "sonnabend", "woche", "monat",
    "jahr", "heute", "morgen", *sorted({name[:3] for names in MONTHS for name in names}),
)  # fmt: skip
"""A text with none of these, and no number, names no day."""
_NUMBER: Final = re.compile(r"\b\d")
_SPEAKER: Final = (
    r"(?:i|i['\u2019]\w+|my|we|we['\u2019]\w+|our|he|she|they|it|it['\u2019]s|the|there|ich|mein\w*|wir|unser\w*|er|sie|es|der|"
    r"die|das)\b"
)
_PART: Final = re.compile(
    r"(?<!\b(?:Dr|Mr|Ms|St)\.)(?<!\bMrs\.)(?<!\bProf\.)(?<=[^\d\s][.!?])\s+|[\r\n;]+|"
    rf",? (?:and|but|so|und|aber|denn) (?={_SPEAKER})|,? (?:y|pero|porque|et) |"
    r",? mais (?=(?:je|il|elle|on|nous|mon|ma|mes|le|la|les)\b|[jl].)",
    re.IGNORECASE,
)
_GREETING: Final = re.compile(
    r"(?:(?:hi|hey|hello|thanks|thank you|please|ok|okay|sure|yes|no|well|oh|by the way|btw|fyi|just so you know|good "
    r"(?:morning|day|evening|news)|hallo|danke|bitte|ja|nein|guten (?:morgen|tag|abend)|\u00fcbrigens|zur info|all|"
    r"everyone|everybody|zusammen|there|again|hola|gracias|bonjour|salut|merci)\b[\s,.!:]*)+",
    re.IGNORECASE,
)
_NEVER: Final = re.compile(
    rf"\b(?:every|each|always|usually|normally|often|mostly|whenever|daily|weekly|immer|jede[nmrs]?|t\u00e4glich|meistens|"
    rf"normalerweise|oft|since|seit)\b|\b(?:{names_of(WEEKDAYS)})(?:s\b| (?:mornings|afternoons|evenings|nights))|"
    rf"\b(?:{names_of(WEEKDAYS)})s?(?: (?:until|till|through|thru|to|bis)| ?[-\u2013]) "
    rf"?(?:{names_of(WEEKDAYS)})"
)
"""What is a habit, or began before."""
_PAST: Final = re.compile(
    r"\b(?:was|were|wasn't|weren't|had|did|didn't|used to|went|came|spent|took|met|saw|made|gave|yesterday|ago|"
    r"last (?:week|month|year|night|\w+day)|(?:have|has|'ve|\w's) (?:just |already |also |only )?(?:been|\w+ed|lived|"
    r"worked)|(?:i|we|he|she|they|it|you)(?: \w+ly| just| already| also| only)? (?!need\b)\w{2,}ed|"
    r"war|waren|warst|hatte|hatten|wurde|wurden|blieb|blieben|ging|gingen|fuhr|fuhren|wohnte|arbeitete|lebte|gestern|"
    r"letzte[nmrs]?|gewesen|geblieben|gefahren|gereist|"
    rf"vor (?:\d+|{names_of(COUNTS)}) \w+|(?:habe|hast|hat|haben)\b.*\b(?:ge\w+(?:t|en)|\w+iert))\b"
)
_PRESENT: Final = re.compile(
    r"\b(?:am|is|are|isn't|aren't|will|won't|i'm|we're|they're|he's|she's|it's|\w+'ll|staying|"
    r"have|has|'ve got|'s got|"
    r"(?:i|we)(?: only| just| still| also)? (?:work|stay|live|use|need|take|drive|sleep|share|teach|rent|cover)\b|"
    r"bin|bist|ist|sind|seid|bleibe|bleiben|bleibt|werde|wird|werden|wohne|wohnen|arbeite|arbeiten|habe|hat|haben|"
    r"brauche|nehme|fahre|mache|nutze|schlafe|vertrete|gilt|gelten)\b"
    r"|\b(?:week|month|year|weekend|today|tonight|woche|monat|jahr|wochenende|heute)(?=: )"
)
_FUTURE: Final = re.compile(r"\b(?:will|won't|\w+'ll|going to|gonna|werde|wird|werden)\b")
_CHANGE: Final = re.compile(
    r"\b(?:(?:am|i'm|is|are|we're|be|'ll|will|going to) (?:move|start|join|leave|change|switch|become|marry|quit|"
    r"retire|"
    r"(?:mov|start|join|leav|chang|switch|becom|gett|marry|quitt|retir)ing)|ziehe|ziehen|zieht|umziehen|wechsle|wechseln|"
    r"fange|fangen|beginne|beginnen|starte|starten)\b"
)
"""What happens once, and lasts."""
_MONTH: Final = rf"{MONTH}\.?"
_OF_MONTH: Final = r"(?P<of_month>\d{1,2})"
_YEAR: Final = rf"(?:,? {YEAR}\b)"
_NEXT: Final = (
    r"(?:(?P<next>next|n\u00e4chste[nmrs]?|kommende[nmrs]?)|this|the|this coming|the coming|diese[nmrs]?|de[nmrs])"
)
_TIME_OF_DAY: Final = r"(?: (?:morning|noon|afternoon|evening|night|fr\u00fch|mittag|nachmittag|abend))?"
_UNIT: Final = r"(?P<unit>week|month|year|woche|monat|jahr)(?:e?s)?"


def _compiled(*pairs: tuple[str, _Reader], before: str = "") -> _Table:
    return tuple((re.compile(before + pattern), read) for pattern, read in pairs)


def _any_of(days: _Table) -> str:
    """Return a pattern of each of the days, with one name for all."""
    patterns = "|".join(re.sub(r"\(\?P<\w+>", "(?:", pattern.pattern) for pattern, _ in days)
    return rf"(?P<day>{patterns})(?!\w)"


_DAYS: Final = _compiled(
    (rf"{YEAR}-(?P<number>\d{{1,2}})-{_OF_MONTH}", _date),
    (rf"{_OF_MONTH}\. ?(?P<number>\d{{1,2}})\.(?: ?{YEAR})?", _date),
    (rf"{_OF_MONTH}(?:st|nd|rd|th|\.)?(?: of)? {_MONTH}{_YEAR}?", _date),
    (rf"{_MONTH} {_OF_MONTH}(?:st|nd|rd|th)?\b{_YEAR}?", _date),
    (rf"(?:(?:the )?end of |ende ){_MONTH}{_YEAR}?", _date),
    (rf"{_MONTH}{_YEAR}?", _date),
    (rf"(?:the )?(?P<end>end) of (?:the |this |(?P<next>next )){_UNIT}", _calendar),
    (rf"(?P<end>ende) (?:de[rs] |diese[rs] |(?P<next>n\u00e4chste[nrs] |kommende[nrs] ))?{_UNIT}", _calendar),
    (rf"(?:{_NEXT} )?(?P<weekday>{names_of(WEEKDAYS)}){_TIME_OF_DAY}", _weekday),
    (rf"(?:{_NEXT} )?(?:weekend|wochenende)", _weekend),
    (rf"(?P<next>next|n\u00e4chste[nrs]?|kommende[nrs]?) {_UNIT}", _calendar),
    (rf"(?:this|diese[nrs]?) {_UNIT}", _calendar),
    (r"today|tonight|this (?:morning|afternoon|evening)|heute(?: abend)?", _days_on(0)),
    (r"(?:the )?day after tomorrow|\u00fcbermorgen", _days_on(2)),
    (r"tomorrow(?: (?:morning|noon|afternoon|evening|night))?|morgen(?: (?:fr\u00fch|abend))?", _days_on(1)),
    (rf"(?:(?:the )?{_OF_MONTH}(?:st|nd|rd|th)|(?:zum|de[mn]) (?P<am>\d{{1,2}})\.)", _of_month),
    (YEAR, _year),
)  # fmt: skip
"""What may stand behind "until" and "from"; the most exact first."""


_ANY_DAY: Final = _any_of(_DAYS)
_SOME: Final = rf"{COUNT} (?:more |weitere[nr]? )?{UNIT}(?! (?:now|already|straight|old|alt|her)\b)"
_AGAIN: Final = (
    r"(?:(?:the|den|die|next|coming|following|n\u00e4chsten|kommenden|another|about|only|just|etwa|nur|noch) )*"
)


def _table(*pairs: tuple[str, _Reader]) -> _Table:
    return _compiled(*pairs, before=r"(?<!\w)")


_ENDS: Final = (
    r"(?:(?:will )?(?:end|expire|run out|finish|close)|ends|expires|runs out|finishes|closes|(?:is|are) (?:up|over)|"
    r"ending|expiring|last day is)"
)
_ENDET: Final = r"(?:endet|enden|verf\u00e4llt|verfallen|erlischt)"
_UNTIL: Final = _table(
    (rf"(?:until|till|'?til|up to(?: and including)?)(?: the)? {_ANY_DAY}", _day),
    (rf"(?<!get )(?<!go )(?<!going )(?:through|thru)(?: the)? {_ANY_DAY}", _day),
    (rf"from [\w. ]{{1,20}}? to {_ANY_DAY}", _day),
    (rf"(?:until|till) (?:[\w']+ ){{1,6}}?on {_ANY_DAY}", _day),
    (rf"bis (?:[\w']+ ){{1,6}}?am {_ANY_DAY}", _day),
    (rf"bis (?:einschliesslich |inklusive |sp\u00e4testens )?(?:zum |zur )?{_ANY_DAY}", _day),
    (rf"{_ENDS}(?: on| at| in| by)?(?: the)? {_ANY_DAY}", _day),
    (rf"{_ENDS} (?:in|within) {_SOME}", _after_span),
    (rf"(?:lasts?|will last|is valid|are valid|is good)(?: for)? {_AGAIN}{_SOME}", _span),
    (rf"{_ENDET}(?: \w+){{0,2}}? (?:am |im |zum )?{_ANY_DAY}", _day),
    (rf"(?:ist|sind)(?: \w+){{0,2}}? (?:am |im |zum )?{_ANY_DAY} (?:vorbei|zu ende|aus)\b", _day),
    (rf"{_ENDET} (?:schon )?in {_SOME}", _after_span),
    (rf"l\u00e4uft(?: \w+){{0,2}}? (?:am |im |zum )?{_ANY_DAY} (?:ab|aus)\b", _day),
    (rf"l\u00e4uft(?: \w+){{0,2}}? in {_SOME} (?:ab|aus)\b", _after_span),
    (rf"gilt(?: \w+){{0,2}}? {_AGAIN}{_SOME}", _span),
)  # fmt: skip
_DURING: Final = _table(
    (rf"for {_AGAIN}{_SOME}", _span),
    (rf"the next {_SOME}", _span),
    (rf"f\u00fcr {_AGAIN}{_SOME}", _span),
    (rf"(?:die|den) n\u00e4chsten {_SOME}", _span),
    (rf"(?<!seit )(?<!vor )(?<!\bin ){_SOME} "
     r"(?:lang|in|im|bei|auf|krank|weg|unterwegs|verreist|hier|da|dort|nicht)\b", _span),
    (r"(?:for |all )?(?:the rest of )?(?:this|the|(?P<next>next)) (?P<unit>week|month|year)\b(?! of)", _calendar),
    (r"all (?P<unit>week|month|year)\b", _calendar),
    (r"(?:(?:den )?rest (?:de[rs]) |diese[nrs]? |(?P<next>n\u00e4chste[nrs]? |kommende[nrs]? ))"
     r"(?P<unit>woche|monat|jahr)e?s?\b", _calendar),
    (r"(?:(?P<next>next )|this |over the |for the |the whole )weekend\b", _weekend),
    (r"(?:\u00fcbers |am |dieses |(?P<next>n\u00e4chstes |kommendes ))wochenende\b", _weekend),
    (r"(?P<day>today|tonight|this (?:morning|afternoon|evening)|heute(?: abend)?)\b", _day),
    (r"(?<!guten )(?<!am )(?<!heute )(?P<day>tomorrow|morgen|\u00fcbermorgen|the day after tomorrow)\b", _day),
)  # fmt: skip
_FROM: Final = _table(
    (rf"(?:from|as of|effective|starting|beginning)(?: on| in| from)?(?: the)? {_ANY_DAY}", _day),
    (rf"(?:starts|begins)(?: on| in)?(?: the)? {_ANY_DAY}", _day),
    (rf"(?:starts|begins|beginnt|startet) in {_SOME}", _after_span),
    (rf"(?:ab|beginnt|startet)(?: am| im| de[mn]| zum)? {_ANY_DAY}", _day),
    (rf"von {_ANY_DAY} an\b", _day),
)
_COMING: Final = _table(
    (rf"(?:in|on|by|am|im|zum)(?: the| de[mn])? {_ANY_DAY}", _day),
    (rf"in {_SOME}", _after_span),
    (r"(?P<day>(?:next|n\u00e4chste[nrs]?|kommende[nrs]?) \w+)", _day),
    (rf"(?P<day>tomorrow|morgen|\u00fcbermorgen|this (?:{names_of(WEEKDAYS)})|(?:{names_of(WEEKDAYS)}))\b", _day),
)
_GERMANIC: Final = _Forms(_NEVER, _PAST, _PRESENT, _CHANGE, _FROM, _UNTIL, _DURING, _COMING, _FUTURE)
_R_NEXT: Final = r"(?P<next>próxim[oa]|prochaine?|que viene)"
_R_UNIT: Final = r"(?P<unit>semana|mes|año|semaine|mois|année|an)\b"
_R_WEEKDAY: Final = rf"(?P<weekday>{names_of(ROMANCE_WEEKDAYS)})"
_R_TODAY: Final = r"hoy|aujourd'hui|esta (?:mañana|tarde|noche)|ce (?:matin|soir)|cet après-midi"
_R_TOMORROW: Final = r"pasado mañana|après-demain|(?<!la )(?<!esta )mañana|demain"
_ROMANCE_DAYS: Final = _compiled(
    (rf"{YEAR}-(?P<number>\d{{1,2}})-{_OF_MONTH}", _date),
    (rf"{_OF_MONTH}(?:er)? (?:de )?{ROMANCE_MONTH}(?: (?:del? )?{YEAR})?", _date),
    (rf"(?:fin|final|finales)(?: del? mes)? (?:de |d')?{ROMANCE_MONTH}(?: (?:del? )?{YEAR})?", _date),
    (rf"{ROMANCE_MONTH}(?: (?:del? )?{YEAR})?", _date),
    (rf"(?P<end>fin|final|finales) (?:del? |de l.|du )(?:la |est[ea] |(?P<next>próximo ))? ?{_R_UNIT}", _calendar),
    (rf"(?P<next>próximo) {_R_WEEKDAY}", _weekday),
    (rf"{_R_WEEKDAY}(?: {_R_NEXT})?", _weekday),
    (r"(?:(?P<next>próximo) )?(?:fin de semana|week-?end)", _weekend),
    (rf"(?P<next>próxim[oa]) {_R_UNIT}", _calendar),
    (rf"(?:est[ae] |cette |ce )?{_R_UNIT}(?: {_R_NEXT})?", _calendar),
    (_R_TODAY, _days_on(0)),
    (r"pasado mañana|après-demain", _days_on(2)),
    (_R_TOMORROW, _days_on(1)),
    (rf"{_OF_MONTH}(?P<am>)(?! (?:de|h|heures|horas)\b)", _of_month),
)  # fmt: skip
_R_ANY: Final = _any_of(_ROMANCE_DAYS)
_R_SOME: Final = rf"{ROMANCE_COUNT} (?:próxim[oa]s |prochaine?s )?{ROMANCE_UNIT}"
_R_ENDS: Final = r"(?:termina|acaba|finaliza|vence|caduca|expira|se termine|finit|prend fin|expire)"
_ROMANCE: Final = _Forms(
    never=re.compile(
        r"\b(?:cada|tod[oa]s l[oa]s|siempre|normalmente|a menudo|suelo|suele|desde hace|desde que|llevo|lleva|llevamos|"
        r"chaque|tou(?:s|tes) les|toujours|souvent|d'habitude|depuis)\b|\b(?:los|les) "
        rf"(?:{names_of(ROMANCE_WEEKDAYS)})s?\b|\b(?:{names_of(ROMANCE_WEEKDAYS)}) (?:a|au) |"
        rf"\bdesde (?:{names_of(ROMANCE_MONTHS)}|\d)"
    ),
    past=re.compile(
        r"\b(?:ayer|anoche|anteayer|pasad[oa]s?(?! mañana)|hace \w+ \w+|era|eran|éramos|fui|fue|fuimos|fueron|"
        r"(?:est|t)uv\w+|\w{2,}aba(?:s|n|mos)?|tenía\w*|vivía\w*|había\w*|viví|hic\w+|(?:esper|mir|prepar)é|"
        r"(?:h[ae]|has|hemos|han) \w+(?:do|to|cho)|\w{2,}ó|"
        r"(?<!est )(?<!sont )(?<!suis )(?!caf|jos|qu|cong|thé)\w{2,}(?<![aei]r)é|"
        r"hier|derni(?:er|ère)s?|il y a \w+ \w+|(?:ét|av|habit|travaill|viv|log)ai\w+|"
        r"(?:ai|as|a|avons|avez|ont) (?:\w+(?:é|i|u|is|it)|fait)|"
        r"(?:suis|est|sommes|sont) (?:allé|venu|resté|parti|rentré|arrivé)\w*)\b"
    ),
    present=re.compile(
        r"\b(?:est(?:oy|á|amos|án|aré|ará)|es|son|tengo|tiene|trabajo|vivo|uso|tomo|cuido|duermo|funciona|será|alojo|"
        r"suis|est|sommes|sont|ai|avons|ont|travaille|habite|loge|utilise|prends|garde|dors|remplace|serai|sera|serons)\b"
    ),
    change=re.compile(r"\b(?:mud\w+|emp(?:ie|e)z\w+|comienz\w+|cambi\w+|dejo|caso|casamos|(?:déménag|commenc|chang|quitt|mari)\w+)\b"),
    starts=_table(
        (rf"(?:a partir del?|à partir (?:du|de|d'|de la)|dès) ?(?:el |la |le )?{_R_ANY}", _day),
        (rf"desde (?:el |la )(?=próxim|\w+ (?:próxim|que viene)){_R_ANY}", _day),
    ),
    until=_table(
        (rf"(?:hasta|jusqu'(?:à|au|en)|jusque)(?: el| la| le| a)? {_R_ANY}", _day),
        (rf"{_R_ENDS}(?: el| en| a| le| à la| la)? {_R_ANY}", _day),
        (rf"{_R_ENDS} (?:en|dentro de|dans) {_R_SOME}", _after_span),
        (rf"(?:es válid[oa]|vale|dura|est valable|dure) (?:por |durante |pendant )?{_R_SOME}", _span),
    ),
    during=_table(
        (rf"(?:durante|por|pendant|pour) (?:los |las |les )?{_R_SOME}", _span),
        (rf"(?:los|las) próxim[oa]s {_R_SOME}", _span),
        (rf"les {ROMANCE_COUNT} prochaine?s {ROMANCE_UNIT}", _span),
        (rf"(?P<next>próxim[oa]) {_R_UNIT}", _calendar),
        (rf"{_R_UNIT} {_R_NEXT}", _calendar),
        (rf"(?:est[ae]|cette|ce|tod[oa] (?:la|el)|tout(?:e la| le)) {_R_UNIT}", _calendar),
        (r"(?:este |el |ce |le )(?:(?P<next>próximo) )?(?:fin de semana|week-?end)\b", _weekend),
        (rf"(?P<day>{_R_TODAY}|{_R_TOMORROW})\b", _day),
    ),
)  # fmt: skip
