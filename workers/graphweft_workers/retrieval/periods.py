"""The days that a question names, in English, German, Spanish and French. Pure.

A table of patterns. ``dateparser`` and ``parsedatetime`` were tried: both find days in "Sunday roast", "Is the sun
hot?" and "May I?", and take "the day before yesterday" for yesterday.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Final

MONTHS: Final = (
    ("january", "januar", "jan"), ("february", "februar", "feb"), ("march", "märz", "maerz", "mar"), ("april", "apr"),
    ("may", "mai"), ("june", "juni", "jun"), ("july", "juli", "jul"), ("august", "aug"), ("september", "sept", "sep"),
    ("october", "oktober", "oct", "okt"), ("november", "nov"), ("december", "dezember", "dec", "dez"),
)  # fmt: skip
WEEKDAYS: Final = (
    ("monday", "montag"), ("tuesday", "dienstag"), ("wednesday", "mittwoch"), ("thursday", "donnerstag"),
    ("friday", "freitag"), ("saturday", "samstag", "sonnabend"), ("sunday", "sonntag"),
)  # fmt: skip
COUNTS: Final = (
    ("a", "an", "one", "ein", "eine", "einen", "einem", "einer"), ("two", "couple", "couple of", "zwei"),
    ("three", "drei"), ("four", "vier"),
    ("five", "few", "fünf", "paar", "ein paar"), ("six", "sechs"), ("seven", "sieben"), ("eight", "acht"),
    ("nine", "neun"), ("ten", "zehn"), ("eleven", "elf"), ("twelve", "zwölf"),
)  # fmt: skip
LOOSE: Final = frozenset({"couple", "couple of", "few", "paar", "ein paar"})
ROMANCE_MONTHS: Final = (
    ("enero", "janvier"), ("febrero", "février"), ("marzo", "mars"), ("abril", "avril"), ("mayo", "mai"),
    ("junio", "juin"), ("julio", "juillet"), ("agosto", "août"), ("septiembre", "setiembre", "septembre"),
    ("octubre", "octobre"), ("noviembre", "novembre"), ("diciembre", "décembre"),
)  # fmt: skip
"""Names of Spanish and French are apart: "mars" and "once" are words of English."""
ROMANCE_WEEKDAYS: Final = (
    ("lunes", "lundi"), ("martes", "mardi"), ("miércoles", "mercredi"), ("jueves", "jeudi"), ("viernes", "vendredi"),
    ("sábado", "samedi"), ("domingo", "dimanche"),
)  # fmt: skip
_ROMANCE_COUNTS: Final = (
    ("un", "una", "une"), ("dos", "deux"), ("tres", "trois"), ("cuatro", "quatre"), ("cinco", "cinq"), ("seis", "six"),
    ("siete", "sept"), ("ocho", "huit"), ("nueve", "neuf"), ("diez", "dix"), ("once", "onze"), ("doce", "douze"),
)  # fmt: skip
_ROMANCE_NAMES: Final = (
    *(name for names in (*ROMANCE_WEEKDAYS, *ROMANCE_MONTHS) for name in names), "semana", "semaine", "week-end",
    " mes", " mois", "hoy", "mañana", "ayer", "anoche", "hier", "aujourd", "demain", "día", "jour", "año", "année",
    " ans", "en 20", "hasta", "jusqu",
)  # fmt: skip
_UNITS: Final = {"d": 1, "w": 7, "m": 30, "y": 365}
UNIT_OF: Final = {
    **dict.fromkeys(("day", "tag", "día", "jour"), "d"), **dict.fromkeys(("week", "woche", "semana", "semaine"), "w"),
    **dict.fromkeys(("month", "monat", "mes", "mois"), "m"),
    **dict.fromkeys(("year", "jahr", "año", "an", "année"), "y"),
}  # fmt: skip
"""The unit that a name says."""
_LONG: Final = 31
"""Days; a longer period says little about one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """Days that a question names: a part that is None may be any."""

    year: int | None = None
    month: int | None = None
    day: int | None = None
    first: str = ""
    last: str = ""
    """The first and the last day of a relative time such as "last week"."""
    is_long: bool = False

    def fit(self, day: str) -> float:
        """Return how well a day such as ``2026-11-28`` fits, from 0 to 1."""
        if self.first:
            within = self.first <= day <= self.last
            return (0.3 if self.is_long else 1.0) if within else 0.0
        try:
            year, month, of_month = int(day[:4]), int(day[5:7]), int(day[8:10])
        except ValueError:
            return 0.0
        if (self.year is not None and self.year != year) or (self.month is not None and self.month != month):
            return 0.0
        if self.month is None:
            return 0.3
        if self.day is None:
            return 0.7
        return 1.0 if self.day == of_month else 0.4

    def begin(self, today: date) -> str:
        """Return the first of its days; empty if it names a day alone. See ``end``."""
        end = self.end(today)
        if not end:
            return ""
        return self.first or f"{end[:4]}-{self.month or 1:02}-{self.day or 1:02}"

    def end(self, today: date) -> str:
        """Return the last of its days, such as ``2026-02-28``; without a year, of the last time that it was.

        Empty if it names a day alone.
        """
        if self.first:
            return self.last
        year = self.year or today.year
        if self.year is None and (self.month is None or self.month > today.month):
            year -= 1
        if self.month is None:
            return "" if self.year is None else f"{year}-12-31"
        return f"{year:04}-{self.month:02}-{self.day or 31:02}"


