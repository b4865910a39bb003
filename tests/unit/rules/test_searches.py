from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from tests.services.rules import load_rules

from graphweft_contracts import ContextRequest
from graphweft_contracts.memory import MemoryScope
from graphweft_contracts.search import SearchQuery, query_text
from graphweft_rules import (
    BoundQuery,
    Finding,
    GraphInjectionConfig,
    InjectionQuery,
    InjectionRule,
    InjectionSearch,
    Place,
    RulesError,
    RuleSet,
    SkippedQuery,
    compile_workflow,
    lint,
)
from graphweft_rules.matching.searches import parse_retrieval
from graphweft_workers.drivers import dialects

WHEN = datetime(2026, 2, 1, 10, tzinfo=UTC)
PLACE = Place(file="by-hand.yaml")
INDEXED = InjectionSearch(options={"index_name": "i"})
MEMORIES = "memory: {user_id: $context.user_id}, query: $context.messages"
INDEX = "index_name: chunks, query: $context.question"
RULE = "injection_rules:\n- name: r\n  agents: ['*']\n  queries:\n"


def write(root: Path, *queries: str) -> Path:
    """Write a workflow; a query is the lines of its YAML."""
    file = root / "W" / "graph_injection.yaml"
    file.parent.mkdir(exist_ok=True)
    lines = ("  - " + query.strip("\n").replace("\n", "\n    ") for query in queries)
    file.write_text(RULE + "\n".join(lines) + "\n")
    return root


def load(root: Path, *queries: str) -> RuleSet:
    return load_rules(write(root, *queries))


def search(keys: str, more: str = "") -> str:
    return f"{{id: q, inject_as: x, search: {{{keys}}}{more}}}"


def findings(root: Path, marked: str) -> tuple[list[Finding], str]:
    """Return what lint finds in a query, and the place of its ``»`` (which is taken out), as ``line:column``."""
    before = (RULE + "  - " + marked.replace("\n", "\n    ").split("»")[0]).split("\n")
    found = lint([write(root, marked.replace("»", "")) / "W" / "graph_injection.yaml"], dialects())
    return found, f"{len(before)}:{len(before[-1]) + 1}"


def one(root: Path, marked: str) -> tuple[str, str, str]:
    """Return level, code and message of the only finding, which stands at the ``»``."""
    [finding], place = findings(root, marked)
    assert f"{finding.place.line}:{finding.place.column}" == place, str(finding)
    return finding.level, finding.code, finding.message


def bind(rules: RuleSet, user_id: str | None = "ada", **context: Any) -> list[BoundQuery | SkippedQuery]:
    request = ContextRequest(
        id="1",
        app_id="app",
        workflow="W",
        agent="A",
        chat_id="c1",
        user_id=user_id,
        context=context,
        deadline_ms=1,
    )
    found = rules.match_request(request, WHEN)
    return [*found.queries, *found.skipped]


def searched(bound: BoundQuery | SkippedQuery) -> SearchQuery:
    assert isinstance(bound, BoundQuery), bound
    assert bound.search is not None
    return bound.search


def why(bound: BoundQuery | SkippedQuery) -> str:
    assert isinstance(bound, SkippedQuery), bound
    assert bound.reason == "missing_param"
    return bound.detail


# -- what a rule file may say --


def test_a_search_has_what_it_says_and_defaults(tmp_path: Path) -> None:
    rules = load(
        tmp_path,
        """
id: memories
search:
  memory: {user_id: $context.user_id, thread_id: $workflow.chat_id, agent_id: helper}
  query: $context.messages
  index_type: hybrid
  top_k: 7
  message_history_count: 2
  filter_stop_words: false
  retrieval_query: |
    // who said it
    MATCH (node)-[:SAID_BY]->(who)
    RETURN node.text AS text, score, who.name AS who, $more AS more, datetime() AS now ORDER BY score DESC
params: {more: $context.more}
inject_as: MEMORIES
max_results: 3
""",
        search(INDEX + ", index_type: hybrid, fulltext_index_name: words"),
        "{id: last, inject_as: y, search: {memory: {user_id: $context.user_id}}, format: list}",
    )
    said = [{"role": role, "text": role} for role in ("user", "assistant", "system", "user", "tool")]
    memories, index, last = bind(rules, messages=said, more=1, question="who?")
    assert searched(memories) == SearchQuery(
        text="assistant\nuser",
        memory=MemoryScope(user_id="ada", thread_id="c1", agent_id="helper"),
        index_type="hybrid",
        top_k=7,
        shown=("user", "assistant"),
        filter_stop_words=False,
        retrieval_query=(
            " \nMATCH (node)-[:SAID_BY]->(who)\n"
            "RETURN node.text AS text, score, who.name AS who, $more AS more, $__datetime AS now ORDER BY score DESC"
        ),
        params={"more": 1, "__datetime": "2026-02-01T10:00:00.000000Z"},
    )
    assert isinstance(memories, BoundQuery)
    assert memories.cypher is not None
    assert memories.cypher.clock == {"__datetime"}
    assert (memories.query.format, memories.query.max_results) == ("results", 3)
    assert searched(index) == SearchQuery(
        text="who?", index_type="hybrid", index_name="chunks", fulltext_index_name="words"
    )
    assert isinstance(index, BoundQuery)
    assert index.cypher is None
    assert index.query.cypher is None
    assert searched(last) == SearchQuery(memory=MemoryScope(user_id="ada"))
    assert isinstance(last, BoundQuery)
    assert last.query.format == "list"


