"""Rules that cannot be used: every page says which, where, and what to do. The other rules go on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, Final

from graphweft_contracts.clock import SYSTEM_CLOCK
from graphweft_contracts.rules_log import Activation, active_for, newest
from graphweft_rules import RuleSet
from graphweft_rules.files.findings import errors
from graphweft_workers.console.access import Viewer
from graphweft_workers.console.questions import AppQuestion
from graphweft_workers.console.sources import Sources
from graphweft_workers.reports.values import shown
from graphweft_workers.wiring.rule_faults import read_faults

_SETS: Final = 16
"""Active rule sets that are looked at; so many stay compiled."""
_COMPILE_S: Final = 1.0
"""Within this time another workflow is compiled. The next question goes on, because compiled ones are kept."""
_WORKFLOWS: Final = 10
"""Faulty workflows that are listed."""
_FINDINGS: Final = 5
"""Errors of each of them."""
_TEXT: Final = 500
_FOLDER: Final = 4_000
"""Characters of the errors of the rules folder."""


async def rule_faults(sources: Sources, viewer: Viewer, question: AppQuestion) -> dict[str, Any]:
    """Return the faults of the active rules of an app, or of all apps, and to operators those of the rules folder."""
    app_id = viewer.apps(question.app)
    active = list(_active((await sources.decoder()).activations, app_id))
    until = SYSTEM_CLOCK.monotonic() + _COMPILE_S
    lost: list[dict[str, Any]] = []
    faults: list[dict[str, Any]] = []
    unknown = 0
    for each in active[:_SETS]:
        about = {"scope": each.scope, "rules": each.digest[:12]}
        rules, why = await sources.usable_rules(each)
        if why:
            lost.append(about | {"why": why})
            continue
        names = [name for name in sorted(rules.workflows) if app_id is None or viewer.uses(app_id, name)]
        found, left = await asyncio.to_thread(_faults, rules, names, until)
        faults += [about | fault for fault in found]
        unknown += left
    folder = await read_faults(sources.bus) if viewer.all_apps else ""
    return {
        "lost": lost,
        "workflows": faults[:_WORKFLOWS],
        "workflows_total": len(faults),
        "unknown": unknown + len(active[_SETS:]),
        "folder": shown(folder[:_FOLDER], redacts=sources.redacts, text=_FOLDER),
    }


def _active(activations: Sequence[Activation], app_id: str | None) -> Iterator[Activation]:
    """Yield the activations whose rules apply now: to an app, or to any; each rule set once."""
    if app_id is not None:
        found = [active_for(activations, app_id)]
    else:
        scopes = {each.scope for each in activations if each.restates is None}
        found = [newest(activations, scope) for scope in sorted(scopes)]
    seen = set[str]()
    for each in found:
        if each is not None and each.digest not in seen:
            seen.add(each.digest)
            yield each


def _faults(rules: RuleSet, names: Sequence[str], until: float) -> tuple[list[dict[str, Any]], int]:
    """Return the workflows that do not compile, with their errors, and how many were not tried before ``until``."""
    found: list[dict[str, Any]] = []
    for number, name in enumerate(names):
        if SYSTEM_CLOCK.monotonic() > until and not rules.is_compiled(name):
            return found, len(names) - number
        error = rules.problem(name)
        if error is not None:
            all_errors = errors(error.findings)
            texts = [shown(str(each), redacts=False, text=_TEXT) for each in all_errors[:_FINDINGS]]
            found.append({"workflow": name, "errors": texts, "errors_total": len(all_errors)})
    return found, 0
