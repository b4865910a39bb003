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
from graphweft_workers.features.episodes.ontologies.edge_rules import LEVELS, EdgeEnds, TypeEnds
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


_DIFFERS: Final = "coalesce(r.{0}, '') <> coalesce({0}, '')"


def _ends(level: int) -> str:
    """Return the part of a query that sets the ends of a level: of relations ``r``, or of what follows ``key``."""
    if level:
        # The place of a relation among its supports is found in two steps: by each ``_WINDOW``-th one, and in a part.
        follow = (
            f"{_OF_KEY}UNWIND found AS p WITH key, p WHERE p.level < {level} "
            "WITH DISTINCT key, p ORDER BY p.valid_at, p.id "
            "WITH key, collect(p) AS supports "
            f"WITH key, supports, [at IN range(0, size(supports) - 1, {_WINDOW}) | supports[at]] AS marks "
            f"MATCH (r:{RELATION}) WHERE r.follows = key AND r.level = {level} "
            f"WITH r, supports, size([p IN marks WHERE p.valid_at <= {_AT.format('r')}]) * {_WINDOW} AS stop "
            f"WITH r, supports[CASE WHEN stop <= {2 * _WINDOW} THEN 0 ELSE stop - {2 * _WINDOW} END "
            f".. stop + {_WINDOW}] AS part "
            f"WITH r, part, size([p IN part WHERE p.valid_at <= {_AT.format('r')}]) AS place "
            f"WITH r, part[place .. place + {_WINDOW}] AS late, "
            f"[p IN part[CASE WHEN place <= {_WINDOW} THEN 0 ELSE place - {_WINDOW} END .. place] "
            f"WHERE coalesce(p.invalid_at, '~') > {_AT.format('r')}] AS held "
            "WITH r, late, held, head([p IN late[0 .. 1] | p.valid_at]) AS first "
            "WITH r, CASE WHEN size(held) > 0 THEN held ELSE [p IN late WHERE p.valid_at = first] END AS supports "
            "WITH r, reduce(highest = '', support IN supports | "
            "CASE WHEN coalesce(support.invalid_at, '~') + ' ' + support.id > highest "
            "THEN coalesce(support.invalid_at, '~') + ' ' + support.id ELSE highest END) AS last "
            "WITH r, CASE WHEN last = '' OR last STARTS WITH '~' THEN null ELSE last END AS follow "
        )
    else:
        follow = "WITH r, null AS follow "
    ended = {
        "stated_until": "CASE WHEN ender IS NULL THEN null ELSE stated END",
        "ended_at": "end_time",
        "ended_by": "ender_id",
        "ended_why": "CASE WHEN ender IS NULL THEN null WHEN ender = follow AND r.marks IS NULL THEN 'depends_on' "
        "ELSE 'single_valued' END",
        "invalid_at": "CASE WHEN ender IS NULL OR stated < end_time THEN stated ELSE end_time END",
        "doubted_at": "CASE WHEN r.marks IS NULL THEN null ELSE gone_time END",
        "doubted_by": "CASE WHEN r.marks IS NULL THEN null ELSE gone_id END",
    }
    return (
        f"{follow}"
        f"WITH r, follow, {_STATED.format('r')} AS stated, [r.next_source, r.next_target, "
        "CASE WHEN r.marks IS NULL THEN follow ELSE null END] AS enders "
        "WITH r, follow, stated, "
        "reduce(lowest = '~', each IN enders | CASE WHEN each < lowest THEN each ELSE lowest END) AS first "
        "WITH r, follow, stated, CASE WHEN first = '~' THEN null ELSE first END AS ender "
        "WITH r, follow, stated, ender, split(ender, ' ') AS at, split(follow, ' ') AS gone "
        "WITH r, follow, stated, ender, at[0] AS end_time, at[1] AS ender_id, gone[0] AS gone_time, gone[1] AS gone_id "
        f"WITH r, {', '.join(f'{value} AS {name}' for name, value in ended.items())} "
        f"WHERE {' OR '.join(_DIFFERS.format(name) for name in ended)} "
        f"SET {', '.join(f'r.{name} = {name}' for name in ended)} "
        # By both ends: a source has many relationships.
        f"WITH r MATCH (s:{ENTITY} {{id: r.source_id}}) MATCH (t:{ENTITY} {{id: r.target_id}}) WITH r, s, t "
        f"MATCH (s)-[x:RELATED_TO {{id: r.id}}]->(t) "
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
END: Final[Mapping[str, str]] = {
    "succeed_relations": f"UNWIND $keys AS key {_SUCCEED}",
    **{
        f"end_relations_{level}": f"UNWIND $keys AS key {_OF_KEY}UNWIND found AS r WITH DISTINCT r "
        f"WHERE r.level = {level} {_OF_FOLLOWED if level else ''}" + _ends(level)
        for level in range(LEVELS + 1)
    },
}
"""In this order."""
_OF_USER: Final = "r.user_id = $user_id AND r.scopes IS NOT NULL"
ERASE: Final[Mapping[str, str]] = {
    "rebind_relations": f"MATCH (r:{RELATION}) WHERE {_OF_USER} AND r.level IS NOT NULL SET "
    + _bound(dict.fromkeys(
        ("next_source", "next_target", "seen_source", "seen_target", "ended_at", "ended_by", "ended_why",
         "stated_until", "doubted_at", "doubted_by"), "null",
    ))
    + f" WITH r MATCH (a:{ENTITY} {{id: r.source_id}})-[x:RELATED_TO {{id: r.id}}]->(b:{ENTITY}) "
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


def ends_after(relations: list[_Params], ends: EdgeEnds) -> list[tuple[str, _Params]]:
    """Return the mutations that set the ends which relations of an episode change."""
    next_keys: dict[str, None] = {}
    levels: dict[int, dict[str, None]] = {}
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
    said: list[tuple[str, _Params]] = []
    if next_keys:
        said.append(("succeed_relations", {"keys": list(next_keys)}))
    said += [(f"end_relations_{level}", {"keys": list(keys)}) for level, keys in sorted(levels.items())]
    return said


def _key(subject: str, type: str) -> str:
    return derived_id("relations of", subject, type)
