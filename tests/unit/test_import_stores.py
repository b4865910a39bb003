"""What mem0, Graphiti and other stores hold becomes events: what becomes what, stability, limits, what is refused."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from tests.declared_fields import check_declared

from graphweft_contracts import Event, MemoryScope, wire
from graphweft_contracts.episodes import EpisodeAdd
from graphweft_contracts.memory import MemoryAdd
from graphweft_workers.imports import ImportProblem
from graphweft_workers.imports.graphiti_export import Graphiti
from graphweft_workers.imports.items import MOST_DOCUMENT_BYTES, MOST_LINE_BYTES, ImportItem, read_items
from graphweft_workers.imports.report import MOST_LISTED, ImportReport
from graphweft_workers.imports.stored_events import Store, events_of_items, grouped
from graphweft_workers.imports.stored_memories import Mem0, PlainMemories

NOW = datetime(2026, 11, 25, 12, tzinfo=UTC)
SAID = {"id": "m1", "memory": "Eats no nuts", "user_id": "ada", "created_at": "2026-02-01T10:00:00Z"}
ADA = {
    "uuid": "n1", "name": "Ada", "group_id": "ada", "labels": ["Entity", "Person"], "summary": "Runs a shop",
    "created_at": "2026-01-01T00:00:00Z", "attributes": {"role": "owner"}, "name_embedding": [0.5],
}  # fmt: skip
SHOP = {"uuid": "n2", "name": "Shop", "group_id": "ada", "labels": ["Entity"], "created_at": "2026-01-01T00:00:00Z"}
OWNS = {
    "uuid": "r1", "group_id": "ada", "source_node_uuid": "n1", "target_node_uuid": "n2", "name": "OWNS",
    "fact": "Ada owns the shop", "created_at": "2026-01-02T00:00:00Z", "valid_at": "1815-12-10T00:00:00Z",
    "invalid_at": None, "expired_at": None, "episodes": ["e1"], "attributes": {},
}  # fmt: skip
TALK = {
    "uuid": "e1", "name": "talk", "group_id": "ada", "source": "message", "source_description": "chat",
    "content": "Ada: I own the shop", "valid_at": "2026-01-01T00:00:00Z", "created_at": "2026-01-03T00:00:00Z",
}  # fmt: skip


def of(store: Store, report: ImportReport, *items: Any, otherwise: MemoryScope | None = None) -> list[Event]:
    read = [ImportItem(f"f.jsonl:{number}", item) for number, item in enumerate(items, 1)]
    events = list(events_of_items(read, store, report, app_id="acme", otherwise=otherwise, now=NOW))
    check_declared(events)
    return events


def mem0(*items: Any, user: str | None = None) -> tuple[list[Event], ImportReport]:
    report = ImportReport()
    return of(Mem0(), report, *items, otherwise=None if user is None else MemoryScope(user_id=user)), report


def plain(*items: Any) -> tuple[list[Event], ImportReport]:
    report = ImportReport()
    return of(PlainMemories(), report, *items), report


def graphiti(*items: Any, group_as: str = "user_id") -> tuple[list[Event], ImportReport]:
    report = ImportReport()
    return of(Graphiti(report, group_as=group_as), report, *items), report


def read(path: Path, *sections: str) -> tuple[list[ImportItem], ImportReport]:
    report = ImportReport()
    return list(read_items(path, sections or ("results",), report)), report


def file(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


# Memories.


def test_a_memory_of_mem0_becomes_one_event_with_scope_time_and_id() -> None:
    [event], report = mem0(
        SAID | {"run_id": "r", "agent_id": "a", "app_id": "shop", "actor_id": "Ada", "hash": "x", "score": 0.1,
                "updated_at": None, "metadata": {"category": "food"}, "role": "assistant", "categories": ["food"]}
    )  # fmt: skip
    added = MemoryAdd.model_validate(event.data)
    [message] = added.messages
    assert added.scope.given == {"application_id": "shop", "agent_id": "a", "user_id": "ada", "thread_id": "r"}
    assert (event.appid, event.chatid, event.userid, event.source) == ("acme", "r", "ada", "/import/mem0")
    assert (message.text, message.role, message.message_id, message.author_name) == (
        "Eats no nuts", "assistant", "m1", "Ada",
    )  # fmt: skip
    assert message.time == event.time == datetime(2026, 2, 1, 10, tzinfo=UTC)
    assert event.data["metadata"] == {"category": "food"}
    assert report.left_out == {"categories": 1}


def test_the_same_item_gives_the_same_event_and_another_text_another_one() -> None:
    [one], _ = mem0(SAID)
    [again], _ = mem0(SAID | {"hash": "other", "metadata": {"a": 1}, "updated_at": "2026-03-01T10:00:00Z"})
    others = [mem0(SAID | change)[0][0] for change in ({"memory": "Eats nuts"}, {"user_id": "bob"}, {"id": "m2"})]
    assert one.id == again.id
    assert len({one.id, *(other.id for other in others)}) == 4


def test_items_without_an_id_are_told_apart_by_their_times() -> None:
    items = [{"text": "hello", "user_id": "ada", "time": f"2026-02-0{day}T10:00:00Z"} for day in (1, 2, 2)]
    events, report = plain(*items)
    assert (len(events), report.repeated) == (2, 1)


def test_an_event_is_of_the_given_app_whatever_the_item_says() -> None:
    events, _ = mem0(SAID | {"app_id": "other", "appid": "other", "user_id": "other:ada"})
    assert [(event.appid, event.userid) for event in events] == [("acme", "other:ada")]
    events, report = plain({"text": "hello", "user_id": "ada", "app_id": "other"})
    assert events == []
    assert list(report.reasons) == ["app_id: it names another app than --app: import the items of one app at a time"]


def test_an_item_without_a_scope_takes_the_user_of_the_option() -> None:
    item = SAID | {"user_id": None}
    assert mem0(item)[1].refused == 1
    assert mem0(item, user="eve")[0][0].userid == "eve"
    assert mem0(SAID, user="eve")[0][0].userid == "ada"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"memory": None}, "memory: expected some text"),
        ({"memory": " \n"}, "memory: expected some text"),
        ({"memory": "\0"}, "memory: expected some text"),
        ({"memory": ["x"]}, "memory: expected text, found a list"),
        ({"memory": "x" * 1_000_001}, "expected at most 1000000 characters"),
        ({"memory": "é" * 600_000}, "it has more than 999,000 bytes as an event: split it"),
        ({"metadata": {"x": "y" * 1_000_000}}, "it has more than 999,000 bytes as an event: split it"),
        ({"metadata": json.loads('{"a":' * 230 + "1" + "}" * 230)}, ""),
        ({"metadata": "x"}, "metadata: expected an object, found text"),
        ({"user_id": 7}, "user_id: expected text, found a number"),
        ({"user_id": True}, "user_id: expected text, found a boolean"),
        ({"user_id": {"a": 1}}, "user_id: expected text, found an object"),
        ({"user_id": "a\nb"}, "user_id: expected 1 to 256 characters"),
        ({"user_id": "a\0b"}, "user_id: expected 1 to 256 characters"),
        ({"user_id": " ada"}, "user_id: expected 1 to 256 characters"),
        ({"user_id": "a" * 257}, "user_id: expected 1 to 256 characters"),
        ({"user_id": ""}, "it names nobody"),
        ({"created_at": "yesterday"}, "created_at: expected a time"),
        ({"created_at": True}, "created_at: expected a time"),
        ({"created_at": 1e300}, "created_at: expected a time"),
        ({"created_at": "0001-01-01T00:00:00+14:00"}, "created_at: expected a time"),
        ({"created_at": "1969-12-31T23:59:59Z"}, "created_at: it is before 1970"),
        ({"created_at": "2026-11-27T12:00:00Z"}, "created_at: it is more than a day ahead"),
        ({"actor_id": "x" * 257}, "at most 256 characters"),
        ({"expiration_date": "next year"}, "expiration_date: expected a time"),
        ({"expiration_date": "2026-01-01"}, "expires_at is not after the time"),
        ({"expiry": "2027-01-01"}, "expiry: this does not end an item here"),
        ({"new_memory": "x"}, "it is an entry of a history"),
    ],
)
def test_what_an_item_cannot_be_is_refused_with_the_reason(change: dict[str, Any], reason: str) -> None:
    events, report = mem0(SAID, SAID | {"id": "m2"} | change, SAID | {"id": "m3"})
    assert [event.data["messages"][0]["message_id"] for event in events] == ["m1", "m3"]
    assert report.refused == 1
    [(place, said)] = report.listed
    assert place == "f.jsonl:2"
    assert reason in said
    assert report.reasons == {said: 1}


@pytest.mark.parametrize("item", [None, 7, "text", [], True])
def test_an_item_that_is_no_object_is_refused(item: Any) -> None:
    events, report = mem0(item)
    assert (events, report.refused) == ([], 1)


def test_the_end_of_an_item_is_the_end_of_its_memory() -> None:
    for name, store in (("expiration_date", mem0), ("expires_at", mem0), ("expires_at", plain)):
        item = SAID if store is mem0 else {"id": "1", "text": "Eats no nuts", "user_id": "ada"}
        [event], report = store(item | {name: "2027-01-01"})
        assert event.data["messages"][0]["expires_at"] == "2027-01-01T00:00:00+00:00"
        assert not report.refused
    _, report = graphiti(ADA | {"expires_at": "2027-01-01"})
    assert report.refused == 1


def test_reasons_quote_no_text_of_an_item() -> None:
    secret = "hunter2-hunter2"
    changes: list[dict[str, Any]] = [
        {"memory": [secret]}, {"user_id": f"{secret}\n"}, {"created_at": secret}, {"metadata": secret},
        {"actor_id": secret * 30}, {"expiration_date": secret}, {secret: secret}, {"memory": secret * 100_000},
    ]  # fmt: skip
    _, report = mem0(*(SAID | change for change in changes))
    assert report.refused == len(changes) - 1
    assert secret not in repr(report)


def test_times_without_a_zone_are_utc_and_counted() -> None:
    [event, other], report = mem0(SAID | {"created_at": "2026-02-01T10:00:00"}, SAID | {"id": "2", "created_at": 10**8})
    assert event.time == datetime(2026, 2, 1, 10, tzinfo=UTC)
    assert other.time == datetime(1973, 3, 3, 9, 46, 40, tzinfo=UTC)
    assert report.without_zone == 1
    assert (report.first, report.last) == (other.time, event.time)


@pytest.mark.long
def test_one_refused_item_among_ten_thousand_costs_only_itself() -> None:
    items = [SAID | {"id": str(number)} for number in range(10_000)]
    items[7_000] = SAID | {"user_id": 7}
    events, report = mem0(*items)
    assert (len(events), report.events["memories"], report.refused) == (9_999, 9_999, 1)
    assert report.listed[0][0] == "f.jsonl:7001"


def test_a_report_is_bounded_however_much_is_refused() -> None:
    items = [{f"field{number}": 1, "memory": "x", "user_id": "ada", "id": str(number)} for number in range(1_000)]
    _, report = mem0(*items, *([7] * 1_000))
    assert report.refused == 1_000
    assert len(report.listed) == MOST_LISTED
    assert report.left_out["others"] == 900
    assert sum(report.left_out.values()) == 1_000


def test_equal_items_of_a_file_are_sent_once() -> None:
    events, report = mem0(SAID, SAID, SAID | {"memory": "Eats nuts"})
    assert (len(events), report.repeated) == (2, 1)


def test_groups_are_limited_by_number_and_by_size() -> None:
    small, _ = mem0(*(SAID | {"id": str(number)} for number in range(1_200)))
    assert [len(group) for group in grouped(small)] == [500, 500, 200]
    large, _ = mem0(*(SAID | {"id": str(number), "memory": "x" * 900_000} for number in range(12)))
    assert [len(group) for group in grouped(large)] == [5, 5, 2]
    assert [event.id for group in grouped(large) for event in group] == [event.id for event in large]


# Graphiti.


def test_nodes_and_edges_of_graphiti_become_episodes() -> None:
    events, report = graphiti(ADA, SHOP, TALK, OWNS)
    entity, _, episode, fact = (EpisodeAdd.model_validate(event.data) for event in events)
    assert {event.userid for event in events} == {"ada"}
    assert entity.content == {
        "entities": [{"type": "Person", "name": "Ada", "summary": "Runs a shop", "role": "owner"}]
    }
    assert (episode.content, episode.episode_type, episode.episode_id) == ("Ada: I own the shop", "message", "e1")
    assert (episode.name, episode.source_description) == ("talk", "chat")
    assert episode.reference_time == datetime(2026, 1, 1, tzinfo=UTC)
    assert events[2].time == datetime(2026, 1, 3, tzinfo=UTC)
    assert fact.structure is not None
    [relation] = fact.structure.relations
    assert (relation.type, relation.fact) == ("OWNS", "Ada owns the shop")
    assert relation.valid_from == datetime(1815, 12, 10, tzinfo=UTC)
    assert relation.valid_to is None
    assert [entity.type for entity in fact.structure.entities] == ["Person", "Entity"]
    assert report.events == {"entities": 2, "episodes": 1, "facts": 1}
    assert report.left_out == {}


def test_a_fact_that_has_ended_wins_over_its_earlier_export() -> None:
    ended = OWNS | {"invalid_at": "2026-02-01T00:00:00Z", "expired_at": "2026-02-02T00:00:00Z"}
    (*_, before), (*_, after) = graphiti(ADA, SHOP, OWNS)[0], graphiti(ADA, SHOP, ended)[0]
    first, second = EpisodeAdd.model_validate(before.data), EpisodeAdd.model_validate(after.data)
    assert first.structure is not None
    assert second.structure is not None
    assert second.structure.relations[0].valid_to == datetime(2026, 2, 1, tzinfo=UTC)
    assert first.structure.relations[0].valid_from == second.structure.relations[0].valid_from
    assert first.reference_time is not None
    assert second.reference_time is not None
    assert first.reference_time < second.reference_time
    assert before.id != after.id


def test_a_fact_that_ended_before_it_was_known_is_sound() -> None:
    (*_, fact), report = graphiti(ADA, SHOP, OWNS | {"valid_at": None, "invalid_at": "2020-01-01T00:00:00Z"})
    assert report.events["facts"] == 1
    structure = EpisodeAdd.model_validate(fact.data).structure
    assert structure is not None
    assert structure.relations[0].valid_to == structure.relations[0].valid_from == datetime(2020, 1, 1, tzinfo=UTC)


def test_what_the_classes_of_graphiti_write_is_read() -> None:
    nodes = pytest.importorskip("graphiti_core.nodes", reason="the extra graphiti is not installed")
    edges = pytest.importorskip("graphiti_core.edges")
    known = {"group_id": "ada", "created_at": NOW}
    ada = nodes.EntityNode(name="Ada", labels=["Entity", "Person"], **known)
    shop = nodes.EntityNode(name="Shop", **known)
    talk = nodes.EpisodicNode(
        name="talk", source=nodes.EpisodeType.message, source_description="", content="Ada: mine", valid_at=NOW, **known
    )
    owns = edges.EntityEdge(
        source_node_uuid=ada.uuid, target_node_uuid=shop.uuid, name="OWNS", fact="Ada owns the shop", **known
    )
    link = edges.EpisodicEdge(source_node_uuid=talk.uuid, target_node_uuid=ada.uuid, **known)
    written = [json.loads(each.model_dump_json()) for each in (ada, shop, talk, owns, link)]
    _, report = graphiti(
        *written, nodes.CommunityNode(name="all", labels=["Community"], **known).model_dump(mode="json")
    )
    assert report.events == {"entities": 2, "episodes": 1, "facts": 1}
    assert report.refused == 0
    assert report.left_out == {"edges without a fact": 1, "communities and sagas": 1}


def test_an_edge_does_not_find_an_entity_of_another_group() -> None:
    events, report = graphiti(ADA, SHOP, OWNS | {"group_id": "bob"})
    assert (len(events), report.refused) == (2, 1)
    assert "source_node_uuid: no entity of its group before it" in report.listed[0][1]


def test_an_edge_may_name_its_ends() -> None:
    [event], report = graphiti(OWNS | {"source": "Ada", "target": "Ada", "name": "喜欢"})
    structure = EpisodeAdd.model_validate(event.data).structure
    assert structure is not None
    assert [entity.name for entity in structure.entities] == ["Ada"]
    assert structure.relations[0].type == "RELATES_TO"
    assert report.left_out == {"names of relations that are no types": 1}


@pytest.mark.parametrize(("group_as", "scope"), [("thread_id", "thread_id"), ("agent_id", "agent_id")])
def test_a_group_becomes_the_scope_of_the_option(group_as: str, scope: str) -> None:
    [event], _ = graphiti(TALK, group_as=group_as)
    assert event.data[scope] == "ada"
    assert "user_id" not in event.data


@pytest.mark.parametrize("group", ["", "_", "\\_", None])
def test_the_group_of_items_without_one_is_no_user(group: str | None) -> None:
    report = ImportReport()
    store = Graphiti(report)
    items = [each | {"group_id": group} for each in (ADA, SHOP, OWNS)]
    assert of(store, report, *items) == []
    assert report.refused == 3
    assert len(of(store, report, *items, otherwise=MemoryScope(user_id="eve"))) == 3


@pytest.mark.parametrize(
    ("content", "kind"),
    [('{"a": 1}', "json"), ("{", "text"), ('{"entities": "mine"}', "text"), ("[" * 5_000, "text")],
)  # fmt: skip
def test_json_that_would_be_read_as_a_structure_is_text(content: str, kind: str) -> None:
    [event], _ = graphiti(TALK | {"source": "json", "content": content})
    episode = EpisodeAdd.model_validate(event.data)
    assert episode.episode_type == kind
    assert episode.structure is None


def test_what_has_no_place_is_counted() -> None:
    link = {name: OWNS[name] for name in ("uuid", "group_id", "source_node_uuid", "target_node_uuid", "created_at")}
    many = {"deep": {"a": 1}, "Role of": "x", "good": "y", "id": "z"}
    events, report = graphiti(
        link, ADA | {"labels": ["Community"]}, ADA | {"attributes": many}, TALK | {"name": "x" * 300}
    )
    assert events[0].data["content"]["entities"] == [
        {"type": "Person", "name": "Ada", "summary": "Runs a shop", "good": "y"}
    ]
    assert report.left_out == {
        "edges without a fact": 1, "communities and sagas": 1, "attributes": 3,
        "ends of long names and descriptions": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    "item", [{}, {"uuid": "x"}, ADA | {"name": 7}, ADA | {"name": "x" * 257}, TALK | {"content": ""},
             TALK | {"content": 7}, {**ADA, "attributes": 7}, OWNS | {"valid_at": "2027-01-01", "invalid_at": "2026"}],
)  # fmt: skip
def test_what_is_nothing_of_graphiti_is_refused(item: Any) -> None:
    events, report = graphiti(item)
    assert (events, report.refused) == ([], 1)


def test_events_can_be_read_as_a_worker_reads_them() -> None:
    for event in (*mem0(SAID | {"metadata": {"a": [1, {"b": None}]}})[0], *graphiti(ADA, SHOP, TALK, OWNS)[0]):
        assert wire.decode(wire.encode(event)).id == event.id


# Files.


def test_a_document_may_hold_items_in_arrays(tmp_path: Path) -> None:
    one, report = read(file(tmp_path, "a.json", json.dumps({"results": [1, 2], "relations": [3]}, indent=1)))
    assert one == [ImportItem(f"{tmp_path}/a.json: results[0]", 1), ImportItem(f"{tmp_path}/a.json: results[1]", 2)]
    assert report.left_out == {"relations": 1}
    two, _ = read(file(tmp_path, "b.json", "[1, 2]"))
    assert [place.removeprefix(str(tmp_path)) for place, _ in two] == ["/b.json: [0]", "/b.json: [1]"]
    sections, _ = read(file(tmp_path, "c.json", '{"edges": [1], "nodes": [2]}'), "nodes", "edges")
    assert [value for _, value in sections] == [2, 1]
    edge, _ = read(file(tmp_path, "d.json", '{"uuid": "r1", "episodes": ["e1"]}'), "episodes")
    assert [value for _, value in edge] == [{"uuid": "r1", "episodes": ["e1"]}]


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a.jsonl.gz", "a.txt"])
def test_a_line_that_cannot_be_read_costs_only_itself(tmp_path: Path, name: str) -> None:
    content = b"\xef\xbb\xbf1\n\n{\n\xff\n[2, 3]\n" + b" " * MOST_LINE_BYTES + b"4\n5\nNaN\n" + b"[" * 100_000 + b"\n6"
    path = file(tmp_path, name, gzip.compress(content) if name.endswith("gz") else content)
    items, report = read(path)
    assert [value for _, value in items] == [1, 2, 3, 5, 6]
    assert [place.rpartition(":")[2] for place, _ in report.listed] == ["3", "4", "6", "8", "9"]
    assert items[-1].place.endswith(f"{name}:10")


def test_standard_input_may_be_lines_or_a_document(monkeypatch: pytest.MonkeyPatch) -> None:
    def given(content: bytes) -> Iterator[ImportItem]:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(content))))
        return read_items("-", ("results",), ImportReport())

    assert [value for _, value in given(b"1\n2\n")] == [1, 2]
    assert [value for _, value in given(b'{"results":\n[1, 2]}')] == [1, 2]
    assert [value for _, value in given(gzip.compress(b"\n[1,\n2]"))] == [1, 2]
    assert list(given(b"\n \n")) == []


BOMB: Final = gzip.compress(b'"' + b" " * (MOST_DOCUMENT_BYTES + 1) + b'"', 1)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", b"hello", "not JSON"),
        ("a.json", b"1\n2\n", "one JSON value on each line of a .jsonl file"),
        ("a.json", b'"\xff"', "not UTF-8"),
        ("a.json", "[1]".encode("utf-16"), "UTF-16"),
        ("a.jsonl", "[1]".encode("utf-16"), "UTF-16"),
        pytest.param("a.json.gz", gzip.compress(b"[1]")[:-6], "damaged or incomplete", id="half of gzip"),
        ("a.json", b"[" * 100_000, "nested too deeply"),
        ("a.json", b"", "not JSON"),
        pytest.param("a.json.gz", BOMB, "unpack the file first", id="bomb"),
    ],
)
def test_a_file_that_is_neither_is_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    with pytest.raises(ImportProblem, match=message):
        read(file(tmp_path, name, content))


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(ImportProblem, match="No such file"):
        list(read_items("absent.jsonl", (), ImportReport()))


def test_lines_are_read_as_they_are_needed(tmp_path: Path) -> None:
    """A file of any size is never held in memory."""
    path = file(tmp_path, "a.jsonl", b"1\n" * 100_000)
    reading = read_items(path, (), ImportReport())
    next(reading)
    path.write_bytes(b"")
    assert sum(1 for _ in reading) < 100_000


# What changes the meaning of an item, and what takes the place of another field.


@pytest.mark.parametrize("name", ["type", "name", "summary"])
def test_an_attribute_never_takes_the_place_of_a_field(name: str) -> None:
    events, report = graphiti(ADA | {"attributes": {name: "GmbH", "role": "owner"}}, SHOP, OWNS)
    content = events[0].data["content"]["entities"][0]
    assert content == {
        "type": "Person", "name": "Ada", "role": "owner", "summary": "Runs a shop", f"attribute_{name}": "GmbH",
    }  # fmt: skip
    assert events[2].data["content"]["relations"][0]["source"] == {"type": "Person", "name": "Ada"}
    assert not report.refused


@pytest.mark.parametrize(
    "field",
    [
        {"event": "DELETE"}, {"event": "delete"}, {"state": "archived"}, {"status": "Deleted"}, {"deleted": True},
        {"is_deleted": 1}, {"deleted_at": "2026-02-01T10:00:00Z"}, {"superseded_by": "m2"}, {"action": "REMOVE"},
        {"isDeleted": "true"}, {"expires_on": "2027-01-01T00:00:00Z"}, {"ttl": 60},
    ],
)  # fmt: skip
def test_an_item_that_its_store_does_not_show_any_more_does_not_come_back(field: dict[str, Any]) -> None:
    (name,) = field
    for events, report in (
        mem0(SAID | field),
        plain({"id": "1", "text": "Eats no nuts", "user_id": "ada"} | field),
        graphiti(ADA | field),
    ):
        assert (events, report.refused) == ([], 1)
        assert {"isDeleted": "is_deleted"}.get(name, name) in report.listed[0][1]


@pytest.mark.parametrize(
    "field",
    [
        {"event": "ADD"},
        {"event": "UPDATE"},
        {"deleted": False},
        {"deleted_at": None},
        {"state": "active"},
        {"ttl": None},
    ],
)
def test_an_item_that_its_store_shows_is_imported(field: dict[str, Any]) -> None:
    events, report = mem0(SAID | field)
    assert (len(events), report.refused) == (1, 0)


@pytest.mark.parametrize(
    ("pages", "said"),
    [
        ([{"count": 230, "next": "https://x?page=2", "results": [SAID]}], ("230", "holds 1")),
        ([{"total": 3, "results": [SAID]}], ("3 items", "holds 1")),
        ([{"results": [SAID], "pagination": {"total": 2}}], ("2 items", "holds 1")),
        ([{"results": [SAID], "meta": {"hasMore": True}}], ("after 1", "next one")),
        ([{"results": [SAID], "nextCursor": "abc"}], ("after 1", "next one")),
        ([{"count": 2, "next": "u", "results": [SAID]}, {"count": 2, "next": None, "results": [SAID]}], ()),
        ([{"count": 1, "next": None, "results": [SAID]}], ()),
        ([{"results": [SAID]}], ()),
    ],
)
def test_one_page_of_several_is_not_all(tmp_path: Path, pages: list[Any], said: tuple[str, ...]) -> None:
    _, report = read(file(tmp_path, "pages.jsonl", "\n".join(map(json.dumps, pages))))
    assert bool(report.missing) == bool(said)
    assert all(part in report.missing for part in said)
