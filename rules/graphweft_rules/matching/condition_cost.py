"""The cost of a condition, counted in steps of about 0.5 us: see ``ConditionCost``.

What a condition costs follows what the values hold. The library converts all values. A loop copies each item,
``filter`` and ``map`` copy all that they have found at each item, ``+`` copies both sides, and a comparison reads them.
The events decide how much that is, and the library cannot stop. So a bound is computed first, from the sizes of the
values. If it is beyond the limit, the condition is evaluated in another form, which calls back at each item and in
front of what is dear.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Mapping, Sized
from dataclasses import dataclass
from itertools import chain
from math import isqrt
from typing import Final, Literal

from graphweft_rules.matching.condition_syntax import ConditionPart, parts_of, within
from graphweft_rules.matching.pattern_cost import pattern_cost

MOST_STEPS: Final = 20_000
"""Limit of steps of a condition for one event: about 10 ms."""

type CostClass = Literal["nested-loop", "copying-loop", "foreign-pattern", "costly-pattern"]
type _RegionKind = Literal["item", "kept", "found", "operand", "range", "pattern"]

_CHARACTERS: Final = 256
"""Characters of a text that weigh as much as a number."""
_QUARTERS: Final = 4
_NUMBER: Final = 2
"""Quarters of a step in which an integer, a boolean or null is weighed and converted."""
_OTHER: Final = 10
"""The same for any other value, without what it holds."""
_CHARACTERS_OF_A_QUARTER: Final = 128
_MOST: Final = 1 << 62
"""Larger sizes and costs are not told apart."""

_STEP: Final = 16
"""Costs are counted in this part of a step."""
_COPY: Final = 2
"""Of weight 1."""
_COMPARISON: Final = 1
_SEARCH: Final = 16
"""``contains`` in a text of weight 1."""
_DURATION: Final = 40 * _STEP
"""To read a text of weight 1 as a duration."""
_OPERATOR: Final = 4
_LIMIT: Final = MOST_STEPS * _STEP
_LEAST_SMALL: Final = (16_384, 4_096, 1_024, 256, 64, 16, 4, 0)
_DEAR_PATTERN: Final = MOST_STEPS // 20

_LITERALS: Final = ("constant", "text")
_LOGIC: Final = frozenset({"&&", "||"})
_SCALARS: Final = frozenset({"int", "uint", "double", "timestamp"})
_QUICK: Final = frozenset({"size", "type"})
_DEAR: Final = frozenset({"contains", "startsWith", "endsWith", "matches", "string", "bytes", "duration"})


@dataclass(frozen=True, slots=True)
class Size:
    """How large a value is, at most."""

    weight: int
    """Its own and that of all it holds. A number weighs 1; a text, a list or a map 2 and what they hold."""
    length: int = 0
    """The number of items of the longest list or map in it, itself included."""
    item: int = 0
    """The weight of the heaviest item, or key."""

    @property
    def inner(self) -> Size:
        """The size of any item."""
        return Size(self.item, min(self.length, self.item), self.item)

    def joined(self, other: Size) -> Size:
        """Return the size of two texts or lists together."""
        weight, length = min(_MOST, self.weight + other.weight), min(_MOST, self.length + other.length)
        return Size(weight, length, max(self.item, other.item))

    def __or__(self, other: Size) -> Size:
        return Size(max(self.weight, other.weight), max(self.length, other.length), max(self.item, other.item))


_SCALAR: Final = Size(1)


@dataclass(frozen=True, slots=True)
class SizedValue:
    """A value's size, and the steps to convert it."""

    size: Size
    steps: int


