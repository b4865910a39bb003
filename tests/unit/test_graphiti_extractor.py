"""Texts read by way of graphiti-core: what is asked of a model, what becomes of its answers, and what else happens."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr
from tests.services.models import Failure, ModelServer, read_facts

from graphweft.transport import MAX_EVENT_BYTES
from graphweft_contracts import Event, InvalidSettings, wire
from graphweft_contracts.episodes import EntityName, EpisodeExtracted, EpisodeType, Structure
from graphweft_workers.features.episodes.extraction.graphiti import GraphitiExtractor
from graphweft_workers.features.episodes.extraction.protocol import ExtractionFailed, ExtractorUnavailable, TextEpisode
from graphweft_workers.features.episodes.extraction.shaping import SaidEntity, SaidRelation, shaped
from graphweft_workers.features.episodes.mutations import EpisodeMutations
from graphweft_workers.features.episodes.ontologies import Ontologies, Ontology
from graphweft_workers.features.episodes.ontologies.ontology import type_model
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring import features as jobs
from graphweft_workers.wiring.extractor import make_extractor

AGENT_MEMORY = Ontologies().get("agent_memory_v1")
SMALL = Ontology(
    schema_id="small",
    entity_types={"Person": type_model("Person", "A human."), "Secret": type_model("Secret", "A key.")},
    edge_types={"OWNS": type_model("OWNS", "Has it.")},
    edge_type_map={("Person", "Entity"): ("OWNS",)},
    excluded_entity_types=("Secret",),
)
WHEN = datetime(2026, 2, 3, 4, 5, tzinfo=UTC)
PACK = EpisodeMutations()


def episode(text: str, *, episode_type: EpisodeType = "text", ontology: Ontology | None = AGENT_MEMORY) -> TextEpisode:
    return TextEpisode(
        text=text, episode_type=episode_type, reference_time=WHEN, source_description="a diary", ontology=ontology
    )


@pytest.fixture
async def extractor(model_server: ModelServer) -> AsyncIterator[GraphitiExtractor]:
    made = GraphitiExtractor(model_server.url, "some-model", api_key=SecretStr("k-1"), timeout_s=5.0)
    yield made
    await made.aclose()


def asked(server: ModelServer) -> list[str]:
    """Return the prompts, in order."""
    return ["\n".join(message["content"] for message in request.body["messages"]) for request in server.requests]


@pytest.mark.parametrize("episode_type", ["text", "message", "json"])
async def test_an_episode_is_read_with_two_requests(
    extractor: GraphitiExtractor, model_server: ModelServer, episode_type: EpisodeType
) -> None:
    said = await extractor.extract(episode("Hello: «Ann OWNS Shop» and «Bob LIKES Tea»", episode_type=episode_type))
    assert [(entity.type, entity.name) for entity in said.entities] == [
        ("Person", name) for name in ("Ann", "Shop", "Bob", "Tea")
    ]
    assert [(each.type, each.source, each.target, each.fact) for each in said.relations] == [
        ("OWNS", EntityName(type="Person", name="Ann"), EntityName(type="Person", name="Shop"), "Ann owns Shop"),
        ("LIKES", EntityName(type="Person", name="Bob"), EntityName(type="Person", name="Tea"), "Bob likes Tea"),
    ]
    nodes, edges = asked(model_server)
    for prompt in (nodes, edges):
        assert "«Ann OWNS Shop»" in prompt
    assert all(name in nodes for name in AGENT_MEMORY.entity_types)
    assert all(name in edges for name in AGENT_MEMORY.edge_types)
    assert "2026-02-03 04:05" in edges
    for request in model_server.requests:
        assert (request.path, request.headers["authorization"]) == ("/v1/chat/completions", "Bearer k-1")
        assert request.body["model"] == "some-model"
        schema = request.body["response_format"]["json_schema"]["schema"]
        assert json.dumps(schema) in request.body["messages"][-1]["content"], "for models that are not held to it"
        assert request.body.keys() == {"model", "messages", "response_format"}


async def test_the_type_of_an_episode_chooses_the_prompt(
    extractor: GraphitiExtractor, model_server: ModelServer
) -> None:
    types: list[EpisodeType] = ["text", "message", "json"]
    for episode_type in types:
        await extractor.extract(episode("nothing", episode_type=episode_type))
    assert len({prompt.partition("\n\n")[0] for prompt in asked(model_server)}) == 3


async def test_where_there_is_nothing_to_know_it_asks_once(
    extractor: GraphitiExtractor, model_server: ModelServer
) -> None:
    assert await extractor.extract(episode("just words")) == Structure()
    assert len(model_server.requests) == 1


async def test_without_an_ontology_every_entity_is_of_the_one_type(extractor: GraphitiExtractor) -> None:
    said = await extractor.extract(episode("«Ann OWNS Shop»", ontology=None))
    assert [entity.type for entity in said.entities] == ["Entity", "Entity"]
    assert [relation.type for relation in said.relations] == ["OWNS"]


async def test_excluded_types_are_shown_to_the_model_and_then_dropped(
    extractor: GraphitiExtractor, model_server: ModelServer
) -> None:
    model_server.reads = by_names(Ann="Person", Shop="Entity", hunter2="Secret")
    text = "«Ann OWNS hunter2» «hunter2 OPENS Shop» «Ann OWNS Shop»"
    said = await extractor.extract(episode(text, ontology=SMALL))
    assert [(entity.type, entity.name) for entity in said.entities] == [("Person", "Ann"), ("Entity", "Shop")]
    assert [relation.fact for relation in said.relations] == ["Ann owns Shop"]
    nodes, edges = asked(model_server)
    assert "Secret" in nodes, "a model that does not see the type calls the password an Entity"
    assert "hunter2" in edges, "a fact about the password has it as an end, and not two others"


async def test_nothing_repeats_the_name_of_an_entity_of_an_excluded_type(
    extractor: GraphitiExtractor, model_server: ModelServer
) -> None:
    named = ["Ann", "hunter2", "password: HUNTER2!", "Hunter2", "hunter22"]
    entities = [{"name": name, "entity_type_id": id} for name, id in zip(named, (1, 2, 0, 0, 0), strict=True)]
    of_ann = {"source_entity_name": "Ann", "target_entity_name": "Ann", "relation_type": "KNOWS", "fact": "so it is"}
    edges = [
        of_ann | {"fact": "Ann knows \u201cHunter2\u201d"},
        of_ann | {"relation_type": "HAS_HUNTER2"},
        of_ann | {"target_entity_name": "the password hunter2"},
        of_ann | {"target_entity_name": "hunter2"},
        of_ann | {"fact": "Ann was hunter22"},
        of_ann | {"target_entity_name": "Tea"},
    ]
    answer(model_server, {"extracted_entities": entities}, {"edges": edges})
    said = await extractor.extract(episode("x", ontology=SMALL))
    assert [entity.name for entity in said.entities] == ["Ann", "hunter22", "Tea"]
    assert [relation.fact for relation in said.relations] == ["Ann was hunter22", "so it is"]


async def test_a_type_is_excluded_for_its_episode_and_its_ontology_alone(
    extractor: GraphitiExtractor, model_server: ModelServer
) -> None:
    model_server.reads = by_names(Ann="Person", Rex="Secret")
    open_to_all = replace(SMALL, schema_id="open", excluded_entity_types=())
    text = "«Ann OWNS Rex»"
    hidden, shown = await asyncio.gather(
        extractor.extract(episode(text, ontology=SMALL)), extractor.extract(episode(text, ontology=open_to_all))
    )
    assert [entity.name for entity in hidden.entities] == ["Ann"]
    assert [entity.name for entity in shown.entities] == ["Ann", "Rex"]
    model_server.reads = by_names(Ann="Person", Rex="Person")
    again = await extractor.extract(episode(text, ontology=SMALL))
    assert [(entity.type, entity.name) for entity in again.entities] == [("Person", "Ann"), ("Person", "Rex")]


def by_names(**types: str) -> Callable[[dict[str, Any]], str | None]:
    """Answer like ``read_facts``, with these types where the prompt offers them, and else with ``Entity``."""

    def reads(body: dict[str, Any]) -> str | None:
        said = read_facts(body)
        if said is None or "extracted_entities" not in said:
            return said
        prompt = body["messages"][-1]["content"]
        offered = {
            name: int(id) for id, name in re.findall(r"'entity_type_id': (\d+), 'entity_type_name': '(\w+)'", prompt)
        }
        entities: list[dict[str, Any]] = json.loads(said)["extracted_entities"]
        ids = [offered.get(types.get(each["name"], "Entity"), 0) for each in entities]
        return json.dumps(
            {"extracted_entities": [each | {"entity_type_id": id} for each, id in zip(entities, ids, strict=True)]}
        )

    return reads


def answer(server: ModelServer, entities: Any, edges: Any) -> None:
    def reads(body: dict[str, Any]) -> str:
        name = body["response_format"]["json_schema"]["name"]
        said = entities if name == "ExtractedEntities" else edges
        return said if isinstance(said, str) else json.dumps(said)

    server.reads = reads


ANN = {"name": "Ann", "entity_type_id": 1}
SHOP = {"name": " Web\tShop ", "entity_type_id": 99}
OWNS = {
    "source_entity_name": "Ann",
    "target_entity_name": "Web\tShop",
    "relation_type": "is owner of",
    "fact": "Ann\x00has",
}


async def test_what_a_model_says_is_made_fit(extractor: GraphitiExtractor, model_server: ModelServer) -> None:
    nameless, long = ANN | {"name": "  "}, ANN | {"name": "x" * 257}
    edges = [
        OWNS | {"valid_at": "2026-01-01T00:00:00Z", "invalid_at": "2025-01-01T00:00:00Z"},
        OWNS | {"target_entity_name": "x" * 257},
        OWNS | {"fact": "f" * 5_000, "valid_at": "yesterday"},
        OWNS | {"target_entity_name": "Someone Else", "relation_type": "«»"},
    ]
    answer(model_server, {"extracted_entities": [ANN, ANN, SHOP, nameless, long]}, {"edges": edges})
    said = await extractor.extract(episode("x"))
    assert [(entity.type, entity.name) for entity in said.entities] == [
        ("Person", "Ann"), ("Entity", "Web Shop"), ("Entity", "Someone Else"),
    ]  # fmt: skip
    found = [(each.type, each.fact, each.valid_from, each.valid_to) for each in said.relations]
    assert found == [
        ("is_owner_of", "Ann has", datetime(2026, 1, 1, tzinfo=UTC), None),
        ("is_owner_of", "f" * 4_096, None, None),
        ("RELATED_TO", "Ann has", None, None),
    ]


_TEXT = st.text(max_size=20) | st.text(st.characters(), max_size=400) | st.sampled_from(["\ud800", "\x00"])
_ZONES = [None, UTC, timezone(timedelta(hours=14)), timezone(timedelta(hours=-12))]
_TIME = (
    st.none()
    | st.datetimes(timezones=st.sampled_from(_ZONES))
    | st.sampled_from([time.replace(tzinfo=zone) for time in (datetime.min, datetime.max) for zone in _ZONES])
)


_NAME = st.sampled_from(["Ann", "Bob", "Tea"]) | _TEXT
_END = st.integers(0, 2) | st.integers(-40, 40) | st.none()


@given(
    entities=st.lists(
        st.builds(SaidEntity, type=st.sampled_from(["Person", "Secret"]) | _TEXT, name=_NAME), min_size=2, max_size=20
    ),
    relations=st.lists(
        st.builds(SaidRelation, type=_TEXT, source=_END, target=_END, fact=_TEXT, valid_from=_TIME, valid_to=_TIME),
        max_size=20,
    ),
    ontology=st.sampled_from([None, AGENT_MEMORY, SMALL]),
)
def test_whatever_a_model_says_makes_an_event(
    entities: list[SaidEntity], relations: list[SaidRelation], ontology: Ontology | None
) -> None:
    said = shaped(entities, relations, ontology)
    event = wire.decode(wire.encode(extracted(said)))
    assert EpisodeExtracted.model_validate(event.data).structure == said
    assert PACK.refusal(event) is None
    if ontology is not None:
        assert {entity.type for entity in said.entities} <= set(ontology.allowed_entity_types)
        assert {entity.type for entity in said.entities}.isdisjoint(ontology.excluded_entity_types)


def extracted(said: Structure) -> Event:
    data = {"episode_id": "e", "reference_time": WHEN.isoformat(), "model": "m", "user_id": "u"}
    return Event.create(
        "episode.extracted", app_id="a", chat_id="c", data=data | said.model_dump(mode="json", exclude_none=True)
    )


@pytest.mark.parametrize("letter", ["x", "中", "𐍈"])
def test_however_much_a_model_says_the_event_fits_onto_the_bus(letter: str) -> None:
    entities = [SaidEntity(type="Person", name=f"{number:04}{letter * 250}") for number in range(3_000)]
    relations = [
        SaidRelation(type="OWNS", source=number, target=number + 1, fact=letter * 4_096) for number in range(2_999)
    ]
    said = shaped(entities, relations, AGENT_MEMORY)
    assert 100 < len(said.entities) <= 1_000
    assert len(said.relations) > 20
    assert len(wire.encode(extracted(said))[wire.DATA]) < MAX_EVENT_BYTES
    short = [SaidEntity(type="Person", name=str(number)) for number in range(3_000)]
    assert len(shaped(short, [], AGENT_MEMORY).entities) == 1_000


def test_an_excluded_name_that_does_not_fit_into_an_event_is_left_out_all_the_same() -> None:
    token, last = "k7" * 200, "password of the last one"
    people = [SaidEntity(type="Person", name=name) for name in ("Ann", "Bob", f"{last}!")]
    many = [SaidEntity(type="Person", name=str(number)) for number in range(1_000)]
    secrets = [SaidEntity(type="Secret", name=name) for name in (token, last, "", " \x00")]
    said = [
        SaidRelation(type=type, source=0, target=1, fact=fact)
        for type, fact in (
            ("OWNS", f"Ann gave Bob {token}."),
            ("OWNS", f"{'x ' * 2_000}{token}"),
            (f"TOKEN_{token}", "Ann gave Bob something."),
            ("OWNS", f"It is the {last}."),
            ("OWNS", "Ann knows Bob."),
        )
    ]
    kept = shaped([*people, *many, *secrets], said, SMALL)
    assert [relation.fact for relation in kept.relations] == ["Ann knows Bob."]
    assert not [entity.name for entity in kept.entities if last in entity.name]


# failing

_AWAY = {
    "wrong key": Failure.error(401),
    "not paid": Failure.error(402),
    "busy": Failure.too_many("7"),
    "in use": Failure.error(409),
}
_FAILED = {
    "refused": Failure.error(400, "context_length_exceeded"),
    "too large": Failure.error(413),
    "not allowed": Failure.error(403),
    "no such model": Failure.error(404),
    "late": Failure.error(408),
    "error": Failure.error(500),
    "down": Failure.error(503),
    "hangs up": Failure(hang_up=True),
    "a page": Failure.garbage(),
    "no choices": Failure.garbage(b'{"choices": []}'),
    "no content": Failure.garbage(b'{"choices": [{"message": {"content": null}}]}'),
    "words": Failure.garbage(b'{"choices": [{"message": {"content": "Sure! Ann likes tea."}}]}'),
    "another form": Failure.garbage(b'{"choices": [{"message": {"content": "[1, 2]"}}]}'),
    "half a form": Failure.garbage(b'{"choices": [{"message": {"content": "{\\"extracted_entities\\": [{}]}"}}]}'),
}


@pytest.mark.parametrize("name", _AWAY)
async def test_what_is_about_the_endpoint_says_nothing_about_the_episode(
    extractor: GraphitiExtractor, model_server: ModelServer, name: str
) -> None:
    model_server.always = _AWAY[name]
    with pytest.raises(ExtractorUnavailable) as raised:
        await extractor.extract(episode("a private text"))
    assert raised.value.retry_after_s == {"busy": 7.0, "in use": 1.0}.get(name, 30.0)
    assert "private" not in str(raised.value)
    assert "quotes" not in str(raised.value)
    assert len(model_server.requests) == 1, "it does not try again by itself"


async def test_an_endpoint_that_is_not_there_is_away() -> None:
    extractor = GraphitiExtractor("http://127.0.0.1:1/v1", "m")
    with pytest.raises(ExtractorUnavailable):
        await extractor.extract(episode("x"))
    with pytest.raises(ExtractorUnavailable):
        await extractor.check()
    await extractor.aclose()


@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize("name", _FAILED)
async def test_what_may_be_about_the_episode_fails_for_it_alone(
    extractor: GraphitiExtractor, model_server: ModelServer, name: str, step: int
) -> None:
    good = [Failure()] * step
    model_server.fail(*good, *[_FAILED[name]] * 2)
    with pytest.raises(ExtractionFailed) as raised:
        await extractor.extract(episode("a private text: «Ann OWNS Shop»"))
    assert raised.value.reason == "extraction_failed"
    assert "private" not in str(raised.value)
    assert "Ann" not in str(raised.value)
    refusals = name in {"refused", "too large"}
    assert len(model_server.requests) == step + 1 + refusals, "refusals are tried without response_format's schema"
    model_server.failures.clear()
    await extractor.check()


async def test_no_answer_in_time_is_a_timeout(model_server: ModelServer) -> None:
    extractor = GraphitiExtractor(model_server.url, "m", timeout_s=0.2)
    model_server.always = Failure(hang=True)
    with pytest.raises(ExtractionFailed) as raised:
        await extractor.extract(episode("x"))
    assert raised.value.reason == "timeout"
    with pytest.raises(ExtractorUnavailable):
        await extractor.check()
    await extractor.aclose()


@pytest.mark.parametrize("name", [*_AWAY, *_FAILED])
async def test_while_nothing_is_read_no_episode_is_to_blame(
    extractor: GraphitiExtractor, model_server: ModelServer, name: str
) -> None:
    model_server.always = (_AWAY | _FAILED)[name]
    with pytest.raises(ExtractorUnavailable):
        await extractor.check()


async def test_a_server_that_knows_no_schemas_gets_them_in_the_prompt_alone(
    extractor: GraphitiExtractor, model_server: ModelServer
) -> None:
    def fails(request: Any) -> Failure | None:
        return Failure.error(400) if request.body["response_format"]["type"] == "json_schema" else None

    model_server.fails = fails
    for _ in range(2):
        said = await extractor.extract(episode("«Ann OWNS Shop»"))
        assert len(said.relations) == 1
    types = [request.body["response_format"]["type"] for request in model_server.requests]
    assert types == ["json_schema", *["json_object"] * 4]


@pytest.mark.parametrize("form", ["{}", "```json\n{}\n```", "```\n{}\n```", "<think>{ hm }\n</think>\n{}"])
async def test_an_answer_may_be_wrapped(extractor: GraphitiExtractor, model_server: ModelServer, form: str) -> None:
    def wrapped(said: Any) -> str:
        return form.replace("{}", json.dumps(said))

    answer(model_server, wrapped({"extracted_entities": [ANN]}), wrapped({"edges": []}))
    said = await extractor.extract(episode("x"))
    assert [entity.name for entity in said.entities] == ["Ann"]


# what else happens

_ALONE = """
import asyncio, json, sys
seen = {"addresses": [], "written": []}
def note(event, args):
    if event == "socket.connect":
        seen["addresses"].append(list(args[1]) if isinstance(args[1], tuple) else str(args[1]))
    elif event == "socket.getaddrinfo":
        seen["addresses"].append([str(args[0])])
    elif event in ("os.mkdir", "sqlite3.connect") or event == "open" and "w" in str(args[1] or ""):
        seen["written"].append(str(args[0]))
