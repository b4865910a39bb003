"""The embedder ``minilm`` in a process of an environment that has its packages."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, override

from tests.services.runtime_environments import ROOT

from graphweft_workers.embedding.protocol import Embedder

_CODE: Final = """
import asyncio, json, sys
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.embedder import make_embedder

async def main():
    embedder = make_embedder(Settings(embedder="minilm"))
    for line in sys.stdin:
        print(json.dumps(await embedder.embed(json.loads(line))), flush=True)
    await embedder.aclose()

asyncio.run(main())
"""
_LONGEST_LINE: Final = 64 * 1024**2


class ModelProcess(Embedder):
    """Asks the process, one call at a time."""

    def __init__(self, python: Path) -> None:
        self._python = python
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    @property
    @override
    def model(self) -> str:
        return "all-MiniLM-L6-v2-int8"

    @override
    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        async with self._turn:
            if self._process is None:
                ours = os.pathsep.join(str(ROOT / folder) for folder in ("contracts", "rules", "client", "workers"))
                environment = {name: value for name, value in os.environ.items() if not name.startswith("GRAPHWEFT_")}
                self._process = await asyncio.create_subprocess_exec(
                    str(self._python), "-c", _CODE, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                    limit=_LONGEST_LINE, env=environment | {"PYTHONPATH": ours, "TOKENIZERS_PARALLELISM": "false"},
                )  # fmt: skip
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps(list(texts)).encode() + b"\n")
            await self._process.stdin.drain()
            vectors: list[list[float]] = json.loads(await self._process.stdout.readline())
            return vectors

    @override
    async def aclose(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            await self._process.wait()
