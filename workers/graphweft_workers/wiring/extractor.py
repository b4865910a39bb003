"""Makes the extractor that the settings name."""

from __future__ import annotations

from typing import Final

from graphweft_contracts import InvalidSettings
from graphweft_workers.features.episodes.extraction.protocol import Extractor
from graphweft_workers.settings.settings import Settings
from graphweft_workers.support.optional_dependencies import missing_package, openai_endpoint, require_package

_LONGEST_NAME: Final = 256


def make_extractor(settings: Settings) -> Extractor | None:
    """Return the extractor that ``settings.extractor`` names, None for ``none``; nothing is connected yet.

    Close it. Raises ``InvalidSettings``: something that it needs is not set, or its extra is not installed.
    """
    value = settings.extractor
    if value == "none":
        return None
    model = value.removeprefix("graphiti").removeprefix(":")
    if not model.strip() or len(model) > _LONGEST_NAME:
        raise InvalidSettings(
            f"the extractor {value!r} (GRAPHWEFT_EXTRACTOR) names no model: write graphiti:MODEL, or graphiti, and the "
            "model in MODEL_NAME"
        )
    who = f"the extractor {value!r}"
    for module in ("graphiti_core", "httpx"):
        require_package(who, module, "graphiti")
    url = openai_endpoint(
        who,
        settings.extractor_url,
        settings.extractor_api_key,
        key_names="GRAPHWEFT_EXTRACTOR_API_KEY (or OPENAI_API_KEY)",
        url_names="GRAPHWEFT_EXTRACTOR_URL (or OPENAI_BASE_URL)",
    )
    try:
        from graphweft_workers.features.episodes.extraction.graphiti import GraphitiExtractor
    except ModuleNotFoundError as error:
        raise missing_package(who, error.name or "graphiti_core", "graphiti") from error
    except ImportError as error:
        raise InvalidSettings(
            f"{who} cannot use the version of graphiti-core that is installed ({error}): "
            "pip install 'graphweft[graphiti]'"
        ) from error
    return GraphitiExtractor(
        url,
        model,
        api_key=settings.extractor_api_key,
        timeout_s=settings.extractor_timeout_ms / 1000,
    )
