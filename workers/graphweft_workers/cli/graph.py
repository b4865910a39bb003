"""``graphweft query`` and ``digest``."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Annotated, Any, Final

import typer

from graphweft_contracts import GraphUnavailable, InvalidSettings, QueryFailed
from graphweft_workers.cli.current_graph import current_graph
from graphweft_workers.cli.options import App, AsOf, Data, Into, Json, Params, assignments, check_as_of, command
from graphweft_workers.cli.output import show
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.reports.graph_names import names_of
from graphweft_workers.reports.report import Notice, Part, PlainReport, TextTable
from graphweft_workers.settings.settings import Settings

_QUERY_TIMEOUT_S: Final = 60.0
_HINT_TIMEOUT_S: Final = 3.0
_REFUSED_WRITE: Final = re.compile(r"read-only|read access", re.IGNORECASE)
"""How servers refuse a write in a query that may only read."""
_UNBOUNDED: Final = frozenset({"range-bound", "growth", "reduce-name"})
"""Problems that rules must not have, and no other query either."""
_MISSING_PARAMETER: Final = re.compile(r"(missing|expected) parameter", re.IGNORECASE)


@command
async def query(
    cypher: Annotated[str, typer.Argument(help="A Cypher query that only reads; the server refuses writes.")],
    app: App,
    param: Params = None,
    as_of: AsOf = None,
    into: Into = None,
    data: Data = None,
    json: Json = False,
) -> None:
    """Read an app's graph, as it is or as it was.

    --json shows nodes with id, labels and properties, and relationships with id, type, start, end and properties.
    """
    params, settings = assignments(param or [], "--param"), Settings.load(data=data)
    _refuse_unbounded(cypher, params)
    past: dict[str, Any] = {}
    hints: list[str] = []
    if as_of is None:
        check_as_of(as_of, into)
        async with current_graph(settings, app) as graph:
            with _advising():
                table = await graph.read(app, cypher, params, timeout_s=_QUERY_TIMEOUT_S, elements=json)
            if table.columns and not table.rows and not json:
                hints = await _misspelt(graph, app, cypher)
    else:
        from graphweft_workers.cli.as_of import past_graph  # the engine takes a while to import

        async with past_graph(settings, app, as_of, into) as found:
            with _advising():
                table = await found.graph.read(app, cypher, params, timeout_s=_QUERY_TIMEOUT_S, elements=json)
        past = {"as_of": found.as_json()}
    parts: list[Part] = [TextTable(table.columns, table.rows), *map(Notice, hints)]
    if not table.columns:
        none = "had no graph then: no event of it had" if past else "has no graph yet: no event of it has"
        parts = [Notice(f"the app {app!r} {none} written anything; if you expect one, check the name")]
    show(PlainReport({"columns": list(table.columns), "rows": table.dicts()} | past, parts), json=json)


def _refuse_unbounded(cypher: str, params: Mapping[str, Any]) -> None:
    """Raise ``InvalidSettings`` for a query that a graph server may only end with: no limit of it ends the query."""
    from graphweft_rules.cypher.query import parse
    from graphweft_rules.cypher.ranges import range_problem

    query = parse(cypher, role="injection")
    found = [each.message for each in query.problems if each.code in _UNBOUNDED]
    if problem := range_problem(query.ranges, params):
        found.append(problem)
    if found:
        raise InvalidSettings(f"the query may take all memory of the graph server, and end it: {found[0]}")


async def _misspelt(graph: GraphStore, app: str, cypher: str) -> list[str]:
    """Return hints at labels and types of a query that the graph does not have, and that are like one that it has.

    There are none if the graph server does not name its labels and types soon.
    """
    from graphweft_contracts.wire import did_you_mean

    try:
        labels = await names_of(graph, app, "labels", _HINT_TIMEOUT_S)
        known = {*labels, *await names_of(graph, app, "types", _HINT_TIMEOUT_S)}
    except (GraphUnavailable, QueryFailed):
        return []
    hints = ((name, did_you_mean(name, known)) for name in dict.fromkeys(_labels(cypher)) if name not in known)
    return [f"the graph has no label or type {name!r}{hint}" for name, hint in hints if hint]


def _labels(cypher: str) -> Iterator[str]:
    """Yield the labels and types of a query: the names after a colon, unless it is of a map, and others after a bar."""
    from graphweft_rules.cypher.tokens import tokenize

    opened = [""]
    after_label = False
    tokens = [token for token in tokenize(cypher) if token.kind not in ("space", "comment")]
    for before, token in pairwise(tokens):
        if token.text in {"(", "[", "{"}:
            opened.append(token.text)
        elif token.text in {")", "]", "}"} and len(opened) > 1:
            opened.pop()
        colon = before.text == ":" and opened[-1] != "{"
        if token.kind in ("name", "quoted") and (colon or (before.text == "|" and after_label)):
            after_label = True
            yield token.identifier
        elif token.text not in {"|", ":"}:
            after_label = False


@command
async def digest(app: App, data: Data = None, json: Json = False) -> None:
    """Print a hash over the content of an app's graph. Equal graphs have equal digests, however they were built.

    ``--json`` also tells how far the graph is in each partition, and by which rules it got there.
    """
    async with current_graph(Settings.load(data=data), app) as graph:
        from graphweft_workers.engine.plan.digest import read_digest
        from graphweft_workers.engine.plan.plan import RestNote

        found = await read_digest(graph, app)
        at = [
            {"partition": partition, "offset": progress.checkpoint.offset, "rules": RestNote.of(progress).rules or None}
            for partition in await graph.checkpoints(app, timeout_s=_QUERY_TIMEOUT_S)
            for progress in [await graph.progress(app, partition)]
        ]
    digest_dict = {"digest": found.sha256, "nodes": found.nodes, "relationships": found.relationships, "at": at}
    empty = f"the app {app!r} has no graph: this is the digest of every empty graph; check the app's name"
    none = [] if found.nodes or at else [Notice(empty)]
    show(PlainReport(digest_dict, [found.sha256, *none]), json=json)


@contextmanager
def _advising() -> Generator[None]:
    """Add to the refusal of a write what changes a graph, and to a missing parameter how to give it."""
    try:
        yield
    except QueryFailed as error:
        if _MISSING_PARAMETER.search(str(error)):
            raise QueryFailed(f"{error}: give each parameter of the query as --param name=text") from error
        if not _REFUSED_WRITE.search(str(error)):
            raise
        raise QueryFailed(f"{error}: this command only reads; a graph changes by events and rules") from error
