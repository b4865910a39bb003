"""Watches a folder of rules and pushes it when it changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from graphweft_contracts import BusUnavailable, GraphUnavailable, GraphweftError, InvalidRules
from graphweft_contracts.events import DEFAULT_WORKFLOW
from graphweft_contracts.layout import ALL_APPS
from graphweft_contracts.rules_log import changed_files, newest
from graphweft_rules import RuleSet
from graphweft_rules.files.loader import TESTS, unread_files, workflow_files
from graphweft_workers.lazy_logger import get_logger
from graphweft_workers.new_project import is_default
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.roles.query_check import refuse_wrong_queries
from graphweft_workers.roles.rules import (
    default_rules,
    load_new_rules,
    load_rules,
    load_sound_rules,
    push,
    store,
)
from graphweft_workers.roles.settings import Settings

logger = get_logger("graphweft.rules")

_LOOK_S: Final = 0.25
_SETTLE_S: Final = 0.1
"""An editor may write a file in several steps."""

type _State = dict[str, tuple[int, int]]


class RulesFolder:
    """Makes the rules of a folder the active ones for all apps, and follows the folder's changes."""

    def __init__(
        self,
        settings: Settings,
        bus: Bus,
        graph: GraphStore,
        say: Callable[[str], None],
        keep_faults: Callable[[str], None] = lambda faults: None,
    ) -> None:
        """``say`` prints a line for the user; ``keep_faults`` gets the errors of the folder, or "" without any."""
        self._keep_faults = keep_faults
        self._settings = settings
        self._bus = bus
        self._graph = graph
        self._say = say
        self._files: frozenset[Path] = frozenset()
        """The files of the rules that were loaded last; some may lie outside of the folder."""
        self._faulty = False
        """Whether the last look found errors."""
        self._unread = ""
        """What was printed of files that nobody reads."""

    async def load_new(self) -> RuleSet | None:
        """Load the rules of the folder; None if they are active already. Raises ``RulesError``."""
        return await load_new_rules(self._settings, self._bus)

    async def watch_active(self) -> None:
        """Follow the files of the active rules, which are those of the folder. Raises ``BusUnavailable``."""
        active = newest(await self._bus.rules.activations(), ALL_APPS)
        stored = await self._bus.rules.stored(active.digest) if active else None
        self._files = frozenset(self._settings.rules / name for name in stored.files) if stored else frozenset()

    async def push(self, rules: RuleSet) -> list[str]:
        """Push rules unless they are active; return the names of the files that changed.

        A folder without rules changes nothing; but if no rules ever were active, the default rules become active.
        Raises ``BusUnavailable``, and ``RulesError`` for a refused query.
        """
        root = self._settings.rules
        self._files = frozenset(root / name for name in rules.files)
        found = await self._bus.rules.activations()
        active = newest(found, ALL_APPS)
        if not rules.workflows:
            if not found and "rules" not in self._settings.model_fields_set:
                await self._push_defaults()
            return []
        if active is not None and active.digest == rules.digest:
            await store(self._bus, rules)  # another version may have stored them without a summary
            return []
        try:
            await refuse_wrong_queries(self._graph, (*rules.mutations, *rules.injections), root)
        except GraphUnavailable as error:
            logger.warning("queries_not_checked", reason=str(error))
        stored = await self._bus.rules.stored(active.digest) if active else None
        before: Mapping[str, bytes] = stored.files if stored else {}
        await push(self._bus, rules)
        if gone := sorted(workflow_files(before).keys() - rules.workflows.keys() - {DEFAULT_WORKFLOW}):
            self._say(f"no rules are left for {', '.join(gone)}: events of these workflows become dead letters")
        if active is not None and DEFAULT_WORKFLOW not in rules.workflows and is_default(active.digest):
            self._say(
                f"the default rules are not active any more: copy them to {root / DEFAULT_WORKFLOW} to keep them "
                "(`graphweft init` writes them)"
            )
        return _named(before, rules.files)

    async def has_defaults(self) -> bool:
        """Tell whether the default rules are the active ones. Raises ``BusUnavailable``."""
        active = newest(await self._bus.rules.activations(), ALL_APPS)
        return active is not None and is_default(active.digest)

    async def _push_defaults(self) -> None:
        rules = await asyncio.to_thread(default_rules, self._settings)
        await push(self._bus, rules)
        logger.info("default_rules_pushed", rules=rules.digest[:12], workflow=DEFAULT_WORKFLOW)

    async def follow(self) -> None:
        """Look for changes until cancelled; print what changed, or the findings."""
        self._say_unread()
        seen = self._state()
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
            self._keep_faults("")
            self._say_unread()
            if changed:
                self._say(f"rules {rules.digest[:12]} are active: {', '.join(changed)}")
            elif not rules.workflows:
                self._say(f"{self._settings.rules} holds no rules, so the ones before go on")
            elif was_faulty:
                self._say(f"the rules of {self._settings.rules} have no errors any more: {rules.digest[:12]} go on")
        except InvalidRules as error:
            self._faulty = True
            return await self._look_at_sound(error)
        except BusUnavailable as error:
            self._faulty = was_faulty
            logger.warning("rules_not_pushed", reason=str(error))
            return False
        except GraphweftError as error:
            self._faulty = True
            faults = f"the rules of {self._settings.rules} cannot be used, so the ones before go on: {error}"
            self._keep_faults(faults)
            self._say(faults)
        return True

    def _say_unread(self) -> None:
        """Print which files nobody reads, if that has changed."""
        root = self._settings.rules
        unread = "\n".join(map(str, unread_files(root))) if root.is_dir() else ""
        if unread and unread != self._unread:
            self._say(unread)
        self._unread = unread

    async def _look_at_sound(self, error: InvalidRules) -> bool:
        try:
            pushed, faults = await self._push_sound(error)
        except BusUnavailable as unavailable:
            logger.warning("rules_not_pushed", reason=str(unavailable))
            return False
        self._keep_faults(faults)
        self._say("\n".join(filter(None, (pushed, faults))))
        return True

    async def _push_sound(self, error: InvalidRules) -> tuple[str, str]:
        """Push the workflows without errors; return what became active, and the errors. Raises ``BusUnavailable``."""
        root = self._settings.rules
        active = newest(await self._bus.rules.activations(), ALL_APPS)
        stored = await self._bus.rules.stored(active.digest) if active else None
        before: Mapping[str, bytes] = stored.files if stored else {}
        try:
            sound = await load_sound_rules(self._settings, self._graph, before)
        except InvalidRules as refused:
            error, sound = refused, None
        if sound is None or active is None or sound.rules.digest == active.digest:
            return "", f"the rules of {root} have errors, so the ones before go on:\n{error}"
        await push(self._bus, sound.rules)
        self._files |= {root / name for name in sound.rules.files}
        changed = _named(before, sound.rules.files)
        lines: list[str] = []
        if sound.kept:
            lines.append(f"the rules of {', '.join(sound.kept)} have errors, so the ones before go on:")
        if sound.absent:
            lines.append(f"the rules of {', '.join(sound.absent)} have errors, and there are none from before:")
        pushed = f"rules {sound.rules.digest[:12]} are active: {', '.join(changed)}"
        return pushed, "\n".join([*lines, *map(str, sound.findings)])

    def _state(self) -> _State:
        """Return time and size of all rule files."""
        found: _State = {}
        root = self._settings.rules
        rules = (
            {path for path in root.rglob("*.yaml") if not path.name.endswith(TESTS)} if root.is_dir() else set[Path]()
        )
        for path in rules | self._files:
            try:
                status = path.stat()
            except OSError:  # removed
                continue
            found[str(path)] = (status.st_mtime_ns, status.st_size)
        return found


def _named(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> list[str]:
    """Return the names of the files that changed; those that are gone are marked."""
    changes = changed_files(before, after)
    return sorted([*changes["added"], *changes["changed"], *(f"{name} (removed)" for name in changes["removed"])])
