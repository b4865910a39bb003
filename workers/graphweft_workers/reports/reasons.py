"""Why an event has its effect, or none: the rules at its place, and the outcome of each mutation."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from graphweft_contracts.layout import ALL_APPS
from graphweft_contracts.rules_log import Activation, StoredRules
from graphweft_contracts.wire import WHOLE
from graphweft_rules import BoundMutation, RuleSet
from graphweft_workers.engine.log.effect_ledger import EffectLedger
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.offsets import is_after
from graphweft_workers.reports.effects import EntryEffect, Letters, letters_of
from graphweft_workers.reports.entries import activation_dict
from graphweft_workers.reports.event import EntryFate, letter_parts
from graphweft_workers.reports.judging import Judgement, judge
from graphweft_workers.reports.report import Part
from graphweft_workers.reports.rule_dicts import mutation_dict, unmatched_dict
from graphweft_workers.reports.rules_at import RulesAt, activation_at
from graphweft_workers.reports.scan import Decoder
from graphweft_workers.reports.short_texts import short
from graphweft_workers.support.printable import printable

_PARAMS: Final = 2_000
"""Characters of the parameters of one mutation in the text."""

type Outcome = Literal[
    "applied", "waiting", "dead_letter", "retried", "dropped", "copy", "set_aside", "not_in_graph", "unknown"
]
_SAID: dict[Outcome, str] = {
    "applied": "is in the graph",
    "waiting": "waits for a worker",
    "dead_letter": "is a dead letter",
    "retried": "was retried",
    "dropped": "never takes effect: its dead letter was dropped",
    "copy": "has no effect: the event is a copy",
    "set_aside": "has no effect: the event is set aside",
    "not_in_graph": "is not in the graph, although workers have passed it: was the graph deleted or restored?",
    "unknown": "may be applied: the graph does not answer",
}
_MATCHED: Final = "has run, and changed nothing if its MATCH found nothing then"
"""Of an applied mutation that begins with MATCH: nobody keeps what each row found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasons:
    """Why an entry has its effect, or none."""

    fate: EntryFate
    activation: Activation | None
    ahead: bool
    """Whether the activation lies after the entry: the first one applies to earlier events too."""
    judged: Judgement
    outcomes: Sequence[tuple[BoundMutation, Outcome]]
    letters: Letters

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, for JSON."""
        seen = self.fate.seen
        return (
            {"position": seen.position, "kind": seen.kind, "id": seen.event and seen.event.id}
            | {"app_id": seen.app_id, "type": seen.event and seen.event.type}
            | self.fate.to_dict(self.letters.found)
            | self.rules_dict()
        )

    def parts(self) -> Iterator[Part]:
        """Yield it for people."""
        yield from self.fate.parts()
        yield from map(printable, self._lines())
        yield from letter_parts(self.letters)

    def _lines(self) -> Iterator[str]:
        if self.fate.seen.kind == "activation":
            yield f"nothing: {self.fate.seen.note or 'the entry makes rules active; it is not an event'}"
            return
        if self.fate.seen.kind == "drop":
            yield "nothing: the entry records a dropped dead letter; it is not an event"
            return
        if self.fate.seen.kind == "erased":
            yield "nothing: the entry was erased, and nothing is left of it"
            return
        if self.fate.seen.event is None:
            yield f"nothing: the entry cannot be decoded: {self.fate.seen.fault}"
            return
        yield self._rules()
        yield f"batch: {_batch(self.fate.effect)}"
        for bound, outcome in self.outcomes:
            mutation = bound.mutation
            is_conditional = outcome == "applied" and mutation.cypher.needs_match
            yield f"{mutation.rule}/{mutation.id} ({mutation.place}) {_MATCHED if is_conditional else _SAID[outcome]}"
            yield from (f"    {line}" for line in mutation.cypher.statement.strip().splitlines())
            params = json.dumps(bound.params, ensure_ascii=False, default=str)
            yield f"    with {short(params, _PARAMS)}"
        for word, missed in (("is skipped", self.judged.skipped), ("fails", self.judged.failed)):
            yield from (f"{each.rule}/{each.mutation} ({each.place}) {word}: {each.reason}" for each in missed)
        for rule in self.judged.unmatched:
            yield f"{rule.rule} ({rule.place}) does not match: {rule.reason}"
        if self.judged.reason:
            yield f"nothing: {self.judged.reason}"

    def _rules(self) -> str:
        if self.activation is None:
            return "rules: none is active for the app: run `graphweft rules push`"
        number = f"activation {self.activation.number}"
        if self.activation.restates is not None:
            return f"rules: {self.activation.digest[:12]}, by {number}, which restated the past of the app"
        scope = "all apps" if self.activation.scope == ALL_APPS else f"the app {self.activation.scope}"
        offset = self.activation.positions.get(self.fate.seen.partition)
        since = "" if offset is None else f", announced at {self.fate.seen.partition}:{offset}"
        early = "; the event lies before it, and the first rules apply to earlier events too" if self.ahead else ""
        return f"rules: {self.activation.digest[:12]}, {number} for {scope}{since}{early}"

    def rules_dict(self) -> dict[str, Any]:
        """Return what the rules do with the entry as plain values."""
        return {
            "rules": self.activation and activation_dict(self.activation) | {"ahead": self.ahead},
            "batch": _batch(self.fate.effect),
            "mutations": [mutation_dict(bound) | {"outcome": outcome} for bound, outcome in self.outcomes],
            "skipped": [asdict(each) for each in self.judged.skipped],
            "failed": [asdict(each) for each in self.judged.failed],
            "unmatched": [unmatched_dict(each) for each in self.judged.unmatched],
            "reason": self.fate.seen.fault or self.judged.reason,
            "set_aside": self.letters.set_aside is not None,
        }


async def explain(bus: Bus, decoder: Decoder, fate: EntryFate, *, make: Callable[[StoredRules], RuleSet]) -> Reasons:
    """Return why an entry has its effect, or none; ``make`` makes its rule set.

    Raises ``InvalidSettings`` if the bus has lost its rules.
    """
    seen = fate.seen
    activation: Activation | None = None
    judged = Judgement()
    ahead = False
    if seen.kind != "activation" and seen.event is not None:
        offset = seen.entry.offset
        activation = activation_at(decoder.activations, seen.event.appid, seen.partition, offset)
        if activation is not None:
            announced = activation.positions.get(seen.partition)
            ahead = announced is not None and is_after(announced, offset)
        judged = judge(seen, await RulesAt(bus, make).rules(activation))
    names = {(bound.mutation.rule, bound.mutation.id) for bound in judged.mutations}
    names |= {(each.rule, each.mutation) for each in (*judged.skipped, *judged.failed)}
    if seen.event is not None:
        names.add((seen.event.type, WHOLE))
    letters = await letters_of(bus, seen, names)
    ledger = _ledger(fate, letters)
    return Reasons(
        fate=fate,
        activation=activation,
        ahead=ahead,
        judged=judged,
        outcomes=[(bound, _outcome(bound, fate, letters, ledger)) for bound in judged.mutations],
        letters=letters,
    )


def _ledger(fate: EntryFate, letters: Letters) -> EffectLedger:
    """Return what the dead letters of an entry, and the entries behind it, say about its effect.

    What an operator has set aside is in none of them: a worker may not know it yet.
    """
    found, relatives = EffectLedger(fate.seen.partition), fate.relatives
    for letter in letters.found:
        if letter is not letters.set_aside:
            found.add_letter(letter)
    found.add_entries(each.entry for each in (*relatives.retries, *relatives.drops))
    return found


def _outcome(bound: BoundMutation, fate: EntryFate, letters: Letters, ledger: EffectLedger) -> Outcome:
    offset, effect, relatives = fate.seen.entry.offset, fate.effect, fate.relatives
    name = (bound.mutation.rule, bound.mutation.id)
    if relatives.copy_of is not None:
        return "copy"
    aside = letters.set_aside
    # A worker that has passed it without heeding the letter has applied it.
    if aside is not None and effect.state != "applied" and (effect.state != "passed" or offset in aside.passed_over):
        return "set_aside"
    match ledger.row(offset, fate.seen.app_id or "", *name):
        case None:
            pass
        case "retried" | "dropped" as found:
            return found
        case _:
            return "dead_letter"
    match effect.state:
        case "in_plan":
            return "applied" if (*name, True) in effect.planned else "waiting"
        case "passed":
            return "not_in_graph" if effect.checkpoint is not None else "applied"
        case state:
            return state


def _batch(effect: EntryEffect) -> str:
    if effect.state == "in_plan":
        return f"part of the graph's unfinished batch up to {effect.plan_end}"
    if effect.state == "waiting":
        return "none yet"
    return "not known: the graph keeps a batch only while it is unfinished"
