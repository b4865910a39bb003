"""What all tests share: servers that the first test starts which needs one, and what one process of several runs."""

from __future__ import annotations

import gc
import logging
import signal
from collections.abc import Generator
from typing import Any, Final

import pytest
import structlog
from hypothesis import HealthCheck, settings
from tests.services import fork_server

from graphweft_workers.support.lazy_logger import before_next_entry

# A health check of time, or a deadline, says something about the machine, not about the code.
settings.register_profile(
    "short", max_examples=30, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("soak", settings.get_profile("short"), max_examples=300, derandomize=False)

# A shell lets what it starts in the background ignore Ctrl-C, and so do all commands that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

fork_server.use()

# Pytest rewrites the assertions of a plugin that nothing has imported yet: one comes after those that it imports.
pytest_plugins = [
    "tests.flaky",
    "tests.services.embedded",
    "tests.services.fixtures",
    "tests.services.loop_holds",
    "tests.services.opened_in",
    "tests.services.time_limit",
    "tests.services.drivers",
    "tests.services.models",
    "tests.services.runtime_environments",
    "tests.services.node",
    "tests.services.traces",
    "tests.adapters.runner",
    "tests.adapters.contract",
    "tests.adapters.trials",
]

_configure = structlog.configure


@pytest.fixture(autouse=True, scope="session")
def _loggers_follow_their_set_up() -> Generator[None]:
    """Let no logger keep the set-up of its first use: ``capture_logs`` of a later test would see nothing of it.

    Without a set-up, exceptions are logged as roles log them: structlog would draw them for a second, with all values.
    """
    for processor in structlog.get_config()["processors"]:
        if isinstance(processor, structlog.dev.ConsoleRenderer):
            processor.exception_formatter = structlog.dev.plain_traceback
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            structlog, "configure", lambda **options: _configure(**options | {"cache_logger_on_first_use": False})
        )
        yield


@pytest.fixture(autouse=True)
def _logs_as_they_were() -> Generator[None]:
    """Forget the set-up of a command that a test ran, done or still to come: a later test would miss entries."""
    ours, others = logging.getLogger("graphweft"), logging.getLogger()
    before, handlers = (ours.handlers, ours.level, ours.propagate), others.handlers
    yield
    before_next_entry(None)
    if structlog.is_configured():
        structlog.reset_defaults()
        others.handlers = handlers
        ours.handlers, ours.level, ours.propagate = before


_ORDER: Final = (
    *("neo4j", "unit", "contract", "property", "fuzz"),
    *("ports", "kafka", "chaos", "upgrade", "acceptance", "edges", "adapters", "redis"),
)
"""What takes one process longest begins; meanwhile the others do what is cheap, so that most faults show at once."""
_LAST: Final = _ORDER.index("acceptance")
_LONG: Final = (
    *("adapters/model_clients", "edges/test_cli", "edges/test_gateway", "edges/test_cli_memory", "edges/test_mcp"),
    *("edges/test_console", "redis/test_mutation_worker", "redis/test_client", "redis/test_graph_store"),
    *("edges/test_readiness", "acceptance/test_examples", "redis/test_default_memory", "redis/test_joins"),
    *("acceptance/test_default_rules", "acceptance/test_demo_data", "acceptance/test_tutorial", "edges/test_hook"),
    *("redis/test_older_graph",),
)
"""What takes most CPU of the last four folders of ``_ORDER``, the dearest first: at the end the rest fills all
processes, and none is left alone with one of these."""
_SOAK_LIMITS: Final = 20
_ONE_PROCESS: Final = {"neo4j", "ports", "kafka", "chaos"}
"""Folders whose servers take a gigabyte and 20 s to start: one process takes the folder. Else it takes a module."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="run all tests, also those that are left to `make soak`")
    parser.addoption("--long", action="store_true", help="run also the tests that are marked long")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("soak" if config.getoption("--soak") else "short")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None]:
    """Search for no cycles among what is imported and collected: it stays, and took a quarter of the collection."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)  # after what shuffles modules
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    marks = [] if config.getoption("--soak") else ["soak"] if config.getoption("--long") else ["soak", "long"]
    if left := {item for item in items if any(_is_left(item, mark) for mark in marks)}:
        config.hook.pytest_deselected(items=[item for item in items if item in left])
        items[:] = [item for item in items if item not in left]
    items.sort(key=lambda item: _place(item.nodeid))
    if config.getoption("--soak"):
        for item in items:
            _give_more_time(item)


def _give_more_time(item: pytest.Item) -> None:
    """Let a test take twenty times its limit: its random cases are ten to a hundred times as many."""
    mark = item.get_closest_marker("timeout")
    limit = float(mark.args[0] if mark else item.config.getini("timeout"))
    item.add_marker(pytest.mark.timeout(_SOAK_LIMITS * limit), append=False)


def _place(nodeid: str) -> tuple[int, int]:
    """Return where a test stands in the order: that of its folder, then that of its module; others come last."""
    folder = _ORDER.index(_folder(nodeid))
    name = nodeid.removeprefix("tests/").partition(".py::")[0]
    name = name.rpartition("/")[0] if name.startswith("adapters/") else name
    rank = _LONG.index(name) if name in _LONG else len(_LONG)
    return (_LAST, rank) if folder >= _LAST and rank < len(_LONG) else (folder, len(_LONG))


def _is_left(item: pytest.Item, name: str) -> bool:
    """Tell whether a test has a mark that leaves it out.

    One with words leaves out what has any of them in the id of its parameters; with ``keep``, what has none of those.
    """
    id = item.callspec.id if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ""
    for mark in item.iter_markers(name):
        words: tuple[str, ...] = mark.kwargs.get("keep") or mark.args
        if any(word in id for word in words) != ("keep" in mark.kwargs) or not words:
            return True
    return False


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let each report reach the process that collects them: half a character in a log entry would end the run."""
    report = yield
    report.sections = [(name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give a process of ``--dist loadscope`` a folder or a module at a time."""
    if config.getoption("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Folders(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            module = nodeid.partition("::")[0]
            folder = _folder(nodeid)
            if "neo4j" in nodeid.lower() and folder in {"ports", "redis", "kafka", "edges"}:
                return "neo4j"  # its server is the largest of all
            if folder == "neo4j" and "[falkordb" in nodeid:
                return module + " on FalkorDB"  # not all in the one process that has the largest
            if folder in _ONE_PROCESS:
                return folder
            # The tests of a runtime share the program that imports it.
            return module.rpartition("/")[0] if folder == "adapters" else module

    return Folders(config, log)


def _folder(nodeid: str) -> str:
    return nodeid.removeprefix("tests/").partition("/")[0]