sys.addaudithook(note)
import os, dotenv
before = dict(os.environ)
def told(*_, **__):
    seen["dotenv"] = True
dotenv.load_dotenv = told
from graphweft_workers.wiring.extractor import make_extractor
from graphweft_workers.features.episodes.extraction.protocol import TextEpisode
from graphweft_workers.settings.settings import Settings
from datetime import UTC, datetime
async def main():
    extractor = make_extractor(Settings.load())
    said = await extractor.extract(
        TextEpisode(text="«Ann OWNS Shop»", episode_type="text", reference_time=datetime.now(UTC))
    )
    seen["relations"] = len(said.relations)
    await extractor.aclose()
asyncio.run(main())
seen["environment"] = before == dict(os.environ)
seen["restored"] = dotenv.load_dotenv is told
seen["telemetry"] = "posthog" in sys.modules
print(json.dumps(seen))
"""


def alone(code: str, folder: Path, **settings: str) -> Any:
    """Run it without pytest, whose presence graphiti-core looks for, and with telemetry on."""
    cleared = ("GRAPHWEFT_", "OPENAI_", "NEO4J_", "GRAPHITI_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(cleared)}
    env |= {"GRAPHITI_TELEMETRY_ENABLED": "true", "HOME": str(folder)} | settings
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_it_asks_the_endpoint_and_nobody_else_and_writes_nothing(model_server: ModelServer, tmp_path: Path) -> None:
    seen = alone(
        _ALONE, tmp_path, GRAPHWEFT_EXTRACTOR="graphiti:m", GRAPHWEFT_EXTRACTOR_URL=model_server.url,
        PYTHONDONTWRITEBYTECODE="1",
    )  # fmt: skip
    port = int(model_server.url.rpartition(":")[2].partition("/")[0])
    assert seen["relations"] == 1
    assert {tuple(address) for address in seen["addresses"]} <= {("127.0.0.1", port), ("127.0.0.1",)}
    assert seen["addresses"]
    assert seen["written"] == []
    assert (seen["telemetry"], seen.get("dotenv"), seen["environment"], seen["restored"]) == (False, None, True, True)
    assert list(tmp_path.iterdir()) == []


def test_without_an_extractor_graphiti_is_not_imported(tmp_path: Path) -> None:
    code = (
        "import json, sys\nfrom graphweft_workers.wiring import features as jobs\n"
        "from graphweft_workers.wiring.connections import make_graph\n"
        "from graphweft_workers.settings.settings import Settings\nsettings = Settings.load()\n"
        "print(json.dumps([len(jobs.make_jobs(settings, make_graph(settings))), "
        "'graphiti_core' in sys.modules, 'graphweft_workers.features.episodes.extraction' in sys.modules]))"
    )
    assert alone(code, tmp_path, GRAPHWEFT_EMBEDDER="hash:32") == [1, False, False]


# settings


def test_none_is_none() -> None:
    assert make_extractor(Settings()) is None
    assert jobs.groups(Settings()) == ()


def test_with_an_extractor_the_memory_role_has_a_job_for_episodes() -> None:
    settings = Settings(extractor="graphiti:m", extractor_url="http://127.0.0.1:9/v1", embedder="hash:32")
    assert jobs.groups(settings) == ("graphweft-memory", "graphweft-episodes")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"extractor": "graphiti"}, "MODEL_NAME"),
        ({"extractor": "graphiti:" + "x" * 300, "extractor_url": "http://h/v1"}, "GRAPHWEFT_EXTRACTOR"),
        ({"extractor": "graphiti:m"}, "GRAPHWEFT_EXTRACTOR_API_KEY"),
    ],
)
def test_settings_that_cannot_work_are_told(given: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidSettings, match=told):
        make_extractor(Settings(**given))


@pytest.mark.parametrize("missing", ["graphiti_core", "httpx"])
def test_a_missing_package_is_told_with_its_extra(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else real(name))
    with pytest.raises(InvalidSettings, match=r"pip install 'graphweft\[graphiti\]'") as raised:
        make_extractor(Settings(extractor="graphiti:m", extractor_url="http://127.0.0.1:9/v1"))
    assert missing in str(raised.value)


def test_a_package_that_is_there_in_part_is_told_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "graphweft_workers.features.episodes.extraction.graphiti")
    monkeypatch.setitem(sys.modules, "graphiti_core.edges", None)
    told = r"needs the Python package 'graphiti_core.edges', .* pip install 'graphweft\[graphiti\]'"
    with pytest.raises(InvalidSettings, match=told):
        make_extractor(Settings(extractor="graphiti:m", extractor_url="http://127.0.0.1:9/v1"))
