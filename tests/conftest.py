"""What all tests share: real servers, each started by the first test that needs it, and one process for its tests."""

from __future__ import annotations

import re
import signal
from collections.abc import Generator
from typing import Final

import pytest
import structlog
from _pytest.nodeid import coerce_node_id
from hypothesis import HealthCheck, settings

# A health check of time, or a deadline, says something about the machine, not about the code.
settings.register_profile("graphweft", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("graphweft")

# A shell lets what it starts in the background ignore Ctrl-C, and so do all commands that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Pytest rewrites the assertions of a plugin that nothing has imported yet: one comes after those that it imports.
pytest_plugins = [
    "tests.flaky",
    "tests.services.embedded",
    "tests.services.fixtures",
    "tests.services.models",
    "tests.services.runtime_environments",
    "tests.services.node",
    "tests.adapters.runner",
    "tests.adapters.contract",
]

_configure = structlog.configure


@pytest.fixture(autouse=True, scope="session")
def _loggers_follow_their_set_up() -> Generator[None]:
    """Let no logger keep the set-up of its first use: ``capture_logs`` of a later test would see nothing of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            structlog, "configure", lambda **options: _configure(**options | {"cache_logger_on_first_use": False})
        )
        yield


_SERVERS: Final = {"neo4j": {"neo4j", "neo4j_server"}, "kafka": {"kafka", "kafka_url", "secure_kafka"}}
"""Servers that take a gigabyte and 20 s to start, with the fixtures and parameters that ask for them."""
_REPLAYS: Final = ("erase", "export", "restatement", "swap")
"""Modules of half the time of Kafka, most of which is waiting: another process starts a broker for them."""
_LATER: Final = ("search_contract", "search_scopes", "facts_search", "search_kinds", "replay_equality", "export")
"""Modules of much of the time of Neo4j: the process that is done first with its group starts one for them."""
_FIRST: Final = ("neo4j", "kafka", "replays", "chaos", "neo4j-later")
"""The groups that take longest begin first; then modules with slow tests, and those that start servers."""


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    """Say which tests one process of ``--dist loadgroup`` runs: those of a heavy server, else those of a module."""
    groups: dict[pytest.Item, str] = {}
    for item in items:
        module = item.nodeid.partition("::")[0]
        asked = {*getattr(item, "fixturenames", ()), *re.findall(r"kafka|neo4j", item.nodeid)}
        group = next((name for name, by in _SERVERS.items() if asked & by), module)
        if group == "kafka" and module.removesuffix(".py").endswith(_REPLAYS):
            group = "replays"
        if group == "neo4j" and module.removesuffix(".py").endswith(_LATER):
            group = "neo4j-later"
        if module.startswith("tests/chaos/"):
            group = "chaos"  # they have servers of their own
        item.add_marker(pytest.mark.xdist_group(group))
        groups[item] = group
    yield
    if config.getoption("loadgroup", False):
        slow = {groups[item] for item in items if item.get_closest_marker("slow")}
        items.sort(key=lambda item: _rank(groups[item], slow))  # after what shuffles modules
        for item, group in groups.items():
            # xdist 3.8 writes the group to an attribute that pytest 9.2 does not read any more: all groups were split.
            if not item.nodeid.endswith(f"@{group}"):
                item._id = coerce_node_id(f"{item.nodeid}@{group}")


def _rank(group: str, slow: set[str]) -> int:
    if group in _FIRST:
        return _FIRST.index(group)
    return len(_FIRST) + (0 if group in slow else 1 if group.startswith(("tests/adapters", "tests/integration")) else 2)
