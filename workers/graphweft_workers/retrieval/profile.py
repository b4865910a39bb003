"""The profile of a user: what they claim about themselves that holds, one line for each thing. Pure.

It is a read of the claims that statements make, by the key of their user, so it is as exact as these: what has ended,
is forgotten or erased is not in it, and a replay gives the same lines. Nothing of its own is stored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from graphweft_workers.ports.dialect import GraphDialect
from graphweft_workers.retrieval.records import STATEMENT
from graphweft_workers.retrieval.statements import Statement
from graphweft_workers.text.terms import scope_term

PROFILE_KEY: Final = "profile"
"""The property of a statement with a sure claim by which the profile of its user finds it."""
COLUMNS: Final = (
    "text",
    "score",
    "kind",
    "subject",
    "predicate",
    "object",
    "valid_at",
    "invalid_at",
    "doubted_at",
    "doubted_because",
    "created_at",
    "id",
)
"""Those of facts."""
USER: Final = "user"
"""The subject of what users say about themselves."""
_MOST_OF_PREDICATE: Final = 8
"""Limit of claims of a predicate that are read, the latest: no section shows more."""
_MOST_READ: Final = 300
"""Limit of claims that are read. "has favourite …" comes last: there may be any number of these predicates."""
_MOST_ANSWERS: Final = 3
"""Limit of claims that answer one question."""
_FAVOURITE: Final = "has favo"
_DOES: Final = "does "
_PRIVATE: Final = frozenset({"has phone number", "has e-mail address", "has address"})
"""Found by a search, and not told in each prompt."""
_LIVES: Final = ("lives in",)
_WORKS: Final = ("works for", "works as", "studies")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Section:
    """A part of the profile."""

    predicates: tuple[str, ...]
    """Predicates, or with a blank at the end their beginnings."""
    most: int
    """Limit of lines: many of one kind displace no other kind."""
    holds: bool = True
    own: bool = True
    """Whether it is about the user, and not about others whom they name."""

    def has(self, predicate: str, *, holds: bool, own: bool) -> bool:
        named = any(predicate.startswith(each) if each[-1] == " " else predicate == each for each in self.predicates)
        return named and holds == self.holds and own == self.own


_SECTIONS: Final = (
    _Section(predicates=("is called", "is aged", "is born on"), most=3),
    _Section(predicates=_LIVES, most=2),
    _Section(predicates=_WORKS, most=3),
    _Section(predicates=("is allergic to", "eats as"), most=4),
    _Section(predicates=("likes", _DOES), holds=False, most=4),
    _Section(predicates=("has favourite ", "has favorite ", "likes", "prefers "), most=5),
    _Section(predicates=("has partner", "has "), most=4),
    _Section(predicates=(*_LIVES, *_WORKS), own=False, most=4),
    _Section(predicates=("has", "drives", _DOES), most=4),
)
"""In the order in which they are shown and cut: name, home, work, what to avoid, likes, people, things and habits."""


def profile_key(user_id: str) -> str:
    """Return the value of ``PROFILE_KEY`` of a user's statements: letters and digits, which every index finds."""
    return scope_term("user_id", user_id)


