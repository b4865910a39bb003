"""Embeddings from OpenAI-compatible endpoints: OpenAI, Azure AI Foundry, vLLM, Ollama and others.

A request is ``POST {url}/embeddings`` with ``model`` and ``input`` (a list of texts). The key is sent as
``Authorization: Bearer``, to Azure as ``api-key``. Azure needs the URL of its v1 API. Not supported: Azure's Entra ID
and older paths (``/models``, ``/openai/deployments``), and the parameter ``dimensions``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, override
from urllib.parse import urlsplit

from pydantic import BaseModel, SecretStr, ValidationError

from graphweft_workers.embedding.protocol import Embedder, EmbedderUnavailable, EmbeddingRefused, as_vector
from graphweft_workers.support.model_endpoint import Endpoint, EndpointRefused, EndpointUnavailable, bearer
from graphweft_workers.support.timing import TIMING

_PROBE: Final = "graphweft"
"""A text that every model accepts."""
_V1: Final = "/openai/v1"


def azure_url(endpoint: str) -> str:
    """Return the base URL of the v1 API of an Azure endpoint.

    The endpoint is an AI Foundry project (``https://NAME.services.ai.azure.com/api/projects/PROJECT``), a resource
    (``https://NAME.openai.azure.com``), or the v1 API (``…/openai/v1``). Raises ``ValueError`` for others.
    """
    parts = urlsplit(endpoint)
    path = parts.path.rstrip("/")
    if path in {"", _V1} or path.startswith("/api/projects/"):
        return f"{parts.scheme}://{parts.netloc}{_V1}"
    message = (
        "invalid Azure endpoint: expected https://NAME.services.ai.azure.com/api/projects/PROJECT, "
        "https://NAME.openai.azure.com, or one of them with the path /openai/v1"
    )
    raise ValueError(message)


class _Vector(BaseModel):
    embedding: list[float]
    index: int | None = None


class _Answer(BaseModel):
    data: list[_Vector]


@dataclass(slots=True)
class _Call:
    """State of one call of ``embed``: whether the endpoint accepted a text."""

    taken: bool = False


class OpenAIEmbedder(Embedder):
    """Sends texts in batches, up to ``concurrency`` at a time. Does not retry.

    A refused batch is halved until each refused text is found. A text counts as refused only if the endpoint accepted
    another one in the same call; if it accepts none, the request itself is wrong (an unknown model, for example), and
    the call raises ``EmbedderUnavailable``. A vector that is zero or not finite counts as a refusal.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        api_key: SecretStr | None = None,
        azure: bool = False,
        timeout_s: float = 10.0,
        max_inputs: int = 128,
        max_characters: int = 200_000,
        concurrency: int = 4,
    ) -> None:
        """A request has up to ``max_inputs`` texts of ``max_characters`` together; a longer text is sent alone.

        The defaults keep OpenAI's limits for most languages: 2,048 texts and 300,000 tokens per request.
        """
        headers = {"api-key": api_key.get_secret_value()} if azure and api_key is not None else bearer(api_key)
        self._endpoint = Endpoint(url, headers=headers, timeout_s=timeout_s, concurrency=concurrency)
        self._model = model
        self._max_inputs = max_inputs
        self._max_characters = max_characters
        self._dimensions: int | None = None

    @property
    @override
    def model(self) -> str:
        return self._model

    @override
    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        call = _Call()
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._batch(batch, call)) for batch in self._batches(texts)]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        vectors = [vector for task in tasks for vector in task.result()]
        whole = [vector for vector in vectors if vector is not None]
        if len(whole) < len(vectors):
            raise EmbeddingRefused(self._model, vectors)
        return whole

    @override
    async def aclose(self) -> None:
        await self._endpoint.aclose()

    def _batches(self, texts: Sequence[str]) -> Iterator[list[str]]:
        batch: list[str] = []
        characters = 0
        for text in texts:
            if batch and (len(batch) >= self._max_inputs or characters + len(text) > self._max_characters):
                yield batch
                batch, characters = [], 0
            batch.append(text)
            characters += len(text)
        if batch:
            yield batch

    async def _batch(self, texts: list[str], call: _Call) -> list[list[float] | None]:
        """Return a vector for each text, None for a refused one."""
        try:
            vectors = await self._ask(texts)
        except EndpointRefused as error:
            if not call.taken:
                await self._probe(call, error)
            if len(texts) == 1:
                return [None]
            half = len(texts) // 2
            return [*await self._batch(texts[:half], call), *await self._batch(texts[half:], call)]
        if any(vectors):
            call.taken = True
        elif not call.taken:
            await self._probe(call, None)
        return vectors

    async def _probe(self, call: _Call, refusal: EndpointRefused | None) -> None:
        """Raise ``EmbedderUnavailable`` if the endpoint refuses a text that every model accepts."""
        try:
            [vector] = await self._ask([_PROBE])
        except EndpointRefused as error:
            message = f"{error}, also for a test text: check the model {self._model!r} and the URL"
            raise EmbedderUnavailable(message, retry_after_s=TIMING.models.malformed_s) from None
        if vector is None:
            raise self._malformed("a vector that is zero or not finite") from refusal
        call.taken = True

    async def _ask(self, texts: list[str]) -> list[list[float] | None]:
        """Send one request; None stands for an unusable vector. Also raises ``EndpointRefused``."""
        try:
            content = await self._endpoint.post("/embeddings", {"model": self._model, "input": texts})
        except EndpointUnavailable as error:
            raise EmbedderUnavailable(str(error), retry_after_s=error.retry_after_s) from None
        try:
            found = _Answer.model_validate_json(content, strict=True).data
        except ValidationError:  # the message quotes the answer
            raise self._malformed("something other than a list of embeddings") from None
        if len(found) != len(texts):
            raise self._malformed(f"{len(found)} vectors for {len(texts)} texts")
        if any(item.index is not None for item in found):
            found.sort(key=lambda item: -1 if item.index is None else item.index)
            if [item.index for item in found] != list(range(len(texts))):
                raise self._malformed("vectors with wrong indexes")
        for item in found:
            if len(item.embedding) != (self._dimensions or len(item.embedding)):
                raise self._malformed(f"a vector of {len(item.embedding)} numbers after one of {self._dimensions}")
            self._dimensions = len(item.embedding) or None
        return [as_vector(item.embedding) for item in found]

    def _malformed(self, what: str) -> EmbedderUnavailable:
        message = f"{self._endpoint.url}/embeddings returned {what}: check that {self._model!r} is an embedding model"
        return EmbedderUnavailable(message, retry_after_s=TIMING.models.malformed_s)