def test_a_query_of_cypher_has_no_search(tmp_path: Path) -> None:
    [bound] = bind(load(tmp_path, "{id: q, cypher: RETURN 1 AS n, inject_as: x}"))
    assert isinstance(bound, BoundQuery)
    assert bound.cypher is not None
    assert (bound.cypher.statement, bound.search, bound.query.format) == ("RETURN 1 AS n", None, "list")


def test_filters_are_values_or_references(tmp_path: Path) -> None:
    rules = load(
        tmp_path,
        search(
            f"{MEMORIES}, tags: [home, $context.topic], metadata: {{source: crm, n: 1}}, since: 2026-02-01, "
            "until: $context.until, min_score: 0.3, any_of: [{application_id: team}, {agent_id: $context.agent}]"
        ),
    )
    context = {"user_id": "ada", "messages": "x", "topic": "town", "until": "2026-03-01T00:00:00Z", "agent": "a"}
    [found] = map(searched, bind(rules, **context))
    assert found.tags == ("home", "town")
    assert found.metadata == {"source": "crm", "n": 1}
    assert (found.since, found.until) == (datetime(2026, 2, 1, tzinfo=UTC), datetime(2026, 3, 1, tzinfo=UTC))
    assert found.min_score == 0.3
    assert found.scopes == ({"user_id": "ada"}, {"application_id": "team"}, {"agent_id": "a"})
    for missing in ("topic", "until", "agent"):
        [skipped] = map(why, bind(rules, **{name: value for name, value in context.items() if name != missing}))
        assert f"$context.{missing}, which is missing" in skipped, "a search is never wider than its rule says"
    [skipped] = map(why, bind(rules, **{**context, "until": "soon", "agent": 5}))
    assert skipped.startswith("invalid search: until: ")
    assert "any_of.1.agent_id" in skipped


@pytest.mark.parametrize(
    ("filters", "value", "message"),
    [
        ("any_of: [{application_id: team, user_id: $context.x}]", None, "any_of.0.user_id of the search is null"),
        ("any_of: $context.x", [{"user_id": None, "agent_id": "a"}], "any_of.0.user_id of the search is null"),
        ("any_of: $context.x", None, "any_of of the search is null"),
        ("tags: $context.x", [], "tags of the search is empty"),
        ("tags: [$context.x]", None, "tags.0 of the search is null"),
        ("metadata: $context.x", {}, "metadata of the search is empty"),
        ("metadata: {n: $context.x}", None, "metadata.n of the search is null"),
        ("ids: $context.x", None, "ids of the search is null"),
        ("since: $context.x", None, "since of the search is null"),
        ("as_of: $context.x", None, "as_of of the search is null"),
        ("min_score: $context.x", None, "min_score of the search is null"),
        ("any_of: [{application_id: team, user_id: $context.x}]", "", "any_of.0.user_id"),
        ("any_of: [{application_id: team, user_id: $context.x}]", {}, "any_of.0.user_id"),
        ("any_of: [$context.x]", {}, "any_of.0"),
        ("ids: $context.x", "m1", "ids: expected a list"),
        ("tags: $context.x", "", "tags: expected a list"),
        ("since: $context.x", "", "since: "),
    ],
)
def test_a_filter_never_widens_a_search(tmp_path: Path, filters: str, value: Any, message: str) -> None:
    rules = load(tmp_path, search(f"{MEMORIES}, {filters}"))
    [skipped] = map(why, bind(rules, user_id="ada", messages="x", x=value))
    assert message in skipped


