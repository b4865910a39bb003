"""Conditions of rules: CEL with references as variables (``$context.phase == 'planning'``).

The CEL library converts all values passed to it: 23 us for a nested context, 1-3 us for a few values. So each reference
becomes a variable, and only these variables are passed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from graphweft_rules.matching.condition_cost import MOST_STEPS, ConditionCost, ConditionValues, StepCounter
from graphweft_rules.matching.condition_syntax import LITERAL, SyntaxProblem
from graphweft_rules.matching.parameters import Absent, ParamError, Reference, Scope
from graphweft_rules.text_limits import CONDITION, Piece, PieceKind, TextProblem, length_problem, problem_of

if TYPE_CHECKING:
    import cel

_PATH: Final = r"\$\w*(?:\.\w+)*"
_TOKEN: Final = re.compile(
    rf"""
      (?P<text>{LITERAL} | //[^\n]*)
    | (?P<has>\bhas\s*\(\s*(?P<tested>{_PATH})\s*\))
    | (?P<reference>{_PATH})
    | (?P<name>[^\W\d]\w*)
    | (?P<number>\d\w*(?:\.\d\w*)?)
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
PLAIN_TEXT: Final = re.compile(r"'[^'\\]*'|\"[^\"\\]*\"")
"""A literal that holds its text as it is."""
_CALL: Final = re.compile(r"\s*\(")
_BINDING: Final = re.compile(r"\.\s*(?:all|exists|exists_one|filter|map)\s*\(\s*([^\W\d]\w*)\s*,")
_LIBRARY_ERROR: Final = re.compile(
    r"ERROR: <input>:(\d+):(\d+): (?:Syntax error: )?(.*?)(?: expecting .*)?$", re.MULTILINE
)
_ROOTED: Final = re.compile(r"(?:context|event|workflow)(?:\.\w+)+")
_WORD: Final = re.compile(r"[^\W\d]\w*")
_OUR_NAMES: Final = re.compile(r"\bv(\d+_|)(?=\d)")
"""Names that variables of a program could have, without their numbers."""
_FOREIGN: Final = {
    "and": "&&",
    "or": "||",
    "not": "!",
    "is": "==",
    "=": "==",
    "===": "==",
    "<>": "!=",
    "!==": "!=",
    "none": "null",
    "nil": "null",
    "undefined": "null",
    "true": "true",
    "false": "false",
    "null": "null",
    "contains": "$event.x.contains('…')",
    "like": "$event.x.contains('…')",
    "starts": "$event.x.startsWith('…')",
    "ends": "$event.x.endsWith('…')",
    "len": "size",
}
"""Words (in lower case) and signs of Python, SQL and Cypher -> their equivalent in CEL."""
_NEAR: Final = 4
"""Maximal distance in characters from such a word to the place of the library's error."""
_PUNCTUATION: Final[dict[str, PieceKind]] = {
    **dict.fromkeys("([{", "open"),
    **dict.fromkeys(")]}", "close"),
    ",": "comma",
}
_PAIRS: Final = frozenset({"&&", "||", "==", "!=", "<=", ">="})
"""Operators of two signs."""
ENDING: Final = (KeyboardInterrupt, SystemExit, GeneratorExit)
"""Exceptions that end more than a call. A panic of the library is a ``BaseException``, and is not one of them."""
_SIGNS: Final = re.compile(r"<>|[!=]==|(?<![!<>=])=(?!=)")

_FUNCTIONS: Final = frozenset(
    {"bytes", "contains", "double", "duration", "dyn", "endsWith", "int", "matches", "size", "startsWith", "string"}
    | {"timestamp", "type", "uint", "getDate", "getDayOfMonth", "getDayOfWeek", "getDayOfYear", "getFullYear"}
    | {"getHours", "getMilliseconds", "getMinutes", "getMonth", "getSeconds"}
)
"""The library's functions, checked here because it reports an unknown one only when it is called."""
_TYPES: Final = frozenset({"bool", "bytes", "double", "int", "list", "map", "null_type", "string", "uint"})


class ConditionError(ValueError):
    """An invalid condition. ``column`` counts characters of the condition's text from 1."""

    def __init__(self, message: str, column: int) -> None:
        super().__init__(message)
        self.column = column


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a condition holds. If it could not be decided, ``missing`` or ``error`` gives the reason."""

    holds: bool
    missing: tuple[str, ...] = ()
    """References without a value, as written."""
    error: str | None = None
    """Why the evaluation failed; never quotes a value."""


_TRUE: Final = Verdict(holds=True)
_FALSE: Final = Verdict(holds=False)
_OVER: Final = (
    f"it needs more than {MOST_STEPS} steps with these values: publish shorter lists and texts, or avoid a loop within "
    "a loop, filter(), map(), and matches() with a pattern from an event"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedProgram:
    """A condition's program that counts its steps."""

    program: cel.Program
    function: str

    @classmethod
    def of(cls, expression: str, cost: ConditionCost, function: str) -> CountedProgram:
        """Compile a valid expression so that it calls ``function``, a name that the expression does not have."""
        return cls(program=_compiled(cost.counted(expression, function)), function=function)

    def run(self, values: dict[str, object], call: Callable[..., object]) -> object:
        """Return the result. Raises ``TypeError`` or ``RuntimeError`` if ``call`` returns None, among others."""
        import cel

        return self.program.execute(cel.Context(variables=values, functions={self.function: call}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A compiled condition."""

    text: str
    program: cel.Program
    variables: tuple[tuple[str, Reference], ...]
    """Variable of the program -> the reference of its value."""
    presences: tuple[tuple[str, Reference], ...]
    """Variable of the program -> the reference that ``has()`` tests."""
    required: tuple[tuple[Reference, str], ...]
    """References, each with the text that it must equal for the condition to be true."""
    cost: ConditionCost
    counted: CountedProgram | None = None
    """The program that counts its steps; None if it has no part at which they could be counted."""

    def evaluate(self, scope: Scope) -> Verdict:
        """Tell whether the condition holds. Never raises.

        A reference without a value makes it false, unless ``&&`` or ``||`` decides without it.
        """
        values, missing = _values(self.variables, self.presences, scope)
        if self.cost.is_small(values.values()):
            return self._verdict(values, missing, None)
        # Without the largest values ``&&`` or ``||`` may decide, too.
        given = ConditionValues.of(values)
        bound = given.bound(self.cost)
        if given.is_within(bound):
            counter = None
        else:
            counter = StepCounter(self.cost, bound, given.steps)
            if counter.is_over or self.counted is None:
                return _failure(_OVER)
        verdict = self._verdict(given.values, missing, counter)
        is_over = not given.is_whole or (counter is not None and counter.is_over)
        return _failure(_OVER) if is_over and (verdict.missing or verdict.error) else verdict

    def estimate(self, size: int) -> int:
        """Return about how many steps it takes at most for an event of so many bytes."""
        return self.cost.estimate(size, [name for name, _ in self.variables])

    def _verdict(self, values: dict[str, object], missing: Sequence[str], counter: StepCounter | None) -> Verdict:
        try:
            if counter is None or self.counted is None:
                result = self.program.execute(values)
            else:
                result = self.counted.run(values, counter.call)
        except RuntimeError:
            if missing:  # the library's error for a variable without a value
                return Verdict(holds=False, missing=tuple(missing))
            return _failure("a function cannot take its arguments")
        except TypeError:
            return _failure("an operator does not fit its operands' types; convert by int(), double(), string()")
        except ArithmeticError:
            return _failure("a division by zero or a number out of range")
        except LookupError:
            return _failure("a key or an index does not exist; test for it by has() first")
        except ValueError:
            return _failure("a value is of a type or size that CEL does not know")
        if result is True:
            return _TRUE
        if result is False:
            return _FALSE
        return _failure(f"the result is of type {type(result).__name__!r}, not a boolean; write a comparison")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionGroup:
    """Conditions evaluated in one call of the library, at a third of the cost of one call for each."""

    program: cel.Program
    cost: ConditionCost
    variables: tuple[tuple[str, Reference], ...]
    presences: tuple[tuple[str, Reference], ...]

    def results(self, scope: Scope) -> Sequence[object] | None:
        """Return the result of each condition; None if one cannot be evaluated, so each must be evaluated alone."""
        values, missing = _values(self.variables, self.presences, scope)
        if missing or not self.cost.is_small(values.values()):
            return None
        try:
            found: list[object] = self.program.execute(values)
        except (RuntimeError, TypeError, ArithmeticError, LookupError, ValueError):
            return None
        return found


def _values(
    variables: Sequence[tuple[str, Reference]], presences: Sequence[tuple[str, Reference]], scope: Scope
) -> tuple[dict[str, object], list[str]]:
    """Return the values of a program's variables, and the references without a value."""
    values: dict[str, object] = {}
    missing: list[str] = []
    for name, reference in variables:
        value = reference.resolve(scope)
        if isinstance(value, Absent):
            missing.append(value.name)
        else:
            values[name] = value
    for name, reference in presences:
        values[name] = not isinstance(reference.resolve(scope), Absent)
    return values, missing


def _failure(error: str) -> Verdict:
    return Verdict(holds=False, error=error)


def too_much(text: str) -> TextProblem | None:
    """Return the first place where a condition has more than the limits allow, or None."""
    return length_problem(text, CONDITION) or problem_of(_pieces(text), CONDITION)


def comments(text: str) -> Iterator[tuple[str, int]]:
    """Yield each comment of a condition, up to the end of its line, and its offset."""
    for match in _TOKEN.finditer(text):
        if match[0].startswith("//"):
            yield match[0], match.start()


def _pieces(text: str) -> Iterator[Piece]:
    """Yield what the limits of texts measure."""
    sign = ""
    for match in _TOKEN.finditer(text):
        kind, piece, start = match.lastgroup, match[0], match.start()
        pair, sign = sign + piece, piece if kind == "other" else ""
        if piece.startswith("//") or piece.isspace():
            continue
        if kind == "name":
            yield Piece("operator" if piece == "in" else "word", piece, start)
        elif kind != "other":
            yield Piece("operand", "", start)
        elif pair in _PAIRS:  # counted at its first sign
            sign = ""
        else:
            yield Piece(_PUNCTUATION.get(piece, "operator"), piece, start)


def _compiled(expression: str) -> cel.Program:
    """Return the program of an expression. Raises ``ValueError``, and nothing else."""
    import cel  # takes 0.1 s, which commands without rules save

    try:
        return cel.compile(expression)
    except ENDING:
        raise
    except BaseException as error:
        if isinstance(error, ValueError):
            raise
        raise ValueError(f"the CEL library failed: {type(error).__name__}") from error


@lru_cache(maxsize=16_384)  # the checks of a rule file compile each condition before the rule is compiled
def compile_condition(text: str) -> Condition:
    """Compile a condition. Raises ``ConditionError`` with the column of the first mistake, and nothing else.

    A text beyond the limits is refused before the library reads it, which could end the process.
    """
    if (much := too_much(text)) is not None:
        raise ConditionError(much.message, much.start + 1)
    names = _Names(text)
    rewriting = _Rewriting(text, names)
    try:
        program = _compiled(rewriting.expression)
    except ValueError as error:
        raise rewriting.explain(str(error)) from None
    rewriting.check_names(program)
    try:
        cost = ConditionCost.of(rewriting.expression, names.variables)
        counted = CountedProgram.of(rewriting.expression, cost, names.function) if cost.regions else None
    except (SyntaxProblem, RecursionError, ValueError):
        raise ConditionError(
            f"{text[:80]!r} has too many levels, or a form whose steps cannot be counted: write a simpler one", 1
        ) from None
    return Condition(
        text=text,
        program=program,
        cost=cost,
        counted=counted,
        variables=tuple(names.variables.items()),
        presences=tuple(names.presences.items()),
        required=tuple(_required(text)),
    )


@lru_cache(maxsize=1_024)  # many agents and event types share the same rules
def compile_group(texts: tuple[str, ...]) -> ConditionGroup | None:
    """Compile valid conditions into one program; None if the library refuses them together."""
    names = _Names("\n".join(texts))
    # The line break ends a comment on a condition's last line.
    items = "\n, ".join(_Rewriting(text, names).expression for text in texts)
    try:
        program = _compiled(f"[{items}\n]")
        cost = ConditionCost.of(f"[{items}\n]", names.variables)
    except (ValueError, RecursionError):
        return None
    return ConditionGroup(
        program=program,
        cost=cost,
        variables=tuple(names.variables.items()),
        presences=tuple(names.presences.items()),
    )


def _required(text: str) -> Iterator[tuple[Reference, str]]:
    """Yield the equalities that a conjunction requires: ``$event.tool_name == 'search' && …``.

    In CEL a false operand makes ``&&`` false even if the other operand cannot be evaluated.
    """
    for operand in conjunction(text):
        match operand:
            case [("reference", path), ("other", "="), ("other", "="), ("text", literal)]:
                pass
            case [("text", literal), ("other", "="), ("other", "="), ("reference", path)]:
                pass
            case _:
                continue
        if PLAIN_TEXT.fullmatch(literal):
            yield Reference.parse(path), literal[1:-1]


def conjunction(text: str) -> list[list[tuple[str, str]]]:
    """Return the operands that ``&&`` joins in a condition, as kinds and texts of tokens; none if it has another form.

    The text of the kind ``has`` is the reference.
    """
    depth = 0
    operand: list[tuple[str, str]] = []
    operands = [operand]
    for match in _TOKEN.finditer(text):
        piece = match[0]
        depth += (piece in "([{") - (piece in ")]}")
        if depth == 0 and (piece in "|?" or piece.startswith("//")):
            return []
        if depth == 0 and piece == "&":
            operand = []
            operands.append(operand)
        elif not piece.isspace():
            operand.append((match.lastgroup or "", match["tested"] or piece))
    return [each for each in operands if each]


def conjuncts(text: str) -> tuple[str, ...]:
    """Return the operands that ``&&`` joins in a condition; the whole text if it has another form."""
    depth = start = 0
    found: list[str] = []
    for match in _TOKEN.finditer(text):
        piece = match[0]
        depth += (piece in "([{") - (piece in ")]}")
        if piece.startswith("//") or (depth == 0 and piece in "|?"):
            return (text,)
        if depth == 0 and piece == "&":
            found.append(text[start : match.start()].strip())
            start = match.end()
    found.append(text[start:].strip())
    return tuple(filter(None, found))


class _Names:
    """The variables of a program; none of their names is in the text."""

    def __init__(self, text: str) -> None:
        self.variables: dict[str, Reference] = {}
        self.presences: dict[str, Reference] = {}
        self.spelled: dict[str, str] = {}
        """Variable -> the author's text."""
        self._known: dict[tuple[str, bool], str] = {}
        """The author's text, and whether its value counts and not its presence -> variable."""
        used = set(_OUR_NAMES.findall(text))
        self._prefix = "v" if "" not in used else next(f"v{n}_" for n in range(len(used)) if f"{n}_" not in used)

    @property
    def function(self) -> str:
        """The name of a function that no text has."""
        return f"{self._prefix}{len(self.spelled)}"

    def variable(self, path: str, table: dict[str, Reference]) -> str:
        """Return the variable of a reference in ``variables`` or ``presences``. Raises ``ParamError``."""
        known = (path, table is self.variables)
        if (name := self._known.get(known)) is None:
            name = self._known[known] = f"{self._prefix}{len(self.spelled)}"
            table[name] = Reference.parse(path)
            self.spelled[name] = path
        return name


class _Rewriting:
    """The condition with variables for references, and the mapping back to the author's columns."""

    def __init__(self, text: str, variables: _Names) -> None:
        self._text = text
        self._variables = variables
        self._names: list[tuple[str, int]] = []  # bare names and their offsets
        self._marks: list[tuple[int, int]] = []  # offset in the expression -> offset in the text
        parts: list[str] = []
        length = 0
        for match in _TOKEN.finditer(text):
            part = self._rewrite(match)
            self._marks.append((length, match.start()))
            parts.append(part)
            length += len(part)
        self.expression = "".join(parts)

    def _rewrite(self, match: re.Match[str]) -> str:
        if match["has"]:
            return self._variable(match["tested"], match.start("tested"), self._variables.presences)
        if match["reference"]:
            path, method = match["reference"], ""
            if _CALL.match(self._text, match.end()):
                path, _, method = path.rpartition(".")
                method = f".{method}"
            return self._variable(path, match.start(), self._variables.variables) + method
        if match["name"]:
            self._names.append((match["name"], match.start()))
        return match[0]

    def _variable(self, path: str, offset: int, table: dict[str, Reference]) -> str:
        try:
            return self._variables.variable(path, table)
        except ParamError as error:
            raise ConditionError(str(error), offset + 1) from None

    def explain(self, message: str) -> ConditionError:
        """Turn the library's error into one line about the author's text."""
        found = _LIBRARY_ERROR.search(message)
        if found is None:
            return ConditionError(
                f"{self._text!r} is not a CEL expression: compare values, as in $context.phase == 'x'", 1
            )
        lines = self.expression.splitlines(keepends=True)
        offset = sum(len(line) for line in lines[: int(found[1]) - 1]) + int(found[2]) - 1
        what = _WORD.sub(lambda word: self._variables.spelled.get(word[0], word[0]), found[3])[:120]
        if "<EOF>" in what:
            what = "it ends too early" if self._text.strip() else "it is empty"
        column = self._column(offset)
        signs = [(sign[0], sign.start()) for sign in _SIGNS.finditer(self._text)]
        foreign = [(name, at) for name, at in (*self._names, *signs) if _FOREIGN.get(name.lower(), name) != name]
        name, at = min(foreign, key=lambda found: abs(found[1] + 1 - column), default=("", -_NEAR))
        if name and abs(at + 1 - column) <= _NEAR:
            return ConditionError(
                f"{self._text!r} is not a CEL expression: for {name!r} write {_FOREIGN[name.lower()]!r}", at + 1
            )
        return ConditionError(f"{self._text!r} is not a CEL expression: {what}", column)

    def _column(self, offset: int) -> int:
        ours, theirs = max((mark for mark in self._marks if mark[0] <= offset), default=(0, 0))
        return min(theirs + offset - ours, len(self._text)) + 1

    def check_names(self, program: cel.Program) -> None:
        """Raise ``ConditionError`` for unknown names and functions."""
        bound = set(_BINDING.findall(self.expression))
        for name in program.variables():
            if name not in self._variables.spelled and name not in bound and name not in _TYPES:
                offset = self._find(name)
                if name.lower() in _FOREIGN:
                    hint = f"for {name!r} write {_FOREIGN[name.lower()]!r}"
                    raise ConditionError(f"CEL does not know the name {name!r}: {hint}", offset + 1)
                rooted = _ROOTED.match(self._text, offset)
                hint = f"'${rooted[0]}'" if rooted else f"'$context.{name}' or '$event.{name}'"
                raise ConditionError(f"the name {name!r} is not a reference: write {hint}", offset + 1)
        for name in program.functions():
            if _WORD.fullmatch(name) and name not in _FUNCTIONS:
                close = [_FOREIGN[name]] if name in _FOREIGN else get_close_matches(name, _FUNCTIONS, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(sorted(_FUNCTIONS))}"
                raise ConditionError(f"the function {name!r} does not exist: {hint}", self._find(name) + 1)

    def _find(self, name: str) -> int:
        bare = (offset for found, offset in self._names if found == name)
        return next(bare, max(self._text.find(name), 0))
