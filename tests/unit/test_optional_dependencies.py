"""Commands name the extra that brings what they need."""

from __future__ import annotations

import sys

import pytest

from graphweft_contracts import InvalidSettings
from graphweft_workers.roles.run import run_gateway
from graphweft_workers.roles.settings import Settings


@pytest.mark.parametrize("missing", ["starlette", "uvicorn", "google.protobuf", "opentelemetry.proto"])
async def test_the_gateway_names_its_extra_for_each_package(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    # The console has the first two alone, so `graphweft[embedded]` lacks the others.
    for name in list(sys.modules):
        if name.startswith((missing, "graphweft_workers.gateway", "graphweft_workers.roles.gateway")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    told = rf"`run gateway` needs the Python package '{missing}.*pip install 'graphweft\[gateway\]'"
    with pytest.raises(InvalidSettings, match=told):
        await run_gateway(Settings(), host="127.0.0.1", port=0, insecure_app="acme", ready=lambda url: None)
