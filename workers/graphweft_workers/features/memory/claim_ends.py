"""How claims of users end: by each other, by verdicts, and with what they depend on.

What ends is a function of the claims that there are. A claim that depends on another predicate (``follows``) has a
support: the claim of that key that held when it was made, or else the next one. What ended the support is kept in
``followed``, and counts as one that ends the claim, or, if it is only marked, puts it in doubt.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from graphweft_workers.features.edge_rules import LEVELS, TypeEnds
from graphweft_workers.retrieval.records import JUDGED, STATEMENT

LOOKED_AHEAD: Final = 50
"""Later facts or claims of a key that are compared with each one."""


# A claim ends what it cannot hold with, in whatever order they arrive: another object of the same predicate, or the
# same object that holds no longer. Statements of one message do not end each other.
# Only claims within ``LOOKED_AHEAD`` places of those of a change, which have the ranks ``first`` to ``last``, can end
# by it, or hold again. They are looked at by so many, with their properties in lists: a server copies the list of all
# claims for each row, and reads a property anew for each pair.
def claim_ends(stays: str = "") -> str:
    """Return the query that decides on claims of a key; ``stays`` is the condition that a claim ``{0}`` does."""
    stays = stays and f"WHERE {stays.format('s')} "
    return (
        f"MATCH (s:{STATEMENT} {{key: key}}) {stays}WITH first, last, s ORDER BY s.rank "
        "WITH first, last, collect(s) AS claims, collect(s.rank) AS ranks "
        "WITH claims, size([each IN ranks WHERE each < first]) AS begin, "
        "size([each IN ranks WHERE each <= last]) AS stop "
        f"WITH claims, CASE WHEN begin < {LOOKED_AHEAD} THEN 0 ELSE begin - {LOOKED_AHEAD} END AS begin, stop "
        f"UNWIND range(0, size(claims) - 1, {LOOKED_AHEAD}) AS at "
        f"WITH claims, begin, stop, at WHERE at < stop AND at + {LOOKED_AHEAD} > begin "
        f"WITH begin, stop, at, claims[at .. at + {2 * LOOKED_AHEAD}] AS claims "
        "WITH begin, stop, at, claims, "
        "[each IN claims | [each.memory_id, each.holds, each.object_key, each.timestamp + ' ' + each.id, each.judged, "
        "CASE WHEN each.marks IS NULL THEN each.followed ELSE null END]] AS said "
        "UNWIND range(0, size(claims) - 1) AS number WITH claims, said, number, at + number AS place, begin, stop "
        f"WHERE number < {LOOKED_AHEAD} AND place >= begin AND place < stop "
        "WITH claims[number] AS claim, said[number] AS one, "
        f"said[number + 1 .. number + {LOOKED_AHEAD + 1}] AS others "
        "WITH claim, [head([other IN others WHERE other[0] <> one[0] AND CASE "
        "WHEN one[1] AND other[1] THEN other[2] <> one[2] AND other[2] <> '' AND one[2] <> '' "
        "WHEN one[1] THEN other[2] = one[2] OR other[2] = '' "
        "WHEN other[1] THEN one[2] = other[2] OR one[2] = '' ELSE false END | other[3]]), one[4]] AS enders, "
        "one[5] AS followed "
        "WITH claim, followed, "
        "reduce(low = '~', each IN enders | CASE WHEN each < low THEN each ELSE low END) AS own "
        "WITH claim, CASE WHEN followed < own THEN followed WHEN own = '~' THEN null ELSE own END AS first, "
        "CASE WHEN followed < own THEN 'depends_on' ELSE null END AS why "
        "WITH claim, split(first, ' ') AS ended, why "
        "WHERE coalesce(claim.superseded_by, '') <> coalesce(ended[1], '') OR coalesce(claim.until, '') <> "
        "coalesce(ended[0], '') OR coalesce(claim.ended_why, '') <> coalesce(why, '') "
        "SET claim.until = ended[0], claim.superseded_by = ended[1], claim.ended_why = why"
    )


def named_ends(by: str, claim: str) -> str:
    """Return the condition that ``by`` ends a claim about the same thing, whatever they say of it.

    "Rex died" ends "I have a dog called Rex", and "Greta has moved to Cologne" ends "Greta lives in Hamburg".
    """
    return (
        f"{claim}.holds AND {claim}.predicate IN {by}.ends "
        f"AND (NOT {by}.holds OR {by}.object_key <> {claim}.object_key)"
    )


_SLACK: Final = LOOKED_AHEAD + 2
"""Places of supports around a change whose dependents are looked at."""
ENDED_BY: Final = (
    f"OPTIONAL MATCH (s)-[k:{JUDGED}]->(v:{STATEMENT}) WHERE k.verdict = 'ends' WITH s, v "
    f"OPTIONAL MATCH (t:{STATEMENT} {{thing: s.thing}}) WHERE {named_ends('s', 't')} UNWIND [v, t] AS o "
)
"""What statements ``s`` have ended that is not of their key: by verdicts, or because they name it."""
OF_ENDED: Final = "WITH o.key AS key, min(o.rank) AS first, max(o.rank) AS last WHERE key IS NOT NULL "
OF_KEYS: Final = (
    f"{ENDED_BY}"
    "UNWIND [[s.key, s.rank], [o.key, o.rank]] AS pair WITH pair[0] AS key, pair[1] AS rank WHERE key IS NOT NULL "
    "WITH key, min(rank) AS first, max(rank) AS last "
)
"""The keys of statements ``s``, and of what they have ended."""


def _dependents(stays: str) -> str:
    """Return the part of a query that finds the claims ``s`` which depend on claims of ``key``, near those of a change.

    ``supports`` has the claims of the key that they may depend on, in order of time: when each began and ended, what
    ended it, and its id. A server copies the list for each row, so it has only those near the change.
    """
    of_support, of_claim = (stays and f" AND {stays.format(each)}" for each in "ps")
    return (
        f"OPTIONAL MATCH (p:{STATEMENT} {{key: key}}) WHERE p.holds{of_support} "
        "WITH key, first, last, p ORDER BY p.rank WITH key, first, last, collect(p.rank) AS ranks, "
        "collect(CASE WHEN p IS NULL THEN null ELSE [p.timestamp, coalesce(p.until, '~'), "
        "p.until + ' ' + p.superseded_by, p.id] END) AS supports "
        "WITH key, ranks, supports, size([each IN ranks WHERE each < first]) AS before, "
        f"size([each IN ranks WHERE each <= last]) + {_SLACK} AS stop "
        f"WITH key, ranks, supports, CASE WHEN before < {_SLACK} THEN 0 ELSE before - {_SLACK} END AS begin, stop "
        "WITH key, CASE WHEN begin = 0 THEN '' ELSE ranks[begin] END AS low, coalesce(ranks[stop], '~') AS high, "
        "supports[begin .. stop + 1] AS supports "
        f"MATCH (s:{STATEMENT} {{follows: key}}) WHERE s.rank >= low AND s.rank < high{of_claim} "
    )


def _follow(begin: str, level: int, stays: str) -> str:
    """Return the query that ends the claims which are ``level`` predicates away from the claims of a change."""
    return (
        begin
        + f"{_dependents(stays)}WITH s.key AS key, min(s.rank) AS first, max(s.rank) AS last " * (level - 1)
        + f"{_dependents(stays)}"
        "WITH s, last([one IN supports WHERE one[0] <= s.timestamp]) AS earlier, "
        "head([one IN supports WHERE one[0] > s.timestamp]) AS later "
        "WITH s, CASE WHEN earlier[1] > s.timestamp THEN earlier ELSE later END AS support "
        "WITH s, support[2] AS followed, CASE WHEN s.marks IS NULL OR support[2] IS NULL THEN null ELSE support END "
        "AS doubted "
        "WHERE coalesce(s.followed, '') <> coalesce(followed, '') OR coalesce(s.doubted_by, '') <> "
        "coalesce(doubted[3], '') "
        "SET s.followed = followed, s.doubted_at = doubted[1], s.doubted_by = doubted[3] "
        f"WITH s.key AS key, min(s.rank) AS first, max(s.rank) AS last {claim_ends(stays)}"
    )


class ClaimDependents:
    """What depends on claims by the rules of an ontology: the queries that end it, for each kind of change."""

    def __init__(self, ends: Mapping[str, TypeEnds]) -> None:
        self._ends = ends
        self.levels = max((each.level for each in ends.values()), default=0)
        """How many predicates a chain of dependencies has beside its first, at most ``LEVELS``."""
        assert self.levels <= LEVELS

    def depends_on(self, predicate: str) -> str | None:
        """Return the predicate without which claims of a predicate do not hold."""
        found = self._ends.get(predicate)
        return None if found is None else found.depends_on

    def is_marked(self, predicate: str) -> bool:
        """Tell whether claims of a predicate are only in doubt when their support ends."""
        found = self._ends.get(predicate)
        return found is not None and found.marks

    def levels_below(self, predicate: str) -> int:
        """Return how many predicates depend on a predicate, one through the other."""
        below = [name for name, each in self._ends.items() if each.depends_on == predicate]
        return max((1 + self.levels_below(name) for name in below), default=0)

    def texts(self, changes: Mapping[str, tuple[str, str, str]]) -> dict[str, tuple[str, str]]:
        """Return the mutations: id -> (event type, Cypher).

        ``changes`` has, by name of a change, the type of its events, the part of a query that finds the keys of the
        claims that change, and the condition that a claim ``{0}`` stays, if not all do.
        """
        return {
            f"{name}_{level}": (type, _follow(begin, level, stays))
            for name, (type, begin, stays) in changes.items()
            for level in range(1, self.levels + 1)
        }
