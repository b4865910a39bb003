"""Which search indexes rules get, and what the linter says of the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from graphweft_rules import RulesError, RuleSet, lint
from graphweft_rules.cypher.indexes import SearchIndex
from graphweft_rules.matching.rule_summary import RuleSummary
from graphweft_workers.drivers.falkordb.dialect import FALKORDB

DOC = "MERGE (d:Doc {id: 1}) SET d.text = 'x', d.vector = 'x'"


def body(*searches: dict[str, Any], mutation: str = DOC, graphrag: bool = False) -> bytes:
    made = [{"query": "$context.q", **search} for search in searches]
    queries = [
        {"id": f"q{number}", "inject_as": f"q{number}"}
        | ({"graphrag": {"query": "$context.q", "search": search}} if graphrag else {"search": search})
        for number, search in enumerate(made)
    ]
    written: dict[str, Any] = {"id": "m", "cypher": mutation}
    written |= {"params": {"x": "$event.x"}} if "$x" in mutation else {}
    mutations = [{"name": "r", "events": ["*"], "mutations": [written]}] if mutation else []
    rules = [{"name": "i", "agents": ["*"], "queries": queries}] if queries else []
    return json.dumps({"mutation_rules": mutations, "injection_rules": rules}).encode()


def rule_set(**workflows: bytes) -> RuleSet:
    return RuleSet.of_files({f"{name}/graph_injection.yaml": text for name, text in workflows.items()}, (), (FALKORDB,))


def found(*searches: dict[str, Any], **more: Any) -> list[str]:
    made = rule_set(W=body(*searches, **more)).search_indexes
    return sorted(f"{index.kind} {index.label} {index.properties} {index.dimensions}" for index in made)


def linted(folder: Path, *searches: dict[str, Any], known: tuple[str, ...] = (), **more: Any) -> list[str]:
    (folder / "W").mkdir()
    (folder / "W/graph_injection.yaml").write_bytes(body(*searches, **more))
    return [f"{each.level} {each.code}: {each.message}" for each in lint([folder], (FALKORDB,), known)]


@pytest.mark.parametrize("graphrag", [False, True])
def test_what_a_search_names_on_a_written_label_is_made(graphrag: bool) -> None:
    words = {"index_name": "Doc.text", "index_type": "fulltext"}
    near = {"index_name": "Doc.vector", "dimensions": 8}
    both = {"index_name": "Doc.other", "dimensions": 4, "index_type": "hybrid", "fulltext_index_name": "Doc.title"}
    assert found(words, words, near, both, graphrag=graphrag) == [
        "fulltext Doc ('text',) None",
        "fulltext Doc ('title',) None",
        "vector Doc ('other',) 4",
        "vector Doc ('vector',) 8",
    ]


@pytest.mark.parametrize(
    "name", ["chunks", "Doc", "Doc.", ".text", "Other.text", "Document.text", "do`c.text", "Doc.te`xt"]
)
def test_other_names_are_not_made_and_the_linter_says_so(name: str, tmp_path: Path) -> None:
    asked = {"index_name": name, "index_type": "fulltext"}
    assert found(asked) == []
    [said] = linted(tmp_path, asked, asked)
    assert said.startswith("warning unmade-index: ")
    assert repr(name) in said


def test_a_label_of_another_workflow_or_with_a_dot_counts() -> None:
    asks = body({"index_name": "Doc.text", "index_type": "fulltext"}, mutation="")
    assert [index.label for index in rule_set(A=asks, B=body()).search_indexes] == ["Doc"]
    asked = {"index_name": "Doc.text.en", "index_type": "fulltext"}
    assert found(asked, mutation="MERGE (d:Doc:`Doc.text` {id: 1})") == ["fulltext Doc.text ('en',) None"]
    assert found({"index_name": "Doc.text", "index_type": "fulltext"}, mutation="MATCH (d:Doc) DELETE d") == []


def test_a_search_of_memories_or_without_a_name_names_no_index(tmp_path: Path) -> None:
    assert found({"memory": {"user_id": "$workflow.user_id"}}) == []
    [said] = linted(tmp_path, {"index_type": "fulltext"}, {"memory": {"user_id": "$workflow.user_id"}})
    assert said.startswith("warning unmade-index: the search names no index, so a setting of the responder names its")


def test_labels_of_features_have_indexes_of_their_own(tmp_path: Path) -> None:
    [said] = linted(tmp_path, {"index_name": "Doc.text", "index_type": "fulltext"}, known=("Doc",))
    assert said.startswith("warning unmade-index")


def test_a_vector_index_needs_one_length(tmp_path: Path) -> None:
    [said] = linted(tmp_path, {"index_name": "Doc.vector"})
    assert said == (
        "error missing-key: the vector index 'Doc.vector' is made with the graph, and needs the length of its vectors: "
        "write for example dimensions: 384"
    )
    for given, code in (
        ([{"index_name": "Doc.vector"}], "missing-key"),
        ([{"index_name": "Doc.vector", "dimensions": 3}, {"index_name": "Doc.vector", "dimensions": 4}],
         "conflicting-keys"),
    ):  # fmt: skip
        with pytest.raises(RulesError) as error:
            rule_set(W=body(*given))
        assert [each.code for each in error.value.findings] == [code]


@pytest.mark.parametrize(
    "search",
    [
        {"index_name": "Doc.vector", "dimensions": 0},
        {"index_name": "Doc.vector", "dimensions": 4097},
        {"index_name": "Doc.text", "index_type": "fulltext", "dimensions": 3},
        {"memory": {"user_id": "u"}, "dimensions": 3},
        {"dimensions": 3},
    ],
)
def test_a_length_that_can_have_no_meaning_is_refused(search: dict[str, Any]) -> None:
    with pytest.raises(RulesError):
        rule_set(W=body(search))


def test_rules_of_before_whose_vectors_have_no_length_still_load() -> None:
    """They were stored before a length was needed; what they made must be made again."""
    files = {"W/graph_injection.yaml": body({"index_name": "Doc.vector"})}
    rules = RuleSet.of_stored(files, (), (FALKORDB,))
    assert rules.problem("W") is None
    assert rules.search_indexes == frozenset()


def test_indexes_of_searches_count_toward_the_limit(tmp_path: Path) -> None:
    asked = [{"index_name": f"Doc.p{number}", "index_type": "fulltext"} for number in range(64)]
    mutation = f"MERGE (d:Doc {{id: 1}}) SET {', '.join(f'd.p{number} = 1' for number in range(64))}"
    [said] = linted(tmp_path, *asked, mutation=mutation)
    assert said.startswith("error too-many-keys: the rules look up or search nodes with the label 'Doc' by 65 prop")
    with pytest.raises(RulesError):
        rule_set(A=body(*asked[:32]), B=body(*asked[32:]))


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("Doc.txt", "Doc.text"), ("Doc. text", "Doc.text"), ("Doc.text.x", "Doc.text"), ("Doc.TEXT", "Doc.text"),
        ("Doc.author", None),
    ],
)  # fmt: skip
def test_a_property_that_no_rule_writes_is_said(name: str, near: str | None, tmp_path: Path) -> None:
    asked = {"index_name": name, "index_type": "fulltext"}
    [said] = linted(tmp_path, asked, asked)
    prop, hint = name.removeprefix("Doc."), f" (did you mean {near!r}?)" if near else ""
    assert said == (
        f"warning unwritten-property: no rule here writes the property {prop!r} of 'Doc', so the fulltext index "
        f"{name!r} stays empty{hint}: write Label.property with a property that a rule writes; ignore this if another "
        "program writes it"
    )
    assert len(found(asked)) == 1, "another program may write it"


@pytest.mark.parametrize(
    ("mutation", "written"),
    [
        ("MERGE (d:Doc {id: 1, txt: $x})", True),
        ("CREATE (:Doc {txt: toUpper($x)})", True),
        ("CREATE (:Doc $x)", True),
        ("MERGE (d:Doc {id: 1}) SET d = $x", True),
        ("MERGE (d:Doc {id: 1}) SET d += $x", True),
        ("MERGE (d:Doc {id: 1}) ON CREATE SET d += {txt: $x}", True),
        ("MERGE (d:Doc {id: 1}) SET d += {text: $x}", False),
        ("MERGE (d:Doc {id: 1}) WITH d AS e SET e.txt = 1", True),
        ("MERGE (d:Doc {id: 1}) WITH d MATCH (e {id: 1}) SET e.txt = 1", True),
        ("MERGE (d:Doc {id: 1}) MERGE (o:Other {id: 1}) SET o.txt = 1", False),
        ("MERGE (d:Doc {id: 1}) MERGE (o:Other {id: 1}) CREATE (:Other {txt: 1})", False),
        ("MERGE (:Doc {id: 1}) CREATE ({txt: 1})", True),
        ("MERGE (d:Doc:Other {id: 1}) MERGE (o:Other {id: 1}) SET o.txt = 1", True),
        ("MATCH (d {id: 1}) MERGE (o:Other {id: 1}) SET d:Doc SET o.txt = 1", True),
        ("MERGE (d:Doc {id: 1})-[r:OF]->(:Other {id: 1}) SET r.txt = 1", False),
        ("MERGE (d:Doc {id: 1}) REMOVE d.txt", False),
        ("MATCH (d:Doc {txt: 1}) MERGE (o:Doc {id: d.txt})", False),
        ("MERGE (d:Doc {id: 1}) FOREACH (x IN $x | SET d.txt = x)", True),
        ("UNWIND $x AS x MERGE (d:Doc {id: x.txt}) SET d.text = x.txt", False),
        ("MERGE (d:Doc {id: 1}) WITH count(d) AS c MATCH (d) SET d.txt = c", True),
    ],
)
def test_what_a_mutation_may_write_is_known(mutation: str, written: bool, tmp_path: Path) -> None:
    said = linted(tmp_path, {"index_name": "Doc.txt", "index_type": "fulltext"}, mutation=mutation)
    assert not any(each.startswith("error") for each in said), said
    assert any("unwritten-property" in each for each in said) is not written, said


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Dco.text", "this fulltext index (did you mean 'Doc.text'?): write"),
        ("doc.text", "this fulltext index (did you mean 'Doc.text'?): write"),
        ("DOC.TEXT", "this fulltext index (did you mean 'Doc.text'?): write"),
        ("Memory.text", "search what is remembered by memory: {user_id: $workflow.user_id} in place of index_name"),
    ],
)
def test_an_index_that_is_not_made_may_be_another_one(name: str, said: str, tmp_path: Path) -> None:
    [warning] = linted(tmp_path, {"index_name": name, "index_type": "fulltext"}, known=("Memory",))
    assert warning.startswith("warning unmade-index: ")
    assert said in warning


def test_a_finding_of_an_index_is_where_its_key_is(tmp_path: Path) -> None:
    (tmp_path / "W").mkdir()
    lines = [
        "mutation_rules:",
        f'  - {{name: r, events: ["*"], mutations: [{{id: m, cypher: "{DOC}"}}]}}',
        "injection_rules:",
        '  - {name: i, agents: ["*"], queries: [{id: a, inject_as: a, search: {query: x,',
        "      index_type: hybrid,",
        "      index_name: Doc.vector, dimensions: 3,",
        "      fulltext_index_name: Dco.text}},",
        "      {id: b, inject_as: b, graphrag: {query: x, search: {",
        "      index_name: Doc.vector,",
        "      dimensions: 4}}},",
        "      {id: c, inject_as: c, search: {query: x,",
        "      index_name: Doc.vector}}]}",
    ]
    (tmp_path / "W/graph_injection.yaml").write_text("\n".join(lines))
    assert [(each.place.line, each.place.column, each.code) for each in lint([tmp_path], (FALKORDB,))] == [
        (7, 28, "unmade-index"), (10, 19, "conflicting-keys"), (12, 19, "missing-key"),
    ]  # fmt: skip


def test_vector_indexes_may_have_so_many_numbers_in_all(tmp_path: Path) -> None:
    def asked(numbers: range, dimensions: int = 4_096) -> list[dict[str, Any]]:
        return [{"index_name": f"Doc.v{number}", "dimensions": dimensions} for number in numbers]

    assert len(found(*asked(range(8)), *asked(range(8)))) == 8
    [said] = linted(tmp_path, *asked(range(8)), {"index_name": "Doc.w", "dimensions": 1})
    assert said == (
        "error too-many-dimensions: the vector indexes of the rules have 32,769 dimensions in all, and each takes "
        "memory in the graph of each app: use at most 32,768, by fewer indexes or shorter vectors"
    )
    workflows = {"A": body(*asked(range(5))), "B": body(*asked(range(5, 9)))}
    with pytest.raises(RulesError) as error:
        rule_set(**workflows)
    assert [each.code for each in error.value.findings] == ["too-many-dimensions"]
    stored = RuleSet.of_stored({f"{name}/graph_injection.yaml": text for name, text in workflows.items()})
    assert (stored.problem("A"), stored.problem("B"), len(stored.search_indexes)) == (None, None, 8)
    one = RuleSet.of_stored({"W/graph_injection.yaml": body(*asked(range(9)))})
    assert "too-many-dimensions" in str(one.problem("W"))
    given = stored.summary.to_json()
    assert RuleSummary.from_json(given) == stored.summary
    given["search_indexes"].append(["vector", "Doc", "w", 1])
    assert RuleSummary.from_json(given) is None


def test_a_summary_holds_them_and_no_others() -> None:
    asked = [{"index_name": "Doc.text", "index_type": "fulltext"}, {"index_name": "Doc.vector", "dimensions": 8}]
    summary = rule_set(W=body(*asked)).summary
    given = json.loads(json.dumps(summary.to_json()))
    assert RuleSummary.from_json(given) == summary
    assert summary.search_indexes == {
        SearchIndex.of_rules("fulltext", "Doc", "text", None), SearchIndex.of_rules("vector", "Doc", "vector", 8),
    }  # fmt: skip
    for wrong in (
        "x", [["range", "Doc", "text", None]], [["fulltext", "Doc", "text", 3]], [["vector", "Doc", "v", None]],
        [["vector", "Doc", "v", True]], [["vector", "Doc", "v", 4097]], [["fulltext", "Doc", 1, None]],
        [["fulltext", "Doc", f"p{number}", None] for number in range(65)],
    ):  # fmt: skip
        assert RuleSummary.from_json({**given, "search_indexes": wrong}) is None, wrong


@pytest.mark.parametrize(
    ("call", "kind", "name"),
    [
        ("CALL db.idx.fulltext.queryNodes('Doc', $q) YIELD node", "fulltext", "Doc"),
        ("CALL db.idx.vector.queryNodes('Doc', 'vector', 3, $q) YIELD node", "vector", "Doc.vector"),
        ("CALL db.index.fulltext.queryNodes(\"graphweft_fulltext_Doc.text\", $q) YIELD node", "fulltext",
         "graphweft_fulltext_Doc.text"),
        ("CALL db.index.vector.queryNodes('graphweft_vector_Doc.vector', 3, $q) YIELD node", "vector",
         "graphweft_vector_Doc.vector"),
    ],
)  # fmt: skip
def test_an_index_that_a_procedure_asks_is_made_or_named(call: str, kind: str, name: str, tmp_path: Path) -> None:
    asked = [{"index_name": "Doc.text", "index_type": "fulltext"}, {"index_name": "Doc.vector", "dimensions": 8}]
    for searches, folder in (([], "without"), (asked, "with")):
        (tmp_path / folder / "W").mkdir(parents=True)
        given = json.loads(body(*searches))
        query = {"id": "c", "cypher": f"{call} RETURN node.text", "params": {"q": "$context.q"}, "inject_as": "c"}
        given["injection_rules"].append({"name": "asks", "agents": ["*"], "queries": [query]})
        (tmp_path / folder / "W/graph_injection.yaml").write_text(json.dumps(given))
    assert [each.code for each in lint([tmp_path / "with"]) if each.code == "unmade-index"] == []
    [said] = [each.message for each in lint([tmp_path / "without"]) if each.code == "unmade-index"]
    assert said.startswith(f"graphweft does not make the {kind} index {name!r}, which the query asks: ")
