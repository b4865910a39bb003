"""Neo4j's messages quote values of events and of the graph; none is shown in a reply, a log or a dead letter (5.26)."""

from __future__ import annotations

import pytest
from neo4j.exceptions import BrokenRecordError, Neo4jError

from graphweft_contracts import GraphUnavailable, QueryFailed
from graphweft_workers.drivers.neo4j.errors import translate

_TYPE = "ClientError.Statement.TypeError"
_ARGUMENT = "ClientError.Statement.ArgumentError"
_SYNTAX = "ClientError.Statement.SyntaxError"
_CRASH = "DatabaseError.Statement.ExecutionFailed"
_PROCEDURE = "ClientError.Procedure.ProcedureCallFailed"
OF_VALUES = (
    (_TYPE, '`String("ZQXu")` is not a collection or a map. Element access is only (found: String("ZQXu")[Long(0)])',
     "a value with an index behind it is not a collection or a map"),
    (_TYPE, "Can't coerce `Long(777555111)` to String", "Can't coerce"),
    (_TYPE, "Cannot access a list 'List{Long(1)}' using an index, got String(\"ZQXu\")", "Cannot access a list"),
    (_TYPE, "Cannot access a map 'Map{ZQXk -> String(\"ZQXv\")}' by key 'Long(0)'", "Cannot access a map"),
    (_TYPE, "Cannot add `Map` and `Long`", "Cannot add `Map` and `Long`"),
    (_TYPE, 'Don\'t know how to treat that as a predicate: String("ZQXu")',
     "Don't know how to treat that as a predicate"),
    (_TYPE, 'Expected $x.v to be a map, but it was :`String("ZQXu")`', ""),
    (_TYPE, "Expected Long(777555111) to be a org.neo4j.values.storable.TextValue", ""),
    (_TYPE, 'Expected String("ZQXu") to be a org.neo4j.values.storable.NumberValue', ""),
    (_TYPE, 'Expected a numeric value but got: String("ZQXu")', "Expected a numeric value"),
    (_TYPE, "Expected a string value for `toUpper`, but got: Long(777555111)", "Expected a string value for `toUpper`"),
    (_TYPE, 'Expected to find a node at ref slot 0 but found String("ZQXu") instead', ""),
    (_TYPE, "Invalid input for function 'elementId()': Expected String(\"ZQXu\") to be a node or relationship",
     "Invalid input for function 'elementId()'"),
    (_TYPE,
     "Invalid input for function 'properties()': Expected a node, a relationship or a literal map but got ZQXu",
     "Invalid input for function 'properties()': Expected a node, a relationship or a literal map"),
    (_TYPE, 'Type mismatch: expected a map but was String("ZQXu")', "Type mismatch: expected a map"),
    (_TYPE,
     'Property values can only be of primitive types or arrays thereof. Encountered: Map{ZQXk -> String("ZQXv")}.',
     "Property values can only be of primitive types or arrays thereof"),
    (_TYPE, "integer, 777555111777555111777555111, is too large", ""),
    (_ARGUMENT, "Cannot assign String(\"ZQXu\") to field 'ZQXu'", "Cannot assign"),
    (_ARGUMENT, 'Cannot construct date time from: String("ZQXu")', "Cannot construct date time"),
    (_ARGUMENT, "Invalid value for DayOfMonth (valid values 1 - 28/31): 777555111",
     "Invalid value for DayOfMonth (valid values 1 - 28/31)"),
    (_ARGUMENT, "No such field: ZQXk", "No such field"),
    (_ARGUMENT, "Invalid input '7.77555111E9' is not a valid argument", ""),
    (_ARGUMENT, "Unknown coordinate reference system: ZQXu", "Unknown coordinate reference system"),
    (_SYNTAX, "Invalid value for TimeZone: Text 'ZQXu' could not be parsed at index 0", "Invalid value for TimeZone"),
    (_SYNTAX, "Invalid value for TimeZone: Text 'ZQX (line 1, column 1 (offset: 0))", "Invalid value for TimeZone"),
    (_SYNTAX, "Text cannot be parsed to a Date\n\"ZQXu\"", "Text cannot be parsed to a Date"),
    ("ClientError.Statement.SemanticError",
     "Cannot merge the following node because of null property value for 'k': (:A {k: null, j: 'ZQXu'})",
     "Cannot merge the following node because of null property value for 'k'"),
    ("ClientError.Statement.ArithmeticError", "long overflow", "long overflow"),
    ("ClientError.Schema.ConstraintValidationFailed", "Node(0) already exists with label `P` and property `k` = 'ZQXu'",
     "Node(0) already exists with label `P` and property `k`"),
    (_PROCEDURE, "Invalid call signature for DateFunction: Provided input was [Long(777555111)]",
     "Invalid call signature for DateFunction"),
    (_CRASH, "Cannot convert to ZoneId: Long(777555111)", "Cannot convert to ZoneId"),
    (_CRASH, "Expected an integer between -2147483648 and 2147483647, but got: 777555111",
     "Expected an integer between -2147483648 and 2147483647"),
    (_CRASH,
     "Property value is too large to index, please see index documentation for limitations. Index: Index( id=3, "
     "name='keys', type='RANGE', schema=(:P {k}), indexProvider='range-1.0' ), element id: ZQXu",
     "Property value is too large to index, please see index documentation for limitations. Index: Index( id=3, "
     "name='keys', type='RANGE', schema=(:P {k})"),
    (_CRASH, "Unknown field: ZQXk", "Unknown field"),
    (_CRASH, "Unsupported unit: ZQXu", "Unsupported unit"),
    (_CRASH, "month must be an integer value, but was a StringWrappingStringValue", "month must be an integer value"),
)  # fmt: skip
"""Code, message, and what is shown of it beside the code; nothing of a form that is not known."""
OF_RULES = (
    (_SYNTAX, "Unknown function 'nosuch' (line 2, column 8 (offset: 7))\n\"RETURN nosuch($x)\"",
     "Unknown function 'nosuch' (line 2, column 8 of the query)"),
    (_SYNTAX, "Type mismatch: expected String or List<String> but was Integer (line 1, column 19 (offset: 18))",
     "Type mismatch: expected String or List<String> but was Integer (line 1, column 19 of the query)"),
    ("ClientError.Statement.ArithmeticError", "/ by zero", "/ by zero (Neo.ClientError.Statement.ArithmeticError)"),
    ("ClientError.Statement.ParameterMissing", "Expected parameter(s): customer, y",
     "Expected parameter(s): customer, y (Neo.ClientError.Statement.ParameterMissing)"),
    ("ClientError.Procedure.ProcedureNotFound", "There is no procedure with the name `no.such` registered for this",
     "There is no procedure with the name `no.such` (Neo.ClientError.Procedure.ProcedureNotFound)"),
    (_PROCEDURE, "Failed to invoke procedure `db.index.fulltext.queryNodes`: Caused by: no such index: ZQXu",
     "Failed to invoke procedure `db.index.fulltext.queryNodes` (Neo.ClientError.Procedure.ProcedureCallFailed)"),
    ("ClientError.Security.Forbidden", "Create node with labels 'Person' is not allowed for user 'graphweft'.",
     "Create node with labels 'Person' is not allowed for user 'graphweft'."),
)  # fmt: skip


