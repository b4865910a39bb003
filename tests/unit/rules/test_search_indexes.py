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

DOC = "MERGE (d:Doc {id: 1}) SET d.text = 'x'"


def body(*searches: dict[str, Any], mutation: str = DOC, graphrag: bool = False) -> bytes:
    made = [{"query": "$context.q", **search} for search in searches]
    queries = [
        {"id": f"q{number}", "inject_as": f"q{number}"}
        | ({"graphrag": {"query": "$context.q", "search": search}} if graphrag else {"search": search})
        for number, search in enumerate(made)
    ]
    mutations = [{"name": "r", "events": ["*"], "mutations": [{"id": "m", "cypher": mutation}]}] if mutation else []
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
    [said] = linted(tmp_path, *asked)
    assert said.startswith("error too-many-keys: the rules look up or search nodes with the label 'Doc' by 65 prop")
    with pytest.raises(RulesError):
        rule_set(A=body(*asked[:32]), B=body(*asked[32:]))


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
