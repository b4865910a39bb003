"""The node that ``graphweft why`` asks about, and hints when nothing wrote it."""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Final

from graphweft_contracts import GraphweftError, InvalidSettings
from graphweft_contracts.wire import did_you_mean
from graphweft_rules.cypher.node_writes import KeyValue, NodeTarget
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.reports.graph_names import names_of
from graphweft_workers.reports.short_texts import short
from graphweft_workers.support.printable import printable

if TYPE_CHECKING:
    from graphweft_workers.replay.node_state import State

_NEAR: Final = 3
_LISTED: Final = 10
_TIMEOUT_S: Final = 10.0
_SHOWN: Final = 60
_LARGEST: Final = 2**63
"""Graph servers hold integers below."""


def target_of(
    label: str,
    given: Sequence[str],
    keys: Collection[tuple[str, str]],
    *,
    property: str | None,
    relationship: str | None,
) -> NodeTarget:
    """Return the target of ``--key`` values. ``keys`` are the (label, property) by which rules look nodes up.

    Raises ``InvalidSettings`` if it is not clear which property a value is of.
    """
    known = sorted({name for each, name in keys if each == label})
    found: dict[str, tuple[KeyValue, ...]] = {}
    for text in given:
        name, equals, value = text.partition("=")
        named = bool(equals) and (name in known or (len(known) != 1 and bool(re.fullmatch(r"\w+", name))))
        if not named:
            name, value = _only_key(label, known, keys), text
        if name in found:
            raise InvalidSettings(f"invalid --key {short(text, _SHOWN)!r}: {name!r} has two values")
        found[name] = _values(value)
    return NodeTarget(label=label, keys=found, property=property, relationship=relationship)


def _only_key(label: str, known: Sequence[str], keys: Collection[tuple[str, str]]) -> str:
    if not known:
        labels = sorted({each for each, _ in keys})
        more = f" and {len(labels) - _LISTED} more" if len(labels) > _LISTED else ""
        raise InvalidSettings(
            f"no rule looks up nodes with the label {label!r}{did_you_mean(label, labels)}; rules look up "
            f"{', '.join(labels[:_LISTED]) or 'none'}{more}. For another label give --key PROPERTY=VALUE"
        )
    if len(known) > 1 and "id" not in known:
        raise InvalidSettings(
            f"rules look up nodes with the label {label!r} by {', '.join(known)}: give --key {known[0]}=VALUE"
        )
    return known[0] if len(known) == 1 else "id"


def _values(text: str) -> tuple[KeyValue, ...]:
    """Return the text, and the JSON number or string that it may stand for."""
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return (text,)
    if isinstance(value, str) and value != text:
        return (text, value)
    if type(value) is int and -_LARGEST <= value < _LARGEST:
        return (text, value)
    return (text, value) if type(value) is float and math.isfinite(value) else (text,)


async def hints(graph: GraphStore, app_id: str, target: NodeTarget) -> list[str]:
    """Return lines about labels that the graph has, and keys that look like the given ones."""
    found: list[str] = []
    try:
        labels = await names_of(graph, app_id, "labels", _TIMEOUT_S)
        if target.label not in labels:
            if not labels and not await graph.whole.graph_id(app_id):
                return [f"The app {app_id!r} has no graph: check its name."]
            near = difflib.get_close_matches(target.label, labels, n=_NEAR) or labels
            return [f"The graph has no node with the label {target.label!r}. Its labels: {_listed(near)}"]
        for name, values in target.keys.items():
            statement = f"MATCH (n:`{target.label}`) WHERE n.`{name}` IS NOT NULL RETURN DISTINCT n.`{name}` AS key"
            table = await graph.read(app_id, statement, {}, timeout_s=_TIMEOUT_S, enough=10_000)
            there = {str(row[0]): row[0] for row in table.rows if isinstance(row[0], str | int | float)}
            if any(str(value) in there for value in values):
                continue
            near = difflib.get_close_matches(str(values[0])[:200], there, n=_NEAR, cutoff=0.5)
            folded = [text for text in there if text.casefold().strip() == str(values[0]).casefold().strip()]
            near = list(dict.fromkeys([*folded, *near])) or list(there)[:_NEAR]
            found.append(f"No {target.label} has this {name}. There are: {_listed(near)}")
    except GraphweftError:
        return found
    return found


def there_hints(there: State, target: NodeTarget) -> list[str]:
    """Return a line about what the app's graph has of a target that no event of the log has written, if it has any."""
    if not there:
        return []
    names = sorted({name for each in there.values() for name in each.properties})
    if target.property is None or target.property in names:
        return ["The app's graph has it: something else than the events of this log has written it."]
    near = difflib.get_close_matches(target.property, names, n=_NEAR) or names
    return [f"It is in the app's graph, without the property {target.property!r}. It has: {_listed(near)}"]


def _listed(names: Sequence[str]) -> str:
    return printable(", ".join(short(name, _SHOWN) for name in names[:10])) or "none"
