"""(t) The longest that one hostile condition or text takes, beside usual ones: nothing else runs in that time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from benchmarks.harness import Bench, Result, Spread
from benchmarks.services import Services
from graphweft_contracts import Event
from graphweft_rules.matching.conditions import compile_condition
from graphweft_rules.matching.parameters import Scope
from graphweft_workers.text.redaction import redact_value

ROW: Final = "t"
_MAP: Final = {str(number): 1 for number in range(44)}
_CONDITIONS: Final[dict[str, dict[str, Any]]] = {
    "$event.xs.all(x, $event.xs.all(y, y >= 0))": {"xs": [*range(3_000)]},
    "$event.l.filter(a, a.ok == true).size() > 3": {"l": [{"ok": True, "c": _MAP}] * 2_650},
    "$event.l.filter(a, a.ok).size() > 3": {"l": [{"ok": True}] * 1_000},
    "$event.l.map(a, a.c).size() > 3": {"l": [{"ok": True, "c": _MAP}] * 100},
    "$event.a.map(x, $event.b).size() > 3": {"a": [1] * 2_600, "b": [1] * 30_000},
    "$event.tags.map(x, x + $event.b).exists(y, y == 'zz')": {"tags": ["x"] * 1_000, "b": "b" * 300_000},
    "$event.a.exists(x, x in $event.b)": {"a": ["y"] * 2_000, "b": ["z"] * 2_000},
    "$event.a.all(x, !$event.b.contains(x))": {"a": ["y"] * 1_000, "b": "z" * 500_000},
    "$event.a == $event.b": {"a": [1.5] * 40_000, "b": [1.5] * 40_000},
    "$event.s.matches($event.p)": {"s": "a" * 400, "p": "(?:a{1,50}){1,30}c"},
    "$event.a.all(x, 'b'.matches(x))": {"a": ["\\w{1,30}c"] * 9},
    "$event.a.all(x, duration(x) == duration('1h'))": {"a": ["1h"] * 3_000},
}
_USUAL: Final = ("$event.xs.all(x, x >= 0)", {"xs": [*range(5_000)]})
_UNITS: Final = (
    "sk-", "ghp_", "SG.", "eyJa.", "https://", "a:b@", "mysql -p ", "login a password ", "-----BEGIN ", "bearer ",
    "pw:", "password", "password=", "password is ", "token:1", "A_KEY=", "abcdef is our ", "\n# ", "--a ", "<password>",
    "\u043f\u0430\u0440\u043e\u043b\u044c", "\u5bc6\u7801", "aB3", "/", ".",
)  # fmt: skip
_LENGTH: Final = 4_000
_WORDS: Final = ("the quick brown fox jumps over the lazy dog and goes home; " * 100)[:_LENGTH]


async def run(bench: Bench, _services: Services) -> list[Result]:
    conditions: list[float] = []
    usual: list[float] = []
    texts: list[float] = []
    words: list[float] = []
    for _ in bench.turns("hostile", 5):
        conditions.append(max(map(_condition_ms, _CONDITIONS, _CONDITIONS.values())))
        usual.append(_condition_ms(*_USUAL))
        texts.append(max(_text_us((unit * _LENGTH)[:_LENGTH]) for unit in _UNITS))
        words.append(_text_us(_WORDS))
    return [
        _result("a condition, the slowest of 12 / a loop over 5,000 numbers", "ms", conditions, usual),
        _result("secrets of a text, the slowest of 25 / words", "us a character", texts, words),
    ]


def _condition_ms(text: str, data: dict[str, Any]) -> float:
    condition = compile_condition(text)
    scope = Scope.of_event(Event.create("a.b", app_id="app", chat_id="c", workflow="W", data=data))
    return _best_s(lambda: condition.evaluate(scope)) * 1_000


def _text_us(text: str) -> float:
    return _best_s(lambda: redact_value("text", text)) / len(text) * 1_000_000


def _best_s(work: Callable[[], object]) -> float:
    found: list[float] = []
    for _ in range(3):
        begun = time.thread_time()
        work()
        found.append(time.thread_time() - begun)
    return min(found)


def _result(title: str, unit: str, of: Iterable[float], to: Iterable[float]) -> Result:
    several, others = [*of], [*to]
    return Result(
        row=ROW,
        title=title,
        ratio=Spread.of([one / other for one, other in zip(several, others, strict=True)]),
        of=("hostile", Spread.of(several)),
        to=("usual", Spread.of(others)),
        unit=unit,
    )
