"""Relations that end by others: what an ontology says in ``single_valued`` and ``depends_on``.

Ends are a function of the relations that there are, whatever the order in which episodes arrive. ``bind_relations``
keeps on a relation what its type says; ``succeed`` finds the next relation of one source and type; ``end_relations``
of each level sets the end, after those of the levels below, on which they depend. A relation ends at the earliest of
what its episodes state (``stated_until``), the next one, and the end of its supports. So an end that is taken back, by
a later episode or an erasure, has no trace.

The supports of a relation are those that held when it was stated last, or else the first that began later. It ends
with the last of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from graphweft_contracts.memory import derived_id
from graphweft_workers.features.episodes.ontologies.edge_rules import LEVELS, EdgeEnds, TypeEnds
from graphweft_workers.retrieval.records import ENTITY, EPISODE, RELATION

type _Params = dict[str, Any]

_LOOKED_AHEAD: Final = 50
"""Later relations of a source and type that are compared with each one."""
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
_BEGIN: Final = f"CASE WHEN o.valid_at > {_AT.format('r')} THEN o.valid_at ELSE {_AT.format('o')} END"
_SUCCEED: Final = (
    f"{_OF_KEY}UNWIND found AS r WITH key, r ORDER BY {_AT.format('r')}, r.id WITH key, collect(r) AS found "
    "UNWIND range(0, size(found) - 1) AS number "
    f"WITH key, found[number] AS r, found[number + 1 .. number + {_LOOKED_AHEAD + 1}] AS others "
    f"WITH key, r, reduce(lowest = '~', later IN [o IN others WHERE {_AT.format('o')} > {_AT.format('r')} "
    f"AND {_OTHER.format('o')} <> {_OTHER.format('r')} "
    f"AND coalesce({_STATED.format('o')}, '~') > {_BEGIN} | {_BEGIN} + ' ' + o.id] | "
    "CASE WHEN later < lowest THEN later ELSE lowest END) AS first "
    "WITH key, r, CASE WHEN first = '~' THEN null ELSE first END AS next "
    "SET r.next_source = CASE WHEN r.key = key THEN next ELSE r.next_source END, "
    "r.next_target = CASE WHEN r.key = key THEN r.next_target ELSE next END"
)
_HELD: Final = f"[p IN found WHERE p.valid_at <= {_AT.format('r')} AND coalesce(p.invalid_at, '~') > {_AT.format('r')}]"
_LATER: Final = f"[p IN found WHERE p.valid_at > {_AT.format('r')} | p.valid_at]"


def _ends(level: int) -> str:
    """Return the part of a query that sets the end of each relation ``r`` of a level."""
    if level:
        follow = (
            f"OPTIONAL MATCH (a:{RELATION}) WHERE a.key = r.follows WITH r, collect(a) AS own "
            f"OPTIONAL MATCH (b:{RELATION}) WHERE b.target_key = r.follows WITH r, own, collect(b) AS others "
            "WITH r, own + others AS found "
            f"WITH r, [p IN found WHERE p.level < {level}] AS found "
            f"WITH r, found, {_HELD} AS held, "
            f"reduce(lowest = '~', begun IN {_LATER} | CASE WHEN begun < lowest THEN begun ELSE lowest END) AS first "
            "WITH r, CASE WHEN size(held) > 0 THEN held ELSE [p IN found WHERE p.valid_at = first] END AS supports "
            "WITH r, reduce(highest = '', p IN supports | CASE WHEN coalesce(p.invalid_at, '~') + ' ' + p.id > highest "
            "THEN coalesce(p.invalid_at, '~') + ' ' + p.id ELSE highest END) AS last "
            "WITH r, CASE WHEN last = '' OR last STARTS WITH '~' THEN null ELSE last END AS follow "
        )
    else:
        follow = "WITH r, null AS follow "
    return (
        f"{follow}"
        f"WITH r, follow, {_STATED.format('r')} AS stated, reduce(lowest = '~', each IN [r.next_source, r.next_target, "
        "CASE WHEN r.marks IS NULL THEN follow ELSE null END] | "
        "CASE WHEN each < lowest THEN each ELSE lowest END) AS first "
        "WITH r, follow, stated, CASE WHEN first = '~' THEN null ELSE first END AS ender "
        "WITH r, follow, stated, ender, split(ender, ' ') AS at, split(follow, ' ') AS gone "
        "WITH r, follow, stated, ender, at, gone, CASE WHEN ender IS NULL OR stated < at[0] THEN stated ELSE at[0] END "
        "AS until "
        "SET r.stated_until = CASE WHEN ender IS NULL THEN null ELSE stated END, r.ended_at = at[0], "
        "r.ended_by = at[1], r.ended_why = CASE WHEN ender IS NULL THEN null WHEN ender = follow AND r.marks IS NULL "
        "THEN 'depends_on' ELSE 'single_valued' END, r.invalid_at = until, "
        "r.doubted_at = CASE WHEN r.marks IS NULL THEN null ELSE gone[0] END, "
        "r.doubted_by = CASE WHEN r.marks IS NULL THEN null ELSE gone[1] END "
        f"WITH r, until MATCH (s:{ENTITY} {{id: r.source_id}})-[x:RELATED_TO {{id: r.id}}]->(t:{ENTITY}) "
        "SET x.invalid_at = until, x.ended_by = r.ended_by, x.ended_why = r.ended_why, x.doubted_at = r.doubted_at"
    )


def _bound(names: Mapping[str, str]) -> str:
    return ", ".join(f"r.{name} = {value}" for name, value in names.items())


BIND: Final[Mapping[str, str]] = {
    "bind_relations": f"MATCH (p:{EPISODE} {{id: $episode, structured_by: $key}}) UNWIND $bound AS bound "
    f"MATCH (p)-[s:STATES]->(r:{RELATION} {{id: bound.id}}) SET "
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
        f"WHERE r.level = {level} " + _ends(level)
        for level in range(LEVELS + 1)
    },
}
"""In this order."""
_OF_USER: Final = "r.user_id = $user_id AND r.scopes IS NOT NULL"
ERASE: Final[Mapping[str, str]] = {
    "rebind_relations": f"MATCH (r:{RELATION}) WHERE {_OF_USER} AND r.level IS NOT NULL SET "
    + _bound(dict.fromkeys(
        ("next_source", "next_target", "ended_at", "ended_by", "ended_why", "stated_until", "doubted_at",
         "doubted_by"), "null",
    ))
    + f" WITH r MATCH (a:{ENTITY} {{id: r.source_id}})-[x:RELATED_TO {{id: r.id}}]->(b:{ENTITY}) "
    "SET x.ended_by = null, x.ended_why = null, x.doubted_at = null",
    "succeed_rebound": f"MATCH (r:{RELATION}) WHERE {_OF_USER} AND r.single = 1 "
    "UNWIND [r.key, r.target_key] AS key WITH DISTINCT key WHERE key IS NOT NULL " + _SUCCEED,
    **{
        f"end_rebound_{level}": f"MATCH (r:{RELATION}) WHERE {_OF_USER} AND r.level = {level} "
        # All first: ends of relationships that are written from others would be looked up in log order.
        "WITH collect(r) AS found UNWIND found AS r " + _ends(level)
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
