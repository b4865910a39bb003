"""A client that administers a Kafka broker of tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient


@asynccontextmanager
async def administrator(url: str) -> AsyncIterator[Any]:
    admin = AIOKafkaAdminClient(bootstrap_servers=url.removeprefix("kafka://"))
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()
