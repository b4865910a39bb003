"""Embeddings from OpenAI-compatible endpoints: OpenAI, Azure AI Foundry, vLLM, Ollama and others.

A request is ``POST {url}/embeddings`` with ``model`` and ``input`` (a list of texts). The key is sent as
``Authorization: Bearer``, to Azure as ``api-key``. Azure needs the URL of its v1 API. Not supported: Azure's Entra ID
and older paths (``/models``, ``/openai/deployments``), and the parameter ``dimensions``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, override
from urllib.parse import urlsplit

from pydantic import BaseModel, SecretStr, ValidationError

from graphweft_workers.embedding.fault_search import FaultSearch, RequestFailure, Vectors
from graphweft_workers.embedding.protocol import Embedder, EmbedderUnavailable, as_vector
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.model_endpoint import Endpoint, EndpointRefused, EndpointUnavailable, bearer
from graphweft_workers.support.timing import TIMING

logger = get_logger("graphweft.memory")

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


class OpenAIEmbedder(Embedder):
    """Sends texts in batches, up to ``concurrency`` at a time. Retries no batch as a whole.

    A batch that fails is halved until each text at fault is found: see ``fault_search``. Only failures that no text can
    cause end the call at once: those about the key, the account or a quota, and an endpoint that cannot be reached. A
    vector that is zero or not finite counts as a refusal. All vectors of a call have the same length; if an answer has
    another one than earlier answers, that of the test text counts from then on.
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
        """Of the last answers: an answer of another length is suspect."""
        self._search = FaultSearch(self._ask, in_turn=False)

    @property
    @override
    def model(self) -> str:
        return self._model

    @override
    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        return await self._search.embed(self._model, texts, self._batches)

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

    async def _ask(self, texts: Sequence[str], test: bool) -> Vectors:
        """See ``fault_search.Ask``."""
        try:
            content = await self._endpoint.post("/embeddings", {"model": self._model, "input": list(texts)})
        except EndpointRefused as error:
            message = f"{error}, also for a test text: check the model {self._model!r} and the URL"
            outage = EmbedderUnavailable(message, retry_after_s=TIMING.models.malformed_s)
            raise RequestFailure(outage, refused=True) from None
        except EndpointUnavailable as error:
            outage = EmbedderUnavailable(str(error), retry_after_s=error.retry_after_s)
            if error.may_be_of_content:
                raise RequestFailure(outage) from None
            raise outage from None
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
        vectors = [as_vector(item.embedding) for item in found]
        if test and None in vectors:
            raise self._malformed("a vector that is zero or not finite")
        self._check_length([len(item.embedding) for item in found], test)
        return vectors

    def _check_length(self, lengths: Sequence[int], test: bool) -> None:
        for length in lengths:
            if length == (self._dimensions or length):
                self._dimensions = length or None
                continue
            if not test:
                raise self._malformed(f"a vector of {length} numbers after one of {self._dimensions}")
            logger.warning(
                "embedder_length_changed", model=self._model, url=self._endpoint.url, before=self._dimensions,
                numbers=length,
                message="the embedder returns vectors of another length than before: those of the other length are not "
                "found by meaning until `graphweft memory embed --again` makes them anew",
            )  # fmt: skip
            self._dimensions = length

    def _malformed(self, what: str) -> RequestFailure:
        message = f"{self._endpoint.url}/embeddings returned {what}: check that {self._model!r} is an embedding model"
        return RequestFailure(EmbedderUnavailable(message, retry_after_s=TIMING.models.malformed_s))
