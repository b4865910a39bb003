"""Extraction by graphiti-core with a model behind any OpenAI-compatible URL.

It calls ``extract_nodes`` and ``extract_edges`` of graphiti-core, the first steps of ``add_episode``: one request for
entities, and one for relations if there are entities. The later steps (resolving entities, invalidating relations,
summaries) ask a model about the state of the graph, so a replay could end differently; here ids and times decide.

The functions are not public, so the extra pins graphiti-core to one minor version. The alternatives were worse:
``add_episode`` needs a graph driver, makes five to ten times as many requests, and reports to PostHog; its prompts
alone would leave the parsing of answers to us.

graphiti-core gets a client of ours, because its own clients retry for minutes, log answers, and read keys outside the
settings. No ``Graphiti`` object is created, so there is no telemetry. Importing graphiti-core would load the first
``.env`` file above its folder; the import below prevents that.
"""

from __future__ import annotations

import contextlib
import json
import logging
import warnings
from collections.abc import Generator
from typing import Any, Final, override

import dotenv
from pydantic import BaseModel, SecretStr, ValidationError

from graphweft_contracts import Transient
from graphweft_contracts.episodes import ANY_TYPE, Structure
from graphweft_workers.features.episodes.extraction.protocol import (
    ExtractionFailed,
    Extractor,
    ExtractorUnavailable,
    FailureReason,
    TextEpisode,
)
from graphweft_workers.features.episodes.extraction.shaping import SaidEntity, SaidRelation, shaped
from graphweft_workers.support.model_endpoint import Endpoint, EndpointRefused, EndpointUnavailable, bearer, chat_text
from graphweft_workers.support.timing import TIMING


def _load_nothing(*_: Any, **__: Any) -> bool:
    return False


@contextlib.contextmanager
def _quiet() -> Generator[None]:
    real = dotenv.load_dotenv
    dotenv.load_dotenv = _load_nothing
    try:
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of graphiti-core, for pydantic
            yield
    finally:
        dotenv.load_dotenv = real


with _quiet():
    from graphiti_core.edges import EntityEdge
    from graphiti_core.graphiti_types import GraphitiClients
    from graphiti_core.llm_client.client import LLMClient, get_extraction_language_instruction
    from graphiti_core.llm_client.config import LLMConfig, ModelSize
    from graphiti_core.nodes import EntityNode, EpisodicNode
    from graphiti_core.nodes import EpisodeType as GraphitiType
    from graphiti_core.prompts.models import Message
    from graphiti_core.utils.maintenance.edge_operations import extract_edges
    from graphiti_core.utils.maintenance.node_operations import extract_nodes

logging.getLogger("graphiti_core").setLevel(logging.CRITICAL + 1)  # it logs answers of the model

_PATH: Final = "/chat/completions"
_MOST_AT_ONCE: Final = 256


class _Ready(BaseModel):
    ready: bool