type _Reader = Callable[[re.Match[str], date], Sequence[Period]]


def read_periods(text: str, today: date) -> tuple[list[Period], str]:
    """Return the periods that a case-folded text names, and the text without words that only say when.

    Relative times count from ``today`` and are said in other words where they are told. Names of days, months and
    years stay, because a text may hold them.
    """
    found: list[Period] = []
    rest = " ".join(text.split())
    free = rest  # what no pattern has taken
    for pattern, keeps, read in (*_PATTERNS, *(_ROMANCE_PATTERNS if is_romance(rest) else ())):
        for match in pattern.finditer(free):
            periods = _within_calendar(read, match, today)
            if not periods:
                continue
            start, end = match.span()
            if before := _SINCE.search(free[: match.start()]):
                start = before.start()
                periods = [since for each in periods if (since := _until_today(each, today)) is not None]
            found += (each for each in periods if each not in found)
            free = free[:start] + "|" * (end - start) + free[end:]
            said = rest[start:end]
            kept = _LEAD.sub(lambda lead: " " * len(lead[0]), said) if keeps else " " * len(said)
            rest = rest[:start] + kept + rest[end:]
    return found, rest


def _within_calendar(read: _Reader, match: re.Match[str], today: date) -> Sequence[Period]:
    """Return the periods of a match; none for days before the year 1 or after 9999."""
    try:
        return read(match, today)
    except (OverflowError, ValueError):
        return []


def _between(first: date, last: date) -> Sequence[Period]:
    return [Period(first=first.isoformat(), last=last.isoformat(), is_long=(last - first).days >= _LONG)]


def _ago(today: date, first: int, last: int) -> Sequence[Period]:
    """Return the days from ``first`` days ago to ``last`` days ago."""
    return _between(today - timedelta(days=first), today - timedelta(days=last))


def _day_ago(days: int) -> _Reader:
    return lambda _, today: _ago(today, days, days)


def _until_today(period: Period, today: date) -> Period | None:
    """Return the days since a period began; without a year, the last time."""
    try:
        if period.first:
            start = date.fromisoformat(period.first)
        else:
            start = date(period.year or today.year, period.month or 1, period.day or 1)
            if period.year is None and start > today:
                start = start.replace(year=start.year - 1)
    except ValueError:  # 29 February
        return None
    return _between(start, today)[0]


