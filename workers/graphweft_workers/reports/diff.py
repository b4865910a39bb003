"""What other rules would have made of the history of an app."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from graphweft_contracts.plurals import counted
from graphweft_workers.replay.causes import MutationDifference, Side
from graphweft_workers.replay.graph_diff import Example, How, Kind, NodeName
from graphweft_workers.replay.history_diff import HistoryDiff, Outcome, RuleName
from graphweft_workers.reports.report import Part, TextTable
from graphweft_workers.reports.short_texts import plain, short
from graphweft_workers.support.printable import printable

_HOWS: Final[tuple[How, ...]] = ("added", "removed", "changed")
_OUTCOMES: Final[tuple[Outcome, ...]] = ("applied", "skipped", "failed")
_SIDES: Final[tuple[Side, ...]] = ("before", "after")
_RULES: Final[Mapping[Side, str]] = {"before": "as lived", "after": "by the rules"}
_SIGNS: Final[Mapping[How, str]] = {"added": "+", "removed": "-", "changed": "~"}
_LONGEST: Final = 120
INDENT: Final = "  "
"""In front of the name of a part of the row before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffReport:
    """The difference of one app's history."""

    app: str
    rules: str
    seconds: float
    found: HistoryDiff

    @property
    def same(self) -> bool:
        """Whether the graphs are equal, and each mutation was applied, skipped and failed as often."""
        return self.found.graphs.same and not self.changed_rules()

    def changed_rules(self) -> list[RuleName]:
        """Return the mutations whose numbers differ."""
        return [name for name in self.rule_names() if len({self._outcome(name, side) for side in _SIDES}) > 1]

    def rule_names(self) -> list[RuleName]:
        """Return all mutations, in order."""
        return sorted(self.found.rules, key=lambda name: tuple(each or "" for each in name))

    def _outcome(self, name: RuleName, side: Side) -> tuple[int, ...]:
        return tuple(self.found.rules[name][side][outcome] for outcome in _OUTCOMES)

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        graphs = self.found.graphs
        found: dict[str, Any] = {
            "app": self.app,
            "rules": self.rules,
            "seconds": self.seconds,
            "same": self.same,
            "place": {str(partition): offset for partition, offset in self.found.ends.items()},
        }
        kinds: tuple[tuple[Kind, str, tuple[int, int]], ...] = (
            ("node", "nodes", graphs.nodes),
            ("relationship", "relationships", graphs.relationships),
        )
        for kind, name, (before, after) in kinds:
            totals = {how: graphs.total(kind, how) for how in _HOWS}
            of = [
                {"name": each, **{how: counts[how] for how in _HOWS}}
                for each, counts in sorted(graphs.counts[kind].items())
            ]
            found[name] = {"before": before, "after": after, **totals, "of": of}
        found["labels"] = [
            {"label": label, "added": counts["added"], "removed": counts["removed"]}
            for label, counts in sorted(graphs.labels.items())
        ]
        found["properties"] = [
            {"kind": kind, "of": name, "property": each, **{how: counts[how] for how in _HOWS}}
            for (kind, name, each), counts in sorted(graphs.properties.items())
        ]
        found["mutations"] = [
            {
                **_rule_dict(name),
                **{side: dict(zip(_OUTCOMES, self._outcome(name, side), strict=True)) for side in _SIDES},
            }
            for name in self.rule_names()
        ]
        found["failures"] = [
            {**_rule_dict(name), "message": message, "events": number}
            for (name, message), number in self.found.failures.items()
        ]
        found["examples"] = [
            _example(example, causes) for example, causes in zip(graphs.examples, self.found.causes, strict=True)
        ]
        return found

    def tables(self, rules: Iterable[RuleName]) -> Iterator[TextTable]:
        """Yield what differs in numbers, with the outcomes of some mutations."""
        graphs = self.found.graphs
        kinds: tuple[tuple[Kind, tuple[int, int]], ...] = (
            ("node", graphs.nodes),
            ("relationship", graphs.relationships),
        )
        rows: list[tuple[Any, ...]] = []
        for kind, (before, after) in kinds:
            rows.append((f"all {kind}s", before, after, *(graphs.total(kind, how) for how in _HOWS)))
            for name, counts in sorted(graphs.counts[kind].items()):
                rows.append((printable(f"{INDENT}{name}"), None, None, *(counts[how] for how in _HOWS)))
        yield TextTable(("", "before", "after", *_HOWS), rows, "Graphs")
        labels = [(printable(name), each["added"], each["removed"]) for name, each in sorted(graphs.labels.items())]
        yield TextTable(("label", "added", "removed"), labels, "Labels")
        properties = [
            (printable(f"{name}.{each}"), *(counts[how] for how in _HOWS))
            for (_, name, each), counts in sorted(graphs.properties.items())
        ]
        yield TextTable(("property", *_HOWS), properties, "Properties")
        outcomes = (f"{each} {side}" for side in _SIDES for each in _OUTCOMES)
        mutations = [
            (title_of_rule(name), *(n for side in _SIDES for n in self._outcome(name, side))) for name in rules
        ]
        yield TextTable(("mutation", *outcomes), mutations, "Mutations")

    def parts(self) -> Iterator[Part]:
        """Yield it for people."""
        graphs = self.found.graphs
        if self.same:
            nodes, relationships = counted(graphs.nodes[0], "node"), counted(graphs.relationships[0], "relationship")
            yield f"no difference: {nodes} and {relationships} in both"
            return
        yield from (replace(table, title=None) for table in self.tables(self.changed_rules()) if table.rows)
        for (failed, message), number in self.found.failures.items():
            yield f"failed: {title_of_rule(failed)}: {counted(number, 'event')}: {printable(message)}"
        for example, causes in zip(graphs.examples, self.found.causes, strict=True):
            yield f"{_SIGNS[example.how]} {title_of_example(example)}"
            for line in lines_of_example(example):
                yield f"    {line}"
            for cause in causes:
                yield f"    {text_of_cause(cause)}"


