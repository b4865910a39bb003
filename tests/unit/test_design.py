"""The rules of design of ``make check`` find what breaks them."""

from __future__ import annotations

from pathlib import Path

from tools.design import MOST_METHODS, definitions, faults


def found(**modules: str) -> list[str]:
    """Return the faults of modules: the name of each, and its text."""
    return [*faults([each for name, text in modules.items() for each in definitions(Path(f"{name}.py"), text)])]


def protocol(name: str, methods: int, *, base: str = "Protocol", first: int = 0) -> str:
    body = "\n".join(f"    async def m{number}(self): ..." for number in range(first, first + methods))
    return f"class {name}({base}):\n{body}\n"


def test_a_protocol_has_at_most_a_dozen_methods() -> None:
    assert found(bus=protocol("Bus", MOST_METHODS)) == []
    [line] = found(bus=protocol("Bus", MOST_METHODS + 1))
    assert line.startswith("bus.py:1: the protocol Bus has 13 methods")


def test_methods_that_a_protocol_inherits_count_too() -> None:
    parts = protocol("Log", 8)
    whole = protocol("Bus", 5, base="Log, Protocol", first=8)
    [line] = found(log=parts, bus=whole)
    assert "the protocol Bus has 13 methods" in line
    assert found(log=parts, bus=protocol("Bus", 4, base="Log, Protocol", first=8)) == []


def test_a_class_that_is_no_protocol_may_have_more() -> None:
    assert found(bus=protocol("Bus", 20, base="object")) == []


def test_two_public_classes_have_two_names() -> None:
    assert found(one="class _Run: ...", two="class _Run: ...") == []
    [line] = found(one="class Run: ...", two="\nclass Run: ...")
    assert line.startswith("one.py:1, two.py:2: several public classes are called Run")


def test_a_word_that_the_glossary_replaces_is_no_part_of_a_name() -> None:
    assert found(limits="class QuotaLimiter: ...") == []
    lines = found(lanes="class RateGate:\n    async def is_told(self): ...\ndef heed(): ...\ndef navigate(): ...\n")
    assert [line.partition(":")[0] + line.rpartition("calls it")[2] for line in lines] == [
        "lanes.py 'limiter'", "lanes.py 'count'", "lanes.py 'dead letter'", "lanes.py 'queues'",
    ]  # fmt: skip
