"""By which rules of the past an app's graph was made, and after which erasures: a node of our own in the graph says so.

Two graphs of one app may be exchanged, or one continued, only if both have the basis that the log has: the graph must
stay what a rebuild makes of the log. The bus says what the live graph of an app needs to have, since a graph took its
place (``ports.purges``): one from before holds what was erased, or a past that was restated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from graphweft_contracts.rules_log import Activation, newest, restated_scope
from graphweft_rules.cypher.query import parse
from graphweft_workers.ports.graph_store import INTERNAL_PREFIX, GraphStore, Write, is_new
from graphweft_workers.support.timing import TIMING

_RESTATED: Final = "restated:"
_LABEL: Final = f"{INTERNAL_PREFIX}Basis"
_READ: Final = f"MATCH (b:{_LABEL} {{id: 'basis'}}) RETURN b.rules, b.kept, b.erasures, b.rejected"
_WRITE: Final = (
    f"MERGE (b:{_LABEL} {{id: 'basis'}}) "
    "SET b.rules = $rules, b.kept = $kept, b.erasures = $erasures, b.rejected = $rejected"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphBasis:
    """What a graph says of its making."""

    rules: str = ""
    """Empty: the rules that the log activates, without a restatement; or ``logged_basis``, or ``given_basis``."""
    kept: bool = False
    """Whether it is the graph of before a swap, and is not live any more."""
    erasures: int = 0
    """``Erasures.count`` of the app when the graph was begun, or, of one from before a swap, at the swap."""
    rejected: bool = False
    """Whether a rollback took it out of its place: the next rebuild makes another one there."""

    def older_than(self, needed: GraphBasis, app_id: str) -> str:
        """Return why an app's graph is from before one with the basis ``needed``, and what to do; empty: it is not."""
        way = f"run `graphweft rebuild --app {app_id} --swap`"
        if _restatement(self.rules) < _restatement(needed.rules):
            return f"the graph of {app_id!r} is from before the past was restated by other rules: {way}"
        if self.erasures < needed.erasures:
            return f"the graph of {app_id!r} is from before something was erased, and may hold it: {way}"
        return ""


def _restatement(rules: str) -> int:
    number = rules.removeprefix(_RESTATED)
    return int(number) if number != rules and number.isdecimal() else 0


def logged_basis(activations: Sequence[Activation], app_id: str) -> str:
    """Return the basis of a graph that follows the log."""
    found = newest(activations, restated_scope(app_id))
    return "" if found is None else f"{_RESTATED}{found.number}"


def given_basis(digest: str) -> str:
    """Return the basis of a graph that was made by one rule set, which the log does not say yet."""
    return f"rules:{digest}"


async def read_basis(graph: GraphStore, app_id: str, *, timeout_s: float = TIMING.replay.query_s) -> GraphBasis:
    """Return the basis of an app's graph. Raises ``GraphUnavailable``, and ``QueryFailed`` after ``timeout_s``."""
    found = await graph.read(app_id, _READ, {}, timeout_s=timeout_s)
    if not found.rows:
        return GraphBasis()
    rules, kept, erasures, rejected = found.rows[0]
    return GraphBasis(rules=str(rules or ""), kept=bool(kept), erasures=int(erasures or 0), rejected=bool(rejected))


async def why_older(graph: GraphStore, app_id: str, needed: GraphBasis, *, timeout_s: float) -> str:
    """Return why an app's graph is from before one with the basis ``needed``; empty: it is not, or is new.

    The first event gives a new graph its basis. Raises like ``read_basis``.
    """
    basis = await read_basis(graph, app_id, timeout_s=timeout_s)
    why = basis.older_than(needed, app_id)
    if why and basis == GraphBasis() and is_new(await graph.checkpoints(app_id, timeout_s=timeout_s)):
        return ""
    return why


async def write_basis(graph: GraphStore, app_id: str, partition: int, basis: GraphBasis) -> None:
    """Write the basis of an app's graph; create it if needed. Raises ``Fenced`` if somebody else writes to it."""
    place = (await graph.progress(app_id, partition)).checkpoint
    row = asdict(basis)
    query = parse(_WRITE, role="mutation")
    applied = await graph.apply(app_id, partition, [Write(query=query, rows=[row], before=place, after=place)])
    if applied.failure is not None:
        raise applied.failure
