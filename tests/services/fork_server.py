"""Starts ``graphweft`` commands by fork from a process that has imported them: nearly all of a start is imports.

``subprocess`` and ``asyncio`` of the tests, and of ``graphweft up``, ask this process for what is written as
``python [-P] -m graphweft_workers.cli ...``. What they get is a child of their own, with its id, signals and exit
code, its environment, folder and streams, which began at the first line of the command. It differs from a new process
in what is imported before, and in its memory. A test of either starts it for real: by the ``graphweft`` script, ``-X``,
``-c``, or from a wheel, as ``test_deployed_roles`` does with each role. All are started for real with
``GRAPHWEFT_TESTS_FORK=0`` and on a system other than Linux, and so is one that writes to a terminal, or has variables
that Python or a library reads when it starts.

This module is also the program of the process, and imports only what each Python has.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import signal
import socket
import struct
import subprocess
import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn, cast

__all__ = ("ForkServer", "use")

_COMMAND: Final = "graphweft_workers.cli"
_PACKAGES: Final = ("graphweft_contracts", "graphweft_rules", "graphweft", _COMMAND.partition(".")[0])
_LEFT_OUT: Final = (
    *("graphweft.adapters", "graphweft.testing", "graphweft_workers.testing"),
    "graphweft_workers.features.episodes.extraction.graphiti",
)
"""What few processes import, or none, and takes long."""
_STARTERS: Final = ("up", "demo")
"""Commands that start others: each is its own fork server, too, because nothing else can give it children."""
_BEFORE_MAIN: Final = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC_", "OPENBLAS_", "OMP_", "OTEL_")
"""Beginnings of variables that are read when a process starts or a module is imported."""
_SUBREAPER: Final = 36
"""Source: prctl(2), PR_SET_CHILD_SUBREAPER: who has it gets the children of descendants that ended."""
_DEATH_SIGNAL: Final = 1
"""Source: prctl(2), PR_SET_PDEATHSIG."""
_LENGTH: Final = struct.Struct("!I")


class ForkServer:
    """The connection to a process that forks. Calls may come from any thread."""

    def __init__(self, connection: socket.socket, environment: Mapping[str, str]) -> None:
        self._connection = connection
        self._before_main = _before_main(environment)
        self._lock = threading.Lock()

    @classmethod
    def start(cls) -> ForkServer:
        """Start such a process; it ends with this one."""
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-P", __file__, str(theirs.fileno())]
            started = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])

        def end() -> None:
            ours.close()
            started.wait()

        atexit.register(end)
        return cls(ours, os.environ)

    def fits(self, environment: Mapping[str, str]) -> bool:
        """Tell whether a new process with this environment would start as the server did."""
        return _before_main(environment) == self._before_main

    def spawn(self, request: Mapping[str, Any], streams: Sequence[int]) -> int:
        """Return the id of a new child of this process."""
        body = json.dumps(request).encode("utf-8", "surrogateescape")
        with self._lock, _children_of_descendants():
            socket.send_fds(self._connection, [_LENGTH.pack(len(body))], streams)
            self._connection.sendall(body)
            (pid,) = _LENGTH.unpack(_read(self._connection, _LENGTH.size))
        return int(pid)


@contextlib.contextmanager
def _children_of_descendants() -> Any:
    """Become the parent of those whose parent ends meanwhile. Later orphans are none of ours: nobody waits for them."""
    _prctl(_SUBREAPER, 1)
    try:
        yield
    finally:
        _prctl(_SUBREAPER, 0)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")


def _before_main(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(_BEFORE_MAIN) and value}


def _read(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = connection.recv(size - len(found))
        if not part:
            raise EOFError("the fork server has ended; its standard error says why")
        found += part
    return found


# In the process that starts commands


def use(server: ForkServer | None = None) -> None:
    """Let this process start commands by fork from now on; without a server, the first command starts one."""
    if sys.platform != "linux" or os.environ.get("GRAPHWEFT_TESTS_FORK") == "0":
        return
    execute: Any = vars(subprocess.Popen)["_execute_child"]
    lock = threading.Lock()

    def found() -> ForkServer:
        nonlocal server
        with lock:
            server = server or ForkServer.start()
            return server

    @functools.wraps(execute)
    def execute_child(self: Any, args: Any, executable: Any, preexec_fn: Any, *others: Any) -> None:
        close_fds, pass_fds, cwd, env, _, _, shell, *pipes = others[:13]
        restore_signals, gid, gids, uid, umask, new_session, group = others[13:]
        words = _words(args)
        streams = [each if each != -1 else fd for fd, each in enumerate((pipes[0], pipes[3], pipes[5]))]
        environment = _text(os.environ if env is None else env)
        rights = (gid, gids, uid, umask, group) == (None, None, None, -1, -1)
        plain = close_fds and restore_signals and rights and not (pass_fds or shell)
        death_signal = _death_signal(preexec_fn)
        if (
            words is None or not plain or (preexec_fn is not None and death_signal is None)
            or executable not in (None, sys.executable) or (cwd is not None and not os.path.isdir(cwd))
            or any(map(os.isatty, streams)) or not (forks := found()).fits(environment)
        ):  # fmt: skip
            execute(self, args, executable, preexec_fn, *others)
            return
        request = {
            "command": [os.fsdecode(each) for each in args], "words": words, "environment": environment,
            "folder": os.path.abspath(os.fsdecode(cwd or ".")), "session": new_session, "death_signal": death_signal,
        }  # fmt: skip
        self.pid = forks.spawn(request, streams)
        self._child_created = True
        self._close_pipe_fds(*pipes)

    subprocess.Popen._execute_child = execute_child  # type: ignore[attr-defined]


def _words(args: Any) -> list[str] | None:
    """Return the arguments of ``graphweft``, or None for another command."""
    if not isinstance(args, list | tuple):
        return None
    python, *words = map(os.fsdecode, cast("Sequence[Any]", args))
    if words[:1] == ["-P"]:
        del words[0]
    return words[2:] if python == sys.executable and words[:2] == ["-m", _COMMAND] else None


def _text(environment: Mapping[Any, Any]) -> dict[str, str]:
    return {os.fsdecode(name): os.fsdecode(value) for name, value in environment.items()}


def _death_signal(function: Any) -> int | None:
    """Return the signal of ``die_with_parent``."""
    if isinstance(function, functools.partial) and function.args[:1] == (_DEATH_SIGNAL,):
        return int(function.args[1])
    return None


# In the process that forks


def _serve(connection: socket.socket) -> Mapping[str, Any]:
    """Fork for each request. This returns in the new processes only, with the request; the server itself ends here."""
    while True:
        head, streams, _, _ = socket.recv_fds(connection, _LENGTH.size, 3)
        if not head:
            os._exit(0)
        body = _read(connection, *_LENGTH.unpack(head)).decode("utf-8", "surrogateescape")
        request: dict[str, Any] = json.loads(body)
        go, went = os.pipe()
        told, tell = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads: those of OpenBLAS know of forks
            between = os.fork()
            if between == 0:
                child = os.fork()
                if child:
                    os.write(tell, _LENGTH.pack(child))
                    os._exit(0)
                for each in (connection.detach(), went, told):
                    os.close(each)
                os.read(go, 1)  # until the one between has ended, and its parent is the one who asked for it
                os.close(go)
                _begin(request, streams)
                os.close(tell)
        if between == 0:
            return request
        os.close(tell)
        os.waitpid(between, 0)
        os.close(went)
        pid = os.read(told, _LENGTH.size)
        os.read(told, 1)  # until it has begun
        connection.sendall(pid)
        for each in (*streams, go, told):
            os.close(each)


def _begin(request: Mapping[str, Any], streams: Sequence[int]) -> None:
    """Do what is done before a program is executed."""
    _take(streams)
    os.chdir(request["folder"])
    if request["session"]:
        os.setsid()
    if request["death_signal"] is not None:
        _prctl(_DEATH_SIGNAL, request["death_signal"])
    os.environ.clear()
    os.environ.update(request["environment"])
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _take(streams: Sequence[int]) -> None:
    """Make these the standard streams, as Python does at its start."""
    kept = [os.dup(each) for each in streams]  # none of them is 0, 1 or 2
    for number, each in enumerate(kept):
        os.dup2(each, number)
    for each in {*streams, *kept}:
        if each > 2:
            os.close(each)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old: io.TextIOWrapper = getattr(sys, name)
        raw = io.FileIO(number, "wb" if number else "rb", closefd=False)
        buffered = io.BufferedWriter(raw) if number else io.BufferedReader(raw)
        new = io.TextIOWrapper(
            buffered, encoding=old.encoding, errors=old.errors, newline="\n", line_buffering=number == 2
        )
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)


def _run(request: Mapping[str, Any]) -> None:
    words: list[str] = request["words"]
    sys.orig_argv[:] = request["command"]
    sys.argv[:] = [_COMMAND, *words]
    if "-P" not in request["command"][1:2]:
        sys.path.insert(0, os.getcwd())
    if words[:1] and words[0] in _STARTERS:
        _fork_for_children()
    runpy.run_module(_COMMAND, run_name="__main__", alter_sys=True)


def _fork_for_children() -> None:
    """Fork a server for the commands that this process starts, while it has nothing but imports."""
    ours, theirs = socket.socketpair()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        server = os.fork()
    if server:
        theirs.close()
        use(ForkServer(ours, os.environ))
        return
    ours.close()
    with open(os.devnull, "r+b", buffering=0) as nothing:
        for number in range(3):
            os.dup2(nothing.fileno(), number)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _main(theirs)


def _main(connection: socket.socket) -> NoReturn:
    """Serve, and run what is asked for in the new process.

    It ends in order, but for the search through all that was imported: that is not its own, and would be copied for it.
    """
    code: Any = None
    try:
        _run(_serve(connection))
    except SystemExit as end:
        code = end.code
    if not (code is None or isinstance(code, int)):
        sys.exit(code)
    vars(threading)["_shutdown"]()  # waits for threads
    vars(atexit)["_run_exitfuncs"]()
    with contextlib.suppress(OSError, ValueError):  # nobody reads it any more, or it is closed
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit((code or 0) & 0xFF)


def _import_all() -> None:
    # Variables that the command sets before it imports.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    gc.disable()
    for package in _PACKAGES:
        folders = importlib.import_module(package).__path__
        for module in pkgutil.walk_packages(folders, f"{package}."):
            if not module.name.startswith(_LEFT_OUT) and not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    gc.enable()
    gc.collect()
    gc.freeze()  # what nobody looks at is not copied


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests
    _import_all()
    _main(socket.socket(fileno=int(sys.argv[1])))
