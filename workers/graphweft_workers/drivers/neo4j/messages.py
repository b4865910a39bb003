"""What of Neo4j's messages about a query is shown: nothing that may be a value of a parameter or of the graph. Pure.

Messages quote values, which are private, in more ways than can be listed. So this is a list of what may be shown.
"""

from __future__ import annotations

import re
from typing import Final

POSITION: Final = re.compile(r" \(line (\d+), column (\d+) \(offset: \d+\)\)")
_WITH_PLACE: Final = re.compile(rf"(.*){POSITION.pattern}")
OF_COMPILER: Final = frozenset({"Neo.ClientError.Statement.SemanticError", "Neo.ClientError.Statement.SyntaxError"})
"""Codes of queries that fail with any parameters: with a place, messages quote the query's text and no values."""
_OF_TEXT: Final = ("Invalid value for ", "Text cannot be parsed to ")
"""Messages with the same codes that quote values."""
_TYPE: Final = (
    r"(?:an? )?(?:[Ll]ist|[Mm]ap|literal map|[Nn]ode|[Nn]umber|numeric value|[Pp]ath|[Rr]elationship|[Ss]tring|"
    r"string value|Boolean|Duration|Float|[Ii]nteger|Temporal)\b(?![({])"
)
_TYPES: Final = rf"{_TYPE}(?:(?:, or|,| or) {_TYPE})*"
_FORMS: Final = (
    r"/ by zero",
    r"(?:integer|long) overflow",
    r"[A-Z]\w*\((?:DISTINCT )?[\w.$`@ ]+\) can only handle numerical values",
    r"\w+\(\) requires numbers",
    r"[A-Za-z]{1,30} must be an? (?:integer|number|string) value",
    r"A point must contain either 'x' and 'y' or 'latitude' and 'longitude'",
    r"Can't coerce",
    r"Cannot (?:add|calculate modulus of|divide|multiply|raise|subtract) `\w+` (?:and|by|from|to the power of) `\w+`",
    r"Cannot access a (?:list|map)",
    r"Cannot assign",
    r"Cannot construct (?:local )?(?:date time|date|time)",
    r"Cannot convert to ZoneId",
    r"Cannot create \w+ point with invalid coordinate",
    r"Cannot delete node<\d+>, because it still has relationships",
    r"Cannot merge the following (?:node|relationship) because of null property value for '[^']+'",
    r"Don't know how to treat that as a predicate",
    r"Expected a string value for `\w+`",
    r"Expected an integer between -?\d+ and \d+",
    r"Expected node label to be a string or list of strings",
    r"Expected parameter\(s\): \w+(?:, \w+)*",
    rf"Expected {_TYPES}",
    r"Failed to create relationship `[^`]*`, node `[^`]*` is missing",
    r"Failed to invoke procedure `[^`]*`(?:: Caused by: java\.lang\.IllegalArgumentException: "
    r"Index query vector has \d+ dimensions, but indexed vectors have \d+)?",
    r"Invalid Regex",
    r"Invalid call signature for \w+",
    rf"Invalid input for (?:[a-z ]+ value in )?function '[\w.]+\(\)'(?:: Expected {_TYPES})?",
    r"Invalid input for '[\w.]+\(\)': Argument \w+ is not a valid vector",
    r"Invalid input for '[\w.]+\(\)': Expected argument \w+ to be a LIST<[A-Z |]+>",
    r"Invalid value for \w+(?: \(valid values [-\d/ ]+\))?",
    r"(?:LIMIT|SKIP): Invalid input",
    r"Neo4j only supports a subset of Cypher types for storage as singleton or array properties",
    r"No such field",
    r"(?:Node|Relationship) with id \d+ has been deleted in this transaction",
    r"(?:Node|Relationship)\(\d+\) (?:already exists )?with (?:label|type) `[^`]*`"
    r"(?: (?:and|must have the) propert(?:y|ies) `[^`]*`)?",
    r"numeric value out of range",
    r"Property value is too large to index(?:, please see index documentation for limitations\. "
    r"Index: Index\( id=\d+, name='[^']*', type='\w+', schema=\([^)]*\))?",
    r"Property values can only be of primitive types or arrays thereof",
    r"Text cannot be parsed to a \w+",
    r"There is no procedure with the name `[^`]*`",
    rf"Type mismatch: expected {_TYPES}",
    r"Unknown (?:coordinate reference system|field|rounding mode)",
    r"Unsupported unit",
    r"Writing in read access mode not allowed",
)
"""How messages begin, up to the first value (5.26). Names of functions, labels and properties come from the query."""
_FORM: Final = re.compile("|".join(_FORMS))
_INDEXED: Final = re.compile(r"` is not a collection or a map\b")
"""A message that begins with a value."""
_LONGEST: Final = 400


def shown(code: str, message: str) -> str:
    """Return what of a message may be shown: its known beginning or its place in the query, and the server's code."""
    line = message.split("\n", 1)[0]
    if code in OF_COMPILER and not line.startswith(_OF_TEXT) and (found := _WITH_PLACE.fullmatch(line)):
        return f"{cut(found[1])} (line {found[2]}, column {found[3]} of the query)"
    if known := _FORM.match(line):
        return f"{cut(known[0])} ({code})"
    if _INDEXED.search(line):
        return f"a value with an index behind it is not a collection or a map ({code})"
    return (
        f"the server refuses the query with {code}; its message may quote values, so it is not shown: to read it, run "
        "the query with example values in cypher-shell"
    )


def cut(message: str) -> str:
    """Return the first line of a message, or its beginning."""
    line = message.split("\n", 1)[0]
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"
