"""What stands in an answer, and in how many tokens. Whole answers are written down in ``golden/answers.txt``.

After a change that is meant, ``python -m tests.unit.rules.test_packing`` writes that file anew; read its difference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from graphweft_contracts import Block, Explanation, Missing
from graphweft_rules import AllRows, BoundQuery, PackedBlocks, TokenCounter, assemble, count_characters, pack
from graphweft_rules.cypher.query import parse
from graphweft_rules.files.model import FORMATS, Format, InjectionQuery, Place

CASES = Path(__file__).parent / "golden" / "answers.yaml"
GOLDEN = Path(__file__).parent / "golden" / "answers.txt"
CYPHER = parse("RETURN 1", role="injection")


def found(
    name: str,
    rows: Sequence[Sequence[Any]] = (),
    *,
    format: Format = "list",
    columns: Sequence[str] = ("n",),
    rule: str = "r",
    priority: int = 0,
    rule_tokens: int | None = None,
    max_results: int | None = None,
    line: int = 1,
) -> AllRows:
    query = InjectionQuery(
        id=f"q_{name}",
        cypher="RETURN 1",
        inject_as=name,
        format=format,
        max_results=max_results,
        place=Place(file="rules.yaml", line=line),
    )
    bound = BoundQuery(rule=rule, query=query, cypher=CYPHER, params={}, priority=priority, max_tokens=rule_tokens)
    return AllRows(bound=bound, columns=columns, rows=rows)


def words(number: int, size: int = 1) -> list[tuple[str]]:
    return [(" ".join([f"w{place}"] * size),) for place in range(number)]


def shapes(packed: PackedBlocks) -> list[str]:
    blocks = [f"{block.name} {block.rows}-{block.cut}" for block in packed.blocks]
    return blocks + [f"{missing.name} {missing.reason}" for missing in packed.missing]


# -- counters that are not additive, as those of models are not --

PIECES = sorted(
    {"## ", "\n\n", '", "', '{"n": "', "\n- ", "\n##", "**", "w1 w", "w0", ' w1", "', '"}]', "]\n\n##", "aaa", "aa"}
)


def greedy(text: str) -> int:
    """Count the longest known pieces from the left: a piece may reach over two rows, or over two blocks."""
    place = tokens = 0
    longest = sorted(PIECES, key=len, reverse=True)
    while place < len(text):
        place += next((len(piece) for piece in longest if text.startswith(piece, place)), 1)
        tokens += 1
    return tokens


def joined_up(text: str) -> int:
    """Two texts together have more than one and the other: nothing that is counted by itself foretells the whole."""
    return math.ceil(len(text) ** 1.3)


def model_like(text: str) -> int:
    return len(ENCODING.encode_ordinary(text))


COUNTERS: list[TokenCounter] = [count_characters, greedy, joined_up]
try:
    import tiktoken
except ModuleNotFoundError:
    pass
else:
    RANKS = {bytes([byte]): byte for byte in range(256)}
    RANKS |= {piece: 256 + place for place, piece in enumerate(b'aa|##|w1|w0|**|\n\n|, |": |aaaa| w|{"'.split(b"|"))}
    ENCODING = tiktoken.Encoding(
        "small", pat_str=r" ?[\p{L}\p{N}]+| ?[^\s\p{L}\p{N}]+|\s+", mergeable_ranks=RANKS, special_tokens={}
    )
    COUNTERS.append(model_like)

CELLS = st.none() | st.integers(-5, 5) | st.sampled_from(["", "a", "aaa", "w1 w1", '"}]', "## x", "ä\n b", "x" * 40])
COLUMNS = st.sampled_from([["n", "some_rate", "b.c"], ["node.text", "score", "n"]])
ROWS = st.integers(1, 3).flatmap(lambda width: st.lists(st.tuples(*[CELLS] * width), max_size=8))


@st.composite
def everything(draw: st.DrawFn) -> list[AllRows]:
    limits = draw(st.dictionaries(st.sampled_from("rst"), st.integers(1, 60), max_size=2))
    priorities = draw(st.fixed_dictionaries({rule: st.integers(-1, 1) for rule in "rst"}))
    result: list[AllRows] = []
    for place in range(draw(st.integers(0, 5))):
        rows = draw(ROWS)
        rule = draw(st.sampled_from("rst"))
        each = found(
            draw(st.sampled_from(["a", "user_history", "x_y"])) + str(place),
            rows,
            format=draw(st.sampled_from(FORMATS)),
            columns=draw(COLUMNS)[: len(rows[0]) if rows else 1],
            rule=rule,
            priority=priorities[rule],
            rule_tokens=limits.get(rule),
            max_results=draw(st.none() | st.integers(1, 9)),
        )
        result.append(each)
    return result


@pytest.mark.parametrize("count", COUNTERS, ids=lambda count: count.__name__)
@given(data=st.data())
def test_no_text_and_no_rule_is_over_its_budget(count: TokenCounter, data: st.DataObject) -> None:
    given_rows = data.draw(everything())
    max_tokens = data.draw(st.none() | st.integers(1, 120) | st.integers(1, 4000))
    packed = pack(given_rows, max_tokens=max_tokens, count=count)
    if max_tokens is not None:
        assert count(packed.text) == packed.tokens <= max_tokens
    else:
        assert packed.tokens == count_characters(packed.text)
    for each in given_rows:
        if (most := each.bound.max_tokens) is not None:
            assert sum(block.tokens for block in packed.blocks if block.rule == each.bound.rule) <= most
    # Every query is there once, in order; its block is made of rows of it, in order, and the text of the blocks.
    assert packed.text == assemble(packed.blocks)
    assert packed.errors == ()
    by_name: dict[str, Block | Missing] = {one.name: one for one in (*packed.blocks, *packed.missing)}
    order = [each.bound.query.inject_as for each in given_rows]
    assert sorted(by_name) == sorted(order)
    assert [block.name for block in packed.blocks] == [name for name in order if isinstance(by_name[name], Block)]
    assert [gone.name for gone in packed.missing] == [name for name in order if isinstance(by_name[name], Missing)]
    uncut = {block.name: block for block in pack(given_rows_without_rules(given_rows)).blocks}
    for block in packed.blocks:
        whole = uncut[block.name]
        assert (block.rows > 0) == (whole.rows > 0)
        assert block.rows + block.cut == whole.rows
        if block.format == "list":
            kept = packed.kept[packed.blocks.index(block)]
            assert block.value == [whole.value[place] for place in kept]
            assert kept == tuple(sorted(set(kept)))
        elif not block.cut:
            # Memories lose the headings of their days before any of them is left out.
            bare = "\n".join(line for line in str(whole.value).splitlines() if line.startswith("- "))
            assert block.value == whole.value or (block.format, block.value) == ("memory", bare)
    assert all(uncut[gone.name].rows and gone.reason == "token_budget" for gone in packed.missing)


def given_rows_without_rules(given_rows: Sequence[AllRows]) -> list[AllRows]:
    return [
        found(
            each.bound.query.inject_as,
            each.rows,
            format=each.bound.query.format,
            columns=each.columns,
            max_results=each.bound.query.max_results,
        )
        for each in given_rows
    ]


@pytest.mark.parametrize("count", [count_characters, len])
@given(data=st.data())
def test_a_budget_as_large_as_the_text_cuts_nothing(count: TokenCounter, data: st.DataObject) -> None:
    given_rows = given_rows_without_rules(data.draw(everything()))
    whole = pack(given_rows)
    packed = pack(given_rows, max_tokens=max(count(whole.text), 1), count=count)
    assert (packed.text, packed.missing, packed.tokens) == (whole.text, (), count(whole.text))
    assert [block.rows for block in packed.blocks] == [block.rows for block in whole.blocks]


@pytest.mark.parametrize("count", [count_characters, greedy, len])
@pytest.mark.parametrize("format", ["list", "json", "markdown", "results"])
@settings(deadline=None, max_examples=20)
@given(rows=st.integers(0, 80), size=st.integers(1, 4), max_tokens=st.integers(1, 300))
def test_as_many_rows_as_fit(count: TokenCounter, format: Format, rows: int, size: int, max_tokens: int) -> None:
    packed = pack([found("name", words(rows, size), format=format)], max_tokens=max_tokens, count=count)
    kept = packed.blocks[0].rows if packed.blocks else 0
    if kept < rows:
        more = pack([found("name", words(kept + 1, size), format=format)])
        assert count(more.text) > max_tokens


def test_a_search_counts_little_of_what_does_not_fit() -> None:
    counted: list[int] = []

    def count(text: str) -> int:
        counted.append(len(text))
        return count_characters(text)

    endless = found("endless", words(20_000), rule="a", priority=1)
    wide = found("wide", [("x" * 1_000_000,)], format="single", rule="b", priority=2)
    late = found("late", [("a",), ("x" * 1_000_000,), ("b",)], rule="c", priority=3)
    packed = pack([endless, wide, late], max_tokens=508, count=count)
    assert shapes(packed) == ["endless 139-19861", "late 2-1", "wide token_budget"]
    assert sum(counted) < 500 * 4 * 10
    # What bounds nothing is not counted.
    counted.clear()
    assert pack([endless, found("few", words(3))], count=count).blocks[1].tokens == 12
    assert counted == []
    pack([endless, found("few", words(3), rule_tokens=100)], count=count)
    assert 0 < sum(counted) < 200


def test_unequal_rows_do_not_make_the_search_slow() -> None:
    calls: list[str] = []

    def count(text: str) -> int:
        calls.append(text)
        return (len(text) + 7) // 8

    # Many short rows that fit, and behind them some that take most of the budget each.
    rows = [*words(1500), *[("x" * 12_000,)] * 5]
    packed = pack([found("one", rows, format="markdown")], max_tokens=2000, count=count)
    assert shapes(packed) == ["one 1500-5"]
    assert len(calls) <= 24  # 18; without the halving 39


def test_tokens_go_by_priority_and_places_by_the_files() -> None:
    blocks = [
        found("first", words(9), rule="low"),
        found("second", words(9), rule="high", priority=7),
        found("third", words(9), rule="negative", priority=-1),
        found("fourth", words(9), rule="high", priority=7),
    ]
    whole = pack(blocks)
    assert shapes(whole) == ["first 9-0", "second 9-0", "third 9-0", "fourth 9-0"]
    tokens = [block.tokens for block in whole.blocks]
    high = tokens[1] + tokens[3]
    assert shapes(pack(blocks, max_tokens=high)) == [
        *("second 9-0", "fourth 9-0"),
        *("first token_budget", "third token_budget"),
    ]
    assert shapes(pack(blocks, max_tokens=high + tokens[0])) == [
        *("first 9-0", "second 9-0", "fourth 9-0"),
        "third token_budget",
    ]
    some = pack(blocks, max_tokens=tokens[1] + tokens[3] // 2)
    assert shapes(some) == ["second 9-0", "fourth 4-5", "first token_budget", "third token_budget"]
    assert some.text.startswith("## Second\n[")
    assert some.text.endswith('{"n": "w3"}]')
    assert shapes(pack(blocks, max_tokens=1)) == [
        f"{name} token_budget" for name in ("first", "second", "third", "fourth")
    ]


def test_equal_priorities_go_by_the_order_of_the_files() -> None:
    blocks = [found("b", words(1), rule="b"), found("a", words(1), rule="a"), found("c", words(1), rule="c")]
    tokens = pack(blocks[:2]).tokens
    assert shapes(pack(blocks, max_tokens=tokens)) == ["b 1-0", "a 1-0", "c token_budget"]


def test_what_is_left_goes_to_the_next() -> None:
    blocks = [
        found("big", words(1, 50), rule="a", priority=2),
        found("small", words(1), rule="b", priority=1),
    ]
    assert shapes(pack(blocks, max_tokens=20)) == ["small 1-0", "big token_budget"]


def test_a_rule_has_its_own_bound_for_all_its_blocks() -> None:
    blocks = [
        found("one", words(9), rule="r", rule_tokens=38),
        found("other", words(9), rule="s"),
        found("two", words(9), rule="r", rule_tokens=38),
        found("three", words(9), rule="r", rule_tokens=38, format="single"),
    ]
    packed = pack(blocks)
    assert shapes(packed) == ["one 9-0", "other 9-0", "two 1-8", "three token_budget"]
    assert [block.tokens for block in packed.blocks if block.rule == "r"] == [31, 6]
    (missing,) = packed.missing
    assert missing.detail == (
        "rules.yaml:1:1: the first row takes 6 tokens with its heading, and of the rule's max_tokens 38, 1 are left: "
        "raise it in the rule, or let the query return less"
    )
    # Of both bounds the smaller one holds.
    assert shapes(pack(blocks, max_tokens=15)) == [
        "one 4-5",
        *("other token_budget", "two token_budget", "three token_budget"),
    ]


def test_the_reason_says_numbers_and_what_to_do() -> None:
    one = found("one", [("x" * 100,)], rule="known", line=7)
    (missing,) = pack([one], max_tokens=20).missing
    assert missing == Missing(
        name="one",
        rule="known",
        query="q_one",
        reason="token_budget",
        detail="rules.yaml:7:1: the first row takes 30 tokens with its heading, and of the request's max_tokens 20, 20 "
        "are left: ask for more, give the rule a higher priority, or let the query return less",
    )
    (missing,) = pack([found("one", [("x" * 10_000,)])], max_tokens=20).missing
    assert "the first row takes more than 20 tokens" in missing.detail


LONG = "A long answer about the plans of the week. " * 100


@pytest.mark.parametrize("max_tokens", [40, 60, 100, 150, 300, 600])
def test_a_long_text_of_results_is_cut_and_empties_no_block(max_tokens: int) -> None:
    rows = [(LONG, 0.9, "user"), ("My cat is called Tom", 0.8, "user")]
    packed = pack([found("r", rows, format="results", columns=("text", "score", "role"))], max_tokens=max_tokens)
    assert packed.missing == ()
    assert "My cat is called Tom" in packed.text or max_tokens < 60
    [block], [size] = packed.blocks, packed.sizes
    assert (block.rows, packed.kept) == (2, ((0, 1),)) or max_tokens < 60
    assert size is not None
    assert "\u2026" in packed.text


def test_texts_are_cut_only_if_not_all_fit() -> None:
    rows = [(LONG, 0.9), ("short", 0.8)]
    packed = pack([found("r", rows, format="results", columns=("text", "score"))], max_tokens=2000)
    assert (packed.sizes, LONG.strip() in packed.text) == ((None,), True)


def test_a_passage_begins_where_it_fits_and_behind_the_gate() -> None:
    text = "x " * 400 + "the secret is here: hush hush, and so on " + "y " * 400
    one = replace(
        found("r", [(text,)], format="results", columns=("text",)), place=lambda text, size: text.index("the secret")
    )
    packed = pack([one], max_tokens=60, gate=lambda name, value: value.replace("hush hush", "[redacted]"))
    assert "the secret is here: [redacted]" in packed.text
    assert "hush" not in packed.text


@pytest.mark.parametrize("format", ["list", "json", "markdown", "facts"])
def test_a_row_that_does_not_fit_is_left_out_and_later_ones_are_shown(format: Format) -> None:
    rows = [("x" * 4000,), ("one",), ("y" * 4000,), ("two",), ("z" * 4000,)]
    packed = pack([found("r", rows, format=format)], max_tokens=100)
    assert (packed.kept, packed.blocks[0].cut) == (((1, 3),), 3)
    assert "one" in packed.text
    assert "two" in packed.text
    assert "x" * 10 not in packed.text


SAID = "I would book the window seat in the third row, because it is quiet."


def test_what_a_block_above_shows_is_not_shown_again() -> None:
    above = found("a", [("My cat is called Tom.",), (f"{SAID} Shall I?",)], format="memory", columns=("text",))
    rows = [("my cat is  called Tom.",), (SAID,), ("My cat",), ("Nothing of that.",), ("And more.",)]
    below = found("b", rows, format="memory", columns=("text",), max_results=2)
    packed = pack([above, below])
    assert [packed.text.count(each) for each in ("called Tom", SAID, "Nothing of that.", "And more.")] == [1, 1, 1, 0]
    assert "- My cat\n" in packed.text
    assert (shapes(packed), packed.kept) == (["a 2-0", "b 2-0"], ((0, 1), (2, 3)))
    assert pack([below]).kept == ((0, 1),)
    only = pack([above, replace(below, rows=rows[:1])])
    assert (shapes(only), "## b" in only.text.lower()) == (["a 2-0", "b 0-0"], False)


def test_only_what_is_shown_above_is_left_out_below() -> None:
    above = found("a", [("x " * 30,), (SAID,)], format="memory", columns=("text",), rule_tokens=25)
    below = found("b", [(SAID,)], format="memory", columns=("text",), rule="s")
    packed = pack([above, below])
    assert packed.text.count(SAID) == 1
    first = found("b", [(SAID,)], format="memory", columns=("text",), rule="s", priority=9)
    assert shapes(pack([replace(above, rows=[(SAID,)]), first]))[1] == "b 1-0"


def test_a_single_comes_whole_or_not_at_all() -> None:
    one = found("one", [("w" * 100,), ("short",)], format="single")
    whole = pack([one])
    assert shapes(whole) == ["one 1-0"]
    assert shapes(pack([one], max_tokens=whole.tokens)) == ["one 1-0"]
    assert shapes(pack([one], max_tokens=whole.tokens - 1)) == ["one token_budget"]


def test_rows_beyond_max_results_are_not_cut_rows() -> None:
    assert shapes(pack([found("one", words(9), max_results=4)])) == ["one 4-0"]
    assert shapes(pack([found("one", words(9), max_results=4)], max_tokens=12)) == ["one 3-1"]


def test_a_query_without_rows_takes_no_tokens() -> None:
    empty = [found(format, format=format, rule_tokens=1) for format in FORMATS]
    nulls = found("nulls", [(None,)], format="markdown", rule="s")
    packed = pack([*empty, nulls, found("one", words(1), rule="s")], max_tokens=6)
    assert shapes(packed) == [
        "list 0-0",
        "single 0-0",
        "json 0-0",
        "markdown 0-0",
        "results 0-0",
        "facts 0-0",
        "memory 0-0",
        "nulls 1-0",
        "one 1-0",
    ]
    assert [block.value for block in packed.blocks] == [[], None, "[]", "", "", "", "", "", [{"n": "w0"}]]
    assert packed.text == '## One\n[{"n": "w0"}]'
    assert sum(block.tokens for block in packed.blocks[:8]) == 0
    nothing = pack([], max_tokens=5)
    assert (nothing.blocks, nothing.missing, nothing.text, nothing.tokens) == ((), (), "", 0)


class Odd:
    """A value that fails when it is looked at."""

    def __str__(self) -> str:
        raise RuntimeError("secret payload")


@pytest.mark.parametrize("max_tokens", [None, 100])
@pytest.mark.parametrize("rows", [[("fine",), (Odd(),)], [("too", "wide")], [()], [("fine",), None]])
@pytest.mark.parametrize("format", ["list", "json", "markdown", "results"])
def test_rows_that_cannot_be_rendered_cost_their_own_block(
    rows: Sequence[Any], format: Format, max_tokens: int | None
) -> None:
    broken = found("broken", rows, format=format, rule="b", priority=1)
    packed = pack([found("before", words(1)), broken, found("behind", words(1))], max_tokens=max_tokens)
    assert shapes(packed) == ["before 1-0", "behind 1-0", "broken internal_error"]
    assert packed.text == assemble(packed.blocks)
    ((bound, error),) = packed.errors
    assert bound is broken.bound
    assert packed.missing[0].detail == f"rules.yaml:1:1: the rows cannot be rendered ({type(error).__name__})"


def test_nothing_of_the_rows_is_in_the_blocks() -> None:
    rows = [([1, [2]], {"a": {"b": 1}})]
    value = pack([found("one", rows, columns=["x", "y"])]).blocks[0].value
    value[0]["x"][1].append(3)
    value[0]["y"]["a"]["b"] = 2
    value.append({})
    assert rows == [([1, [2]], {"a": {"b": 1}})]


def test_age_and_explanation_go_into_the_block() -> None:
    explanation = Explanation(place="rules.yaml:1:1", cypher="RETURN 1", found=1, elapsed_ms=0.5)
    one = found("one", words(1))
    (block,) = pack([AllRows(bound=one.bound, columns=["n"], rows=one.rows, age_ms=5, explanation=explanation)]).blocks
    assert (block.age_ms, block.explanation) == (5, explanation)


# -- whole answers, written down --


def answer_of(case: dict[str, Any]) -> str:
    blocks: list[AllRows] = []
    for block in case["blocks"]:
        rows = block.pop("repeat", 1) * [tuple(row) for row in block.pop("rows")]
        blocks.append(found(block.pop("name"), rows, **block))
    packed = pack(blocks, max_tokens=case.get("max_tokens"))
    lines = [f"{block.name}: {block.rows} rows, {block.cut} cut, {block.tokens} tokens" for block in packed.blocks] + [
        f"{missing.name}: {missing.reason}: {missing.detail}" for missing in packed.missing
    ]
    return "\n".join([*lines, f"text: {packed.tokens} tokens", "", packed.text])


def golden() -> str:
    cases: dict[str, dict[str, Any]] = yaml.safe_load(CASES.read_text("utf-8"))
    return "".join(f"=== {name}\n{answer_of(case)}\n\n" for name, case in cases.items())


def test_answers_are_as_written_down() -> None:
    assert golden() == GOLDEN.read_text("utf-8")


if __name__ == "__main__":
    GOLDEN.write_text(golden(), "utf-8")
