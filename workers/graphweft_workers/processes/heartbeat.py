"""A role's process writes a heartbeat file from its event loop once a second; ``graphweft doctor --role`` reads it.

So a health check sees the processes of its own container only. It finds a hanging process among working ones, and does
not restart a role that waits for an unavailable server. No port is needed.

A health check starts a new Python each time, so this module imports only a few modules.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from graphweft_contracts.clock import SYSTEM_CLOCK
from graphweft_workers.support.lazy_logger import get_logger

logger = get_logger("graphweft.heartbeat")

FOLDER_VARIABLE: Final = "GRAPHWEFT_HEARTBEAT_DIR"
MAX_AGE_S: Final = 15.0
"""An older heartbeat means that the event loop hangs: a large batch on a slow machine takes less."""
ANY_ROLE: Final = "any"
ROLES: Final = {
    "mutation": "mutation", "worker": "mutation", "injection": "injection", "responder": "injection",
    "memory": "memory", "archive": "archive", "gateway": "gateway",
    "console": "console",
}  # fmt: skip
"""The names for ``doctor --role``, and the role of ``graphweft run`` that each means."""
_EVERY_S: Final = 1.0
_MOST_ERROR: Final = 500
_LARGEST_PID: Final = 2**31

type _State = Literal["starting", "running", "ended"]
type Finding = dict[str, str]
"""The fields check, state, found and advice, as ``doctor`` prints them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """The last heartbeat of a process. ``error`` is the reason for its end, if it wrote one."""

    role: str
    pid: int
    state: str
    monotonic: float
    error: str

    @property
    def age_s(self) -> float:
        """Seconds since the heartbeat; negative if the machine has restarted since."""
        return SYSTEM_CLOCK.monotonic() - self.monotonic


class Heartbeat:
    """Writes the heartbeat file of this process."""

    def __init__(self, role: str) -> None:
        self.role = role
        self.state: _State = "starting"
        self.reached: Callable[[], Mapping[str, bool]] = dict[str, bool]
        """Tells of what only this role uses, by name, whether it answers; see ``Reaching``."""
        self.interrupted: Callable[[], Collection[int]] = tuple
        """See ``Service.interrupted``."""
        self._error = ""
        self._started = SYSTEM_CLOCK.now().timestamp()
        self._unwritten = False
        self._turned = SYSTEM_CLOCK.monotonic()

    @property
    def turn_age_s(self) -> float:
        """Seconds since the event loop last turned for the heartbeat; more than a second or two: it was held."""
        return SYSTEM_CLOCK.monotonic() - self._turned

    def beat(self) -> None:
        """Write the file. Never raises: the process also works without it. A warning is logged once."""
        self._turned = SYSTEM_CLOCK.monotonic()
        content = {
            "role": self.role,
            "pid": os.getpid(),
            "state": self.state,
            "started": self._started,
            "time": SYSTEM_CLOCK.now().timestamp(),
            "monotonic": self._turned,
            "error": self._error,
        }
        try:
            path = _path(self.role, os.getpid(), make=True)
            # Replaced, not rewritten: a reader sees the old or the new heartbeat.
            draft = path.with_suffix(".new")
            draft.write_text(json.dumps(content) + "\n", "utf-8")
            draft.replace(path)
        except OSError as error:
            if not self._unwritten:
                logger.warning(
                    "heartbeat_not_written",
                    role=self.role,
                    error=str(error),
                    next=f"`graphweft doctor --role {self.role}` fails here: set {FOLDER_VARIABLE} to a folder that "
                    "this process may write",
                )
            self._unwritten = True
        else:
            self._unwritten = False

    def begin(self, interrupted: Callable[[], Collection[int]] = tuple) -> None:
        """Write at once that the role has begun its work; ``interrupted`` says from then on where nothing goes on."""
        self.interrupted = interrupted
        self.state = "running"
        self.beat()

    def end(self, error: BaseException) -> None:
        """Write the reason for the end of this process."""
        self.state, self._error = "ended", _words(error)[:_MOST_ERROR]
        self.beat()

    def remove(self) -> None:
        """Remove the file, because the process ends normally."""
        forget(self.role, os.getpid())

    def remove_left_over(self) -> None:
        """Remove the files of dead processes of this role, which this process replaces."""
        with contextlib.suppress(OSError):
            for path in _files(self.role):
                with contextlib.suppress(OSError, ValueError):
                    if not _lives(_read(path).pid):
                        path.unlink(missing_ok=True)