def test_ids_that_are_none_are_an_empty_selection(tmp_path: Path) -> None:
    rules = load(tmp_path, search(f"{MEMORIES}, ids: $context.x"))
    [found] = map(searched, bind(rules, user_id="ada", messages="x", x=[]))
    assert found.ids == ()
    assert "ids" in found.sent, "the responder must not take it as absent"


@pytest.mark.parametrize(
    ("marked", "message"),
    [
        (f"{MEMORIES}, tags: »[]", "tags of the search is empty: leave tags out"),
        (f"{MEMORIES}, metadata: »{{}}", "metadata of the search is empty: leave metadata out"),
        (f"{MEMORIES}, since: »null", "since of the search is null: leave since out"),
        (
            f"{MEMORIES}, any_of: »[{{application_id: team, user_id: null}}]",
            "any_of.0.user_id of the search is null: leave any_of out",
        ),
        (f"{MEMORIES}, tags: »home", "tags: expected a list"),
        (f"{MEMORIES}, since: »soon", "since: "),
        (f"{MEMORIES}, min_score: »2", "min_score: Input should be less than or equal to 1"),
        (f"{MEMORIES}, any_of: »[{{}}]", "any_of.0: a memory needs a scope"),
        (f"{MEMORIES}, metadata: »{{a: [1]}}", "metadata.a"),
    ],
)
def test_a_filter_that_can_never_work_is_found(tmp_path: Path, marked: str, message: str) -> None:
    level, code, said = one(tmp_path, search(marked))
    assert (level, code) == ("error", "bad-value")
    assert said.startswith(message)


