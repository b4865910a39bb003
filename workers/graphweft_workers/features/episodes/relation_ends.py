"""Relations that end by others: what an ontology says in ``single_valued`` and ``depends_on``.

Ends are a function of the relations that there are, whatever the order in which episodes arrive. ``bind_relations``
keeps on a relation what its type says; ``succeed`` finds the next relation of one source and type; ``end_relations``
of each level sets the end, after those of the levels below, on which they depend. A relation ends at the earliest of
what its episodes state (``stated_until``), the next one, and the end of its supports. So an end that is taken back, by
a later episode or an erasure, has no trace.

The supports of a relation are those that held when it was stated last, or else the first that began later. It ends
with the last of them.

What an episode looks at is bounded: ``succeed`` compares only relations near one that has changed since it was looked
at (``seen_source``, ``seen_target``), with ``_WINDOW`` later ones each; a relation depends on the ``_WINDOW`` supports
that began last before it, or on the next ones; and only ends that change are written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from graphweft_contracts.memory import derived_id
from graphweft_workers.features.edge_rules import LEVELS, EdgeEnds, TypeEnds
from graphweft_workers.retrieval.records import ENTITY, EPISODE, RELATION

type _Params = dict[str, Any]

_WINDOW: Final = 50
"""Relations of a source and type, in order of time, that are compared with each one: later ones, or supports."""
BOUND: Final = ("key", "target_key", "follows", "level", "single", "marks", "asserted")
"""What a relation and each episode that states it keep of the rules of its type."""
_STATED: Final = "CASE WHEN {0}.ended_at IS NULL THEN {0}.invalid_at ELSE {0}.stated_until END"
"""The end that the episodes of a relation state."""
# By WHERE, because a property in a pattern counts as a key, and relations are one by their id.
_OF_KEY: Final = (
    f"OPTIONAL MATCH (a:{RELATION}) WHERE a.key = key WITH key, collect(a) AS own "
    f"OPTIONAL MATCH (b:{RELATION}) WHERE b.target_key = key WITH key, own, collect(b) AS others "
    "WITH key, own + others AS found "
)
_AT: Final = "coalesce({0}.asserted, {0}.valid_at)"
_OTHER: Final = "CASE WHEN {0}.key = key THEN {0}.target_id ELSE {0}.source_id END"
_OF_END: Final = "CASE WHEN r.key = key THEN r.{0}_source ELSE r.{0}_target END"
"""What a relation keeps for a key, which is of its source, or its target."""
_SINCE: Final = f"{{0}} + ' ' + r.valid_at + ' ' + coalesce({_STATED.format('r')}, '')"
"""All by which a relation ends others, given the time at which it is said to hold."""
_NOW: Final = _SINCE.format(_AT.format("r"))
_FROM: Final = f"CASE WHEN coalesce({_STATED.format('o')}, '~') > {{0}} THEN {{0}} + ' ' + o.id ELSE null END"
"""That a relation begins at a time, if it has not ended by then."""
# The next one of a relation is the one that begins first of those said later: when it was said, or when it began, if
# that is later than the relation.
# Only relations within ``_WINDOW`` places before one that has changed since it was looked at, at its place now or its
# last one, can have another next one. They are looked at in parts of so many, with properties in lists: a server copies
# a list for each row, and reads a property anew for each pair.
_SUCCEED: Final = (
    f"{_OF_KEY}UNWIND found AS r WITH DISTINCT key, r ORDER BY {_AT.format('r')}, r.id "
    f"WITH key, collect(r) AS found, collect({_AT.format('r')}) AS times, "
    f"collect(coalesce({_OF_END.format('seen')}, '') <> {_NOW}) AS changed, "
    f"collect(CASE WHEN {_OF_END.format('seen')} <> {_NOW} THEN split({_OF_END.format('seen')}, ' ')[0] "
    "ELSE null END) AS left_times "
    f"UNWIND [at IN range(0, size(found) - 1, {_WINDOW}) "
    f"WHERE size([each IN changed[at .. at + {2 * _WINDOW}] WHERE each]) > 0 "
    f"OR size([each IN left_times WHERE each >= times[at] "
    f"AND each <= coalesce(times[at + {2 * _WINDOW - 1}], '~')]) > 0 "
    f"| found[at .. at + {2 * _WINDOW}]] AS part "
    f"WITH key, part, [o IN part | [{_AT.format('o')}, {_OTHER.format('o')}, {_FROM.format(_AT.format('o'))}, "
    f"CASE WHEN o.valid_at < {_AT.format('o')} THEN {_FROM.format('o.valid_at')} ELSE null END, o.valid_at]] AS said "
    f"UNWIND range(0, size(part) - 1) AS number WITH key, part, said, number WHERE number < {_WINDOW} "
    f"WITH key, part[number] AS r, said[number] AS one, said[number + 1 .. number + {_WINDOW + 1}] AS others "
    "WITH key, r, head([o IN others WHERE o[1] <> one[1] AND o[0] > one[0] AND o[2] IS NOT NULL | o[2]]) AS later, "
    "[o IN others WHERE o[3] IS NOT NULL AND o[4] > one[0] AND o[1] <> one[1] | o[3]] AS earlier "
    "WITH key, r, reduce(lowest = coalesce(later, '~'), each IN earlier | "
    f"CASE WHEN each < lowest THEN each ELSE lowest END) AS first, {_AT.format('r')} AS since "
    "WITH key, r, CASE WHEN first = '~' THEN null ELSE first END AS next, "
    f"{_SINCE.format('since')} AS now "
    f"WHERE coalesce({_OF_END.format('next')}, '') <> coalesce(next, '') "
    f"OR coalesce({_OF_END.format('seen')}, '') <> now "
    "SET r.next_source = CASE WHEN r.key = key THEN next ELSE r.next_source END, "
    "r.next_target = CASE WHEN r.key = key THEN r.next_target ELSE next END, "
    "r.seen_source = CASE WHEN r.key = key THEN now ELSE r.seen_source END, "
    "r.seen_target = CASE WHEN r.key = key THEN r.seen_target ELSE now END"
)


def edge_of(carried: str) -> str:
    """Return the part of a query that finds the relationship ``x`` of relations ``r``; ``carried`` are the variables.

    Both ends are found first, and DISTINCT keeps it so: from one end alone, a server looks through all its
    relationships for each relation.
    """
    return (
        f"MATCH (source:{ENTITY} {{id: r.source_id}}) MATCH (target:{ENTITY} {{id: r.target_id}}) "
        f"WITH DISTINCT {carried}, source, target MATCH (source)-[x:RELATED_TO {{id: r.id}}]->(target) "
    )


_OWN: Final = " + '|' + ".join((
    _AT.format("r"), f"coalesce({_STATED.format('r')}, '')", "coalesce(r.next_source, '')",
    "coalesce(r.next_target, '')", "CASE WHEN r.marks IS NULL THEN '|' ELSE 'marks|' END",
))  # fmt: skip
"""All of a relation itself by which its end is found."""
_IS_NEW: Final = f"NOT (coalesce(r.reckoned, '') STARTS WITH ({_OWN}))"
_HELD: Final = "p.valid_at + ' ' + coalesce(p.invalid_at, '~')"
"""All of a support by which it ends others."""
_FULL: Final = "~~"
"""Behind each time."""


def _follow(level: int) -> str:
    """Return the part of a query that finds the ends of supports for relations of a level that follow ``key``.

    It looks only at relations that have changed since it did (``reckoned``), or near a support that has (``told_1`` to
    ``told_4``). Supports are taken in parts of ``_WINDOW``, with those before and behind that relations may depend on:
    so no row has a list of all, which a server would copy for each.
    """
    told = f"p.told_{level}"
    return (
        # A key that nothing follows has no row.
        f"MATCH (r:{RELATION}) WHERE r.follows = key AND r.level = {level} "
        f"WITH key, {_AT.format('r')} AS since, {_IS_NEW} AS is_new "
        "WITH key, collect(CASE WHEN is_new THEN since ELSE null END) AS times "
        f"OPTIONAL MATCH (a:{RELATION}) WHERE a.key = key WITH key, times, collect(a) AS own "
        f"OPTIONAL MATCH (b:{RELATION}) WHERE b.target_key = key WITH key, times, own, collect(b) AS others "
        # With null, because a relation without supports has an end, too.
        "UNWIND own + others + [null] AS p "
        f"WITH DISTINCT key, times, CASE WHEN p.level < {level} THEN p ELSE null END AS p ORDER BY p.valid_at, p.id "
        "WITH key, times, collect(p) AS supports, collect(p.valid_at) AS begins, "
        f"collect(coalesce({told}, '') <> {_HELD}) AS changed, "
        f"collect(CASE WHEN {told} <> {_HELD} THEN split({told}, ' ')[0] ELSE null END) AS left_times "
        f"UNWIND range(0, size(supports), {_WINDOW}) AS at "
        f"WITH key, times, left_times, at, CASE WHEN at < {_WINDOW} THEN 0 ELSE at - {_WINDOW} END AS start, "
        "CASE WHEN at = 0 THEN '' ELSE begins[at] END AS low, "
        f"coalesce(begins[at + {_WINDOW}], '{_FULL}') AS high, "
        f"CASE WHEN at < {_WINDOW} THEN '' ELSE begins[at - {_WINDOW}] END AS lowest, "
        f"coalesce(begins[at + {2 * _WINDOW}], '{_FULL}') AS highest, supports, changed "
        "WITH key, times, left_times, at, start, low, high, lowest, highest, supports, "
        f"changed[start .. at + {2 * _WINDOW}] AS near "
        "WITH key, times, at, start, low, high, supports, any(one IN near WHERE one) "
        "OR any(gone IN left_times WHERE gone >= lowest AND gone <= highest) AS is_near "
        "WHERE is_near OR any(time IN times WHERE time >= low AND time < high) "
        "WITH key, at, low, high, is_near, "
        f"[p IN supports[at .. at + {_WINDOW}] WHERE coalesce({told}, '') <> {_HELD}] AS news, "
        f"[p IN supports[start .. at + {2 * _WINDOW}] | [p.valid_at, coalesce(p.invalid_at, '~') + ' ' + p.id]] "
        "AS said "
        f"OPTIONAL MATCH (r:{RELATION}) WHERE r.follows = key AND r.level = {level} "
        f"AND {_AT.format('r')} >= low AND {_AT.format('r')} < high AND (is_near OR {_IS_NEW}) "
        f"WITH news, key, at, r, {_AT.format('r')} AS since, said "
        "WITH news, key, at, r, since, "
        f"[each IN [s IN said WHERE s[0] <= since][-{_WINDOW} ..] WHERE each[1] > since + ' ~' | each[1]] AS held, "
        f"[s IN said WHERE s[0] > since][0 .. {_WINDOW}] AS late "
        "WITH news, key, at, r, CASE WHEN size(held) > 0 THEN held "
        "ELSE [s IN late WHERE s[0] = late[0][0] | s[1]] END AS lasting "
        "WITH news, key, at, r, reduce(highest = '', each IN lasting | "
        "CASE WHEN each > highest THEN each ELSE highest END) AS last "
        "WITH news, key, at, r, CASE WHEN last = '' OR last STARTS WITH '~' THEN null ELSE last END AS follow "
    )


_ENDED: Final[Mapping[str, str]] = {
    "reckoned": "reckoned",
    "stated_until": "CASE WHEN ender IS NULL THEN null ELSE stated END",
    "ended_at": "by[0]",
    "ended_by": "by[1]",
    "ended_why": "CASE WHEN ender IS NULL THEN null WHEN ender = follow AND r.marks IS NULL THEN 'depends_on' "
    "ELSE 'single_valued' END",
    "invalid_at": "CASE WHEN ender IS NULL OR stated < by[0] THEN stated ELSE by[0] END",
    "doubted_at": "CASE WHEN r.marks IS NULL THEN null ELSE gone[0] END",
    "doubted_by": "CASE WHEN r.marks IS NULL THEN null ELSE gone[1] END",
}


def _ends(level: int, also: str = "") -> str:
    """Return the part of a query that sets the ends of a level: of relations ``r``, or of what follows ``key``."""
    of_part = "news, key, at, " if level else ""
    told = f"FOREACH (p IN news | SET p.told_{level} = {_HELD}) WITH found " if level else ""
    return (
        f"{_follow(level) if level else f'WITH r, null AS follow WHERE {_IS_NEW} '}"
        f"WITH {of_part}r, follow, {_OWN} + coalesce(follow, '') AS reckoned, "
        "reduce(lowest = '~', each IN [r.next_source, r.next_target, "
        "CASE WHEN r.marks IS NULL THEN follow ELSE null END] | "
        "CASE WHEN each < lowest THEN each ELSE lowest END) AS ender "
        f"WITH {of_part}r, follow, reckoned, {_STATED.format('r')} AS stated, "
        "CASE WHEN ender = '~' THEN null ELSE ender END AS ender, coalesce(r.reckoned, '') <> reckoned AS differs "
        f"WITH {of_part}collect(CASE WHEN differs THEN [r, reckoned, stated, ender, follow] ELSE null END) AS found "
        f"{told}UNWIND found AS one WITH one[0] AS r, one[1] AS reckoned, one[2] AS stated, one[3] AS ender, "
        "split(one[3], ' ') AS by, one[4] AS follow, split(one[4], ' ') AS gone "
        f"SET {', '.join(f'r.{name} = {value}' for name, value in _ENDED.items())}{also} "
        f"WITH r {edge_of('r')}"
        "SET x.invalid_at = r.invalid_at, x.ended_by = r.ended_by, x.ended_why = r.ended_why, "
        "x.doubted_at = r.doubted_at"
    )


_OF_FOLLOWED: Final = "WITH DISTINCT r.follows AS key "


def _bound(names: Mapping[str, str]) -> str:
    return ", ".join(f"r.{name} = {value}" for name, value in names.items())


BIND: Final[Mapping[str, str]] = {
    "bind_relations": f"MATCH (p:{EPISODE} {{id: $episode, structured_by: $key}}) UNWIND $bound AS bound "
    # By both ends: an episode may state many.
    f"MATCH (r:{RELATION} {{id: bound.id}}) WITH p, bound, r MATCH (p)-[s:STATES]->(r) SET "
    + ", ".join(f"s.{name} = bound.{name}" for name in BOUND)
    + ", "
    + _bound({
        name: f"CASE WHEN bound.{name} IS NULL THEN r.{name} WHEN coalesce(r.{name}, bound.{name}) <= bound.{name} "
        f"THEN bound.{name} ELSE r.{name} END"
        for name in BOUND
    }),
}  # fmt: skip
_ALSO: Final = ", r.changed_in = CASE WHEN $episode = '' THEN null ELSE $episode END"


def _end(level: int) -> str:
    if not level:
        return f"UNWIND $keys AS key {_OF_KEY}UNWIND found AS r WITH DISTINCT r WHERE r.level = 0 {_ends(0, _ALSO)}"
    return (
        f"UNWIND [$episode] AS changing OPTIONAL MATCH (m:{RELATION}) WHERE m.changed_in = changing "
        "WITH collect(m.key) + collect(m.target_key) + "
        f"collect(CASE WHEN m.level = {level} THEN m.follows ELSE null END) AS more "
        f"UNWIND $keys + more AS key WITH DISTINCT key {_ends(level, _ALSO)}"
    )


END: Final[Mapping[str, str]] = {
    "succeed_relations": f"UNWIND $keys AS key {_SUCCEED}{_ALSO}",
    **{f"end_relations_{level}": _end(level) for level in range(LEVELS + 1)},
    "settle_relations": f"MATCH (r:{RELATION}) WHERE r.changed_in = $episode SET r.changed_in = null",
}
"""In this order."""
_OF_USER: Final = "r.user_id = $user_id AND r.scopes IS NOT NULL"
ERASE: Final[Mapping[str, str]] = {
    "rebind_relations": f"MATCH (r:{RELATION}) WHERE {_OF_USER} AND r.level IS NOT NULL SET "
    + _bound(dict.fromkeys(
        ("next_source", "next_target", "seen_source", "seen_target", "ended_at", "ended_by", "ended_why",
         "stated_until", "doubted_at", "doubted_by", "reckoned", "changed_in",
         *(f"told_{level}" for level in range(1, LEVELS + 1))), "null",
    ))
    + f" WITH r {edge_of('r')}"
    "SET x.ended_by = null, x.ended_why = null, x.doubted_at = null",
    "succeed_rebound": f"MATCH (r:{RELATION}) WHERE {_OF_USER} AND r.single = 1 "
    "UNWIND [r.key, r.target_key] AS key WITH DISTINCT key WHERE key IS NOT NULL " + _SUCCEED,
    **{
        f"end_rebound_{level}": f"MATCH (r:{RELATION}) WHERE {_OF_USER} AND r.level = {level} "
        # All first: ends of relationships that are written from others would be looked up in log order.
        f"WITH collect(r) AS found UNWIND found AS r {_OF_FOLLOWED if level else ''}" + _ends(level)
        for level in range(LEVELS + 1)
    },
}  # fmt: skip
"""In this order, when what the episodes that are left state is in place."""


def bound_of(relation: _Params, type: TypeEnds, asserted: str | None) -> _Params:
    """Return what a relation keeps of the rules of its type; ``asserted`` is the time at which it is said to hold."""
    name, source, target = relation["name"], relation["source"], relation["target"]
    return {
        "id": relation["id"],
        "key": _key(source, name),
        "target_key": _key(target, name) if type.symmetric else None,
        "follows": None if type.depends_on is None else _key(source, type.depends_on),
        "level": type.level,
        "single": 1 if type.single_valued else None,
        "marks": 1 if type.marks else None,
        "asserted": asserted,
    }


def ends_after(relations: list[_Params], ends: EdgeEnds, episode: str) -> list[tuple[str, _Params]]:
    """Return the mutations that set the ends which relations of an episode change."""
    next_keys: dict[str, None] = {}
    levels: dict[int, dict[str, None]] = {}
    beyond = ""
    for relation in relations:
        name = relation["name"]
        if name not in ends:
            continue
        both = ends.is_symmetric(name)
        for subject in (relation["source"], relation["target"]) if both else (relation["source"],):
            if ends.is_single_valued(name):
                next_keys[_key(subject, name)] = None
            for level, type in ends.changed(name):
                levels.setdefault(level, {})[_key(subject, type)] = None
        if ends.reaches_others(name):
            beyond = episode
    said: list[tuple[str, _Params]] = []
    if next_keys:
        said.append(("succeed_relations", {"keys": list(next_keys), "episode": beyond}))
    said += [
        (f"end_relations_{level}", {"keys": list(keys), "episode": beyond}) for level, keys in sorted(levels.items())
    ]
    if beyond:
        said.append(("settle_relations", {"episode": beyond}))
    return said


def _key(subject: str, type: str) -> str:
    return derived_id("relations of", subject, type)
