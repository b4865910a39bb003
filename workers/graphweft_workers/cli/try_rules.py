"""``graphweft try``."""

from __future__ import annotations

import io
import json as json_module
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from graphweft_contracts import Event, InvalidEvent
from graphweft_rules import BoundMutation, RuleSet
from graphweft_rules.matching.explain import UnmatchedRule, unmatched, why_nothing
from graphweft_workers.cli.emit import Faults, events_of_lines, numbered_lines
from graphweft_workers.cli.options import Json, Rules, command
from graphweft_workers.cli.output import INVALID_EVENTS, print_json, printable, say
from graphweft_workers.cli.publishing import interruptible
from graphweft_workers.imports.files import read_whole
from graphweft_workers.inspection.rule_dicts import mutation_dict, unmatched_dict
from graphweft_workers.roles.rules import load_rules
from graphweft_workers.roles.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tried:
    """What the rules do with one event."""

    event: Event
    mutations: tuple[BoundMutation, ...] = ()
    skipped: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    unmatched: list[UnmatchedRule] = field(default_factory=list[UnmatchedRule])
    """Other rules for the event's type."""
    reason: str = ""
    """Why nothing matches; empty if something does."""


@command
async def try_rules(
    file: Annotated[Path, typer.Argument(help="File with one event (JSON), or with one on each line.")],
    rules: Rules = None,
    json: Json = False,
) -> int | None:
    """Show what the rules would do with events: the queries with their parameters, and skips with the reason.

    It contacts no server and writes nothing. Exits with 1 if an event matches no mutation.
    """
    rule_set = load_rules(Settings.load(rules=rules))
    tried = [_try(rule_set, event) for event in _events(file)]
    if json:
        print_json([_dict(each) for each in tried])
    else:
        for each in tried:
            _print(each)
    return 1 if any(not each.mutations for each in tried) else None


def _events(file: Path) -> list[Event]:
    try:
        with interruptible(), file.open("rb") as given:
            content = read_whole(given, str(file))
    except OSError as error:
        raise InvalidEvent(f"{file}: {error.strerror}: give a file of events, as for `graphweft emit`") from error
    lines: Iterable[tuple[int, bytes]] = [(1, content)]
    try:
        json_module.loads(content)
    except (ValueError, RecursionError):  # JSON lines, or an error that is reported with its line
        lines = numbered_lines(io.BytesIO(content), str(file))
    faults = Faults()
    events = list(events_of_lines(lines, str(file), faults))
    if faults.count:
        raise InvalidEvent(f"{file}: {faults.text(*INVALID_EVENTS)}")
    if not events:
        raise InvalidEvent(f"{file}: it holds no event")
    return events


def _try(rules: RuleSet, event: Event) -> _Tried:
    refusal = rules.refusal(event)
    if refusal is not None:
        return _Tried(event=event, reason=refusal)
    matched = rules.match_event(event)
    for failed in matched.failed:
        raise failed.error
    skipped = [
        {"rule": each.rule, "mutation": each.query, "place": str(each.place), "reason": each.detail}
        for each in matched.skipped
    ]
    reason = "" if matched.mutations or skipped else why_nothing(rules, event)
    others = unmatched(rules, event)
    return _Tried(event=event, mutations=matched.mutations, skipped=skipped, unmatched=others, reason=reason)


def _print(tried: _Tried) -> None:
    say(printable(f"{tried.event.type} {tried.event.id}"))
    for bound in tried.mutations:
        mutation = bound.mutation
        say(printable(f"  {mutation.rule}/{mutation.id} ({mutation.place})"))
        for line in mutation.cypher.statement.strip().splitlines():
            say(printable(f"      {line}"))
        params = json_module.dumps(bound.params, ensure_ascii=False, default=str)
        say(printable(f"      with {params}"))
    for skip in tried.skipped:
        say(printable(f"  {skip['rule']}/{skip['mutation']} ({skip['place']}) is skipped: {skip['reason']}"))
    for rule in tried.unmatched:
        say(printable(f"  {rule.rule} ({rule.place}) does not match: {rule.reason}"))
    if tried.reason:
        say(printable(f"  nothing: {tried.reason}"))


def _dict(tried: _Tried) -> dict[str, Any]:
    return {
        "id": tried.event.id,
        "type": tried.event.type,
        "mutations": [mutation_dict(bound) for bound in tried.mutations],
        "skipped": tried.skipped,
        "unmatched": [unmatched_dict(rule) for rule in tried.unmatched],
        "reason": tried.reason,
    }