def failure_of(code: str, message: str) -> QueryFailed:
    # As the driver makes them of an answer.
    failure = translate(Neo4jError._hydrate_neo4j(code=f"Neo.{code}", message=message))
    assert isinstance(failure, QueryFailed)
    return failure


@pytest.mark.parametrize(("code", "message", "shown"), OF_VALUES)
def test_an_error_about_a_value_does_not_quote_it(code: str, message: str, shown: str) -> None:
    failure = failure_of(code, message)
    text = str(failure)
    assert failure.of_value
    assert f"Neo.{code}" in text
    assert "ZQX" not in text
    assert "777555111" not in text
    assert text == f"{shown} (Neo.{code})" if shown else "run the query with example values" in text


@pytest.mark.parametrize(("code", "message", "shown"), OF_RULES)
def test_an_error_of_a_rule_names_what_is_in_its_text(code: str, message: str, shown: str) -> None:
    failure = failure_of(code, message)
    assert (str(failure), failure.of_value) == (shown, False)


def test_an_error_of_an_unknown_kind_is_shown_by_its_code() -> None:
    text = str(failure_of("ClientError.Statement.New", 'A later version says: String("ZQXu")'))
    assert "Neo.ClientError.Statement.New" in text
    assert "ZQX" not in text
    lost = translate(Neo4jError._hydrate_neo4j(code="Neo.DatabaseError.General.UnknownError", message="ZQXu"))
    assert isinstance(lost, GraphUnavailable)
    assert "ZQX" not in str(lost)


def test_a_long_message_is_cut() -> None:
    text = str(failure_of(_SYNTAX, f"Invalid input '{'x' * 9_000}' (line 1, column 1 (offset: 0))"))
    assert len(text) < 500
    assert text.endswith("… (line 1, column 1 of the query)")


def test_an_answer_that_cannot_be_read_is_no_outage() -> None:
    failure = translate(BrokenRecordError("Record contains broken data at 0 ('born')"))
    assert isinstance(failure, QueryFailed)
    assert failure.of_value
    assert "at 0 ('born')" in str(failure)
