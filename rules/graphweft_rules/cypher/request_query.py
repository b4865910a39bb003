"""What the ``retrieval_query`` of a request may do.

Anybody who may send a request can send one, and it runs on the graph server of all apps. A short query can make a value
that doubles with each clause, and a server looks at its limits of time and memory only between rows. So a request may
call only functions whose results are no larger than their arguments, and values grow by a factor that is bounded.
"""

from __future__ import annotations

from typing import Final

from graphweft_rules.cypher.clauses import Outline
from graphweft_rules.cypher.growth import Problem, growth_problem
from graphweft_rules.cypher.named_calls import named_calls
from graphweft_rules.cypher.part_parser import read_parts
from graphweft_rules.cypher.parts import PatternError, PatternPart, ProjectionPart, UnwindPart
from graphweft_rules.cypher.pattern_parser import KEYWORDS

_FUNCTIONS: Final = frozenset(
    {
        *("abs", "all", "any", "avg", "ceil", "coalesce", "collect", "count", "date", "datetime", "distance"),
        *("duration", "elementid", "endnode", "exists", "exp", "floor", "haslabels", "head", "id", "indegree"),
        *("isempty", "keys", "labels", "last", "left", "length", "localdatetime", "localtime", "log", "log10"),
        *("ltrim", "max", "min", "nodes", "none", "nullif", "outdegree", "point", "properties"),
        *("relationships", "reverse", "right", "round", "rtrim", "sign", "single", "size", "sqrt", "startnode"),
        *("substring", "sum", "tail", "time", "timestamp", "toboolean", "tofloat", "tointeger", "tolower"),
        *("tostring", "toupper", "trim", "type", "typeof", "date.truncate", "datetime.truncate"),
        *("duration.between", "point.distance", "vec.cosinedistance", "vec.euclideandistance", "vecf32"),
        *("vector.similarity.cosine", "vector.similarity.euclidean"),
    }
)
"""Functions whose results are no larger than their arguments, in lower case."""
_BEFORE_BRACKET: Final = KEYWORDS | {"BY", "CALL", "LIMIT", "MATCH", "OPTIONAL", "ON", "RETURN", "SKIP", "UNWIND"}
"""Words behind which a parenthesis is no call."""
_MOST_GROWTH: Final = 16
_MOST_UNWINDS: Final = 3
_GIVEN: Final = frozenset({"node", "score"})


def request_problem(query: Outline) -> tuple[str, int] | None:
    """Return what the query of a request may not do, and the offset of that; None if it may run."""
    words = query.words
    for find in (_call_problem, _grows, _list_problem, _pattern_problem):
        if (found := find(query)) is not None:
            return found[0], words.tokens[min(found[1], len(words.tokens) - 1)].start
    return None


def _call_problem(query: Outline) -> Problem | None:
    words = query.words
    for call in named_calls(query):
        label = words.text(call.place - 1) in (":", "|", "&")
        if not label and call.lower not in _FUNCTIONS and words.keyword(call.place) not in _BEFORE_BRACKET:
            advice = "use a function whose result is no larger than its arguments"
            return f"a request may not call {call.name!r}: {advice}", call.place
    return None


def _grows(query: Outline) -> Problem | None:
    return growth_problem(query, _MOST_GROWTH)


def _list_problem(query: Outline) -> Problem | None:
    """Return the first list whose items are lists of something else, so that its size is a product."""
    words = query.words
    for index in range(len(words.tokens)):
        if words.text(index) != "[":
            continue
        if words.text(index + 1) == "(" and words.text(words.closing(index + 1) + 1) in ("-", "<"):
            return "a request may not list the matches of a pattern: write MATCH and collect()", index
        if not words.identifier(index + 1) or words.keyword(index + 2) != "IN":
            continue
        end = words.closing(index)
        bar = next((place for place in range(index + 3, end) if words.text(place) == "|"), end)
        for place in range(bar + 1, end):
            named = words.identifier(place) and words.text(place - 1) != "." and words.text(place + 1) not in ("(", ":")
            plain = words.keyword(place) in KEYWORDS or words.identifier(place) == words.identifier(index + 1)
            if words.tokens[place].kind == "param" or (named and not plain):
                return "the items of a list in a request may use only the variable of that list", place
    return None


def _pattern_problem(query: Outline) -> Problem | None:
    """Return the second pattern that begins anywhere in the graph: the rows would be a product."""
    try:
        parts = read_parts(query)
    except PatternError as error:
        return "graphweft does not know this Cypher, so a request may not use it: write it in a rule", error.place
    known = set(_GIVEN)
    loose = unwinds = 0
    for part in parts:
        if isinstance(part, PatternPart):
            for path in part.paths:
                names = {each.variable for each in path.nodes} | {each.variable for each in path.relationships}
                names.discard("")
                loose += not names & known
                known |= names
                if loose > 1:
                    message = (
                        "a request may look for one thing beside its node: connect the other patterns to known nodes"
                    )
                    return message, path.place
        elif isinstance(part, UnwindPart):
            known.add(part.variable)
            unwinds += 1
            if unwinds > _MOST_UNWINDS:
                return f"a request may have {_MOST_UNWINDS} UNWIND", part.clause.words[0]
        elif isinstance(part, ProjectionPart):
            known |= {item.alias for item in part.items}
    return None
