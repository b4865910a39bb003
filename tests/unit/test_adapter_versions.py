"""An adapter whose runtime is missing, older, newer or another one says so, and what to install."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from graphweft_contracts import InvalidSettings
from graphweft_runtimes.ag2_classic import AG2ClassicAdapter
from graphweft_runtimes.versions import require


def installed(monkeypatch: pytest.MonkeyPatch, version: str, *parts: str) -> None:
    for name in ("autogen", *parts):
        module = ModuleType(name)
        module.__path__ = []
        monkeypatch.setitem(sys.modules, name, module)
    sys.modules["autogen"].__version__ = version  # type: ignore[attr-defined]


def test_a_runtime_that_is_missing_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "autogen", None)
    with pytest.raises(
        InvalidSettings, match=r"autogen is not installed: pip install 'graphweft-runtimes\[ag2-classic\]'"
    ):
        AG2ClassicAdapter()


@pytest.mark.parametrize("version", ["1.2.1", "0.13.9", "0.2", "unknown", "1.0.0rc1"])
def test_another_version_is_named(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    installed(monkeypatch, version)
    with pytest.raises(InvalidSettings, match=rf"{version}: expected at least 0\.14 and below 1"):
        AG2ClassicAdapter()


def test_another_package_of_the_same_name_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, "0.14.1", "autogen.agentchat")
    with pytest.raises(InvalidSettings, match=r"the installed autogen has no autogen\.agentchat\.group"):
        AG2ClassicAdapter()


def test_an_import_that_fails_inside_the_runtime_is_not_hidden(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pathlib import Path

    folder = Path(str(tmp_path))
    (folder / "broken_runtime.py").write_text("import nowhere_to_be_found\n")
    monkeypatch.syspath_prepend(str(folder))
    with pytest.raises(ModuleNotFoundError, match="nowhere_to_be_found"):
        require("broken_runtime", extra="x", lowest="1", below="2")


def test_a_version_within_the_bounds_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, "0.99.1", "autogen.agentchat", "autogen.agentchat.group")
    found = require("autogen", extra="ag2-classic", lowest="0.14", below="1", part="agentchat.group")
    assert found is sys.modules["autogen"]
