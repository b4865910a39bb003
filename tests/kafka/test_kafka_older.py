"""With Kafka as the bus, too, a graph server that has less than it had catches up."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from tests.services.older_graphs import LOSSES, Deployment, FalkorDBPlace, Loss, lose_and_catch_up

from graphweft_workers.drivers.falkordb.store import FalkorDBStore

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]


@pytest.mark.long
@pytest.mark.parametrize(
    "loss", [each if each == "emptied" else pytest.param(each, marks=pytest.mark.soak) for each in LOSSES]
)
async def test_a_server_that_has_less_than_it_had_catches_up(
    kafka_url: str, url: str, tmp_path: Path, loss: Loss
) -> None:
    deployment = Deployment(tmp_path, kafka_url, FalkorDBPlace(tmp_path / "graph"), ("one", "two"), archive=False)
    async with contextlib.aclosing(FalkorDBStore(url)) as scratch:
        await lose_and_catch_up(deployment, loss, scratch)
