"""What embedders share, those without a server, and the choice among them. Endpoints: integration/test_embedders.py."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.services.virtual_time import VIRTUAL, VirtualClock

from graphweft_contracts import InvalidSettings
from graphweft_contracts.memory import MemoryEmbedded
from graphweft_workers.embedding.cached import CachedEmbedder
from graphweft_workers.embedding.fault_search import FaultSearch, RequestFailure
from graphweft_workers.embedding.hashing import HashingEmbedder
from graphweft_workers.embedding.local import LocalEmbedder
from graphweft_workers.embedding.openai import OpenAIEmbedder, azure_url
from graphweft_workers.embedding.protocol import (
    MOST_DIMENSIONS,
    Embedder,
    EmbedderUnavailable,
    EmbeddingRefused,
    as_vector,
    embed_each,
)
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.embedder import make_embedder


def cosine(one: list[float], other: list[float]) -> float:
    return math.sumprod(one, other) / math.hypot(*one) / math.hypot(*other)


# What a vector is


@pytest.mark.parametrize(
    "numbers",
    [[], [0.0, 0.0], [1.0, math.nan], [math.inf], [-math.inf, 1.0], [1e39], [1e-50], [1.0] * (MOST_DIMENSIONS + 1)],
)
def test_numbers_that_are_no_vector(numbers: list[float]) -> None:
    assert as_vector(numbers) is None


def test_a_vector_is_what_an_event_keeps_of_it() -> None:
    vector = as_vector([0.1, -1 / 3, 1e30, 0.0])
    assert vector is not None
    assert vector != [0.1, -1 / 3, 1e30, 0.0]
    event = MemoryEmbedded(memory_id="m", model="x", embedding=tuple(vector))
    assert list(event.embedding) == vector == json.loads(json.dumps(vector))
    longest = as_vector([1.0] * MOST_DIMENSIONS)
    assert longest is not None
    MemoryEmbedded(memory_id="m", model="x", embedding=tuple(longest))


# Hashing


async def test_hashing_finds_texts_that_share_words() -> None:
    texts = [
        "The invoice was paid late, in March.",
        "Who paid the invoices?",
        "Our dog likes to swim in the lake.",
        "the of and in to was",
        "",
        "!!!",
        "\ud800",
    ]
    embedder = HashingEmbedder(256)
    paid, question, dog, *odd = await embedder.embed(texts)
    assert embedder.model == "hash:256"
    assert cosine(paid, question) > 0.5
    # They share "in" and "the" only, which count for nothing.
    assert abs(cosine(paid, dog)) < 0.2
    for vector in (paid, question, dog, *odd):
        assert math.hypot(*vector) == pytest.approx(1.0, abs=1e-6)
        assert as_vector(vector) == vector
    assert await embedder.embed(texts) == [paid, question, dog, *odd]
    assert [(await embedder.embed([text]))[0] for text in texts] == [paid, question, dog, *odd]
    assert await embedder.embed([]) == []


PINNED = [
    0.0,
    0.0,
    0.0,
    0.0,
    0.8853557705879211,
    0.0,
    0.0,
    0.0,
    0.0,
    0.0,
    0.0,
    -0.32874393463134766,
    0.32874393463134766,
    0.0,
    0.0,
    0.0,
]


def test_hashing_gives_the_same_vector_in_every_process() -> None:
    # Vectors are kept for years beside the name "hash:16": another outcome needs another name.
    code = (
        "import asyncio; from graphweft_workers.embedding.hashing import HashingEmbedder as H\n"
        "text = 'Graphs remember conversations; paper fades, and people move on: graphs stay.'\n"
        "print(asyncio.run(H(16).embed([text]))[0])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert json.loads(done.stdout) == pytest.approx(PINNED, abs=1e-6)


async def test_words_that_cancel_each_other_out_still_have_a_direction() -> None:
    embedder = HashingEmbedder(8)
    words = [f"word{number}" for number in range(60)]
    alone = dict(zip(words, await embedder.embed(words), strict=True))
    one, other = next(
        (one, other) for one in words for other in words if alone[one] == [-number for number in alone[other]]
    )
    [both] = await embedder.embed([f"{one} {other}"])
    assert math.hypot(*both) == 1.0


@pytest.mark.parametrize("dimensions", [-1, 0, 7, MOST_DIMENSIONS + 1])
def test_hashing_refuses_dimensions_that_cannot_work(dimensions: int) -> None:
    with pytest.raises(ValueError, match="8 to 8192"):
        HashingEmbedder(dimensions)


# The cache


class Slow(Embedder):
    """Gives each text a vector of its own as soon as ``go`` is set; remembers what it was asked."""

    def __init__(self, model: str = "slow") -> None:
        self.name = model
        self.asked: list[list[str]] = []
        self.go = asyncio.Event()
        self.go.set()
        self.error: Exception | None = None
        self.closed = False

    @property
    def model(self) -> str:
        return self.name

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        self.asked.append(list(texts))
        await self.go.wait()
        if self.error is not None:
            raise self.error
        vectors = [None if text.startswith("bad") else [float(len(text)), 1.0] for text in texts]
        if None in vectors:
            raise EmbeddingRefused(self.model, vectors)
        return [vector for vector in vectors if vector is not None]

    async def aclose(self) -> None:
        self.closed = True


async def test_what_was_asked_is_kept() -> None:
    inner = Slow()
    cache = CachedEmbedder(inner)
    assert await cache.embed(["a", "bb", "a"]) == [[1.0, 1.0], [2.0, 1.0], [1.0, 1.0]]
    first = await cache.embed(["bb", "ccc"])
    first[0].clear()
    assert await cache.embed(["bb"]) == [[2.0, 1.0]]
    assert await cache.embed([]) == []
    assert inner.asked == [["a", "bb"], ["ccc"]]
    assert (cache.hits, cache.misses, len(cache)) == (2, 3, 3)
    inner.name = "another"
    assert await cache.embed(["bb"]) == [[2.0, 1.0]]
    assert inner.asked[2:] == [["bb"]]


async def test_a_text_on_its_way_is_asked_once() -> None:
    inner = Slow()
    inner.go.clear()
    cache = CachedEmbedder(inner)
    calls = [asyncio.create_task(cache.embed(texts)) for texts in (["a", "bb"], ["bb", "ccc"], ["a", "ccc"])]
    await VIRTUAL.sleep(1)
    inner.go.set()
    assert await asyncio.gather(*calls) == [[[1, 1], [2, 1]], [[2, 1], [3, 1]], [[1, 1], [3, 1]]]
    assert inner.asked == [["a", "bb"], ["ccc"]]


async def test_who_gives_up_takes_nothing_from_the_others() -> None:
    inner = Slow()
    inner.go.clear()
    cache = CachedEmbedder(inner)
    first, second = (asyncio.create_task(cache.embed(["a"])) for _ in range(2))
    await VIRTUAL.sleep(1)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    inner.go.set()
    assert await second == [[1.0, 1.0]]
    # And where all give up, the next one finds what they asked for.
    inner.go.clear()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await cache.embed(["bb"])
    inner.go.set()
    assert await cache.embed(["bb"]) == [[2.0, 1.0]]
    assert inner.asked == [["a"], ["bb"]]


async def test_failures_reach_all_who_wait_and_are_not_kept() -> None:
    inner = Slow()
    inner.go.clear()
    inner.error = EmbedderUnavailable("away", retry_after_s=7)
    cache = CachedEmbedder(inner)
    calls = [asyncio.create_task(cache.embed(["a"])) for _ in range(3)]
    await VIRTUAL.sleep(1)
    inner.go.set()
    errors = await asyncio.gather(*calls, return_exceptions=True)
    assert [(str(error), error.retry_after_s) for error in errors if isinstance(error, EmbedderUnavailable)] == [
        ("away", 7)
    ] * 3
    assert len({id(error) for error in errors}) == 3
    inner.error = RuntimeError("a defect")
    with pytest.raises(RuntimeError, match="a defect"):
        await cache.embed(["a"])
    inner.error = None
    assert await cache.embed(["a"]) == [[1.0, 1.0]]
    assert len(inner.asked) == 3


async def test_a_refused_text_does_not_take_the_others_with_it() -> None:
    inner = Slow()
    cache = CachedEmbedder(inner)
    for _ in range(2):
        with pytest.raises(EmbeddingRefused, match="refuses 2 of 4 texts") as caught:
            await cache.embed(["a", "bad", "bb", "bad"])
        assert caught.value.vectors == [[1.0, 1.0], None, [2.0, 1.0], None]
    assert await embed_each(cache, ["bad", "a"]) == [None, [1.0, 1.0]]
    assert inner.asked == [["a", "bad", "bb"], ["bad"], ["bad"]]


async def test_an_app_pushes_no_vector_of_another_out_of_its_share() -> None:
    inner = Slow()
    cache = CachedEmbedder(inner, max_bytes=4 * 408)
    quiet, loud = cache.of_app("quiet"), cache.of_app("loud")
    await quiet.embed(["a", "bb"])
    for number in range(50):
        await loud.embed([f"text {number}"])
    inner.asked.clear()
    assert await quiet.embed(["a", "bb"]) == [[1.0, 1.0], [2.0, 1.0]]
    assert inner.asked == []
    await loud.embed(["a"])
    assert inner.asked == [["a"]], "else its time would say that another app has asked it"
    await quiet.aclose()
    assert not inner.closed


async def test_the_cache_is_bounded_by_bytes() -> None:
    inner = Slow()
    cache = CachedEmbedder(inner, max_bytes=3 * 408)
    for text in ("a", "bb", "ccc", "a", "dddd", "a"):
        await cache.embed([text])
    assert len(cache) == 3
    await cache.embed(["a", "ccc", "dddd"])
    assert inner.asked == [["a"], ["bb"], ["ccc"], ["dddd"]]
    await cache.embed(["bb"])
    assert inner.asked[4:] == [["bb"]]

    bounded = CachedEmbedder(HashingEmbedder(1000), max_bytes=20_000)
    await bounded.embed([f"text {number}" for number in range(50)])
    assert len(bounded) == 4
    assert 16_000 < bounded.bytes <= 20_000
    nothing = CachedEmbedder(Slow(), max_bytes=0)
    assert await nothing.embed(["a"]) == [[1.0, 1.0]]
    assert (len(nothing), nothing.bytes) == (0, 0)


async def test_closing_ends_what_is_on_its_way() -> None:
    inner = Slow()
    inner.go.clear()
    cache = CachedEmbedder(inner)
    call = asyncio.create_task(cache.embed(["a"]))
    await VIRTUAL.sleep(1)
    await cache.aclose()
    with pytest.raises(EmbedderUnavailable, match="closed"):
        await call
    assert inner.closed


# A model in this process


class Rows(list[list[float]]):
    """As numpy's arrays are asked."""

    def tolist(self) -> list[list[float]]:
        return list(self)


