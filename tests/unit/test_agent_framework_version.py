"""Without Microsoft Agent Framework, or with one that it does not know, the adapter says what to install."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from graphweft_contracts import InvalidSettings
from graphweft_runtimes.agent_framework import AgentFrameworkAdapter


def test_a_runtime_that_is_missing_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "agent_framework", None)
    with pytest.raises(
        InvalidSettings, match=r"agent_framework is not installed: pip install 'graphweft-runtimes\[agent-framework\]'"
    ):
        AgentFrameworkAdapter()


@pytest.mark.parametrize("version", ["1.22.0", "1.0.0rc6", "2.0.0", "unknown"])
def test_another_version_is_named(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    module = ModuleType("agent_framework")
    module.__version__ = version  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "agent_framework", module)
    with pytest.raises(InvalidSettings, match=rf"{version}: expected at least 1\.23 and below 2"):
        AgentFrameworkAdapter()
