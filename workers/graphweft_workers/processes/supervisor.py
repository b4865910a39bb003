"""``graphweft up``: the embedded server, a mutation worker, a responder and, if the settings need it, a memory worker.

They are the processes of a real deployment (``graphweft run …``). A process that dies is restarted; the log and the
graph's checkpoint prevent lost and repeated events. A process that dies several times before all are ready ends the
supervisor.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Final

from graphweft_contracts import BusUnavailable, InvalidRules, InvalidSettings, NotRunning
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_rules import RuleSet
from graphweft_workers.drivers.embedded.server import DataFolder, EmbeddedServer, die_with_parent, end_process
from graphweft_workers.drivers.settings import GRAPH_VARIABLES
from graphweft_workers.processes import heartbeat
from graphweft_workers.processes.console import ConsoleProcess
from graphweft_workers.processes.own_command import own_command
from graphweft_workers.processes.readiness import waits_for
from graphweft_workers.settings.settings import Settings
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.log_limit import LogLimit
from graphweft_workers.support.tasks import end_tasks
from graphweft_workers.wiring import features as jobs
from graphweft_workers.wiring.connections import make_bus, make_graph
from graphweft_workers.wiring.ontologies import load_ontologies, ontologies_folder, ontology_contents
from graphweft_workers.wiring.rules import check_usable, load_rules
from graphweft_workers.wiring.rules_folder import RulesFolder, RulesState, brings_defaults, state_of

logger = get_logger("graphweft.up")

PROCESSES_FILE: Final = "processes.json"
"""The file in the data folder with the process ids, for people."""
_ROLES: Final = ("mutation", "injection")
_STOP_S: Final = 20.0
_FIRST_RESTART_S: Final = 0.2
_LAST_RESTART_S: Final = 5.0
_STEADY_S: Final = 10.0
"""A process that ran this long is restarted at once; a shorter run doubles the wait."""
_LOOK_S: Final = 0.1
_SAVES_S: Final = 0.25
"""How often the ontologies are looked at."""
_DISK_S: Final = 5.0
"""How often the free space of the disk is looked at."""
_DISK_LINE_S: Final = 600.0
"""At most one line about a full disk in this time."""
_MOST_DEATHS: Final = 3
"""The supervisor gives up when a role has died this often before all were ready."""


class Supervisor:
    """Runs the embedded server and the services on one data folder."""

    def __init__(
        self, settings: Settings, say: Callable[[str], None] = print, *, log: Path | None = None,
        unready_s: float = 60.0, clock: Clock = SYSTEM_CLOCK,
    ) -> None:  # fmt: skip
        """``say`` prints a line for the user. The roles log to the file ``log``, or to standard error without one.

        While they are starting, a warning says every ``unready_s`` what they wait for.
        """
        self._say = say
        self._log = log
        self._unready_s = unready_s
        self._clock = clock
        self._settings = settings
        self._folder = DataFolder(settings.data)
        self._server = EmbeddedServer(self._folder.path, fsync=settings.fsync)
        self._children: dict[str, asyncio.subprocess.Process] = {}
        more = ("memory",) if jobs.groups(settings) else ()
        self._roles = (*_ROLES, *more, *(("archive",) if settings.archives else ()))
        self._deaths: dict[str, list[str]] = {role: [] for role in self._roles}
        """By role: how its processes ended."""
        self._renewed: set[int] = set()
        """Ids of processes that are ended, so that others take their places."""
        self._stopping = asyncio.Event()
        self.console = ""
        """What to tell the user about the console, once all roles serve; empty: nothing."""
        self.uses_default_rules = False
        """Whether the default rules were active at the start."""
        self.uses_own_rules = True
        """Whether the folder held rules at the start."""
        self.has_rule_faults = False
        """Whether some of them had errors."""

    def stop(self) -> None:
        """Ask everything to stop."""
        self._stopping.set()

    async def run(self, ready: Callable[[], Awaitable[None] | None] | None = None) -> None:
        """Start everything, call ``ready`` once all roles serve, restart processes that die, and end after ``stop``.

        Raises ``InvalidRules`` or ``InvalidSettings`` before it starts a role, ``InvalidRules`` also if the server
        refuses queries of the rules, and ``NotRunning`` if a role dies several times before all serve.
        """
        if self._settings.bus_url or self._settings.graph_url:
            raise InvalidSettings(
                f"`graphweft up` starts a server of its own: unset GRAPHWEFT_BUS_URL and {GRAPH_VARIABLES}, or start "
                "`graphweft run mutation` and `graphweft run injection` with the servers that they name"
            )
        if self._settings.probe_address is not None:
            logger.warning("probes_off", next="the roles of `graphweft up` answer none: ask `graphweft doctor --role`")
        try:
            heartbeat.check_folder()
        except OSError as error:
            raise InvalidSettings(
                f"the roles cannot write their heartbeats: {error}; set {heartbeat.FOLDER_VARIABLE} to a folder that "
                "this user may write"
            ) from error
        # With data of an earlier run, the bus may have the rules already, so they are loaded only if it lacks them.
        seen, ontologies = state_of(self._settings.rules), ontology_contents(self._settings)
        rules = None if self._server.has_data() else self._load_first()
        await jobs.try_out(self._settings)
        self._folder.acquire()
        try:
            if not await self._start_server():
                return
            await self._push_rules(rules)
            watchers = [asyncio.create_task(self._watch_server()), asyncio.create_task(self._watch_rules(seen))]
            watchers += [asyncio.create_task(self._watch_disk())]
            watchers += [asyncio.create_task(self._watch(role)) for role in self._roles]
            console = ConsoleProcess(self._settings, self._folder.path)
            watchers.append(asyncio.create_task(self._watch_ontologies(ontologies, console)))
            self.console = console.listen()
            watching = asyncio.create_task(console.watch(self._settings.as_environment()))
            starting = asyncio.create_task(self._until_ready())
            try:
                await asyncio.wait([starting, *watchers], return_when=asyncio.FIRST_COMPLETED)
                if starting.done() and starting.result():
                    called = ready() if ready is not None else None
                    if called is not None:
                        await called
                    stopped = asyncio.create_task(self._stopping.wait())
                    await asyncio.wait([stopped, *watchers], return_when=asyncio.FIRST_COMPLETED)
            finally:
                self._stopping.set()
                starting.cancel()
                watching.cancel()
                # No watcher may start a process after all have been ended.
                await asyncio.gather(starting, watching, *watchers, return_exceptions=True)
            await asyncio.gather(*watchers)
        finally:
            await _end_children(self._children)
            await self._server.stop()
            with contextlib.suppress(OSError):
                (self._folder.path / PROCESSES_FILE).unlink(missing_ok=True)
            self._folder.release()

    @contextlib.asynccontextmanager
    async def _rules_folder(self) -> AsyncGenerator[RulesFolder]:
        async with (
            contextlib.aclosing(make_bus(self._settings)) as bus,
            contextlib.aclosing(make_graph(self._settings)) as graph,
        ):
            yield RulesFolder(self._settings, bus, graph, self._say)

    def _load_first(self) -> RuleSet | InvalidRules:
        """Load the rules of the folder, or return their errors. Raises ``RulesError`` if nothing of it can be used."""
        try:
            return load_rules(self._settings, as_stored=True)
        except InvalidRules as error:
            if not brings_defaults(self._settings):
                check_usable(self._settings, error)
            return error

    async def _push_rules(self, rules: RuleSet | InvalidRules | None) -> None:
        """Make the rules of the folder active, as far as they have no errors.

        Raises ``RulesError`` if there would be no rules at all.
        """
        async with self._rules_folder() as folder:
            if rules is None:
                rules = await folder.load()
            try:
                await folder.start(rules)
                self.uses_default_rules = await folder.uses_defaults()
                self.uses_own_rules = folder.has_own
                self.has_rule_faults = folder.has_faults
            except BusUnavailable as error:
                logger.warning("rules_not_pushed", reason=str(error), next="the services push them")

    async def _watch_rules(self, seen: RulesState) -> None:
        async with self._rules_folder() as folder:
            with contextlib.suppress(BusUnavailable):
                await folder.know_active()
            await self._or_stop(folder.follow(seen))  # by itself it ends with an unexpected error only

    async def _watch_ontologies(self, used: Mapping[str, bytes], console: ConsoleProcess) -> None:
        """Start the roles again when the ontologies have changed and have no errors: a process reads them once."""
        folder, seen = ontologies_folder(self._settings), used
        while not self._stopping.is_set():
            await self._pause(_SAVES_S)
            found = await asyncio.to_thread(ontology_contents, self._settings)
            if found == seen:
                continue
            await self._pause(_SAVES_S)  # an editor may write a file in several steps
            if found != await asyncio.to_thread(ontology_contents, self._settings):
                continue
            seen = found
            try:
                await asyncio.to_thread(load_ontologies, self._settings)
            except InvalidRules as error:
                self._say(f"ontologies in {folder} have errors, so those before go on:\n{error}\ncorrect this and save")
                continue
            changed = [name for name in sorted({*used, *found}) if used.get(name) != found.get(name)]
            if changed:
                used = found
                await self._renew(console)
                self._say(f"ontologies have changed, and the roles have started again with them: {', '.join(changed)}")
            else:
                self._say(f"the ontologies in {folder} have no errors any more, and are those in use")

    async def _renew(self, console: ConsoleProcess) -> None:
        """End the roles that read ontologies, and wait until they serve again."""
        readers = [role for role in self._roles if role != "archive"]
        children = {
            role: child for role, child in self._children.items() if role in readers and child.returncode is None
        }
        self._renewed |= {child.pid for child in children.values()}
        await asyncio.gather(console.end(), _end_children(children))
        while not self._stopping.is_set() and any([await self._waits_for(role) for role in readers]):
            await self._pause(_LOOK_S)

    async def _watch(self, role: str) -> None:
        wait_s = _FIRST_RESTART_S
        while not self._stopping.is_set():
            child = await self._start(role)
            self._children[role] = child
            self._note()
            began = self._clock.monotonic()
            code = await self._or_stop(child.wait())
            if self._stopping.is_set():
                return
            if self._clock.monotonic() - began > _STEADY_S:
                wait_s = _FIRST_RESTART_S
            if child.pid in self._renewed:
                self._renewed.discard(child.pid)
                heartbeat.forget(role, child.pid)
                continue
            beat = heartbeat.read(role, child.pid)
            heartbeat.forget(role, child.pid)
            error = beat.error if beat is not None and beat.error else f"see {self._log or 'its log above'}"
            self._deaths[role].append(f"exit code {code}, {error}")
            logger.error("service_ended", role=role, code=code, error=error, restart_after_s=wait_s)
            await self._pause(wait_s)
            wait_s = min(wait_s * 2, _LAST_RESTART_S)

    async def _until_ready(self) -> bool:
        """Wait until all roles serve, and log the reasons for waiting. Return False after ``stop``."""
        began = warned_at = self._clock.monotonic()
        logged: dict[str, str] = {}
        while not self._stopping.is_set():
            for role, deaths in self._deaths.items():
                if len(deaths) >= _MOST_DEATHS:
                    raise NotRunning(
                        f"graphweft is not up: {role} ended {len(deaths)} times before everything was ready, at last "
                        f"with {deaths[-1]}. All is stopped again; the data stays in {str(self._folder.path)!r}"
                    )
            waiting = {role: reason for role in self._roles if (reason := await self._waits_for(role))}
            if not waiting:
                return True
            if waiting != logged:
                logger.info("starting", **waiting)
                logged = waiting
            if self._clock.monotonic() - warned_at > self._unready_s:
                warned_at = self._clock.monotonic()
                logger.warning("not_ready", after_s=round(warned_at - began), **waiting)
            await self._pause(_LOOK_S)
        return False

    async def _waits_for(self, role: str) -> str:
        child = self._children.get(role)
        if child is None or child.returncode is not None:
            return "is being started"
        return await waits_for(self._settings, role, pid=child.pid, worker_name=self._worker_name(role))

    async def _watch_server(self) -> None:
        """Start the server again when it ends. If it does not start, as on a full disk, try that again and again."""
        wait_s = _FIRST_RESTART_S
        while not self._stopping.is_set():
            process, began = self._server.process, self._clock.monotonic()
            if process is None or await self._or_stop(process.wait()) is None:
                return
            if self._clock.monotonic() - began > _STEADY_S:
                wait_s = _FIRST_RESTART_S
            logger.error(
                "server_ended", code=process.returncode, restart_after_s=wait_s, last_words=self._server.last_words()
            )
            await self._pause(wait_s)
            wait_s = min(wait_s * 2, _LAST_RESTART_S)
            try:
                if not self._stopping.is_set() and await self._start_server():
                    self._note()
            except (InvalidSettings, OSError) as error:
                logger.error("server_not_started", error=str(error), restart_after_s=wait_s)

    async def _watch_disk(self) -> None:
        lines = LogLimit(every_s=_DISK_LINE_S, clock=self._clock)
        while not self._stopping.is_set():
            if (fault := self._server.disk_fault()) and lines.admit("disk_full") is not None:
                logger.error("disk_full", message=f"{fault}, and work goes on by itself")
            await self._pause(_DISK_S)

    async def _start_server(self) -> bool:
        """Start the server, which takes long with much data. Return False after ``stop``."""

        async def started() -> bool:
            await self._server.start()
            return True

        return await self._or_stop(started()) or False

    async def _start(self, role: str) -> asyncio.subprocess.Process:
        with contextlib.nullcontext() if self._log is None else self._log.open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *own_command("run", role),
                env=self._environment(role),
                stdin=asyncio.subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent(signal.SIGTERM),
            )

    def _environment(self, role: str) -> dict[str, str]:
        environment = self._settings.as_environment()
        environment["GRAPHWEFT_WORKER_NAME"] = self._worker_name(role)
        environment.pop("GRAPHWEFT_PROBE_ADDRESS", None)  # one address is for one role
        return environment

    def _worker_name(self, role: str) -> str:
        return self._settings.worker_name or f"up-{role}"

    async def _or_stop[Result](self, work: Coroutine[Any, Any, Result]) -> Result | None:
        """Return the result of some work. Return None after ``stop``, which cancels it."""
        working, stop = asyncio.create_task(work), asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([working, stop], return_when=asyncio.FIRST_COMPLETED)
            return working.result() if working.done() else None
        finally:
            await end_tasks(working, stop)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    def _note(self) -> None:
        server = self._server.process
        pids = {"up": os.getpid(), "server": server.pid if server else None}
        pids |= {role: child.pid for role, child in self._children.items()}
        path: Path = self._folder.path / PROCESSES_FILE
        # Replaced, not rewritten: a reader sees the old or the new file.
        draft = path.with_suffix(".new")
        try:
            draft.write_text(json.dumps(pids) + "\n")
            draft.replace(path)
        except OSError as error:  # a full disk stops the server; the supervisor continues, so that space can be freed
            logger.error("processes_not_noted", file=str(path), error=error.strerror)


def empty_data(data: Path) -> None:
    """Remove the contents of a data folder. Raises ``InvalidSettings`` while a process uses the folder."""
    folder = DataFolder(data)
    folder.acquire()
    try:
        for path in data.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != "lock":
                path.unlink()
    except OSError as error:
        raise InvalidSettings(f"the old data in {data} cannot be removed: {error}; remove it yourself") from error
    finally:
        folder.release()


async def _end_children(children: Mapping[str, asyncio.subprocess.Process]) -> None:
    async def end(role: str, child: asyncio.subprocess.Process) -> None:
        if not await end_process(child, _STOP_S):
            logger.warning("service_killed", role=role, after_s=_STOP_S)

    await asyncio.gather(*(end(role, child) for role, child in children.items()))