class Model:
    """Stands where a SentenceTransformer would: what is tested is the thread, the batches and the errors."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.threads: set[str] = set()
        self.out_of_order = False
        self.all_nan = False
        self.wait = threading.Event()
        self.wait.set()

    def encode(self, sentences: list[str], *, batch_size: int, show_progress_bar: bool) -> Any:
        assert len(sentences) <= batch_size
        assert not show_progress_bar
        self.wait.wait(30)
        self.batches.append(sentences)
        self.threads.add(threading.current_thread().name)
        if "broken" in sentences or self.out_of_order:
            raise RuntimeError(f"cannot encode {sentences}")
        return Rows([math.nan if text == "nan" or self.all_nan else 0.1, float(len(text))] for text in sentences)


async def test_a_local_model_runs_in_its_own_thread_in_batches() -> None:
    model, loads = Model(), 0

    def load() -> Model:
        nonlocal loads
        loads += 1
        return model

    embedder = LocalEmbedder(load, model="m", batch=2)
    assert loads == 0
    texts = ["a", "bb", "ccc", "dddd", "\ud800"]
    vectors = await embedder.embed(texts)
    assert [vector[1] for vector in vectors] == [1, 2, 3, 4, 1]
    assert vectors[0] == as_vector([0.1, 1.0])
    assert model.batches == [["a", "bb"], ["ccc", "dddd"], ["?"]]
    assert (loads, embedder.model) == (1, "m")
    assert all(name.startswith("graphweft-embedder") for name in model.threads)
    assert await embedder.embed([]) == []

    # A question gets its turn between the batches of a long call, and the loop is free all the while.
    model.batches.clear()
    model.wait.clear()
    long = asyncio.create_task(embedder.embed(["x"] * 6))
    await asyncio.sleep(0)
    question = asyncio.create_task(embedder.embed(["question"]))
    await asyncio.sleep(0)
    model.wait.set()
    await asyncio.gather(long, question)
    assert model.batches == [["x", "x"], ["question"], ["x", "x"], ["x", "x"]]
    await embedder.aclose()
    assert loads == 1


async def test_a_local_model_that_fails_says_so_and_quotes_no_text() -> None:
    faults: list[Exception] = [OSError("no such model\nmore"), ImportError("no torch")]
    model = Model()

    def load() -> Model:
        if faults:
            raise faults.pop(0)
        return model

    embedder = LocalEmbedder(load, model="m")
    for told in ("OSError: no such model)", "ImportError: no torch)"):
        with pytest.raises(EmbedderUnavailable, match="cannot load the model") as caught:
            await embedder.embed(["a"])
        assert str(caught.value).endswith(told)
    model.out_of_order = True
    with pytest.raises(EmbedderUnavailable) as caught:
        await embedder.embed(["a"])
    assert str(caught.value) == "the model 'm' failed (RuntimeError)"
    assert "cannot encode" not in "".join(traceback.format_exception(caught.value))
    model.out_of_order = False
    with pytest.raises(EmbeddingRefused) as refused:
        await embedder.embed(["a", "nan"])
    assert refused.value.vectors == [as_vector([0.1, 1.0]), None]
    model.all_nan = True
    with pytest.raises(EmbedderUnavailable, match="zero or not finite"):
        await embedder.embed(["b", "c"])
    await embedder.aclose()


@pytest.mark.parametrize("text", ["broken", "nan"])
async def test_a_text_on_which_a_local_model_fails_is_refused_also_alone(text: str) -> None:
    good = as_vector([0.1, 1.0])
    for texts, expected in [([text], [None]), (["a", text, "b"], [good, None, good])]:
        embedder = LocalEmbedder(Model, model="m", batch=4)
        assert await embed_each(embedder, texts) == expected
        await embedder.aclose()


# Texts at fault


async def test_a_text_at_fault_is_not_asked_again_for_ten_minutes() -> None:
    clock, asked = VirtualClock(), list[str]()

    async def ask(texts: Sequence[str], test: bool) -> list[list[float] | None]:
        if not test:
            asked.extend(texts)
        if "bad" in texts:
            raise RequestFailure(EmbedderUnavailable("refused"), refused=True)
        if "busy" in texts:
            raise EmbedderUnavailable("busy")
        return [[1.0]] * len(texts)

    search = FaultSearch(ask, in_turn=True, clock=clock)

    async def embed(*texts: str) -> list[list[float]]:
        return await search.embed("m", texts, lambda wanted: [[text] for text in wanted])

    with pytest.raises(EmbedderUnavailable, match="busy"):  # what was found out before it counts
        await embed("bad", "busy")
    for _ in range(2):
        with pytest.raises(EmbeddingRefused) as caught:
            await embed("a", "bad")
        assert caught.value.vectors == [[1.0], None]
    assert asked == ["bad", "busy", "a", "a"]
    clock.advance(599.0)
    with pytest.raises(EmbeddingRefused):
        await embed("bad")
    assert asked.count("bad") == 1
    clock.advance(2.0)
    with pytest.raises(EmbeddingRefused):
        await embed("bad")
    assert asked.count("bad") == 2


# The choice


async def made(**given: Any) -> Embedder:
    embedder = make_embedder(Settings(**given))
    assert embedder is not None
    await embedder.aclose()
    return embedder


async def test_the_setting_chooses_the_embedder() -> None:
    assert make_embedder(Settings()) is None
    assert isinstance(await made(embedder="hash:64"), HashingEmbedder)
    for given, name in [
        ({"embedder": "hash:64"}, "hash:64"),
        ({"embedder": "openai:org/model:v2", "embedder_url": "http://localhost:11434/v1"}, "org/model:v2"),
        ({"embedder": "openai:text-embedding-3-small", "embedder_api_key": "k"}, "text-embedding-3-small"),
        ({"embedder": "azure", "embedder_url": "https://h", "embedder_api_key": "k"}, "text-embedding-ada-002"),
        ({"embedder": "azure:mine", "embedder_url": "https://h", "embedder_api_key": "k"}, "mine"),
    ]:
        assert (await made(**given)).model == name
    assert isinstance(await made(embedder="azure", embedder_url="https://h", embedder_api_key="k"), OpenAIEmbedder)


@pytest.mark.parametrize(
    "value",
    [
        "nonsense", "hash", "hash:", "hash:7", "hash:8193", "hash:-8", "hash:1e3", "hash:99999", "hash:\u0663\u0663",
        "openai", "openai:", "openai: ", "azure:", "minilm:x", "none:x", "sentence-transformers",
        "sentence-transformers:", "HASH:64", "",
    ],
)  # fmt: skip
def test_an_unknown_embedder_is_told_with_the_forms(value: str) -> None:
    with pytest.raises(InvalidSettings) as caught:
        make_embedder(Settings(embedder=value))
    assert repr(value) in str(caught.value)
    for form in ("none", "hash:", "minilm", "sentence-transformers:", "openai:", "azure"):
        assert form in str(caught.value)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"embedder": "openai:m"}, "GRAPHWEFT_EMBEDDER_API_KEY"),
        ({"embedder": "azure"}, "AZURE_AI_PROJECT_ENDPOINT"),
        ({"embedder": "azure", "embedder_url": "https://h"}, "AZURE_AI_API_KEY"),
        ({"embedder": "azure", "embedder_url": "https://h/models", "embedder_api_key": "k"}, "/api/projects/PROJECT"),
    ],
)
def test_what_an_embedder_lacks_is_told_by_the_variable(given: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidSettings, match=told):
        make_embedder(Settings(**given))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("module", "given", "extra"),
    [
        ("httpx", {"embedder": "openai:m", "embedder_url": "http://h"}, "openai-compatible"),
        ("httpx", {"embedder": "azure", "embedder_url": "http://h", "embedder_api_key": "k"}, "openai-compatible"),
        ("sentence_transformers", {"embedder": "sentence-transformers:m"}, "sentence-transformers"),
        ("onnxruntime", {"embedder": "minilm"}, "local"),
    ],
)
def test_an_embedder_that_is_not_installed_names_its_extra(
    module: str, given: dict[str, Any], extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InvalidSettings) as caught:
        make_embedder(Settings(**given))
    assert f"pip install 'graphweft[{extra}]'" in str(caught.value)


def test_making_an_embedder_does_not_import_what_others_need() -> None:
    code = (
        "import sys; sys.modules['httpx'] = None\n"
        "from graphweft_workers.wiring.embedder import make_embedder\n"
        "from graphweft_workers.settings.settings import Settings\n"
        "print(make_embedder(Settings()), make_embedder(Settings(embedder='hash:8')).model)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr) == ("None hash:8\n", "")


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("https://r.services.ai.azure.com/api/projects/p", "https://r.services.ai.azure.com/openai/v1"),
        ("https://r.services.ai.azure.com/api/projects/p/", "https://r.services.ai.azure.com/openai/v1"),
        ("https://r.openai.azure.com", "https://r.openai.azure.com/openai/v1"),
        ("https://r.openai.azure.com/", "https://r.openai.azure.com/openai/v1"),
        ("https://r.openai.azure.com/openai/v1/", "https://r.openai.azure.com/openai/v1"),
        ("http://127.0.0.1:81/api/projects/p", "http://127.0.0.1:81/openai/v1"),
    ],
)
def test_endpoints_of_azure_lead_to_its_v1_api(endpoint: str, url: str) -> None:
    assert azure_url(endpoint) == url


@pytest.mark.parametrize(
    "endpoint", ["https://h/models", "https://h/openai", "https://h/openai/deployments/d", "https://h/api/projects"]
)
def test_other_paths_of_azure_are_refused(endpoint: str) -> None:
    with pytest.raises(ValueError, match="/openai/v1"):
        azure_url(endpoint)


def test_a_folder_is_recorded_by_its_name(tmp_path: Path) -> None:
    from graphweft_workers.embedding.local import MINILM, minilm, sentence_transformers

    folder = tmp_path / "my-model"
    folder.mkdir()
    assert sentence_transformers(str(folder)).model == "my-model"
    assert sentence_transformers(str(folder) + "/").model == "my-model"
    assert sentence_transformers("org/model").model == "org/model"
    assert minilm().model == MINILM