@asynccontextmanager
async def beating(role: str) -> AsyncGenerator[Heartbeat]:
    """Write heartbeats until the block ends; keep the error that ends it. Call ``begin`` once the role works."""
    import asyncio

    from graphweft_workers.support.tasks import end_tasks

    heartbeat = Heartbeat(role)
    heartbeat.remove_left_over()
    heartbeat.beat()

    async def keep() -> None:
        while True:
            await asyncio.sleep(_EVERY_S)
            heartbeat.beat()

    keeping = asyncio.create_task(keep(), name="graphweft-heartbeat")
    try:
        yield heartbeat
    except Exception as error:
        keeping.cancel()
        heartbeat.end(error)
        raise
    else:
        heartbeat.remove()
    finally:
        await end_tasks(keeping)


def folder() -> Path:
    """Return the folder of the heartbeat files, which need not exist: ``GRAPHWEFT_HEARTBEAT_DIR``, or one of this user
    in the temp folder.
    """
    # Importing the settings takes longer than a whole health check.
    if named := os.environ.get(FOLDER_VARIABLE):  # noqa: TID251
        return Path(named)
    try:
        temporary = tempfile.gettempdir()
    except FileNotFoundError:  # no folder is writable
        temporary = "/tmp"
    return Path(temporary) / f"graphweft-{os.getuid()}"


def read(role: str, pid: int) -> Beat | None:
    """Return the last heartbeat of a process; None if it cannot be read."""
    try:
        return _read(_path(role, pid))
    except (OSError, ValueError):
        return None


def forget(role: str, pid: int) -> None:
    """Remove the file of a process that has ended."""
    with contextlib.suppress(OSError):
        _path(role, pid).unlink(missing_ok=True)


def check_folder() -> None:
    """Create the folder if it is missing. Raises ``OSError`` if this user cannot write there."""
    with tempfile.NamedTemporaryFile(dir=_path("check", os.getpid(), make=True).parent):
        pass


def examine(name: str, *, max_age_s: float = MAX_AGE_S) -> list[Finding]:
    """Check the processes of a role on this machine, or in this container. All of them must be healthy.

    ``name`` is one of ``ROLES``, or ``ANY_ROLE``. A missing process is a finding too.
    """
    role = ROLES.get(name)
    try:
        found = [_judge(path, max_age_s) for path in _files(role)]
    except OSError as error:
        advice = f"set {FOLDER_VARIABLE} to a folder of this user, for the role and for this check"
        return [_finding(role or "roles", "fail", f"{folder()} cannot be read: {error}", advice)]
    findings = [one for one in found if one is not None]
    if findings:
        return findings
    what = "any role" if role is None else f"the role {role}"
    advice = (
        f"start `graphweft run {role or 'ROLE'}` here. If it runs, look for 'no heartbeat can be written' in its log, "
        f"and run this check as the same user with the same {FOLDER_VARIABLE} and TMPDIR"
    )
    return [_finding(role or "roles", "fail", f"no process of {what} has written a heartbeat to {folder()}", advice)]


def report(findings: Sequence[Finding], *, as_json: bool) -> int:
    """Print the findings and return the exit code."""
    if as_json:
        sys.stdout.write(json.dumps(findings, ensure_ascii=True) + "\n")
    else:
        for one in findings:
            advice = f"\n     -> {one['advice']}" if one["advice"] else ""
            sys.stdout.write(f"{one['state']:>4} {one['check']}: {one['found']}{advice}\n")
    return 1 if any(one["state"] == "fail" for one in findings) else 0


