"""The page of the Python API: what ``graphweft`` exports, from its signatures and docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any, Final

from pydantic import BaseModel

import graphweft
from graphweft import testing
from graphweft.adapters import core
from website.markdown import code, table

_MODULES: Final = ((graphweft, graphweft.__all__), (core, ("Adapter",)), (testing, testing.__all__))


def python_page() -> str:
    """Return the page."""
    parts = [
        "# Python API\n",
        "Written from the signatures and docstrings of the package. Other modules are not public. Adapters of runtimes "
        "are described in [runtimes](../runtimes/README.md).\n",
    ]
    for module, names in _MODULES:
        for name in names:
            value = getattr(module, name)
            parts.append(f"## {code(f'{module.__name__}.{name}')}\n")
            parts.extend(_class(name, value) if inspect.isclass(value) else _function(name, value))
    return "\n".join(parts)


def _class(name: str, value: type) -> Iterator[str]:
    if issubclass(value, BaseModel):
        yield _text(value)
        rows = [
            (
                code(field),
                code(_annotation(each.annotation)),
                "required" if each.is_required() else "",
                each.description or "",
            )
            for field, each in value.model_fields.items()
        ]
        yield table(("field", "type", "", "meaning"), rows)
    elif "__init__" in vars(value):
        yield from _function(name, value)
        if (init := inspect.getdoc(value.__init__)) and init != inspect.getdoc(object.__init__):
            yield _plain(init) + "\n"
    else:
        yield _text(value)
    for member, each in _members(value):
        yield f"### {code(f'{name}.{member}')}\n"
        if isinstance(each, property):
            yield _text(each)
        else:
            yield from _function(member, each)


def _members(value: type) -> Iterator[tuple[str, Any]]:
    """Give the public methods and properties that graphweft defines, those of base classes last."""
    seen: set[str] = set()
    for base in value.__mro__:
        if not base.__module__.startswith("graphweft"):
            continue
        for name, raw in vars(base).items():
            each = raw.__func__ if isinstance(raw, (classmethod, staticmethod)) else raw
            public = not name.startswith("_") and (inspect.isfunction(each) or isinstance(each, property))
            if public and name not in seen and inspect.getdoc(each):
                seen.add(name)
                yield name, each


def _function(name: str, value: Any) -> Iterator[str]:
    prefix = "async " if inspect.iscoroutinefunction(value) else ""
    yield f"```python\n{prefix}{_signature(name, value)}\n```\n"
    yield _text(value)


def _signature(name: str, value: Any) -> str:
    signature = inspect.signature(value)
    kept = [each for each in signature.parameters.values() if each.name not in ("self", "cls")]
    shown = str(signature.replace(parameters=kept))
    shown = _unquoted(shown)
    if len(name) + len(shown) <= 100:
        return name + shown
    lines = []
    star = False
    for each in kept:
        if each.kind is each.KEYWORD_ONLY and not star:
            star = True
            if not any(one.kind is one.VAR_POSITIONAL for one in kept):
                lines.append("    *,")
        star = star or each.kind is each.VAR_POSITIONAL
        lines.append(f"    {_unquoted(str(each))},")
    end = shown[shown.rindex(")") + 1 :]
    return f"{name}(\n" + "\n".join(lines) + f"\n){end}"


def _unquoted(signature: str) -> str:
    """Return a signature whose annotations have no quotes; texts keep theirs."""
    return re.sub(r"(: |-> )'([^']+)'", r"\1\2", signature)


def _annotation(annotation: Any) -> str:
    if inspect.isclass(annotation):
        return annotation.__name__
    return re.sub(r"\b(?:typing|graphweft\w*(?:\.[a-z_]+)*)\.(?=[A-Z])", "", str(annotation))


def _text(value: Any) -> str:
    return _plain(inspect.getdoc(value) or "") + "\n"


def _plain(text: str) -> str:
    """Return a docstring as Markdown: code marks of one backtick, blocks fenced."""
    text = re.sub(r"``(.+?)``", r"`\1`", text)
    lines: list[str] = []
    block = False
    for line in text.split("\n"):
        indented = line.startswith("    ")
        if indented and not block:
            lines += ["```python"]
            block = True
        elif block and line and not indented:
            while lines and not lines[-1]:
                lines.pop()
            lines += ["```", ""]
            block = False
        lines.append(line[4:] if block else line.removesuffix("::") + (":" if line.endswith("::") else ""))
    return "\n".join([*lines, "```"] if block else lines)