def is_romance(text: str) -> bool:
    """Tell whether a text, in small letters, may name days in Spanish or French."""
    return any(name in text for name in _ROMANCE_NAMES)


def number_of(name: str, *tables: Sequence[Sequence[str]]) -> int:
    """Return the number of a name in the first of the tables that has it, from 1."""
    return next(number for names in tables for number, each in enumerate(names, 1) if name in each)


def count_of(text: str) -> int:
    """Return what a number says in digits or words."""
    return int(text) if text.isdecimal() else number_of(text, COUNTS, _ROMANCE_COUNTS)


def _date(match: re.Match[str], today: date) -> Sequence[Period]:
    parts = match.groupdict()
    year, day, number, name = (parts.get(each) for each in ("year", "day", "number", "month"))
    month = int(number) if number else number_of(name, MONTHS, ROMANCE_MONTHS) if name else None
    return _checked(int(year) if year else None, month, int(day) if day else None)


def _slashed(match: re.Match[str], today: date) -> Sequence[Period]:
    """Return both readings of 3/4/2026, where the month may be first or second."""
    one, other, year = int(match["one"]), int(match["other"]), int(match["year"])
    return [*_checked(year, one, other), *(_checked(year, other, one) if one != other else ())]


def _checked(year: int | None, month: int | None, day: int | None) -> Sequence[Period]:
    try:
        date(year or 2024, month or 1, day or 1)
    except ValueError:
        return []
    return [Period(year=year, month=month, day=day)]


def _weekday(match: re.Match[str], today: date) -> Sequence[Period]:
    """Return the last such day before today; of a week that is named, the day of this week."""
    parts = match.groupdict()
    number = number_of(match["weekday"], WEEKDAYS, ROMANCE_WEEKDAYS) - 1
    if "week" in parts:
        return _ago(today, *[today.weekday() + 7 - number] * 2)
    if parts["lead"] in {"this", "diesen", "este", "ce"}:
        past = today.weekday() - number
        return _ago(today, past, past) if past >= 0 else []
    return _ago(today, *[(today.weekday() - number - 1) % 7 + 1] * 2)


def _weekend(match: re.Match[str], today: date) -> Sequence[Period]:
    since_saturday = (today.weekday() - 5) % 7
    if match["last"]:  # not the one that is now
        since_saturday = today.weekday() + 2
    elif match["this"] and today.weekday() < 5:
        return []
    return _ago(today, since_saturday, max(0, since_saturday - 1))


