"""The adapter for the OpenAI Agents SDK says which package it needs, also where another one has its module's name."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from graphweft_contracts import InvalidSettings
from graphweft_runtimes.openai_agents import OpenAIAgentsAdapter


def installed(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    module = ModuleType("agents")
    module.__path__ = []
    module.__version__ = version  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "agents", module)


def test_a_runtime_that_is_missing_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "agents", None)
    with pytest.raises(
        InvalidSettings, match=r"agents is not installed: pip install 'graphweft-runtimes\[openai-agents\]'"
    ):
        OpenAIAgentsAdapter()


@pytest.mark.parametrize("version", ["0.23.9", "0.25.0", "1.0", "unknown"])
def test_another_version_is_named(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    installed(monkeypatch, version)
    with pytest.raises(InvalidSettings, match=rf"{version}: expected at least 0\.24 and below 0\.25"):
        OpenAIAgentsAdapter()


def test_another_package_of_the_same_name_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, "0.24.1")
    with pytest.raises(InvalidSettings, match=r"the installed agents has no agents\.run"):
        OpenAIAgentsAdapter()
