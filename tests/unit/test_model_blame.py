"""Whether a text may be the cause of a failure is decided alike for all callers of models, by the status."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Literal

import pytest
from tests.services.models import Failure, ModelServer, model_server

from graphweft_contracts.memory import MemoryScope
from graphweft_workers.embedding.openai import OpenAIEmbedder
from graphweft_workers.embedding.protocol import EmbedderUnavailable, EmbeddingRefused
from graphweft_workers.features.episodes.extraction.graphiti import GraphitiExtractor
from graphweft_workers.features.episodes.extraction.protocol import ExtractionFailed, ExtractorUnavailable, TextEpisode
from graphweft_workers.features.memory.judge import JudgementFailed, JudgeUnavailable, StatementsFailed, StatementText
from graphweft_workers.features.memory.openai_judge import OpenAIJudge
from graphweft_workers.features.memory.openai_summariser import OpenAISummariser
from graphweft_workers.features.memory.summariser import ConversationFailed, MemoryText, SummariserUnavailable

__all__ = ("model_server",)

T0 = datetime(2026, 2, 1, 10, 0, tzinfo=UTC)
POISON = "poison"

type Blame = Literal["text", "endpoint"]

BLAMES: dict[str, tuple[Failure, Blame]] = {
    **{f"{status}": (Failure.error(status), "text") for status in (400, 413, 422)},
    **{f"{status}": (Failure.error(status), "endpoint") for status in (301, 307, 401, 402, 407, 409, 425, 429)},
    **{f"{status}": (Failure.error(status), "text") for status in (403, 404, 405, 408, 451, 500, 502, 503, 504)},
    "hangs up": (Failure(hang_up=True), "text"),
}
"""A failure for one text only, and what is to blame: other texts are answered."""


async def embed(url: str) -> Blame:
    embedder = OpenAIEmbedder(url, "m")
    try:
        await embedder.embed([POISON, "tea"])
    except EmbeddingRefused:
        return "text"
    except EmbedderUnavailable:
        return "endpoint"
    finally:
        await embedder.aclose()
    raise AssertionError


async def judge(url: str) -> Blame:
    judge = OpenAIJudge(url, "m")
    try:
        await judge.judge(StatementText(id="n", text=POISON, time="t"), [StatementText(id="o", text="tea", time="t")])
    except (StatementsFailed, JudgementFailed):
        return "text"
    except JudgeUnavailable:
        return "endpoint"
    finally:
        await judge.aclose()
    raise AssertionError


async def summarise(url: str) -> Blame:
    summariser = OpenAISummariser(url, "m")
    try:
        given = [MemoryText(id="m", role="user", text=POISON, time=T0)]
        summary = await summariser.summarise(given, scope=MemoryScope(user_id="u1"))
    except ConversationFailed:
        return "text"
    except SummariserUnavailable:
        return "endpoint"
    finally:
        await summariser.aclose()
    assert summary.model != "m", "the endpoint refuses the text: another one stands in"
    return "text"


async def extract(url: str) -> Blame:
    extractor = GraphitiExtractor(url, "m")
    try:
        await extractor.extract(TextEpisode(text=POISON, episode_type="text", reference_time=T0))
    except ExtractionFailed:
        await extractor.check()
        return "text"
    except ExtractorUnavailable:
        return "endpoint"
    finally:
        await extractor.aclose()
    raise AssertionError


CALLERS: dict[str, Callable[[str], Awaitable[Blame]]] = {
    "embedder": embed, "judge": judge, "summariser": summarise, "extractor": extract,
}  # fmt: skip


def answer(messages: list[dict[str, str]]) -> str:
    return json.dumps({"verdicts": [], "summary": "tea", "ready": True})


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("name", BLAMES)
async def test_a_status_for_one_text_blames_the_same_for_each_caller(
    model_server: ModelServer, name: str, caller: str
) -> None:
    failure, blame = BLAMES[name]
    model_server.answer = answer
    model_server.reads = lambda _: None
    model_server.fails = lambda request: failure if POISON in json.dumps(request.body) else None
    assert await CALLERS[caller](model_server.url) == blame


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("status", [401, 403, 404, 408, 429, 500])
async def test_a_status_for_each_request_blames_no_text(model_server: ModelServer, status: int, caller: str) -> None:
    model_server.always = Failure.error(status)
    if caller == "extractor":
        extractor = GraphitiExtractor(model_server.url, "m")
        with pytest.raises(ExtractorUnavailable) as raised:
            await extractor.check()
        assert raised.value.retry_after_s == (30.0 if status in {401, 403, 404} else 1.0)
        await extractor.aclose()
    else:
        assert await CALLERS[caller](model_server.url) == "endpoint"