def _calendar(match: re.Match[str], today: date) -> Sequence[Period]:
    """Return this week, month or year up to today, or an earlier one."""
    parts = match.groupdict()
    back = 2 if "before" in parts else 1 if parts["last"] else 0
    unit = UNIT_OF[match["unit"]]
    if unit == "w":
        first = today - timedelta(days=today.weekday() + 7 * back)
        return _between(first, first + timedelta(days=6) if back else today)
    months = today.year * 12 + today.month - 1 - back
    first = date(months // 12, months % 12 + 1, 1) if unit == "m" else date(today.year - back, 1, 1)
    after = date((months + 1) // 12, (months + 1) % 12 + 1, 1) if unit == "m" else date(first.year + 1, 1, 1)
    return _between(first, after - timedelta(days=1) if back else today)


def _trailing(match: re.Match[str], today: date) -> Sequence[Period]:
    count = count_of(match["count"]) if match.groupdict().get("count") else 1
    return _ago(today, count * _UNITS[UNIT_OF[match["unit"]]], 0)


def _time_ago(match: re.Match[str], today: date) -> Sequence[Period]:
    """Return a span around the day: nobody counts weeks, months and years to the day."""
    unit = _UNITS[UNIT_OF[match["unit"]]]
    count = count_of(match["count"]) * unit
    if match["count"] in LOOSE:
        return _ago(today, count + unit, unit)
    return _ago(today, count + unit // 2, max(0, count - unit // 2))


def names_of(of: Sequence[Sequence[str]]) -> str:
    """Return names as alternatives of a pattern, the longest first."""
    return "|".join(sorted((name for each in of for name in each), key=len, reverse=True))


YEAR: Final = r"(?P<year>(?:19|20)\d\d)"
MONTH: Final = rf"(?P<month>{names_of(MONTHS)})\b"
_DAY: Final = r"(?P<day>\d{1,2})"
_WEEKDAY: Final = rf"(?P<weekday>{names_of(WEEKDAYS)})\b"
COUNT: Final = rf"(?P<count>\d{{1,3}}|{names_of(COUNTS)})"
UNIT: Final = r"(?P<unit>day|week|month|year|tag|woche|monat|jahr)(?:s|e|en|n)?\b"
ROMANCE_MONTH: Final = rf"(?P<month>{names_of(ROMANCE_MONTHS)})\b"
ROMANCE_COUNT: Final = rf"(?P<count>\d{{1,3}}|{names_of(_ROMANCE_COUNTS)})"
ROMANCE_UNIT: Final = r"(?P<unit>día|semana|mes|año|jour|semaine|mois|an|année)(?:e?s)?\b"
_ROMANCE_WEEKDAY: Final = rf"(?P<weekday>{names_of(ROMANCE_WEEKDAYS)})\b"
_GERMAN_LAST: Final = r"(?:letzte|vergangene|vorige)[nrsm]?"
_LAST: Final = rf"(?P<last>last|previous|{_GERMAN_LAST})"
_THIS: Final = r"(?:this|diese[nrsm]?)"
_SINCE: Final = re.compile(r"\b(?:since|seit|desde|depuis) (?:the |dem |der |el |la |le )?$")
_LEAD: Final = re.compile(
    rf"\b(?:last|past|previous|since|week|{_GERMAN_LAST}|woche|seit|desde|depuis|pasado|dernier)\b"
)
"""What stands before a name and is in no text for it."""
_PATTERNS: Final[Sequence[tuple[re.Pattern[str], bool, _Reader]]] = tuple(
    (re.compile(rf"\b{pattern}"), keeps, reader)
    for pattern, keeps, reader in (
        (rf"{YEAR}-(?P<number>\d{{1,2}})(?:-{_DAY})?\b", True, _date),
        (rf"{YEAR}/(?P<number>\d{{1,2}})/{_DAY}\b", True, _date),
        (rf"{_DAY}\. ?(?P<number>\d{{1,2}})\. ?{YEAR}\b", True, _date),
        (rf"(?P<one>\d{{1,2}})/(?P<other>\d{{1,2}})/{YEAR}\b", True, _slashed),
        (rf"{_DAY}(?:st|nd|rd|th|\.)?(?: of)? {MONTH}(?:,? {YEAR}\b)?", True, _date),
        (rf"{MONTH} {_DAY}(?:st|nd|rd|th)?\b(?:,? {YEAR}\b)?", True, _date),
        (rf"{MONTH},? {YEAR}\b", True, _date),
        (rf"(?:in|of|during|last|this|im|letzten) {MONTH}", True, _date),
        (rf"(?:in|of|during|im jahr) {YEAR}\b", True, _date),
        (rf"(?:(?<=since )|(?<=seit )){MONTH}", True, _date),
        (rf"(?:(?<=since )|(?<=seit )){YEAR}\b", True, _date),
        (rf"{_WEEKDAY} (?:of )?(?P<week>last week)\b", True, _weekday),
        (rf"(?P<week>last week) (?:on )?{_WEEKDAY}", True, _weekday),
        (rf"{_WEEKDAY} (?P<week>(?:der )?{_GERMAN_LAST} woche)\b", True, _weekday),
        (rf"(?P<week>{_GERMAN_LAST} woche) (?:am )?{_WEEKDAY}", True, _weekday),
        (r"(?:the )?(?P<unit>week|month|year) (?P<before>before last)\b", False, _calendar),
        (r"(?P<before>vorletzte[nrsm]?) (?P<unit>woche|monat|jahr)\b", False, _calendar),
        (rf"(?P<lead>on|last|past|this|am|letzten|vergangenen|vorigen|diesen) {_WEEKDAY}", True, _weekday),
        (rf"(?:(?<=since )|(?<=seit ))(?P<lead>){_WEEKDAY}", True, _weekday),
        (rf"(?:{_LAST} |(?P<this>this |diese[sm] )|(?:on|at|over|during) (?:the )?|am )(?:weekend|wochenende)\b",
         False, _weekend),
        (r"(?:the day before yesterday|vorgestern)\b", False, _day_ago(2)),
        (r"(?:yesterday|last night|gestern|letzte nacht)\b", False, _day_ago(1)),
        (r"(?:today|tonight|this (?:morning|afternoon|evening)|heute)\b", False, _day_ago(0)),
        (rf"{COUNT} {UNIT} ago\b", False, _time_ago),
        (rf"vor {COUNT} {UNIT}", False, _time_ago),
        (rf"(?:last|past|previous|letzten|vergangenen) {COUNT} {UNIT}", False, _trailing),
        (rf"past {UNIT}", False, _trailing),
        (rf"(?:{_LAST}|{_THIS}) (?P<unit>week|month|year|woche|monat|jahr)\b(?! of)", False, _calendar),
    )
)  # fmt: skip
"""The most exact first: what one has taken, the next ones do not see. The second says whether its words may stand in a
text that is asked for; the words of relative times may not."""
_ROMANCE_PATTERNS: Final[Sequence[tuple[re.Pattern[str], bool, _Reader]]] = tuple(
    (re.compile(rf"\b{pattern}"), keeps, reader)
    for pattern, keeps, reader in (
        (rf"{_DAY}(?:er)? (?:de )?{ROMANCE_MONTH}(?: (?:del? )?{YEAR}\b)?", True, _date),
        (rf"(?:en|(?<=desde )|(?<=depuis )|del? mes de|du mois d[e']) ?{ROMANCE_MONTH}(?: (?:del? )?{YEAR}\b)?",
         True, _date),
        (rf"(?:en|(?<=desde )|(?<=depuis )) ?{YEAR}\b", True, _date),
        (rf"(?P<lead>el|este|ce) {_ROMANCE_WEEKDAY}(?! (?:próximo|prochain|que viene))(?: pasado)?", True, _weekday),
        (rf"(?P<lead>){_ROMANCE_WEEKDAY} (?:pasado|dernier)\b", True, _weekday),
        (r"(?:fin de semana|week-?end) (?P<last>pasado|dernier)(?P<this>)\b", False, _weekend),
        (r"(?:anteayer|antes de ayer|avant-hier)\b", False, _day_ago(2)),
        (r"(?:ayer|anoche)\b", False, _day_ago(1)),
        (r"(?:hoy|aujourd.hui)\b", False, _day_ago(0)),
        (rf"(?:hace|il y a) {ROMANCE_COUNT} {ROMANCE_UNIT}", False, _time_ago),
        (rf"(?:los|las|les) (?:últim[oa]s )?{ROMANCE_COUNT} (?:dernières |derniers |últim[oa]s )?{ROMANCE_UNIT}",
         False, _trailing),
        (r"(?:la|el|le|l.) ?(?P<unit>semana|mes|año|semaine|mois|an|année) (?P<last>pasad[oa]|dernière|dernier)\b",
         False, _calendar),
        (r"(?P<last>)(?:est[ae]|cette|ce) (?P<unit>semana|mes|año|semaine|mois|année)\b", False, _calendar),
    )
)  # fmt: skip