def title_of_rule(name: RuleName) -> str:
    """Return the name of a mutation on one line."""
    workflow, rule, mutation = name
    if rule is None:
        return printable(f"{workflow or '(no workflow)'}: no rules")
    return printable(f"{workflow}: {rule}/{mutation}" if workflow else f"{rule}/{mutation}")


def title_of_example(example: Example) -> str:
    """Return what an example is about, on one line."""
    if example.kind == "node":
        key = _node(example.ends[0])
        return printable(key if example.ends[0].label == example.name else f"{key} as {example.name}")
    start, end = example.ends
    return printable(f"{_node(start)}-[:{example.name}]->{_node(end)}")


def lines_of_example(example: Example) -> list[str]:
    """Return the labels and properties that differ, one on each line."""
    found = [f"+ :{label}" for label in example.labels_added] + [f"- :{label}" for label in example.labels_removed]
    for name in sorted({*example.before, *example.after}):
        if name not in example.before:
            found.append(f"+ {name}: {value_text(example.after[name])}")
        elif name not in example.after:
            found.append(f"- {name}: {value_text(example.before[name])}")
        else:
            found.append(f"~ {name}: {value_text(example.before[name])} -> {value_text(example.after[name])}")
    return [printable(line) for line in found]


def text_of_cause(cause: MutationDifference) -> str:
    """Return an event and its effect on one line."""
    rules = _RULES[cause.sides[0]] if len(cause.sides) == 1 else "differs"
    event = f"{cause.type} {cause.id} of {cause.source} at {' and '.join(cause.positions)}"
    return printable(f"event {event}: {cause.rule}/{cause.mutation} {rules}")


def value_text(value: Any) -> str:
    """Return a value as JSON, shortened."""
    return short(json.dumps(value, default=plain, ensure_ascii=False), _LONGEST)


def _node(name: NodeName) -> str:
    if not name.key:
        return f"(:{name.label} without a key)"
    return f"(:{name.label} {{{', '.join(f'{each}: {value_text(value)}' for each, value in name.key.items())}}})"


def _rule_dict(name: RuleName) -> dict[str, str | None]:
    workflow, rule, mutation = name
    return {"workflow": workflow, "rule": rule, "mutation": mutation}


def _example(example: Example, causes: list[MutationDifference]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "kind": example.kind,
        "how": example.how,
        "name": example.name,
        "ends": [{"label": end.label, "key": end.key} for end in example.ends],
        "before": example.before,
        "after": example.after,
        "events": [asdict(cause) for cause in causes],
    }
    if example.labels_added or example.labels_removed:
        found |= {"labels_added": example.labels_added, "labels_removed": example.labels_removed}
    return found
