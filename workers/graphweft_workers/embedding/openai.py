"""Embeddings of any endpoint that speaks OpenAI's protocol: OpenAI itself, Azure AI Foundry, vLLM, Ollama and others.

Supported is ``POST {url}/embeddings`` with ``model`` and ``input`` (a list of texts), answered with lists of numbers.
A key goes as ``Authorization: Bearer``; to Azure as ``api-key``, and the URL is that of its v1 API, which needs no
``api-version``. Not supported: Azure's Entra ID, its older paths (``/models``, ``/openai/deployments``), and vectors
that are shortened by ``dimensions``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, override
from urllib.parse import urlsplit

from pydantic import BaseModel, SecretStr, ValidationError

from graphweft_workers.embedding.endpoint import Endpoint, EndpointRefused, EndpointUnavailable
from graphweft_workers.embedding.protocol import Embedder, EmbedderUnavailable, EmbeddingRefused, as_vector

_PROBE: Final = "graphweft"
"""A text that every model takes."""
_MALFORMED_S: Final = 5.0
_V1: Final = "/openai/v1"


def azure_url(endpoint: str) -> str:
    """Return the base URL of the v1 API behind an endpoint of Azure.

    Taken are the project of AI Foundry (``https://NAME.services.ai.azure.com/api/projects/PROJECT``), the bare
    resource (``https://NAME.openai.azure.com``), and the v1 API itself (``…/openai/v1``). Raises ``ValueError``.
    """
    parts = urlsplit(endpoint)
    path = parts.path.rstrip("/")
    if path in {"", _V1} or path.startswith("/api/projects/"):
        return f"{parts.scheme}://{parts.netloc}{_V1}"
    message = (
        "no endpoint of Azure: write https://NAME.services.ai.azure.com/api/projects/PROJECT, "
        "https://NAME.openai.azure.com, or one of them with /openai/v1 as its path"
    )
    raise ValueError(message)


class _Vector(BaseModel):
    embedding: list[float]
    index: int | None = None


class _Answer(BaseModel):
    data: list[_Vector]


@dataclass(slots=True)
class _Call:
    """What one call of ``embed`` has learned: whether the endpoint takes any text at all."""

    taken: bool = False


class OpenAIEmbedder(Embedder):
    """Asks an endpoint in batches, some of them at once.

    A batch that is refused is halved until the texts are found that are to blame. Before a text is blamed the endpoint
    has taken another one in the same call; where it takes none, the fault is in the request (a model that it has not,
    say), and that is ``EmbedderUnavailable``. A vector that is not finite or all zeros counts as a refusal.

    It does not try again by itself: the caller knows how long it may wait.
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
        """One request holds up to ``max_inputs`` texts with ``max_characters`` in all; a longer text goes alone.

        The defaults keep within OpenAI's limits for most languages: 2,048 texts and 300,000 tokens a request.
        """
        headers: dict[str, str] = {}
        if api_key is not None:
            key = api_key.get_secret_value()
            headers = {"api-key": key} if azure else {"Authorization": f"Bearer {key}"}
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
            # The first failure ends the call; which of several at once is told makes no difference.
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
        """Return a vector for each text, None for one that is refused."""
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
        """Raise ``EmbedderUnavailable`` if the endpoint does not take a text that is beyond suspicion."""
        try:
            [vector] = await self._ask([_PROBE])
        except EndpointRefused as error:
            message = f"{error}, and refuses any other text too: check the model {self._model!r} and the URL"
            raise EmbedderUnavailable(message, retry_after_s=_MALFORMED_S) from None
        if vector is None:
            raise self._malformed("no vector that can be compared") from refusal
        call.taken = True

    async def _ask(self, texts: list[str]) -> list[list[float] | None]:
        """Ask once; None stands for a vector that cannot be used. Raises ``EndpointRefused`` too."""
        try:
            content = await self._endpoint.post("/embeddings", {"model": self._model, "input": texts})
        except EndpointUnavailable as error:
            raise EmbedderUnavailable(str(error), retry_after_s=error.retry_after_s) from None
        try:
            found = _Answer.model_validate_json(content, strict=True).data
        except ValidationError:  # its text quotes the answer
            raise self._malformed("what is no list of embeddings") from None
        if len(found) != len(texts):
            raise self._malformed(f"{len(found)} vectors for {len(texts)} texts")
        if any(item.index is not None for item in found):
            found.sort(key=lambda item: -1 if item.index is None else item.index)
            if [item.index for item in found] != list(range(len(texts))):
                raise self._malformed("vectors whose numbers do not say which text they belong to")
        for item in found:
            if len(item.embedding) != (self._dimensions or len(item.embedding)):
                raise self._malformed(f"a vector of {len(item.embedding)} numbers after one of {self._dimensions}")
            self._dimensions = len(item.embedding) or None
        return [as_vector(item.embedding) for item in found]

    def _malformed(self, what: str) -> EmbedderUnavailable:
        message = f"{self._endpoint.url}/embeddings answers with {what}: check that the model {self._model!r} embeds"
        return EmbedderUnavailable(message, retry_after_s=_MALFORMED_S)
