"""The processor of OpenTelemetry's spans says what to install where its SDK is missing or another one."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from graphweft_contracts import InvalidSettings

SDK = ("opentelemetry", "opentelemetry.sdk", "opentelemetry.sdk.version")


@pytest.fixture(autouse=True)
def unchanged() -> Iterator[None]:
    """Hide what other tests have imported of the SDK, and put it back."""
    kept = taken()
    yield
    taken()
    sys.modules.update(kept)


def taken() -> dict[str, ModuleType]:
    """Return all modules of OpenTelemetry, which are not imported any more."""
    found = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "opentelemetry"}
    for name in found:
        del sys.modules[name]
    return found


def make() -> object:
    return importlib.import_module("graphweft_runtimes.otel").GraphweftSpanProcessor()


@pytest.mark.parametrize("missing", SDK)
def test_an_sdk_that_is_missing_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    for name in SDK[: SDK.index(missing)]:
        module = ModuleType(name)
        module.__path__ = []
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(InvalidSettings, match=r"is not installed: pip install 'graphweft-runtimes\[otel\]'"):
        make()


@pytest.mark.parametrize("version", ["1.26.0", "2.0", "unknown"])
def test_another_version_is_named(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    for name in SDK:
        module = ModuleType(name)
        module.__path__ = []
        monkeypatch.setitem(sys.modules, name, module)
    sys.modules[SDK[-1]].__version__ = version  # type: ignore[attr-defined]
    with pytest.raises(InvalidSettings, match=rf"{version}: expected at least 1\.27 and below 2"):
        make()