@pytest.mark.parametrize(
    ("marked", "code", "message"),
    [
        ("»{id: q, inject_as: x}", "missing-key", "a query needs one of the keys 'cypher', 'search' and 'graphrag'"),
        (
            f"{{id: q, inject_as: x, cypher: RETURN 1, »search: {{{INDEX}}}}}",
            "conflicting-keys",
            "a query has only one of 'cypher', 'search' and 'graphrag': write several, or remove 'search'",
        ),
        (
            "{id: q, inject_as: x, search: »chunks}",
            "wrong-type",
            "a search is 'chunks': it must be a mapping of any_of, as_of, dimensions, fill, filter_stop_words, "
            "fulltext_index_name, ids, include_ended, index_name, index_type, memory, message_history_count, metadata, "
            "min_score, of, query, retrieval_query, since, tags, top_k, until",
        ),
        (
            search(f"{INDEX}, »topk: 3"),
            "unknown-key",
            "a search has no key 'topk' (did you mean 'top_k'?): it may have any_of, as_of, dimensions, fill, "
            "filter_stop_words, fulltext_index_name, ids, include_ended, index_name, index_type, memory, "
            "message_history_count, metadata, min_score, of, query, retrieval_query, since, tags, top_k, until",
        ),
        (
            "{id: q, inject_as: x, search: »{index_name: chunks}}",
            "missing-key",
            "query is required: write for example query: $context.messages",
        ),
        (
            "{id: q, inject_as: x, search: »{memory: {user_id: ada}, index_type: fulltext}}",
            "missing-key",
            "query is required when index_type='fulltext': write for example query: $context.messages",
        ),
        (
            search(f"{INDEX}, index_type: »hybrid"),
            "missing-key",
            "fulltext_index_name is required when index_type='hybrid'",
        ),
        (
            search(f"{MEMORIES}, »index_name: chunks"),
            "conflicting-keys",
            "memories have indexes of their own: leave index_name and fulltext_index_name out",
        ),
        (
            search(f"{MEMORIES}, »fulltext_index_name: words"),
            "conflicting-keys",
            "memories have indexes of their own: leave index_name and fulltext_index_name out",
        ),
        (search(f"{INDEX}, top_k: »0"), "bad-value", "top_k must be at least 1, and at most 1000"),
        (search(f"{INDEX}, top_k: »1001"), "bad-value", "top_k must be at least 1, and at most 1000"),
        (search(f"{INDEX}, top_k: »'5'"), "wrong-type", "top_k is '5': it must be a whole number from 1"),
        (
            search(f"{INDEX}, top_k: »$context.k"),
            "wrong-type",
            "top_k is '$context.k': it must be a whole number from 1",
        ),
        (
            search(f"{INDEX}, message_history_count: »0"),
            "bad-value",
            "message_history_count must be at least 1",
        ),
        (
            search(f"{INDEX}, message_history_count: »true"),
            "wrong-type",
            "message_history_count is True: it must be a whole number from 1",
        ),
        (
            search(f"{INDEX}, index_type: »vektor"),
            "bad-value",
            "the index_type 'vektor' is unknown (did you mean 'vector'?): write one of vector, fulltext, hybrid",
        ),
        (search(f"{INDEX}, index_type: »1"), "wrong-type", "index_type is 1: it must be a string"),
        (
            search("query: hello, index_name: »$context.index"),
            "bad-value",
            "index_name is '$context.index': it must be the name of an index, which is the same for every request",
        ),
        (
            search(f"query: hello, index_name: »{'x' * 257}"),
            "bad-value",
            "index_name: String should have at most 256 characters",
        ),
        (
            search(f"{INDEX}, filter_stop_words: »1"),
            "wrong-type",
            "filter_stop_words is 1: it must be true or false",
        ),
        (
            search("index_name: chunks, query: »7"),
            "wrong-type",
            "query is 7: it must be a text or a list of messages",
        ),
        (
            search("index_name: chunks, query:» "),
            "wrong-type",
            "query is empty: it must be a text or a list of messages",
        ),
        (
            search("index_name: chunks, query: »[]"),
            "empty-list",
            "query is empty: write at least one",
        ),
        (
            search("index_name: chunks, query: [»{text: hello}]"),
            "missing-key",
            "a message needs the key 'role'",
        ),
        (
            search("index_name: chunks, query: »$contxt.messages"),
            "bad-param",
            "query: '$contxt.messages' is not a reference: did you mean '$context.messages'? "
            "(a literal that starts with '$' is written with '$$')",
        ),
        (
            search("memory: »{}, query: hello"),
            "missing-key",
            "a memory needs a scope: give at least one of application_id, agent_id, user_id, thread_id",
        ),
        (
            search("memory: »$context.user_id, query: hello"),
            "wrong-type",
            "memory is '$context.user_id': it must be a mapping of agent_id, application_id, thread_id, user_id",
        ),
        (
            search("memory: {»userid: ada}, query: hello"),
            "unknown-key",
            "memory has no key 'userid' (did you mean 'user_id'?): "
            "it may have agent_id, application_id, thread_id, user_id",
        ),
        (
            search("memory: {user_id: »7}, query: hello"),
            "wrong-type",
            "user_id is 7: it must be a text, or a reference such as $workflow.user_id",
        ),
        (
            search("memory: {user_id: ada, thread_id:» }, query: hello"),
            "wrong-type",
            "thread_id is empty: it must be a text, or a reference such as $workflow.user_id",
        ),
        (
            search("memory: {user_id: »''}, query: hello"),
            "bad-value",
            "user_id is empty: write a value, or remove the key if it is optional",
        ),
        (
            search(f"memory: {{user_id: »{'x' * 257}}}, query: hello"),
            "bad-value",
            "user_id: String should have at most 256 characters",
        ),
        (
            search("memory: {user_id: »$workflow.usr_id}, query: hello"),
            "bad-param",
            "user_id: '$workflow.usr_id' does not exist: did you mean '$workflow.user_id'? "
            "(a literal that starts with '$' is written with '$$')",
        ),
        (
            search(INDEX, ", params: {x: 1}, format: »result"),
            "bad-value",
            "the format 'result' is unknown (did you mean 'results'?): "
            "write one of list, single, json, markdown, results, facts, memory",
        ),
        (
            search(f"{INDEX}, retrieval_query: »''"),
            "bad-value",
            "retrieval_query is empty: write a value, or remove the key if it is optional",
        ),
        (
            search(f"{INDEX}, retrieval_query: 'RETURN node.text AS text, score, »$a AS a ORDER BY score DESC'"),
            "unbound-param",
            "$a has no value: add 'a' to params",
        ),
        (
            f"id: q\ninject_as: x\nsearch:\n  {INDEX.replace(', ', chr(10) + '  ')}\n  retrieval_query: |\n"
            "    MATCH (node)\n    »SET node.seen = true\n    RETURN node.text AS text, score ORDER BY score DESC",
            "cypher-write-in-injection",
            "SET writes, and injection rules only read: move it to a mutation rule",
        ),
        (
            f"id: q\ninject_as: x\nsearch:\n  {INDEX.replace(', ', chr(10) + '  ')}\n  retrieval_query: |\n"
            "    MATCH (node)-[:OF]->(d)\n    »RETURN d.title AS text ORDER BY score DESC",
            "cypher-retrieval-columns",
            "the retrieval_query returns no column 'score': "
            "it must return at least text and score, as in RETURN node.text AS text, score",
        ),
        (
            search(f"{INDEX}, retrieval_query: '»RETURN node ORDER BY score DESC'"),
            "cypher-retrieval-columns",
            "the retrieval_query returns no column 'text' and no column 'score': "
            "it must return at least text and score, as in RETURN node.text AS text, score",
        ),
        (
            search(f"{INDEX}, retrieval_query: '»RETURN node.text, score ORDER BY score DESC'"),
            "cypher-retrieval-columns",
            "the retrieval_query returns no column 'text': "
            "it must return at least text and score, as in RETURN node.text AS text, score",
        ),
        (
            search(f"{INDEX}, retrieval_query: '»CALL db.labels()'"),
            "cypher-retrieval-columns",
            "the retrieval_query returns nothing: end it with RETURN node.text AS text, score ORDER BY score DESC",
        ),
        (
            search(f"{INDEX}, retrieval_query: 'RETURN 1 AS text, score »UNION RETURN node.text AS text, score'"),
            "cypher-retrieval-union",
            "node and score are not visible after UNION: put both parts into CALL (node, score) { … }",
        ),
    ],
)
def test_what_is_refused(tmp_path: Path, marked: str, code: str, message: str) -> None:
    found, place = findings(tmp_path, marked)
    [error] = [each for each in found if each.level == "error"]
    assert (error.code, error.message) == (code, message)
    assert f"{error.place.line}:{error.place.column}" == place
    with pytest.raises(RulesError):
        load_rules(tmp_path)


