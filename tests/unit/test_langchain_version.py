"""The adapter for LangChain says when LangChain is missing, or another version than it knows."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from graphweft_contracts import InvalidSettings
from graphweft_runtimes.langchain import LangChainAdapter


def installed(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    for name in [name for name in sys.modules if name.startswith("langchain.")]:
        monkeypatch.delitem(sys.modules, name)
    module = ModuleType("langchain")
    module.__path__ = []
    module.__version__ = version  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "langchain", module)


def test_langchain_that_is_missing_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "langchain", None)
    with pytest.raises(
        InvalidSettings, match=r"langchain is not installed: pip install 'graphweft-runtimes\[langchain\]'"
    ):
        LangChainAdapter()


@pytest.mark.parametrize("version", ["0.3.27", "1.3.9", "2.0.0", "unknown"])
def test_another_version_is_named(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    installed(monkeypatch, version)
    with pytest.raises(InvalidSettings, match=rf"{version}: expected at least 1\.4 and below 2"):
        LangChainAdapter()


def test_a_langchain_without_middleware_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, "1.4.7")
    with pytest.raises(InvalidSettings, match=r"the installed langchain has no langchain\.agents"):
        LangChainAdapter()
