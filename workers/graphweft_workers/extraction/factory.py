"""Makes the extractor that the settings name."""

from __future__ import annotations

import importlib.util
from typing import Final

from graphweft_contracts import InvalidSettings
from graphweft_workers.extraction.protocol import Extractor
from graphweft_workers.settings import Settings

__all__ = ("make_extractor",)

_OPENAI_URL: Final = "https://api.openai.com/v1"
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
    for module in ("graphiti_core", "httpx"):
        if importlib.util.find_spec(module) is None:
            raise _not_installed(value, module)
    if settings.extractor_url is None and settings.extractor_api_key is None:
        raise InvalidSettings(
            f"the extractor {value!r} needs GRAPHWEFT_EXTRACTOR_API_KEY (or OPENAI_API_KEY) for {_OPENAI_URL}, or "
            "GRAPHWEFT_EXTRACTOR_URL (or OPENAI_BASE_URL) for another endpoint (http://localhost:11434/v1)"
        )
    try:
        from graphweft_workers.extraction.graphiti import GraphitiExtractor
    except ModuleNotFoundError as error:
        raise _not_installed(value, error.name or "graphiti_core") from error
    except ImportError as error:
        raise InvalidSettings(
            f"the extractor {value!r} cannot use the version of graphiti-core that is installed ({error}): "
            "pip install 'graphweft[graphiti]'"
        ) from error
    return GraphitiExtractor(
        settings.extractor_url or _OPENAI_URL,
        model,
        api_key=settings.extractor_api_key,
        timeout_s=settings.extractor_timeout_ms / 1000,
    )


def _not_installed(extractor: str, module: str) -> InvalidSettings:
    return InvalidSettings(
        f"the extractor {extractor!r} needs the Python package {module!r}, which is not installed: "
        "pip install 'graphweft[graphiti]'"
    )