def main(arguments: Sequence[str]) -> int | None:
    """Run ``doctor --role …`` without loading anything else. Return None for any other command."""
    values = {"--role": "", "--max-age": str(MAX_AGE_S)}
    as_json = False
    words = iter(arguments)
    if next(words, "") != "doctor":
        return None
    for word in words:
        name, given, value = word.partition("=")
        if word == "--json":
            as_json = True
        elif name in values:
            values[name] = value if given else next(words, "")
        else:
            return None
    try:
        max_age_s = float(values["--max-age"])
    except ValueError:
        return None
    if values["--role"] not in {*ROLES, ANY_ROLE} or not max_age_s > 0:
        return None
    return report(examine(values["--role"], max_age_s=max_age_s), as_json=as_json)


def _judge(path: Path, max_age_s: float) -> Finding | None:
    """Return the finding for a file; None if it has been removed."""
    try:
        beat = _read(path)
    except FileNotFoundError:  # the process has just ended
        return None
    except (OSError, ValueError) as error:
        return _finding(path.stem, "fail", f"{path} is not a heartbeat file: {error}", "remove it")
    check = f"{beat.role} process {beat.pid}"
    again = f"start `graphweft run {beat.role}` again, if nothing else does"
    if beat.state == "ended":
        return _finding(check, "fail", f"it ended: {beat.error}", f"see its log, then {again}")
    if not _lives(beat.pid):
        return _finding(check, "fail", "it ended without an error message: killed, or out of memory", again)
    if beat.age_s < 0:
        return _finding(check, "fail", "its last heartbeat is from before this machine started", again)
    if beat.state == "starting":  # loading rules blocks the loop, so the age says nothing
        advice = "wait; give the health check a start period that is longer than loading the rules"
        return _finding(check, "fail", "it is still loading its rules", advice)
    if not beat.age_s <= max_age_s:
        found = f"it hangs: its event loop has not turned for {beat.age_s:.0f} s"
        return _finding(check, "fail", found, "restart it; use SIGKILL if SIGTERM does not end it")
    return _finding(check, "ok", f"it runs; its last beat is {beat.age_s:.1f} s old", "")


def _finding(check: str, state: str, found: str, advice: str) -> Finding:
    return {"check": check, "state": state, "found": found, "advice": advice}


def _path(role: str, pid: int, *, make: bool = False) -> Path:
    where = folder()
    if make:
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check(where)
    return where / f"{role}-{pid}.json"


def _files(role: str | None) -> Iterator[Path]:
    where = folder()
    if not where.exists():
        return iter(())
    _check(where)
    return iter(sorted(where.glob(f"{role or '*'}-*.json")))


def _check(where: Path) -> None:
    """Refuse a folder of another user in the temp folder."""
    if where.name == f"graphweft-{os.getuid()}" and where.lstat().st_uid != os.getuid():
        raise PermissionError(f"{where} belongs to another user")


def _read(path: Path) -> Beat:
    """Return the heartbeat in a text. Raises ``ValueError`` for anything else."""
    content: Any = json.loads(path.read_text("utf-8"))
    try:
        beat = Beat(
            role=str(content["role"]),
            pid=int(content["pid"]),
            state=str(content["state"]),
            monotonic=float(content["monotonic"]),
            error=str(content["error"]),
        )
    except (KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"a field is missing or wrong: {error}") from error
    if not 0 < beat.pid < _LARGEST_PID:
        raise ValueError("it names no process")
    return beat


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it belongs to another user
        return True
    return True


def _words(error: BaseException) -> str:
    """Return what may be published about an error: graphweft's own texts, and the types of others."""
    from graphweft_contracts import GraphweftError

    first: Any = error
    while isinstance(first, BaseExceptionGroup):  # from a task group
        first = first.exceptions[0]  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return str(first) if isinstance(first, GraphweftError) else f"{type(first).__name__}, see its log"  # pyright: ignore[reportUnknownArgumentType]
