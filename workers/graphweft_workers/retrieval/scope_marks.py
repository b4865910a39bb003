"""Marks: nodes of our own that say when something that a search may find has changed last. Pure.

A mutation that changes what a search finds writes its mark in the same query: the mark of a scope if it concerns the
nodes of one scope, else the one mark that it has in the app. So a mark that is unchanged says that nothing of the scope
has changed, whatever else the app does. Each mutation has marks of its own, because rows of different mutations that
write one node could not share queries. Rules write no marks: see ``MARKED``.

The mark of what adds memories to a user, or to a thread of nobody, is the list of the last ones. So an index that holds
some of them reads those that came later, however large the scope is. Each row of a query appends to what the row before
it wrote.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from graphweft_contracts.memory import derived_id
from graphweft_workers.ports.dialect import SearchTarget
from graphweft_workers.ports.graph_store import INTERNAL_PREFIX
from graphweft_workers.retrieval.records import (
    ENTITY,
    EPISODE,
    FACT,
    MEMORY_LABEL,
    PREFERENCE,
    RELATION,
    STATEMENT,
    SUMMARY,
)
from graphweft_workers.text.terms import scope_term

MARK: Final = f"{INTERNAL_PREFIX}Scope"
MARKED: Final = frozenset({
    MEMORY_LABEL, STATEMENT, SUMMARY, FACT, PREFERENCE, EPISODE, ENTITY, RELATION, "EXTRACTED_FROM", "STATES",
})  # fmt: skip
"""Labels and types whose changes only marks tell. If rules may write one of them, marks say nothing."""
BY_SCOPE: Final[Mapping[str, tuple[str, ...]]] = {
    "add": ("user_id", "thread_id"),
    "add_unowned": ("thread_id",),
    "summarize": ("user_id",),
    "facts": ("user_id",),
    "validity": ("user_id",),
    "preferences": ("user_id",),
    "preference_times": ("user_id",),
}
"""Mutation -> the scopes of its event that have a mark each."""
ADDING: Final = frozenset({"add", "add_unowned"})
"""Mutations whose first mark is a list of what was added; see ``TargetMarks.added``."""
EMBED: Final = "embed"
ERASING: Final = (
    "forget", "update", "end", "erase", "erase_statements", "erase_summaries", "erase_facts", "erase_preferences",
    "erase_preference_times", "erase_validity",
)  # fmt: skip
OF_EPISODES: Final[Mapping[str, str]] = {
    name: f"episodes {name}"
    for name in (
        "add", "add_unowned", "entities", "relations", "erase_episodes", "erase_entities", "erase_relations",
        "clear_entities", "rebuild_entities", "rebuild_relations", "end_relations_0", "end_relations_1",
        "end_relations_2", "end_relations_3", "end_relations_4", "end_rebound_0", "end_rebound_1", "end_rebound_2",
        "end_rebound_3", "end_rebound_4",
    )
}  # fmt: skip
"""Mutation of episodes -> the name of its mark."""
_AT: Final = ("at", "also_at")
"""The property of a mark, by its place in its query: rows that write one property in two places share no query."""
_READ: Final = (  # for "c.id IN $ids" a server takes 0.15 ms longer
    f"UNWIND $ids AS id MATCH (c:{MARK} {{id: id}}) RETURN id, coalesce({', '.join(f'c.{each}' for each in _AT)})"
)
_KNOWN: Final = ("summarize", "facts", "validity", "preferences", "preference_times")

_LENGTH: Final = 600
"""Characters of a list: 16 ids. A graph server writes all of them to disk with each event."""
_MORE: Final = "+"
"""In a list: more was added than it names. Before the last id of an event with more than half of its room."""

type Marks = Mapping[str, str]
"""The value of each mark that there is, by its id."""


def marking(mutation: str, text: str) -> str:
    """Return the query of a mutation that also writes its marks: the parameters are those of ``mark_params``."""
    count = len(BY_SCOPE.get(mutation, ())) or 1
    marks = ""
    for place in range(count):
        at = f"mark{place}.{_AT[place]}"
        lists = place == 0 and mutation in ADDING
        value = f"right(coalesce({at}, '') + ' ' + $added, {_LENGTH})" if lists else "$marked"
        marks += f"MERGE (mark{place}:{MARK} {{id: $mark{place}}}) SET {at} = {value} "
    return f"{marks}WITH mark0 {text}"


def mark_params(mutation: str, scopes: Mapping[str, Any], *event: str, added: Iterable[str] = ()) -> dict[str, Any]:
    """Return the marks of a mutation for an event with the scopes; ``event`` tells it from all others.

    ``added``: the ids of the nodes that the event adds, for a mutation of ``ADDING``.
    """
    names = BY_SCOPE.get(mutation, ())
    marks = [_of(mutation, name, value) if (value := scopes.get(name)) else _of(mutation, name) for name in names]
    params = {f"mark{at}": mark for at, mark in enumerate(marks or [_of(mutation)])}
    if mutation in ADDING:
        ids = list(added)
        named = " ".join(ids)  # in half of the room, so that an event that is applied again changes the list
        params["added"] = named if len(named) <= _LENGTH // 2 else f"{_MORE} {ids[-1]}"
    if mutation not in ADDING or len(marks) > 1:
        params["marked"] = derived_id("mark", *event)
    return params


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetMarks:
    """The marks that concern a target."""

    always: tuple[str, ...]
    """All of these must be unchanged."""
    by_scope: tuple[tuple[str, ...], ...] = ()
    """All of one of these must be unchanged, and at least one of it must be there."""
    vectors: str = ""
    """The mark of vectors, if the nodes have some."""

    @property
    def ids(self) -> Iterable[str]:
        """All of them."""
        return (*self.always, *(each for some in self.by_scope for each in some), *filter(None, (self.vectors,)))

    def are_there(self, marks: Marks) -> bool:
        """Tell whether a scope has marks: one that an earlier version wrote has none until its next event."""
        return not self.by_scope or any(each in marks for some in self.by_scope for each in some)

    def are_kept(self, before: Marks, now: Marks) -> bool:
        """Tell whether nothing that a scope holds was changed or removed."""
        if before == now:
            return True
        changed = before.items() ^ now.items()  # mostly one or two
        return all(each not in self.always for each, _ in changed)

    def added(self, before: Marks, now: Marks) -> Sequence[str] | None:
        """Return the ids of the nodes that were added to a scope since then; None if its marks do not say it.

        Each may be there before or not: an event may be applied again, or add nothing.
        """
        for some in self.by_scope:
            found = [_since(before.get(each), now.get(each)) for each in some if before.get(each) != now.get(each)]
            if found and None not in found:
                return list(dict.fromkeys(id for ids in found for id in ids or ()))
        return None

    def are_same(self, before: Marks, now: Marks) -> bool:
        """Tell whether nothing of the scope has changed but its vectors."""
        if before == now:  # mostly
            return self.are_there(now)
        return self.are_kept(before, now) and (not self.by_scope or any(
            all(before.get(each) == now.get(each) for each in some) and any(each in now for each in some)
            for some in self.by_scope
        ))  # fmt: skip


def marks_of(target: SearchTarget) -> TargetMarks | None:
    """Return the marks that concern a target; None: there are none that would tell all changes of its scope."""
    [label, *others] = target.labels
    scope = {**target.origin_scope, **target.scope}
    if others:
        return None
    if label == MEMORY_LABEL:
        writers = {"user_id": ("add",), "thread_id": ("add", "add_unowned")}
        by_scope = tuple(
            tuple(_of(mutation, name, scope[name]) for mutation in some)
            for name, some in writers.items()
            if name in scope
        )
        vectors = _of(EMBED) if target.vector is not None else ""
        return TargetMarks(always=tuple(map(_of, ERASING)), by_scope=by_scope, vectors=vectors) if by_scope else None
    if label in {FACT, PREFERENCE, SUMMARY}:
        if "user_id" not in scope:  # a fact of a thread may be ended by another thread of its user
            return None
        of_user = (_of(mutation, "user_id", scope["user_id"]) for mutation in _KNOWN)
        return TargetMarks(always=(*map(_of, ERASING), *of_user))
    if label == STATEMENT:  # they are found when their memory is forgotten
        return TargetMarks(always=tuple(map(_of, ERASING)))
    return TargetMarks(always=tuple(OF_EPISODES.values())) if label in {EPISODE, ENTITY, RELATION} else None


def reading(ids: Collection[str]) -> tuple[str, dict[str, Any]]:
    """Return the query for marks and its parameters: rows of id and value."""
    return _READ, {"ids": list(dict.fromkeys(ids))}


def _since(before: str | None, now: str | None) -> list[str] | None:
    """Return what a list has behind an earlier form of it; None if it does not go on from there."""
    last = (before or "").rpartition(" ")[2]
    earlier, is_there, later = (now or "").partition(f"{last} ")
    if not last or not is_there or not (before or "").endswith(earlier + last):
        return None  # more was added than the list holds, it is of another graph, or an earlier version wrote it
    ids = later.split(" ")
    return None if _MORE in ids else ids


def _of(mutation: str, name: str = "", value: str = "") -> str:
    return f"{mutation} {scope_term(name, value)}" if value else f"{mutation} {name}".strip()
