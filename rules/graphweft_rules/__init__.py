"""The rules of graphweft: from the YAML of a workflow to the queries for one event or one context request.

Reading (what a file says, and where)
    ``source``, ``tree``, ``shapes``, ``schema``   strict YAML with positions, and its shape
    ``loader``, ``lint``, ``findings``             ``extends`` and merging; every finding at once
    ``model``                                      the rules as plain values

Meaning (what a rule does)
    ``tokens``, ``clauses``, ``cypher``, ``traps`` queries: statement, keys, problems
    ``clock``                                      time and ids that a replay repeats
    ``params``, ``conditions``                     references and CEL, compiled
    ``searches``, ``graphrag``                     searches of injection rules, and the facts that they ask for
    ``workflow``, ``ruleset``                      compiled rules, matched through an index
    ``formats``, ``packing``, ``token_count``      rows as blocks, blocks as text within a budget of tokens

Pure: only ``loader``, ``lint`` and ``Ruleset.load`` read files, and nothing else reaches outside.
"""

from graphweft_rules.findings import Finding, RulesError
from graphweft_rules.formats import Rendered, assemble, render
from graphweft_rules.lint import lint
from graphweft_rules.loader import GraphInjectionLoader, discover
from graphweft_rules.model import (
    GraphInjectionConfig,
    InjectionGraphrag,
    InjectionQuery,
    InjectionRule,
    InjectionSearch,
    Mutation,
    MutationRule,
    Place,
)
from graphweft_rules.packing import Found, Packed, pack
from graphweft_rules.ruleset import BoundMutation, BoundQuery, Failed, Matched, MatchedQueries, Ruleset, Skipped
from graphweft_rules.token_count import TokenCounter, count_characters, token_counter
from graphweft_rules.workflow import CompiledMutation, Workflow, compile_workflow

__all__ = (
    "BoundMutation",
    "BoundQuery",
    "CompiledMutation",
    "Failed",
    "Finding",
    "Found",
    "GraphInjectionConfig",
    "GraphInjectionLoader",
    "InjectionGraphrag",
    "InjectionQuery",
    "InjectionRule",
    "InjectionSearch",
    "Matched",
    "MatchedQueries",
    "Mutation",
    "MutationRule",
    "Packed",
    "Place",
    "Rendered",
    "RulesError",
    "Ruleset",
    "Skipped",
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
