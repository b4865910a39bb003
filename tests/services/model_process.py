"""The embedder ``minilm`` in a process of an environment that has its packages."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
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


class ModelProcess(Embedder):
    """Asks the process, one call at a time, from any event loop: tests share one, because it takes a second."""

    def __init__(self, python: Path) -> None:
        ours = os.pathsep.join(str(ROOT / folder) for folder in ("contracts", "rules", "client", "workers"))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GRAPHWEFT_")}
        self._process = subprocess.Popen(
            [str(python), "-c", _CODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=environment | {"PYTHONPATH": ours, "TOKENIZERS_PARALLELISM": "false"},
        )  # fmt: skip

    @property
    @override
    def model(self) -> str:
        return "all-MiniLM-L6-v2-int8"

    @override
    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        return await asyncio.to_thread(self._embed, texts)

    def _embed(self, texts: Sequence[str]) -> list[list[float]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(list(texts)), file=self._process.stdin, flush=True)
        vectors: list[list[float]] = json.loads(self._process.stdout.readline())
        return vectors

    def close(self) -> None:
        """End the process."""
        self._process.communicate()
