"""Adapters say which runtime they need if it is missing, has another version, or lacks a part."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import pytest

from graphweft_contracts import InvalidSettings
from graphweft_runtimes.crewai import CrewAIAdapter
from graphweft_runtimes.google_adk import GoogleADKAdapter
from graphweft_runtimes.llama_index import LlamaIndexAdapter
from graphweft_runtimes.pydantic_ai import PydanticAIAdapter


@dataclass(frozen=True, slots=True, kw_only=True)
class Needed:
    """What an adapter needs of its runtime."""

    adapter: Callable[[], object]
    module: str
    extra: str
    lowest: str
    below: str
    supported: str
    """A version between them."""
    part: str


NEEDED = [
    Needed(
        adapter=PydanticAIAdapter, module="pydantic_ai", extra="pydantic-ai", lowest="2.68", below="3",
        supported="2.70.1", part="capabilities",
    ),
    Needed(
        adapter=GoogleADKAdapter, module="google.adk", extra="google-adk", lowest="2.13", below="3",
        supported="2.14.0", part="plugins",
    ),
    Needed(
        adapter=LlamaIndexAdapter, module="llama_index.core", extra="llama-index", lowest="0.14.25", below="0.15",
        supported="0.14.30", part="agent",
    ),
    Needed(
        adapter=CrewAIAdapter, module="crewai", extra="crewai", lowest="1.15.30", below="1.16",
        supported="1.15.31", part="events",
    ),
]  # fmt: skip
each = pytest.mark.parametrize("needed", NEEDED, ids=lambda needed: needed.module)


def installed(monkeypatch: pytest.MonkeyPatch, name: str, version: str) -> None:
    for known in [known for known in sys.modules if known.startswith(f"{name}.")]:
        monkeypatch.delitem(sys.modules, known)
    parent = name.rpartition(".")[0]
    for each in filter(None, (parent, name)):
        module = ModuleType(each)
        module.__path__ = []
        monkeypatch.setitem(sys.modules, each, module)
    sys.modules[name].__version__ = version  # type: ignore[attr-defined]


@each
def test_a_runtime_that_is_missing_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch, needed: Needed) -> None:
    monkeypatch.setitem(sys.modules, needed.module, None)
    with pytest.raises(InvalidSettings) as refused:
        needed.adapter()
    assert f"{needed.module} is not installed: pip install 'graphweft-runtimes[{needed.extra}]'" in str(refused.value)


@each
@pytest.mark.parametrize("version", ["0.0.9", "99.0", "unknown"])
def test_another_version_is_named(monkeypatch: pytest.MonkeyPatch, needed: Needed, version: str) -> None:
    installed(monkeypatch, needed.module, version)
    with pytest.raises(InvalidSettings) as refused:
        needed.adapter()
    assert f"{version}: expected at least {needed.lowest} and below {needed.below}" in str(refused.value)


@each
def test_a_runtime_without_a_part_is_told(monkeypatch: pytest.MonkeyPatch, needed: Needed) -> None:
    installed(monkeypatch, needed.module, needed.supported)
    with pytest.raises(InvalidSettings) as refused:
        needed.adapter()
    assert f"the installed {needed.module} has no {needed.module}.{needed.part}" in str(refused.value)