def profile_query(dialect: GraphDialect, scope: Mapping[str, str], now: str) -> Statement:
    """Return the query for the claims of a scope with a user that hold at ``now``, each once: see ``read_profile``.

    Equal claims are one: the first that still holds says since when, and the latest is shown. They are known beyond
    their thread, as facts are.
    """

    def equal(name: str) -> str:
        return dialect.equal(f"s.{dialect.quoted(name)}", f"$__gw_{name}")

    ordered = f"ORDER BY s.predicate STARTS WITH '{_FAVOURITE}', s.rank DESC"
    scope = {name: value for name, value in scope.items() if name != "thread_id"}
    within = "".join(f" AND {equal(name)}" for name in scope)
    params: dict[str, Any] = {f"__gw_{name}": value for name, value in scope.items()}
    text = (
        f"MATCH (s:{STATEMENT} {{{PROFILE_KEY}: $__gw_profile}}) WHERE s.known_scopes IS NOT NULL AND "
        f"s.timestamp <= $__gw_now AND (s.until IS NULL OR s.until > $__gw_now){within} WITH s ORDER BY s.rank "
        "WITH s.key AS key, s.holds AS holds, s.object_key AS object, min(s.timestamp) AS since, "
        "min(s.recorded) AS recorded, last(collect(s)) AS s "
        "WITH s, since, recorded ORDER BY s.rank DESC "
        f"WITH s.predicate AS predicate, s.holds AS holds, s.subject = '{USER}' AS own, "
        f"collect([s, since, recorded])[0..{_MOST_OF_PREDICATE}] AS some UNWIND some AS one "
        "WITH one[0] AS s, one[1] AS since, one[2] AS recorded "
        f"{ordered} LIMIT {_MOST_READ} "
        "WITH s, since, recorded, CASE WHEN s.doubted_at <= $__gw_now THEN s.doubted_by ELSE null END AS doubted "
        f"OPTIONAL MATCH (by:{STATEMENT} {{id: coalesce(doubted, '')}}) "
        f"WITH s, since, recorded, doubted, by {ordered} "
        "RETURN s.subject, s.predicate, s.object, s.holds, since, recorded, s.author_name, "
        "CASE WHEN s.scopes IS NULL THEN s.memory_id ELSE s.id END, "
        "CASE WHEN doubted IS NULL THEN null ELSE s.doubted_at END, by.text"
    )
    return Statement(text, params | {"__gw_profile": profile_key(scope["user_id"]), "__gw_now": now})


def read_profile(rows: Iterable[Sequence[Any]], most: int) -> list[tuple[Any, ...]]:
    """Return the lines of a profile, at most ``most``, as rows of ``COLUMNS``; ``rows`` are those of the query."""
    parts: list[list[tuple[Any, ...]]] = [[] for _ in _SECTIONS]
    shown: set[str] = set()
    found = list(rows)
    authors = {row[6] for row in found if row[6]}
    for subject, predicate, object, holds, since, recorded, author, id, doubted_at, because in found:
        place = _section_of(subject, predicate, holds=holds)
        if place is None or len(parts[place]) >= _SECTIONS[place].most:
            continue
        who = _who(subject, author if len(authors) > 1 else None)
        text = f"{who} {_said(predicate, object, holds=holds)}".strip()
        if text not in shown:
            shown.add(text)
            parts[place].append((
                text, None, "fact", author or subject, predicate, object, since, None, doubted_at, because, recorded,
                id,
            ))  # fmt: skip
    return [row for part in parts for row in part][:most]


def claimed(rows: Iterable[Sequence[Any]], answering: Collection[str] = ()) -> list[str]:
    """Return the keys of what claims are in, in the order of the profile; of ``rows`` as in ``read_profile``.

    With ``answering``, only what the user claims with one of these predicates, the latest first, private things too.
    None if several authors speak in the scope: then nobody knows whose "I" is meant.
    """
    found = list(rows)
    if len({row[6] for row in found}) > 1:
        return []
    if answering:
        return [row[7] for row in found if row[0] == USER and row[1] in answering and row[3]][:_MOST_ANSWERS]
    return list(dict.fromkeys(row[-1] for row in read_profile(found, _MOST_READ)))


def _section_of(subject: str, predicate: str, *, holds: bool) -> int | None:
    if predicate in _PRIVATE:
        return None
    own = subject == USER
    return next((at for at, each in enumerate(_SECTIONS) if each.has(predicate, holds=holds, own=own)), None)


def _who(subject: str, author: str | None) -> str:
    """Return of whom a line is; empty for the user: that is whose profile it is."""
    of = "" if subject == USER else subject.removeprefix("my ").removeprefix("our ")
    if author is None:
        return of
    return f'"{author}"' if not of else f'"{author}", {of},'


def _said(predicate: str, object: str, *, holds: bool) -> str:
    """Return what is claimed: "lives in Oslo", "does not eat meat", "plays chess"."""
    if holds:
        done = predicate.removeprefix(_DOES)
        ends = "" if done == predicate else "es" if done.endswith("ch") else "s"
        return f"{done}{ends} {object}"
    plain = predicate.removeprefix(_DOES) if predicate.startswith(_DOES) else predicate.removesuffix("s")
    return f"does not {plain} {object}"