@pytest.mark.parametrize(
    ("marked", "code", "message"),
    [
        (
            search(f"{INDEX}, retrieval_query: '»RETURN node.text AS text, score'"),
            "cypher-retrieval-order",
            "the retrieval_query does not order by score: end it with ORDER BY score DESC",
        ),
        (
            search(f"{INDEX}, retrieval_query: 'RETURN node.text AS text, score »ORDER BY score'"),
            "cypher-retrieval-order",
            "the retrieval_query does not order by score: end it with ORDER BY score DESC",
        ),
        (
            search(f"{INDEX}, retrieval_query: 'RETURN node.text AS text, score »ORDER BY text DESC, score DESC'"),
            "cypher-retrieval-order",
            "the retrieval_query does not order by score: end it with ORDER BY score DESC",
        ),
        (
            search(
                f"{INDEX}, retrieval_query: 'WITH node, score ORDER BY score DESC »RETURN node.text AS text, score'"
            ),
            "cypher-retrieval-order",
            "the retrieval_query does not order by score: end it with ORDER BY score DESC",
        ),
        (
            search(
                f"{INDEX}, retrieval_query: 'RETURN node.text AS text, score ORDER BY score DESC'", ", params: {»a: 1}"
            ),
            "unused-param",
            "the retrieval_query does not use $a: remove it from params",
        ),
        (
            search(INDEX, ", params: {»a: 1}"),
            "unused-param",
            "no retrieval_query uses $a: remove it from params",
        ),
        (
            search(f"{INDEX}, index_type: fulltext, »fulltext_index_name: words"),
            "unused-key",
            "fulltext_index_name needs index_type='hybrid': remove it, or write index_type: hybrid",
        ),
        (
            search("index_name: chunks, query: »about $context.topic"),
            "reference-in-text",
            "query: $context.topic inside a text is not replaced: pass it alone, and join texts in the query",
        ),
    ],
)
def test_what_is_suspicious(tmp_path: Path, marked: str, code: str, message: str) -> None:
    assert one(tmp_path, marked) == ("warning", code, message)
    assert load_rules(tmp_path).workflows


