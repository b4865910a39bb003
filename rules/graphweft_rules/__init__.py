"""The rules of graphweft: from the YAML of a workflow to the queries for one event or one context request.

- ``files``: strict YAML with positions, its schema, ``extends``, lint and findings.
- ``cypher``: queries as tokens, clauses and parts; their problems, batch queries and read/write sets.
- ``matching``: parameters, conditions, searches and the clock, compiled into a rule set.
- ``output``: rows as blocks, and blocks as text within a token budget.

Only ``files.loader``, ``files.lint`` and ``RuleSet.load`` read files; everything else is pure.
"""

from typing import TYPE_CHECKING

from graphweft_contracts.lazy_names import lazy_names

if TYPE_CHECKING:
    from graphweft_rules.files.findings import Finding, RulesError
    from graphweft_rules.files.lint import lint
    from graphweft_rules.files.loader import GraphInjectionLoader, discover
    from graphweft_rules.files.model import (
        GraphInjectionConfig,
        InjectionGraphrag,
        InjectionQuery,
        InjectionRule,
        InjectionSearch,
        Mutation,
        MutationRule,
        Place,
    )
    from graphweft_rules.matching.mutation import BoundMutation, CompiledMutation
    from graphweft_rules.matching.rule_set import (
        BoundQuery,
        FailedMutation,
        MatchedQueries,
        MatchResult,
        RuleSet,
        SkippedQuery,
    )
    from graphweft_rules.matching.workflow import Workflow, compile_workflow
    from graphweft_rules.output.formats import BlockValue, assemble, render
    from graphweft_rules.output.packing import AllRows, PackedBlocks, pack
    from graphweft_rules.output.token_count import TokenCounter, count_characters, token_counter

__all__ = (
    "AllRows",
    "BlockValue",
    "BoundMutation",
    "BoundQuery",
    "CompiledMutation",
    "FailedMutation",
    "Finding",
    "GraphInjectionConfig",
    "GraphInjectionLoader",
    "InjectionGraphrag",
    "InjectionQuery",
    "InjectionRule",
    "InjectionSearch",
    "MatchResult",
    "MatchedQueries",
    "Mutation",
    "MutationRule",
    "PackedBlocks",
    "Place",
    "RuleSet",
    "RulesError",
    "SkippedQuery",
    "TokenCounter",
    "Workflow",
    "assemble",
    "compile_workflow",
    "count_characters",
    "discover",
    "lint",
    "pack",
    "render",
    "token_counter",
)

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "graphweft_rules.files.findings": (
            "Finding",
            "RulesError",
        ),
        "graphweft_rules.files.lint": ("lint",),
        "graphweft_rules.files.loader": (
            "GraphInjectionLoader",
            "discover",
        ),
        "graphweft_rules.files.model": (
            "GraphInjectionConfig",
            "InjectionGraphrag",
            "InjectionQuery",
            "InjectionRule",
            "InjectionSearch",
            "Mutation",
            "MutationRule",
            "Place",
        ),
        "graphweft_rules.matching.mutation": ("BoundMutation", "CompiledMutation"),
        "graphweft_rules.matching.rule_set": (
            "BoundQuery",
            "FailedMutation",
            "MatchResult",
            "MatchedQueries",
            "RuleSet",
            "SkippedQuery",
        ),
        "graphweft_rules.matching.workflow": (
            "Workflow",
            "compile_workflow",
        ),
        "graphweft_rules.output.formats": (
            "BlockValue",
            "assemble",
            "render",
        ),
        "graphweft_rules.output.packing": (
            "AllRows",
            "PackedBlocks",
            "pack",
        ),
        "graphweft_rules.output.token_count": (
            "TokenCounter",
            "count_characters",
            "token_counter",
        ),
    },
)
