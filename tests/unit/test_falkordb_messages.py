"""FalkorDB's messages: what they quote of values is not shown, and an error about a value is known as one (4.22)."""

from __future__ import annotations

import pytest
from redis.exceptions import ResponseError

from graphweft_contracts import QueryFailed
from graphweft_workers.drivers.falkordb.errors import translate

OF_VALUES = {
    "year must be an integer value": "",
    "days must be a numerical value": "",
    "start must be a non-negative integer": "",
    "hour must be specified": "",
    "Invalid value for month (valid values 1 - 12)": "",
    "Did not find 'latitude' value in point map": "",
    "latitude should be within the -90 to 90 range": "",
    "datetime components map contains an unknown key": "",
    "vectorf32 expects an array of numbers": "",
    "Vector dimension mismatch, expected 2 but got 1": "",
    "unique constraint violation on node of type P": "",
    "Type mismatch: expected Map or Null but was String": "",
    "Invalid input - '777555111.000000' is not a valid argument, must be a number in the range 0.0 to 1.0":
        "Invalid input - is not a valid argument, must be a number in the range 0.0 to 1.0",
    "RediSearch: Syntax error at offset 9 near ZQXsecret\nZQX": "RediSearch: Syntax error at offset 9",
}  # fmt: skip
"""Messages, and what is shown; empty for all of it."""
OF_RULES = ("Division by zero", "Unknown function 'nosuch'", "Encountered unhandled type in inlined properties.")


@pytest.mark.parametrize("message", OF_VALUES)
def test_an_error_about_a_value_is_known_and_does_not_quote_it(message: str) -> None:
    failure = translate(ResponseError(message))
    assert isinstance(failure, QueryFailed)
    assert failure.of_value
    assert str(failure) == (OF_VALUES[message] or message)


@pytest.mark.parametrize("message", OF_RULES)
def test_an_error_that_any_value_gives_is_one_of_the_rule(message: str) -> None:
    failure = translate(ResponseError(message))
    assert isinstance(failure, QueryFailed)
    assert not failure.of_value
