"""How claims of users end each other: the query that decides it."""

from __future__ import annotations

from typing import Final

from graphweft_workers.retrieval.records import STATEMENT

LOOKED_AHEAD: Final = 50
"""Later facts or claims of a key that are compared with each one."""


# A claim ends what it cannot hold with, in whatever order they arrive: another object of the same predicate, or the
# same object that holds no longer. Statements of one message do not end each other.
# Only claims within ``LOOKED_AHEAD`` places of those of a change, which have the ranks ``first`` to ``last``, can end
# by it, or hold again. They are looked at by so many, with their properties in lists: a server copies the list of all
# claims for each row, and reads a property anew for each pair.
def claim_ends(left: str) -> str:
    """Return the query that decides on claims of a key; ``left`` is the condition that a claim ``s`` stays."""
    return (
        f"MATCH (s:{STATEMENT} {{key: key}}) WHERE {left} WITH first, last, s ORDER BY s.rank "
        "WITH first, last, collect(s) AS claims, collect(s.rank) AS ranks "
        "WITH claims, size([each IN ranks WHERE each < first]) AS begin, "
        "size([each IN ranks WHERE each <= last]) AS stop "
        f"WITH claims, CASE WHEN begin < {LOOKED_AHEAD} THEN 0 ELSE begin - {LOOKED_AHEAD} END AS begin, stop "
        f"UNWIND range(0, size(claims) - 1, {LOOKED_AHEAD}) AS at "
        f"WITH claims, begin, stop, at WHERE at < stop AND at + {LOOKED_AHEAD} > begin "
        f"WITH begin, stop, at, claims[at .. at + {2 * LOOKED_AHEAD}] AS claims "
        "WITH begin, stop, at, claims, "
        "[each IN claims | [each.memory_id, each.holds, each.object_key, each.timestamp + ' ' + each.id, each.judged]] "
        "AS said "
        "UNWIND range(0, size(claims) - 1) AS number WITH claims, said, number, at + number AS place, begin, stop "
        f"WHERE number < {LOOKED_AHEAD} AND place >= begin AND place < stop "
        "WITH claims[number] AS claim, said[number] AS one, "
        f"said[number + 1 .. number + {LOOKED_AHEAD + 1}] AS others "
        "WITH claim, [head([other IN others WHERE other[0] <> one[0] AND CASE "
        "WHEN one[1] AND other[1] THEN other[2] <> one[2] "
        "WHEN one[1] THEN other[2] = one[2] OR other[2] = '' "
        "WHEN other[1] THEN one[2] = other[2] OR one[2] = '' ELSE false END | other[3]]), one[4]] AS enders "
        "WITH claim, reduce(low = '~', each IN enders | CASE WHEN each < low THEN each ELSE low END) AS first "
        "WITH claim, split(CASE WHEN first = '~' THEN null ELSE first END, ' ') AS ended "
        "WHERE coalesce(claim.superseded_by, '') <> coalesce(ended[1], '') OR coalesce(claim.until, '') <> "
        "coalesce(ended[0], '') SET claim.until = ended[0], claim.superseded_by = ended[1]"
    )
