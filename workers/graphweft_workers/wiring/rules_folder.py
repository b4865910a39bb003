"""Watches a folder of rules and pushes it when it changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final

from graphweft_contracts import BusUnavailable, GraphUnavailable, GraphweftError, InvalidRules
from graphweft_contracts.events import DEFAULT_WORKFLOW
from graphweft_contracts.layout import ALL_APPS
from graphweft_contracts.rules_log import changed_files, newest
from graphweft_rules import RuleSet
from graphweft_rules.files.loader import TESTS, discover, unread_files, workflow_files
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.rule_sets.own_rules import own_rules_note
from graphweft_workers.settings.settings import Settings
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.wiring.default_rules import has_default_rules, with_default_rules
from graphweft_workers.wiring.query_check import refuse_wrong_queries
from graphweft_workers.wiring.rule_faults import keep_faults, read_faults
from graphweft_workers.wiring.rules import (
    active_files,
    load_new_rules,
    load_rules,
    load_usable_rules,
    push,
    store,
)

logger = get_logger("graphweft.rules")

_LOOK_S: Final = 0.25
_SETTLE_S: Final = 0.1
"""An editor may write a file in several steps."""

NEXT: Final = "correct this and save: a save is seen at once, and nothing restarts"
"""What is said below errors."""

type RulesState = dict[str, tuple[int, int, int]]
"""Time and size of rule files by path."""


class RulesFolder:
    """Makes the rules of a folder the active ones for all apps, and follows the folder's changes."""

    def __init__(self, settings: Settings, bus: Bus, graph: GraphStore, say: Callable[[str], None]) -> None:
        """``say`` prints a line for the user.

        The default rules belong to the default folder, until it has a folder ``default``. To a folder that the settings
        name they belong only if they are active already.
        """
        self._settings = settings
        self._brings_defaults = brings_defaults(settings)
        self._bus = bus
        self._graph = graph
        self._say = say
        self._files: frozenset[Path] = frozenset()
        """The files of the rules that were loaded last; some may lie outside of the folder."""
        self._faulty = False
        """Whether the last look found errors."""
        self._unread = ""
        """What was printed of files that nobody reads."""

    async def load(self) -> RuleSet | InvalidRules | None:
        """Return the rules of the folder, or their errors; None if they are active already."""
        try:
            return await load_new_rules(self._settings, self._bus, brings_defaults=self._brings_defaults)
        except InvalidRules as error:
            return error

    async def start(self, rules: RuleSet | InvalidRules | None) -> None:
        """Make the rules of the folder active, as they were ``load``ed; say and keep their errors.

        Raises ``RulesError`` if there would be no rules at all, and ``BusUnavailable``.
        """
        faults = ""
        try:
            if isinstance(rules, InvalidRules):
                raise rules
            if rules is not None:
                await self.push(rules)
        except InvalidRules as error:
            _, faults = await self._push_usable(error)
            self._say(f"{faults}\n{NEXT}")
        await self._keep(faults)
        await self.know_active()

    async def know_active(self) -> None:
        """Follow the files of the active rules too: some may lie outside of the folder. Raises ``BusUnavailable``."""
        self._files |= {self._settings.rules / name for name in await active_files(self._bus)}
        self._faulty = bool(await read_faults(self._bus))

    @property
    def has_faults(self) -> bool:
        """Whether rules of the folder had errors when it was last looked at."""
        return self._faulty

    @property
    def has_own(self) -> bool:
        """Whether the folder holds rules, with errors or without."""
        root = self._settings.rules
        return root.is_dir() and bool(discover(root))

    async def push(self, rules: RuleSet) -> list[str]:
        """Push rules unless they are active; return the names of the files that changed.

        A folder without rules changes nothing; but if no rules ever were active, the default rules become active.
        Raises ``BusUnavailable``, and ``RulesError`` for a refused query.
        """
        root = self._settings.rules
        self._files = frozenset(root / name for name in rules.files)
        found = await self._bus.rules.activations()
        active = newest(found, ALL_APPS)
        if not rules.workflows and found:
            return []
        before = await active_files(self._bus)
        rules = with_default_rules(rules, root, before, brings=self._brings_defaults)
        if not rules.workflows:
            return []
        if active is not None and active.digest == rules.digest:
            await store(self._bus, rules)  # another version may have stored them without a summary
            return []
        try:
            await refuse_wrong_queries(self._graph, (*rules.mutations, *rules.injections), root)
        except GraphUnavailable as error:
            logger.warning("queries_not_checked", reason=str(error))
        await self._activate(rules)
        if self._has_defaults(rules.files) and not has_default_rules(before):
            logger.info("default_rules_pushed", rules=rules.digest[:12], workflow=DEFAULT_WORKFLOW)
        gone = workflow_files(before).keys() - rules.workflows.keys()
        if gone - {DEFAULT_WORKFLOW}:
            self._say(f"no rules are left for {', '.join(sorted(gone))}: events of these workflows become dead letters")
        elif gone:
            folder = root / DEFAULT_WORKFLOW
            self._say(f"the default rules are not active any more: remove the folder {folder} to get them back")
        return _changed_names(before, rules.files)

    async def uses_defaults(self) -> bool:
        """Tell whether the default rules are active beside the folder's. Raises ``BusUnavailable``."""
        return self._has_defaults(await active_files(self._bus))

    def _has_defaults(self, files: Mapping[str, bytes]) -> bool:
        """Tell whether rules have the default ones, and not from the folder, which may hold a copy of them."""
        return has_default_rules(files) and not (self._settings.rules / DEFAULT_WORKFLOW).exists()

    async def follow(self, known: RulesState | None = None) -> None:
        """Look for changes until cancelled, from the state ``known`` on; print what changed, or the findings."""
        self._say_unread()
        seen = self._state()
        if known is not None and known != state_of(self._settings.rules):  # saved while everything started
            seen = {}
        while True:
            await asyncio.sleep(_LOOK_S)
            state = self._state()
            if state == seen:
                continue
            await asyncio.sleep(_SETTLE_S)
            if self._state() != state:
                continue
            seen = state if await self.look() else {}

    async def look(self) -> bool:
        """Push the rules of the folder as they are now, and print what changed, or the findings.

        Returns False if the bus did not answer: try again.
        """
        was_faulty, self._faulty = self._faulty, False
        try:
            rules = await asyncio.to_thread(load_rules, self._settings, as_stored=True)
            changed = await self.push(rules)
            await self._keep("")
            self._say_unread()
            if changed:
                self._say(f"rules {rules.digest[:12]} are active: {', '.join(changed)}")
            elif not rules.workflows:
                self._say(f"{self._settings.rules} holds no rules, so the ones before go on")
            elif was_faulty:
                self._say(f"the rules of {self._settings.rules} have no errors any more: {rules.digest[:12]} go on")
        except InvalidRules as error:
            self._faulty = True
            return await self._look_at_usable(error)
        except BusUnavailable as error:
            self._faulty = was_faulty
            logger.warning("rules_not_pushed", reason=str(error))
            return False
        except GraphweftError as error:
            self._faulty = True
            faults = f"the rules of {self._settings.rules} cannot be used, so the ones before go on: {error}"
            await self._keep(faults)
            self._say(faults)
        return True

    def _say_unread(self) -> None:
        """Print which files nobody reads, if that has changed."""
        root = self._settings.rules
        unread = "\n".join(map(str, unread_files(root))) if root.is_dir() else ""
        if unread and unread != self._unread:
            self._say(unread)
        self._unread = unread

    async def _look_at_usable(self, error: InvalidRules) -> bool:
        try:
            pushed, faults = await self._push_usable(error)
        except InvalidRules as nothing:
            pushed, faults = (
                "",
                f"the rules of {self._settings.rules} have errors, and there are none from before:\n{nothing}",
            )
        except BusUnavailable as unavailable:
            logger.warning("rules_not_pushed", reason=str(unavailable))
            return False
        await self._keep(faults)
        self._say("\n".join(filter(None, (pushed, faults, NEXT))))
        return True

    async def _keep(self, faults: str) -> None:
        await keep_faults(self._bus, str(self._settings.rules), faults)

    async def _push_usable(self, error: InvalidRules) -> tuple[str, str]:
        """Push what can be used; return what became active, and the errors.

        Raises the error if that is nothing, and ``BusUnavailable``.
        """
        root = self._settings.rules
        before = await active_files(self._bus)
        usable = await load_usable_rules(
            self._settings, self._bus, self._graph, error, brings_defaults=self._brings_defaults
        )
        if usable.rules is None:
            return "", usable.faults
        await self._activate(usable.rules)
        self._files |= {root / name for name in usable.rules.files}
        changed = _changed_names(before, usable.rules.files)
        return f"rules {usable.rules.digest[:12]} are active: {', '.join(changed)}", usable.faults

    async def _activate(self, rules: RuleSet) -> None:
        """Push rules; say if they were replaced before, and which apps do not follow them."""
        found = await self._bus.rules.activations()
        await push(self._bus, rules)
        before = newest(found, ALL_APPS)
        if before is not None and any((each.scope, each.digest) == (ALL_APPS, rules.digest) for each in found):
            self._say(
                f"rules {rules.digest[:12]} are active again, and replace {before.digest[:12]} of "
                f"{before.time:%Y-%m-%d %H:%M:%SZ}: {self._settings.rules} holds them"
            )
        if note := own_rules_note(found):
            self._say(note)

    def _state(self) -> RulesState:
        return state_of(self._settings.rules, self._files)


def brings_defaults(settings: Settings) -> bool:
    """Tell whether the default rules belong to the rules of the folder before they are active."""
    return "rules" not in settings.model_fields_set


def state_of(root: Path, more: Collection[Path] = ()) -> RulesState:
    """Return the state of the rule files in a folder, and of ``more`` files."""
    found: RulesState = {}
    rules = {path for path in root.rglob("*.yaml") if not path.name.endswith(TESTS)} if root.is_dir() else set[Path]()
    for path in rules | set(more):
        try:
            status = path.stat()
        except OSError:  # removed
            continue
        found[str(path)] = (status.st_mtime_ns, status.st_size, status.st_ino)
    if (root / DEFAULT_WORKFLOW).exists():  # it ends the default rules, also without a file
        found[str(root / DEFAULT_WORKFLOW)] = (0, 0, 0)
    return found


def _changed_names(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> list[str]:
    """Return the names of the files that changed; those that are gone are marked."""
    changes = changed_files(before, after)
    return sorted([*changes["added"], *changes["changed"], *(f"{name} (removed)" for name in changes["removed"])])
