"""Makes the job that has a model compare statements, and the model, by the settings."""

from __future__ import annotations

from typing import Final

from graphweft_workers.features.memory.judge import StatementJudge
from graphweft_workers.features.memory.verdicts import VerdictsJob
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.settings.settings import Settings
from graphweft_workers.support.optional_dependencies import openai_endpoint, require_package
from graphweft_workers.wiring.connections import make_bus

_OPENAI: Final = "openai:"


def make_verdicts(settings: Settings, graph: GraphStore) -> VerdictsJob:
    """Return the job that the settings ask for; close it. Raises ``InvalidSettings``. Nothing is connected yet."""
    judge = make_judge(settings)
    return VerdictsJob(graph, make_bus(settings), judge)


def make_judge(settings: Settings) -> StatementJudge:
    """Return the model that ``settings.judge``, which is not ``none``, names; close it. Raises ``InvalidSettings``."""
    who = f"the judge {settings.judge!r}"
    require_package(who, "httpx", "openai-compatible")
    url = openai_endpoint(
        who, settings.judge_url, settings.judge_api_key, key_names="GRAPHWEFT_JUDGE_API_KEY",
        url_names="GRAPHWEFT_JUDGE_URL",
    )  # fmt: skip
    from graphweft_workers.features.memory.openai_judge import OpenAIJudge

    return OpenAIJudge(
        url,
        settings.judge.removeprefix(_OPENAI),
        api_key=settings.judge_api_key,
        timeout_s=settings.judge_timeout_ms / 1000,
    )
