"""What a look at something finds."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from graphweft_contracts import Layout
from graphweft_contracts.plurals import counted

_State = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One finding; ``advice`` is empty when nothing has to be done."""

    name: str
    state: _State
    found: str
    advice: str = ""


def layout_checks(stored: Layout, wanted: Layout, asked: Collection[str], spread: str = "") -> list[Check]:
    """Return a warning for each setting in ``asked``, ``partitions`` or ``order``, that the bus does not follow.

    ``spread`` says how the bus spreads events, if not simply over its partitions.
    """
    spread = spread or f"the bus spreads apps over {counted(stored.partitions, 'partition')}"
    checks: list[Check] = []
    if "partitions" in asked and wanted.partitions != stored.partitions:
        found = f"GRAPHWEFT_PARTITIONS {wanted.partitions} has no effect: {spread}, since its first use"
        advice = f"set GRAPHWEFT_PARTITIONS to {stored.partitions}, or leave it out"
        checks.append(Check(name="bus partitions", state="warn", found=found, advice=advice))
    if "order" in asked and wanted.order != stored.order:
        found = f"GRAPHWEFT_ORDER {wanted.order} has no effect: the order of the bus is {stored.order}"
        advice = f"set GRAPHWEFT_ORDER to {stored.order}, or leave it out; `graphweft order` changes that of the bus"
        checks.append(Check(name="bus order", state="warn", found=found, advice=advice))
    return checks