class GraphitiExtractor(Extractor):
    """Reads an episode with one or two requests to ``POST {url}/chat/completions``.

    The schema of the answer is sent in ``response_format`` and in the prompt; only in the prompt once a server has
    refused ``json_schema``.

    ``ExtractorUnavailable``: the episode cannot be the cause, see ``EndpointUnavailable.may_be_of_content``.
    ``ExtractionFailed``: all other failures; ``check`` tells whether the endpoint or the episode is the cause.
    """

    def __init__(self, url: str, model: str, *, api_key: SecretStr | None = None, timeout_s: float = 120.0) -> None:
        """``url`` is the part before ``/chat/completions``; ``timeout_s`` applies to each request."""
        self._endpoint = Endpoint(url, headers=bearer(api_key), timeout_s=timeout_s, concurrency=_MOST_AT_ONCE)
        self._model = model
        self._knows_schemas = True
        without_driver: Any = GraphitiClients.model_construct
        self._clients: GraphitiClients = without_driver(llm_client=_Client(self))

    @property
    @override
    def model(self) -> str:
        return self._model

    @override
    async def extract(self, episode: TextEpisode) -> Structure:
        ontology = episode.ontology
        given = EpisodicNode(
            name="episode",
            group_id="",
            source=GraphitiType.from_str(episode.episode_type),
            source_description=episode.source_description,
            content=episode.text,
            valid_at=episode.reference_time,
        )
        entity_types, edge_types = None, None
        edge_type_map: dict[tuple[str, str], list[str]] = {}
        if ontology is not None:
            # With the excluded types: a model that does not see them calls their entities ``Entity``.
            entity_types, edge_types = dict(ontology.entity_types), dict(ontology.edge_types)
            edge_type_map = {ends: list(names) for ends, names in ontology.edge_type_map.items()}
        try:
            nodes, _ = await extract_nodes(self._clients, given, [], entity_types)
            if not nodes:
                return Structure()
            edges, _ = await extract_edges(self._clients, given, nodes, [], edge_type_map, edge_types=edge_types)
        except (ExtractorUnavailable, ExtractionFailed):
            raise
        except Exception as error:  # noqa: BLE001 - any error of graphiti-core; its message may quote the answer
            raise ExtractionFailed(
                f"graphiti-core cannot use the answer of {self._model!r} ({type(error).__name__})"
            ) from None
        return shaped([_entity(node) for node in nodes], _relations(nodes, edges), ontology)

    @override
    async def check(self) -> None:
        messages = [
            Message(role="system", content="You answer with one JSON object and nothing else."),
            Message(role="user", content='Answer with {"ready": true}.'),
        ]
        try:
            await self.ask(messages, _Ready)
        except ExtractionFailed as error:
            message = f"{error}, also for a test text: check the endpoint and the model {self._model!r}"
            failure = error.__cause__
            wait_s = failure.retry_after_s if isinstance(failure, Transient) else TIMING.models.malformed_s
            raise ExtractorUnavailable(message, retry_after_s=wait_s) from None

    @override
    async def aclose(self) -> None:
        await self._endpoint.aclose()

    async def ask(self, messages: list[Message], form: type[BaseModel]) -> BaseModel:
        """Return the model's answer to a prompt of graphiti-core, parsed as ``form``."""
        schema = form.model_json_schema()
        *before, last = [{"role": message.role, "content": message.content} for message in messages]
        asked = (
            f"{last['content']}\n\nAnswer with one JSON object of this schema and nothing else:\n{json.dumps(schema)}"
        )
        body: dict[str, Any] = {"model": self._model, "messages": [*before, last | {"content": asked}]}
        strict = {"type": "json_schema", "json_schema": {"name": form.__name__, "schema": schema}}
        if self._knows_schemas:
            try:
                return self._checked(await self._post(body | {"response_format": strict}), form)
            except EndpointRefused:
                pass  # because of the schema or the text: the next request tells
        try:
            answer = await self._post(body | {"response_format": {"type": "json_object"}})
        except EndpointRefused as error:
            raise ExtractionFailed(str(error)) from None
        self._knows_schemas = False
        return self._checked(answer, form)

    async def _post(self, body: dict[str, Any]) -> bytes:
        try:
            return await self._endpoint.post(_PATH, body)
        except EndpointUnavailable as error:
            if error.may_be_of_content:
                reason: FailureReason = "timeout" if error.timed_out else "extraction_failed"
                raise ExtractionFailed(str(error), reason=reason) from error
            raise ExtractorUnavailable(str(error), retry_after_s=error.retry_after_s) from error.__cause__

    def _checked[T: BaseModel](self, content: bytes, form: type[T]) -> T:
        try:
            return form.model_validate_json(chat_text(content))
        except ValidationError:  # the message quotes the answer
            message = (
                f"{self._endpoint.url}{_PATH} returned no {form.__name__} in JSON: the model {self._model!r} may be "
                "too small for the task, or the episode too long for it"
            )
            raise ExtractionFailed(message) from None


class _Client(LLMClient):
    """The client for graphiti-core: passes prompts to the extractor, without retries."""

    def __init__(self, extractor: GraphitiExtractor) -> None:
        super().__init__(LLMConfig(model=extractor.model), cache=False)
        self._extractor = extractor

    @override
    async def generate_response(
        self,
        messages: list[Message],
        response_model: type[BaseModel] | None = None,
        max_tokens: int | None = None,
        model_size: ModelSize = ModelSize.medium,
        group_id: str | None = None,
        prompt_name: str | None = None,
        *,
        attribute_extraction: bool = False,
        model: str | None = None,
    ) -> dict[str, Any]:
        assert response_model is not None, prompt_name
        messages[0].content += get_extraction_language_instruction(group_id)
        return (await self._extractor.ask(messages, response_model)).model_dump()

    @override
    async def _generate_response(self, *_: Any, **__: Any) -> dict[str, Any]:
        raise NotImplementedError


def _entity(node: EntityNode) -> SaidEntity:
    return SaidEntity(type=next((label for label in node.labels if label != ANY_TYPE), ANY_TYPE), name=node.name)


def _relations(nodes: list[EntityNode], edges: list[EntityEdge]) -> list[SaidRelation]:
    places = {node.uuid: place for place, node in enumerate(nodes)}
    return [
        SaidRelation(
            type=edge.name,
            source=places.get(edge.source_node_uuid),
            target=places.get(edge.target_node_uuid),
            fact=edge.fact,
            valid_from=edge.valid_at,
            valid_to=edge.invalid_at,
        )
        for edge in edges
    ]