@pytest.mark.parametrize(
    "retrieval",
    [
        "RETURN node.text AS text, score ORDER BY score DESC",
        "MATCH (node)--(d) RETURN d.text AS text, d.score AS score ORDER BY d.score DESC",
        "WITH node, score MATCH (node)--(d) RETURN DISTINCT d.text AS `text`, max(score) AS score "
        "ORDER BY score DESC LIMIT 3;",
        "WITH node.text AS text, score RETURN * ORDER BY score DESCENDING, text",
        "OPTIONAL MATCH (node)-[:OF]->(d) WITH node, score, d WHERE d.open RETURN node.text AS text, score "
        "ORDER BY score DESC",
        "CALL (node) { MATCH (node)--(a) RETURN a.name AS n UNION MATCH (node)--(b) RETURN b.title AS n } "
        "RETURN n AS text, score ORDER BY score DESC",
    ],
)
def test_retrieval_queries_without_findings(tmp_path: Path, retrieval: str) -> None:
    found, _ = findings(tmp_path, search(f"{INDEX}, retrieval_query: '{retrieval}'"))
    assert found == []


def test_an_optional_match_first_in_a_query_by_itself_still_is_a_trap(tmp_path: Path) -> None:
    trap = "OPTIONAL MATCH (n:N) WITH n WHERE n.x = 1 RETURN n"
    marked = f"{{id: q, inject_as: x, cypher: '{trap.replace('WHERE', '»WHERE')}'}}"
    assert one(tmp_path, marked)[:2] == ("warning", "cypher-optional-first")
    assert [problem.code for problem in parse_retrieval(trap).problems] == ["retrieval-columns", "retrieval-order"]


@pytest.mark.parametrize(
    ("given", "keys"),
    [
        ({"index_name": "i", "top_k": 0}, f"{INDEX}, top_k: 0"),
        ({"index_name": "i", "index_type": "hybrid"}, f"{INDEX}, index_type: hybrid"),
        ({"memory": MemoryScope(user_id="u"), "index_name": "i"}, f"{MEMORIES}, index_name: i"),
        ({"memory": {}}, "memory: {}, query: hello"),
    ],
)
def test_rule_files_and_requests_are_told_the_same(tmp_path: Path, given: dict[str, Any], keys: str) -> None:
    with pytest.raises(ValidationError) as caught:
        SearchQuery.model_validate(given)
    [finding], _ = findings(tmp_path, search(keys))
    assert finding.message in str(caught.value)


def test_a_history_of_nothing_is_told_the_same(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^message_history_count must be at least 1$"):
        query_text([], 0)
    [finding], _ = findings(tmp_path, search(f"{INDEX}, message_history_count: 0"))
    assert finding.message == "message_history_count must be at least 1"


# -- what a request makes of it --


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is\n", "as it is\n"),
        ("", ""),
        ([], ""),
        ([{"role": "user", "text": "a"}, {"role": "assistant", "content": "b"}], "a\nb"),
        ([{"role": "system", "text": "a"}], ""),
        ([{"role": "user", "text": str(number)} for number in range(12)], "\n".join(map(str, range(2, 12)))),
    ],
)
def test_what_is_searched_for(tmp_path: Path, value: Any, text: str) -> None:
    [bound] = bind(load(tmp_path, search(MEMORIES)), messages=value)
    assert searched(bound).text == text


def test_messages_may_stand_in_the_rule(tmp_path: Path) -> None:
    messages = "[{role: user, text: $context.question}, $context.answer]"
    rules = load(tmp_path, search(f"index_name: chunks, query: {messages}"))
    [bound] = bind(rules, question="why?", answer={"role": "assistant", "text": "so"})
    assert searched(bound).text == "why?\nso"


@pytest.mark.parametrize(
    ("context", "detail"),
    [
        ({}, "the search's query needs $context.messages, which is missing: give it with the request"),
        ({"messages": None}, "the search's query must be a text or a list of messages, not null"),
        ({"messages": 7}, "the search's query must be a text or a list of messages, not a number"),
        ({"messages": True}, "the search's query must be a text or a list of messages, not true or false"),
        ({"messages": {"role": "user"}}, "the search's query must be a text or a list of messages, not a map"),
        (
            {"messages": ["hello"]},
            "the search's query is a list without messages: give each item a role and a text",
        ),
        ({"messages": "half \ud800"}, "invalid search: text: it holds half a character (a lone surrogate)"),
    ],
)
def test_without_a_query_there_is_no_search(tmp_path: Path, context: dict[str, Any], detail: str) -> None:
    [bound] = bind(load(tmp_path, search(MEMORIES)), **context)
    assert why(bound) == detail


