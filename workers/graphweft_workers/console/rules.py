"""The page *Rules*: the active rule set of an app, its findings, and a try of an event."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import StringConstraints

from graphweft_contracts import InvalidEvent
from graphweft_contracts.admission import decode_given
from graphweft_contracts.clock import SYSTEM_CLOCK
from graphweft_contracts.layout import ALL_APPS
from graphweft_contracts.rules_log import Activation, active_for
from graphweft_rules import RuleSet, lint
from graphweft_workers.console.access import Viewer
from graphweft_workers.console.questions import AppQuestion
from graphweft_workers.console.sources import Sources
from graphweft_workers.gateway.problems import Problem
from graphweft_workers.reports.entries import activation_dict
from graphweft_workers.reports.judging import judge_event
from graphweft_workers.reports.rule_dicts import mutation_dict, unmatched_dict
from graphweft_workers.reports.rule_sets import short_digest
from graphweft_workers.reports.values import shown
from graphweft_workers.wiring.connections import dialects
from graphweft_workers.wiring.rules import known_labels

_FILES: Final = 100
_CHARS: Final = 100_000
"""Characters of one rule file that are shown."""
_FINDINGS: Final = 200
_ACTIVATIONS: Final = 50


class TryQuestion(AppQuestion):
    """Asks what the active rules would do with an event."""

    event: Annotated[str, StringConstraints(min_length=2, max_length=400_000)]


async def rules_page(sources: Sources, viewer: Viewer, question: AppQuestion) -> dict[str, Any]:
    """Return the active rule set of an app: its files, findings and workflows; and the latest activations."""
    app_id = viewer.app(question.app)
    activations = (await sources.decoder()).activations
    active = active_for(activations, app_id)
    own = [each for each in activations if each.scope in (app_id, ALL_APPS)]
    found: dict[str, Any] = {
        "active": None if active is None else _activation(active),
        "activations": [_activation(each) for each in reversed(own[-_ACTIVATIONS:])],
        "files": [],
        "findings": [],
        "workflows": [],
        "files_total": 0,
        "findings_total": 0,
        "lost": False,
    }
    stored = None if active is None else await sources.bus.rules.stored(active.digest)
    if active is None or stored is None:
        return found | {"lost": active is not None}
    rules = await sources.rules(active)
    files = {name: data for name, data in sorted(stored.files.items()) if _may_see(viewer, app_id, name)}
    linted = (active.digest, frozenset(files))
    if (findings := sources.findings.get(linted)) is None:
        findings = sources.findings[linted] = await asyncio.to_thread(_findings, files)
    return found | {
        "files": [
            {"name": name, "text": data.decode("utf-8", "replace")[:_CHARS], "cut": len(data) > _CHARS}
            for name, data in list(files.items())[:_FILES]
        ],
        "files_total": len(files),
        "findings": findings[:_FINDINGS],
        "findings_total": len(findings),
        "workflows": await asyncio.to_thread(
            _workflows, rules, [name for name in sorted(rules.workflows) if viewer.uses(app_id, name)]
        ),
    }


async def try_event(sources: Sources, viewer: Viewer, question: TryQuestion) -> dict[str, Any]:
    """Return what the active rules of the app would do with an event. Nothing is written."""
    app_id = viewer.app(question.app)
    try:
        event = decode_given(question.event.encode("utf-8", "replace"), SYSTEM_CLOCK.now())
    except InvalidEvent as error:
        raise Problem(422, "invalid-event", f"the event is not valid: {error}") from None
    if event.appid != app_id:
        raise Problem(422, "other-app", f"the event must be of the app {app_id!r}: correct its appid")
    if event.workflow is not None and not viewer.uses(app_id, event.workflow):
        raise Problem(403, "other-workflow", "the token may not see the rules of this workflow")
    activations = (await sources.decoder()).activations
    rules = await sources.active_rules(activations, app_id)
    return await asyncio.to_thread(_try, rules, event, redacts=sources.redacts)


def _try(rules: RuleSet, event: Any, *, redacts: bool) -> dict[str, Any]:
    judged = judge_event(rules, event)
    found: dict[str, Any] = {
        "mutations": [mutation_dict(each) for each in judged.mutations],
        "missed": [asdict(each) for each in (*judged.skipped, *judged.failed)],
        "unmatched": [unmatched_dict(each) for each in judged.unmatched],
        "reason": judged.reason,
    }
    return shown(found, redacts=redacts, text=10_000)  # type: ignore[no-any-return]


def _workflows(rules: RuleSet, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return workflows, each with the reason if it does not compile with this version."""
    faults = {name: rules.problem(name) for name in names}
    return [{"name": name, "problem": None if fault is None else str(fault)} for name, fault in faults.items()]


def _findings(files: Mapping[str, bytes]) -> list[dict[str, Any]]:
    """Return the findings of rule files; the linter reads folders, so they are written for a moment."""
    with tempfile.TemporaryDirectory(prefix="graphweft-lint-") as name:
        root = Path(name).resolve()
        for path, data in files.items():
            target = (root / path).resolve()
            # No command stores such a name, but the bus may hold one.
            if not target.is_relative_to(root) or target == root:
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        found = [each.to_dict() for each in lint([root], dialects(), known_labels())]
    prefix = f"{root}/"
    texts = ("file", "message")
    return [each | {key: str(each[key]).replace(prefix, "").replace(str(root), "") for key in texts} for each in found]


def _may_see(viewer: Viewer, app_id: str, file: str) -> bool:
    """Tell whether a viewer may see a rule file: of a workflow that it may use, or one that workflows share."""
    folder = file.partition("/")[0]
    return viewer.all_apps or folder.startswith("_") or viewer.uses(app_id, folder)


def _activation(each: Activation) -> dict[str, Any]:
    return activation_dict(each) | {"rules": short_digest(each.digest)}
