"""The texts of errors that a caller of ``Event.create`` sees."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from pydantic import ValidationError

from graphweft_contracts import Event


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"app_id": "a secret"}, "expected 1 to 64 characters from A-Z, a-z, 0-9, '_' and '-'"),
        ({"chat_id": ""}, "expected at least 1 character"),
        ({"user_id": "secret" * 50}, "expected at most 256 characters"),
        ({"type": "secret"}, "with dots in between, such as order.paid"),
        ({"time": datetime(2026, 2, 1)}, "expected a time with its zone, such as datetime.now(timezone.utc)"),
        ({"type": "memory.add", "data": {"user_id": "u", "messages": []}}, "messages"),
    ],
)
def test_a_wrong_value_is_told_in_our_words_and_not_quoted(given: dict[str, Any], said: str) -> None:
    values: dict[str, Any] = {"type": "order.paid", "app_id": "a", "chat_id": "c", **given}
    with pytest.raises(ValidationError) as refused:
        Event.create(values.pop("type"), **values)
    text = str(refused.value)
    assert said in text
    assert "pydantic.dev" not in text
    assert "secret" not in text