@pytest.mark.parametrize(
    ("context", "detail"),
    [
        ({}, "the scope 'agent_id' needs $context.who, which is missing: give it with the request, "),
        ({"who": None}, "the scope 'agent_id' must be a text, not null: "),
        ({"who": 7}, "the scope 'agent_id' must be a text, not a number: "),
        ({"who": ["ada"]}, "the scope 'agent_id' must be a text, not a list: "),
        ({"who": {}}, "the scope 'agent_id' must be a text, not a map: "),
        ({"who": ""}, "invalid scope: agent_id: String should have at least 1 character"),
        (
            {"who": "a\n"},
            "invalid scope: agent_id: control characters, and blanks at either end, are not allowed",
        ),
        ({"who": "secret" * 50}, "invalid scope: agent_id: String should have at most 256 characters"),
    ],
)
def test_a_scope_never_becomes_wider(tmp_path: Path, context: dict[str, Any], detail: str) -> None:
    scopes = "memory: {user_id: $context.user_id, agent_id: $context.who}, query: hello"
    [bound] = bind(load(tmp_path, search(scopes)), **context)
    wider = "without the scope the search would find memories of others" if detail.endswith(" ") else ""
    assert why(bound) == detail + wider
    assert isinstance(bound, SkippedQuery)
    assert (bound.rule, bound.query, bound.place.line) == ("r", "q", 5)


def test_a_user_who_is_not_known_has_no_memories(tmp_path: Path) -> None:
    rules = load(tmp_path, search("memory: {user_id: $context.user_id}, query: hello"))
    assert searched(bind(rules)[0]).memory == MemoryScope(user_id="ada")
    assert "$context.user_id" in why(bind(rules, user_id=None)[0])


def test_whose_request_it_is_no_context_variable_says(tmp_path: Path) -> None:
    rules = load(tmp_path, search("memory: {user_id: $workflow.user_id}, query: hello"))
    request = ContextRequest(
        id="1", app_id="app", workflow="W", agent="A", chat_id="c", user_id="ada", deadline_ms=1,
        context={"user_id": "bob", "workflow": {"user_id": "bob"}},
    )  # fmt: skip
    assert searched(rules.match_request(request, WHEN).queries[0]).memory == MemoryScope(user_id="ada")
    assert "$workflow.user_id" in why(bind(rules, user_id=None, workflow={"user_id": "bob"})[0])


def test_a_missing_parameter_of_the_retrieval_query_skips_the_search(tmp_path: Path) -> None:
    retrieval = "retrieval_query: 'RETURN node.text AS text, score, $a AS a ORDER BY score DESC'"
    [bound] = bind(load(tmp_path, search(f"{INDEX}, {retrieval}", ", params: {a: $context.a}")), question="x")
    assert why(bound).startswith("the parameter 'a' needs $context.a")


def test_what_retrieval_queries_look_up_gets_an_index(tmp_path: Path) -> None:
    retrieval = "MATCH (d:Doc {id: node.doc}) RETURN d.text AS text, score ORDER BY score DESC"
    rules = load(tmp_path, search(f"{INDEX}, retrieval_query: '{retrieval}'"), search(INDEX).replace("q,", "p,"))
    assert rules.keys == {("Doc", "id")}


# -- rules that are made by hand --


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"search": InjectionSearch(memory={})}, "a memory needs a scope: give at least one of"),
        ({"search": InjectionSearch(memory={"user": "x"})}, "user: Extra inputs are not permitted"),
        ({"search": InjectionSearch(memory={"user_id": "$nope.x"})}, "'$nope.x' is not a reference"),
        ({"search": InjectionSearch(options={"index_name": "i", "top_k": 0})}, "top_k must be at least 1"),
        (
            {"search": InjectionSearch(options={"index_name": "i"}, message_history_count=0)},
            "message_history_count must be at least 1",
        ),
        ({"search": replace(INDEXED, retrieval_query="RETURN 1")}, "it must return at least text and"),
        ({"search": INDEXED, "cypher": "RETURN 1"}, "one of cypher, search and graphrag"),
        ({}, "the query is empty"),
    ],
)
def test_searches_made_by_hand_are_checked(query: dict[str, Any], message: str) -> None:
    made = InjectionQuery(id="q", inject_as="x", place=PLACE, **query)
    rule = InjectionRule(name="r", agents=("*",), queries=(made,), place=PLACE)
    with pytest.raises(RulesError) as caught:
        compile_workflow("W", GraphInjectionConfig(injection_rules=(rule,)))
    [finding] = caught.value.findings
    assert message in finding.message
