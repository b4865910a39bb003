from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from graphweft_rules.files.loader import merge
from graphweft_rules.files.model import GraphInjectionConfig, InjectionRule, MutationRule, Place

NAMES = st.lists(st.sampled_from("abcde"), unique=True)


def config(number: int, injections: Sequence[str], mutations: Sequence[str]) -> GraphInjectionConfig:
    """Make a config whose rules know by the line of their place which config of the chain they come from."""
    place = Place(file="f", line=number)
    return GraphInjectionConfig(
        injection_rules=tuple(InjectionRule(name=n, agents=("A",), queries=(), place=place) for n in injections),
        mutation_rules=tuple(MutationRule(name=n, events=("e.f",), mutations=(), place=place) for n in mutations),
        files=(Path(str(number)),),
    )


@st.composite
def chains(draw: st.DrawFn, *, min_size: int = 1) -> list[GraphInjectionConfig]:
    names = draw(st.lists(st.tuples(NAMES, NAMES), min_size=min_size, max_size=5))
    return [config(number, *pair) for number, pair in enumerate(names, start=1)]


Rules = tuple[InjectionRule, ...] | tuple[MutationRule, ...]


def kinds(*configs: GraphInjectionConfig) -> list[list[Rules]]:
    """Return the rules of all configs, once those of injection and once those of mutation."""
    return [[each.injection_rules for each in configs], [each.mutation_rules for each in configs]]


@given(chains(min_size=3), st.data())
def test_merging_is_associative(chain: list[GraphInjectionConfig], data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, len(chain) - 1))
    from_the_left = reduce(merge, chain)
    from_the_right = reduce(lambda below, above: merge(above, below), reversed(chain))
    assert merge(reduce(merge, chain[:cut]), reduce(merge, chain[cut:])) == from_the_left == from_the_right


@given(chains())
def test_names_are_unique_and_none_is_lost(chain: list[GraphInjectionConfig]) -> None:
    merged = reduce(merge, chain)
    for (result,), sources in zip(kinds(merged), kinds(*chain), strict=True):
        names = [rule.name for rule in result]
        assert len(set(names)) == len(names)
        assert set(names) == {rule.name for source in sources for rule in source}


@given(chains())
def test_the_last_one_who_names_a_rule_wins(chain: list[GraphInjectionConfig]) -> None:
    merged = reduce(merge, chain)
    for (result,), sources in zip(kinds(merged), kinds(*chain), strict=True):
        last = {rule.name: rule for source in sources for rule in source}
        assert all(rule is last[rule.name] for rule in result)


@given(chains())
def test_rules_are_in_the_order_of_their_files_and_within_a_file_as_written(chain: list[GraphInjectionConfig]) -> None:
    merged = reduce(merge, chain)
    for (result,), sources in zip(kinds(merged), kinds(*chain), strict=True):
        written = {(rule.place.line, rule.name): at for source in sources for at, rule in enumerate(source)}
        order = [(rule.place.line, written[rule.place.line, rule.name]) for rule in result]
        assert order == sorted(order)


@given(chains())
def test_an_empty_config_changes_no_rules_and_files_are_kept_in_order(chain: list[GraphInjectionConfig]) -> None:
    merged = reduce(merge, chain)
    empty = GraphInjectionConfig()
    assert merge(empty, merged) == merge(merged, empty) == merge(merged, merged) == merged
    assert merged.files == tuple(Path(str(number)) for number in range(1, len(chain) + 1))
