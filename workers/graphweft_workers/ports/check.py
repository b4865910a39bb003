"""What a look at something finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

_State = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One finding; ``advice`` is empty when nothing has to be done."""

    name: str
    state: _State
    found: str
    advice: str = ""
