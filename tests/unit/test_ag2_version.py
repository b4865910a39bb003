"""The adapter for AG2 1.x tells it from AG2 before 1.0, which has another name, and says what to install."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from graphweft_contracts import InvalidSettings
from graphweft_runtimes.ag2 import AG2Adapter


def installed(monkeypatch: pytest.MonkeyPatch, **versions: str | None) -> None:
    for name in ("ag2", "autogen"):
        version = versions.get(name)
        module = None if version is None else ModuleType(name)
        if module is not None:
            module.__path__ = []
            module.__version__ = version  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, module)


def test_a_runtime_that_is_missing_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    with pytest.raises(InvalidSettings, match=r"ag2 is not installed: pip install 'graphweft-runtimes\[ag2\]'$"):
        AG2Adapter()


def test_the_older_runtime_is_told_from_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, autogen="0.14.1")
    with pytest.raises(InvalidSettings, match=r"ag2 is not installed: .*; .* use AG2ClassicAdapter"):
        AG2Adapter()


@pytest.mark.parametrize("version", ["0.9.10", "1.0.4", "1.1", "2.0.0", "unknown"])
def test_another_version_is_named_whatever_is_beside_it(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    installed(monkeypatch, ag2=version, autogen="0.14.1")
    with pytest.raises(InvalidSettings, match=rf"{version}: expected at least 1\.2 and below 2 .*ag2-classic"):
        AG2Adapter()


def test_a_package_of_that_name_without_a_network_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, ag2="1.2.1")
    with pytest.raises(InvalidSettings, match=r"the installed ag2 has no ag2\.network"):
        AG2Adapter()