def sized(value: object, most: int) -> SizedValue | None:
    """Return the size of a value; None if its conversion takes more than ``most`` steps."""
    most *= _QUARTERS
    items = _items(value)
    if items is None:
        weight, spent, _ = _weighed((value,), _MOST, most)
        return SizedValue(Size(weight), spent // _QUARTERS) if spent <= most else None
    heaviest, total, spent, length = 0, 2, _OTHER, len(value)  # type: ignore[arg-type]
    for item in items:
        if item is None or isinstance(item, int):
            total += 1
            spent += _NUMBER
        else:
            weight, quarters, longest = _weighed((item,), _MOST, most - spent)
            total += weight
            spent += quarters
            heaviest, length = max(heaviest, weight), max(length, longest)
        if spent > most:
            return None
    return SizedValue(Size(total, length, max(heaviest, int(total > 2))), spent // _QUARTERS)


def _items(value: object) -> Iterable[object] | None:
    """Return the items of a list, or the keys and values of a map; None for other values."""
    if isinstance(value, list | tuple):
        return value  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, Mapping):
        return chain.from_iterable(value.items())  # pyright: ignore[reportUnknownArgumentType,reportUnknownMemberType]
    return None


def _weighed(values: Iterable[object], most: int, most_quarters: int) -> tuple[int, int, int]:
    """Return the weight of values, the quarters of steps to convert them, and the length of the longest list or map.

    Stops soon after one of the first two is too large.
    """
    weight = quarters = longest = 0
    left = [iter(values)]
    while left:
        for item in left[-1]:
            if item is None or isinstance(item, int):
                weight += 1
                quarters += _NUMBER
            else:
                weight += 2
                quarters += _OTHER
                if isinstance(item, str | bytes):
                    weight += len(item) // _CHARACTERS
                    quarters += len(item) // _CHARACTERS_OF_A_QUARTER
                elif (inner := _items(item)) is not None:
                    longest = max(longest, len(item))  # type: ignore[arg-type]
                    left.append(iter(inner))
                    break
            if weight > most or quarters > most_quarters:
                return weight, quarters, longest
        else:
            left.pop()
    return weight, quarters, longest


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A part of a condition that the counted form evaluates only after a call of the counter, by its number."""

    number: int
    kind: _RegionKind
    """``item``, ``kept`` and ``found``: evaluated at each item of a loop, the last two in ``filter`` and ``map``."""
    part: ConditionPart
    loop: int = 0
    """Of a range: the number of the region that is evaluated at its items."""

    @property
    def begin(self) -> str:
        """What the counted form has in front of the part, behind the name of the function."""
        return {"pattern": f"({self.number}, ", "kept": f"({self.number}) ? (("}.get(self.kind, f"({self.number}) ? (")

    def end(self, function: str) -> str:
        """Return what the counted form has behind the part, which may end with a comment."""
        match self.kind:
            case "pattern":
                return "\n)"
            case "kept":
                return f"\n) ? {function}(-{self.number}) : false) : false"
            case "range":
                return "\n) : [])"
            case "item" | "found":
                return "\n) : false"
            case "operand":
                return "\n) : false)"


def _regions(root: ConditionPart) -> tuple[Region, ...]:
    found: list[Region] = []

    def add(kind: _RegionKind, part: ConditionPart, loop: int = 0) -> int:
        found.append(Region(number=len(found) + 1, kind=kind, part=part, loop=loop))
        return len(found)

    for part in within(root):
        if part.kind == "loop":
            first, last = part.parts[1], part.parts[-1]
            if part.loop == "filter":
                add("range", part.parts[0], add("kept", last))
            elif part.loop == "map":
                if first is not last:
                    add("item", first)
                add("range", part.parts[0], add("found", last))
            else:
                add("item", last)
        elif part.kind in _LOGIC or part.kind == "choice":
            for operand in part.parts[1:]:
                if _is_dear(operand):
                    add("operand", operand)
        elif _is_match(part) and literal(part.parts[1]) is None:
            add("pattern", part.parts[1])
    return tuple(found)


def _is_dear(root: ConditionPart) -> bool:
    """Tell whether a part costs much for large values, what loops evaluate at each item left out."""
    left = [root]
    while left:
        part = left.pop()
        if part.kind in ("+", "in") or (part.kind == "call" and part.name in _DEAR):
            return True
        if part.kind == "<" and not any(each.kind in _LITERALS for each in part.parts):
            return True
        if part.kind in ("list", "map") and any(each.kind not in _LITERALS for each in part.parts):
            return True
        left += part.parts[:1] if part.kind == "loop" else part.parts
    return False


def _is_match(part: ConditionPart) -> bool:
    return part.kind == "call" and part.name == "matches" and part.is_method and len(part.parts) == 2


def literal(part: ConditionPart) -> str | None:
    """Return the text of a literal; None for other parts, and for literals that Python reads in another way."""
    if part.kind != "text" or part.name[0] in "bB":
        return None
    try:
        found = ast.literal_eval(part.name)
    except (ValueError, SyntaxError):
        return None
    return found if isinstance(found, str) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionCost:
    """What a condition may cost."""

    root: ConditionPart
    regions: tuple[Region, ...]
    small: int
    """Values that weigh no more together cannot reach the limit; less than 0 if that is not known."""

    @classmethod
    def of(cls, expression: str, variables: Collection[str]) -> ConditionCost:
        """Return the cost of a valid expression. Raises ``SyntaxProblem``, or ``RecursionError`` if it is too deep."""
        root = parts_of(expression)
        cost = cls(root=root, regions=_regions(root), small=-1)
        for weight in _LEAST_SMALL:
            sizes = dict.fromkeys(variables, Size(weight, weight, weight))
            if weight * _STEP * _OTHER // (2 * _QUARTERS) + Bound(cost, sizes, {}).total <= _LIMIT:
                return cls(root=root, regions=cost.regions, small=weight)
        return cost

    @property
    def classes(self) -> tuple[CostClass, ...]:
        """Why the condition is dear for large values; empty for a cheap one."""
        parts = list(within(self.root))
        loops = [part for part in parts if part.kind == "loop"]
        patterns = [literal(part.parts[1]) for part in parts if _is_match(part)]
        found: list[CostClass] = []
        if any(inner.kind == "loop" for loop in loops for body in loop.parts[1:] for inner in within(body)):
            found.append("nested-loop")
        if any(loop.loop in ("filter", "map") for loop in loops):
            found.append("copying-loop")
        if None in patterns:
            found.append("foreign-pattern")
        if any(pattern_cost(each).compiling > _DEAR_PATTERN for each in patterns if each is not None):
            found.append("costly-pattern")
        return tuple(found)

    def estimate(self, size: int, variables: Collection[str]) -> int:
        """Return about how many steps the condition takes at most for values of so many bytes of JSON."""
        weight = 2 * size // 3 + 1
        root = isqrt(weight)
        shapes = (Size(weight, weight, 1), Size(weight, root, root), Size(weight, 2, weight))
        most = max(Bound(self, dict.fromkeys(variables, shape), {}).total for shape in shapes)
        return min(MOST_STEPS, most // _STEP + weight * _OTHER // (2 * _QUARTERS))

    def is_small(self, values: Iterable[object]) -> bool:
        """Tell whether these values cannot reach the limit, in a time that does not depend on their size."""
        return _weighed(values, self.small, _MOST)[0] <= self.small

    def counted(self, expression: str, function: str) -> str:
        """Return the expression in which regions call ``function``, whose result None ends the evaluation."""
        inserts: list[tuple[int, int, int, str]] = []
        for region in self.regions:
            start, end = region.part.start, region.part.end
            bracket = "(" if region.kind in ("operand", "range") else ""
            # At the same place an inner region ends before an outer one, and begins after it.
            inserts.append((start, 1, -end, f"{bracket}{function}{region.begin}"))
            inserts.append((end, 0, -start, region.end(function)))
        pieces: list[str] = []
        done = 0
        for at, _, _, text in sorted(inserts):
            pieces += [expression[done:at], text]
            done = at
        return "".join([*pieces, expression[done:]])


class Bound:
    """What a condition costs at most for values of some sizes, without their conversion, in parts of a step."""

    def __init__(self, cost: ConditionCost, sizes: Mapping[str, Size], values: Mapping[str, object]) -> None:
        """``values`` are asked for patterns only."""
        self._numbers = {region.part: region.number for region in cost.regions}
        self._sizes = dict(sizes)
        self._values = values
        self._times = 1
        self._region = 0
        self.total = 0
        self.regions = [0] * (len(cost.regions) + 1)
        """By number: what one evaluation of the region costs, without the regions in it; at 0 the rest."""
        self.found = [0] * (len(cost.regions) + 1)
        """By number of ``kept`` and ``found``: what weighs one item that is found."""
        self.characters = [0] * (len(cost.regions) + 1)
        """By number of a pattern: the characters of its text."""
        self._size(cost.root)

    def _spend(self, cost: int) -> None:
        self.regions[self._region] = min(_MOST, self.regions[self._region] + cost)
        self.total = min(_MOST, self.total + self._times * cost)

    def _size(self, part: ConditionPart) -> Size:
        """Return the size of what a part evaluates to, and spend what that costs."""
        number = self._numbers.get(part)
        if number is None:
            return self._inside(part)
        before, self._region = self._region, number
        found = self._inside(part)
        self._region = before
        return found

    def _inside(self, part: ConditionPart) -> Size:
        kind = part.kind
        if kind == "constant":
            return _SCALAR
        if kind == "text":
            return Size(2 + len(part.name) // _CHARACTERS)
        if kind == "name":
            return self._sizes.get(part.name, _SCALAR)
        if kind == "loop":
            return self._loop(part)
        self._spend(_OPERATOR)
        sizes = [self._size(each) for each in part.parts]
        if kind == "call":
            return self._call(part, sizes)
        weight = sum(each.weight for each in sizes)
        match kind:
            case "field" | "index":
                found = sizes[0].inner
                self._spend(_COPY * found.weight)
                return found
            case "list" | "map":
                self._spend(_COPY * weight)
                return Size(
                    min(_MOST, 2 + weight),
                    max([len(sizes), *(each.length for each in sizes)]),
                    max((each.weight for each in sizes), default=0),
                )
            case "choice":
                found = sizes[-1]
                for each in sizes[1::2]:
                    found |= each
                return found
            case "+":
                found = sizes[0]
                for each in sizes[1:]:
                    found = found.joined(each)
                    self._spend(_COPY * found.weight)
                return found
            case "in":
                self._spend(_COMPARISON * weight)
            case "<":
                self._spend(_COMPARISON * (weight - max(each.weight for each in sizes)))
            case _:
                pass
        return _SCALAR

    def _call(self, part: ConditionPart, sizes: list[Size]) -> Size:
        weight = sum(each.weight for each in sizes)
        first = sizes[0] if sizes else _SCALAR
        if _is_match(part):
            self._match(part.parts[1], first)
            return _SCALAR
        if part.name in _QUICK or (part.name.startswith("get") and part.is_method):
            return _SCALAR
        match part.name:
            case "dyn":
                return first
            case "contains":
                self._spend(_SEARCH * first.weight)
            case "startsWith" | "endsWith":
                self._spend(_COPY * min(each.weight for each in sizes))
            case "duration":
                self._spend(_DURATION * weight)
            case name if name in _SCALARS:
                self._spend(_COPY * weight)
            case _:
                self._spend(_COPY * weight)
                return Size(min(_MOST, 2 + weight), max((each.length for each in sizes), default=0), weight)
        return _SCALAR

    def _match(self, pattern: ConditionPart, text: Size) -> None:
        characters = min(_MOST, text.weight * _CHARACTERS)
        known = literal(pattern)
        number = self._numbers.get(pattern)
        if number is not None:
            self.characters[number] = characters
            value = self._values.get(pattern.name) if pattern.kind == "name" else None
            if not isinstance(value, str):
                self.total = _MOST
                return
            self.total = min(_MOST, self.total + self._times * matching(value, characters))
        elif known is not None:
            self._spend(matching(known, characters))

    def _loop(self, part: ConditionPart) -> Size:
        over = self._size(part.parts[0])
        before, self._times = self._times, min(_MOST, self._times * over.length)
        outer = self._sizes.get(part.name)
        self._sizes[part.name] = over.inner
        body = _SCALAR
        for number, each in enumerate(part.parts[1:]):
            region, self._region = self._region, self._numbers.get(each, self._region)
            if number == 0:
                self._spend(_STEP + _COPY * over.item)
            self._region = region
            body = self._size(each)
        if outer is None:
            del self._sizes[part.name]
        else:
            self._sizes[part.name] = outer
        found = _SCALAR
        if part.loop in ("filter", "map"):
            weight = over.item if part.loop == "filter" else body.weight
            self.found[self._numbers[part.parts[-1]]] = weight
            most = over.length * weight
            if part.loop == "filter":
                most = min(most, over.weight)
                found = over
            else:
                found = Size(min(_MOST, 2 + most), max(over.length, body.length), weight)
            self.total = min(_MOST, self.total + self._times * _COPY * most)
        self._times = before
        return found


def matching(pattern: str, characters: int) -> int:
    """Return what it costs to look for a pattern in a text, in parts of a step."""
    return min(_MOST, _STEP * pattern_cost(pattern).matching(characters))


class StepCounter:
    """Counts the steps of one evaluation of the counted form."""

    def __init__(self, cost: ConditionCost, bound: Bound, steps: int) -> None:
        """``steps`` are those of the conversion."""
        self._regions = cost.regions
        self._bound = bound
        self._found = [0] * len(bound.found)
        self.spent = steps * _STEP + bound.regions[0]

    @property
    def is_over(self) -> bool:
        """Whether the condition needs more steps than allowed."""
        return self.spent > _LIMIT

    def call(self, number: int, pattern: object = True) -> object:
        """Count what is evaluated next; beyond the limit return None. The result is ``pattern`` if there is one."""
        bound = self._bound
        if number < 0:  # an item that ``filter`` has kept
            self._hold(-number)
        else:
            self.spent += bound.regions[number]
            region = self._regions[number - 1]
            match region.kind:
                case "range":
                    self._found[region.loop] = 0
                case "found":
                    self._hold(number)
                case "pattern":
                    if isinstance(pattern, str):
                        self.spent += matching(pattern, bound.characters[number])
                case _:
                    pass
        return pattern if self.spent <= _LIMIT else None

    def _hold(self, number: int) -> None:
        """Count the copy of all that was found."""
        self._found[number] += self._bound.found[number]
        self.spent += _COPY * self._found[number]


@dataclass(frozen=True, slots=True)
class ConditionValues:
    """The values of a condition, as far as their conversion is within the limit."""

    values: dict[str, object]
    sizes: dict[str, Size]
    steps: int
    """Of their conversion."""
    is_whole: bool
    """Whether these are all values."""

    @classmethod
    def of(cls, values: Mapping[str, object]) -> ConditionValues:
        """Measure values, the short ones first; those for which no steps are left are left out."""
        kept: dict[str, object] = {}
        sizes: dict[str, Size] = {}
        steps = 0
        for name in sorted(values, key=lambda name: _extent(values[name])):
            found = sized(values[name], MOST_STEPS - steps)
            if found is None:
                break
            kept[name], sizes[name] = values[name], found.size
            steps += found.steps
        return cls(kept, sizes, steps, len(kept) == len(values))

    def bound(self, cost: ConditionCost) -> Bound:
        """Return what a condition costs at most for these values, without their conversion."""
        return Bound(cost, self.sizes, self.values)

    def is_within(self, bound: Bound) -> bool:
        """Tell whether a condition with this bound stays within the limit."""
        return self.steps * _STEP + bound.total <= _LIMIT


def _extent(value: object) -> int:
    if isinstance(value, str):
        return len(value) // _CHARACTERS
    return len(value) if isinstance(value, Sized) else 0
