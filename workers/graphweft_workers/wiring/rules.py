"""The rules that the settings name, and those in the log."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from graphweft_contracts import BusUnavailable, GraphUnavailable, InvalidRules, InvalidSettings
from graphweft_contracts.layout import ALL_APPS
from graphweft_contracts.rules_log import Activation, StoredRules, active_for, newest
from graphweft_workers.rule_sets.own_rules import own_rules_note
from graphweft_workers.settings.settings import Settings
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.wiring.connections import dialects
from graphweft_workers.wiring.default_rules import added_files, with_default_rules

if TYPE_CHECKING:  # a command that reads a count need not wait for the rules to load
    from graphweft_rules import RuleSet
    from graphweft_rules.files.findings import Finding
    from graphweft_rules.matching.pack import Pack
    from graphweft_rules.matching.sound_rules import SoundRules
    from graphweft_workers.ports.bus import Bus
    from graphweft_workers.ports.graph_store import GraphStore
    from graphweft_workers.rule_sets.active_rules import LoggedRules

logger = get_logger("graphweft.rules")

_ANSWER_S: Final = 5.0
"""How long a process that starts waits for the active rules."""


def load_rules(settings: Settings, *, only: Collection[str] | None = None, as_stored: bool = False) -> RuleSet:
    """Load every workflow below ``settings.rules``, and the ontologies. Raises ``RulesError`` with all findings.

    With ``only``, other workflows are not read. A folder that the settings name must exist. If the default folder is
    missing, there are no rules. See ``RuleSet.load`` for ``as_stored``.
    """
    from graphweft_rules import RuleSet

    packs = _packs(settings)
    if not settings.rules.is_dir():
        if "rules" not in settings.model_fields_set:
            return RuleSet({}, packs=packs)
        fault = "is a file" if settings.rules.exists() else "does not exist"
        raise InvalidSettings(
            f"the rules folder {str(settings.rules)!r} {fault}; name a folder with "
            "<Workflow>/graph_injection.yaml files in --rules or GRAPHWEFT_RULES"
        )
    return RuleSet.load(settings.rules, packs, dialects(), only=only, as_stored=as_stored)


def load_given_rules(settings: Settings, folder: Path) -> RuleSet:
    """Load the rules of a folder that a command names. Raises like ``load_rules``, and if it holds none."""
    rules = load_rules(settings.model_copy(update={"rules": folder}))
    if not rules.workflows:
        raise InvalidSettings(f"{folder} holds no rules: name a folder with <Workflow>/graph_injection.yaml files")
    return rules


async def load_sound_rules(settings: Settings, graph: GraphStore, before: Mapping[str, bytes]) -> SoundRules:
    """Load the workflows of the folder that have no errors; the others keep their files of ``before``.

    The graph server checks the queries, if it answers. Raises ``RulesError`` where ``load_sound`` does.
    """
    from graphweft_rules import RulesError
    from graphweft_rules.matching.sound_rules import load_sound
    from graphweft_workers.wiring.query_check import refuse_wrong_queries

    refused: tuple[Finding, ...] = ()
    broken: frozenset[str] = frozenset()
    while True:
        sound = await asyncio.to_thread(
            load_sound, settings.rules, _packs(settings), dialects(), before=before, broken=broken
        )
        sound = replace(sound, findings=(*sound.findings, *refused))
        try:
            await refuse_wrong_queries(graph, (*sound.rules.mutations, *sound.rules.injections))
        except GraphUnavailable as error:
            logger.warning("queries_not_checked", error=str(error))
        except RulesError as error:
            found = _workflows_of(sound.rules, {finding.place.file for finding in error.findings})
            if found <= broken:  # the rules of before are refused too
                raise
            refused, broken = (*refused, *error.findings), broken | found
            continue
        return sound


@dataclass(frozen=True, slots=True, kw_only=True)
class UsableRules:
    """What of a folder with errors can be used."""

    rules: RuleSet | None
    """The rules to make active; None: the active ones go on."""
    faults: str
    """The workflows with errors, what becomes of these, and all errors with their places."""


async def load_usable_rules(
    settings: Settings, bus: Bus, graph: GraphStore, error: InvalidRules, *, brings_defaults: bool = False
) -> UsableRules:
    """Load what can be used of a folder that has the ``error``: the workflows without errors, with what is active.

    Raises the error if that is nothing, ``BusUnavailable``, and what ``load_sound_rules`` raises for servers.
    """
    root, before = settings.rules, await active_files(bus)
    try:
        sound = await load_sound_rules(settings, graph, before)
    except InvalidRules as refused:
        if not before:
            raise
        return UsableRules(rules=None, faults=f"the rules of {root} have errors, so the ones before go on:\n{refused}")
    rules = with_default_rules(sound.rules, root, before, brings=brings_defaults)
    if not rules.workflows and not before:
        raise error
    lines: list[str] = []
    if sound.kept:
        lines.append(f"the rules of {', '.join(sound.kept)} have errors, so the ones before go on:")
    if sound.absent:
        lines.append(f"the rules of {', '.join(sound.absent)} have errors, and there are none from before:")
    if not rules.workflows or rules.files == before:
        whole = f"the rules of {root} have errors, so the ones before go on:"
        return UsableRules(rules=None, faults="\n".join([*(lines if sound.absent else [whole]), str(error)]))
    return UsableRules(rules=rules, faults="\n".join([*lines, *map(str, sound.findings)]))


def check_usable(settings: Settings, error: InvalidRules) -> None:
    """Raise the ``error`` of a folder of which no workflow can be used, as far as that is known without servers."""
    from graphweft_rules.matching.sound_rules import load_sound

    if not load_sound(settings.rules, _packs(settings), dialects(), before={}).rules.workflows:
        raise error


def _workflows_of(rules: RuleSet, files: Collection[str]) -> frozenset[str]:
    """Return the workflows with rules that are written in any of these files."""
    found: set[str] = set()
    for name, flow in rules.workflows.items():
        places = [part.place for rule in flow.mutation_rules for part in rule.parts]
        places += [part.place for rule in flow.injection_rules for part in rule.parts]
        if any(place.file in files for place in places):
            found.add(name)
    return frozenset(found)


def logged_rules(
    settings: Settings,
    bus: Bus,
    *,
    none: RuleSet | None = None,
    without_lost: bool = False,
    restores: bool = False,
) -> LoggedRules:
    """Return the rules that the log activates; ``none`` applies while it activates none.

    With ``without_lost``, what needs a lost rule set waits, and the rest goes on; for ``restores`` see ``LoggedRules``.
    """
    from graphweft_workers.rule_sets.active_rules import LoggedRules

    return LoggedRules(bus.rules, rules_maker(settings), none=none, without_lost=without_lost, restores=restores)


def rules_maker(settings: Settings) -> Callable[[StoredRules], RuleSet]:
    """Return a function that makes a rule set of one on the bus.

    Its workflows are compiled when they are used. Without a summary of this version everything is compiled at once.
    """
    from graphweft_rules import RuleSet
    from graphweft_rules.matching.rule_summary import RuleSummary

    packs = _packs(settings)

    def made(stored: StoredRules) -> RuleSet:
        summary = RuleSummary.from_json(stored.summary)
        rules = RuleSet.of_stored(stored.files, packs, dialects(), summary=summary)
        if not stored.files or summary is not None:
            return rules
        if stored.summary is not None:  # of an archive no summary is read
            logger.warning(
                "rules_of_another_version",
                rules=rules.digest[:12],
                next="all of them were compiled now: run `graphweft rules push` with their folder for a quick start",
            )
        for name in rules.workflows:
            if (problem := rules.problem(name)) is not None:
                logger.error("rules_do_not_compile", workflow=name, rules=rules.digest[:12], error=str(problem))
        return rules

    return made


async def load_new_rules(settings: Settings, bus: Bus, *, brings_defaults: bool = False) -> RuleSet | None:
    """Load the rules of the folder ``as_stored``; None if they are active for all apps already.

    Then nothing is compiled. If the bus does not answer, the rules are loaded. ``brings_defaults`` says that the
    default rules belong to them: see ``default_rules.added_files``.
    """
    with contextlib.suppress(BusUnavailable, TimeoutError):
        async with asyncio.timeout(_ANSWER_S):
            if await _is_active(settings, bus, brings_defaults):
                return None
    return await asyncio.to_thread(load_rules, settings, as_stored=True)


async def active_files(bus: Bus, scope: str = ALL_APPS) -> Mapping[str, bytes]:
    """Return the files of the rules that are active for a scope. Raises ``BusUnavailable``."""
    active = active_for(await bus.rules.activations(), scope)
    stored = None if active is None else await bus.rules.stored(active.digest)
    return {} if stored is None else stored.files


async def _is_active(settings: Settings, bus: Bus, brings_defaults: bool) -> bool:
    """Tell whether the active rules are the folder's, and have a summary of this version.

    A folder whose files all have the content of the stored ones, and which has no other workflow, extends the same
    files, so it has the same digest.
    """
    from graphweft_rules.files.loader import discover, workflow_files
    from graphweft_rules.matching.rule_summary import RuleSummary

    root = settings.rules
    if not root.is_dir() or not (named := discover(root)):
        return False
    active = newest(await bus.rules.activations(), ALL_APPS)
    stored = None if active is None else await bus.rules.stored(active.digest)
    if stored is None or RuleSummary.from_json(stored.summary) is None:
        return False
    added = added_files(root, stored.files, brings=brings_defaults)
    if any(name not in stored.files for name in added):
        return False
    files = {name: data for name, data in stored.files.items() if name not in added}
    return named.keys() == workflow_files(files).keys() and all(
        _content(root / name) == data for name, data in files.items()
    )


def _content(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except OSError:
        return None


async def push(bus: Bus, rules: RuleSet, scope: str = ALL_APPS) -> Activation:
    """Store a rule set and activate it for a scope. Raises ``BusUnavailable``."""
    await store(bus, rules)
    return await bus.rules.activate(scope, rules.digest)


async def store(bus: Bus, rules: RuleSet) -> None:
    """Store a rule set, or only its summary. Raises ``BusUnavailable``."""
    from graphweft_workers.rule_sets.active_rules import stored_rules

    await bus.rules.store(rules.digest, stored_rules(rules))


async def checked_rules(given: RuleSet, folder: Path, bus: Bus, app_id: str, graph: GraphStore) -> RuleSet:
    """Return the rules of a folder, with the default rules that are active for an app, or for all.

    Raises ``RulesError`` if the graph server refuses one of their queries, ``BusUnavailable``, ``GraphUnavailable``.
    """
    from graphweft_workers.wiring.query_check import refuse_wrong_queries

    rules = with_default_rules(given, folder, await active_files(bus, app_id))
    await refuse_wrong_queries(graph, (*rules.mutations, *rules.injections))
    return rules


async def push_if_new(bus: Bus, rules: RuleSet, folder: Path) -> None:
    """Push the rules of a folder for all apps, unless they were pushed before. Raises ``BusUnavailable``.

    Rules that were pushed before and then replaced stay replaced: a process that starts with an old folder must not
    bring them back. Default rules that are active stay active, until the folder has a workflow of their name.
    """
    found = await bus.rules.activations()
    active = newest(found, ALL_APPS)
    if rules.workflows and active is not None:
        rules = with_default_rules(rules, folder, await active_files(bus))
    if not rules.workflows:
        if not found:
            logger.warning(
                "no_rules",
                folder=str(folder),
                next="only memories and episodes take effect, and events of workflows become dead letters, until you "
                "push rules with `graphweft rules push`",
            )
        return
    was_active = any(each.digest == rules.digest for each in found)
    if was_active and await bus.rules.stored(rules.digest) is None:
        logger.warning(
            "rules_stored_again",
            folder=str(folder),
            rules=rules.digest[:12],
            message="the bus had lost what these rules are: events that need them go on",
        )
    if was_active:
        await store(bus, rules)  # another version may have stored them, too
    if active is None or not was_active:
        pushed = await push(bus, rules)
        note = own_rules_note(found)
        logger.info("rules_pushed", folder=str(folder), rules=pushed.digest[:12], **({"message": note} if note else {}))
    elif active.digest != rules.digest:
        logger.warning(
            "rules_replaced",
            folder=str(folder),
            active=active.digest[:12],
            next=f"to make those of the folder active again, run: graphweft rules push {folder}",
        )


def known_labels() -> frozenset[str]:
    """Return the labels that the features of graphweft write."""
    # No ontologies lie beside a folder that does not exist: they write no labels of their own, and may have errors.
    packs = _packs(Settings(rules=Path("no-such-folder", "rules")))
    return frozenset(label for pack in packs for label, _ in pack.keys)


def _packs(settings: Settings) -> Sequence[Pack]:
    from graphweft_workers.wiring.features import features

    return [pack for feature in features(settings) for pack in feature.mutations()]
