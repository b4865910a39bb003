"""Reads a YAML file of the operator into a pydantic model. Each fault has file, line and column."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import BaseModel, ValidationError

from graphweft_contracts import InvalidSettings

if TYPE_CHECKING:  # a command without such a file need not wait for YAML to load
    from graphweft_rules.files.model import Place
    from graphweft_rules.files.tree import Node

_UNQUOTED: Final = re.compile(r"""(?:[^'"]|'.'|': '|'<[^'>]*>')*""")
"""An error of YAML up to the value that it quotes, which may be a secret. A character or a kind of token is none."""
_LEADING: Final = re.compile(r"""(['"]).*\1 (?=is |does not |merges )""", re.DOTALL)
"""A value at the beginning of a fault, and the blank behind it."""
_OF_KEY: Final = frozenset({"repeated-key", "unquoted-key", "yaml-merge"})


def read_model[M: BaseModel](path: Path, model: type[M], *, setting: str, form: str, holds_secrets: bool = False) -> M:
    """Return the file as ``model``.

    Raises ``InvalidSettings`` with each fault and then ``form``, which shows what the file should look like. No
    value of the file is quoted, except in a fault of the YAML itself, and not even there with ``holds_secrets``.
    """
    from graphweft_rules.files.tree import plain

    root = read_tree(path, prefix=f"{setting}: ", holds_secrets=holds_secrets)
    try:
        return model.model_validate(plain(root))
    except ValidationError as error:
        faults = [
            f"{setting}: {_place(root, fault['loc'])}: {'.'.join(map(str, fault['loc'])) or 'the file'}: "
            f"{fault['msg'].removeprefix('Value error, ')}"
            for fault in error.errors(include_input=False, include_url=False, include_context=False)
        ]
        raise InvalidSettings("\n".join([*faults, form])) from None


def read_tree(path: Path, *, prefix: str = "", holds_secrets: bool = False) -> Node:
    """Return the values of a file with their places, read as strictly as rule files.

    Raises ``InvalidSettings`` with each fault of the YAML, after ``prefix``. Such a fault may quote a value, but not
    with ``holds_secrets``; keys are quoted.
    """
    from graphweft_rules.files.source import parse

    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidSettings(f"{prefix}{str(path)!r} cannot be read: {error.strerror}") from error
    root, findings = parse(data, str(path))
    if findings:
        raise InvalidSettings(
            "\n".join(
                f"{prefix}{each.place}: invalid YAML: "
                f"{_without_value(each.message) if holds_secrets and each.code not in _OF_KEY else each.message}"
                for each in findings
            )
        )
    return root


def _without_value(problem: str) -> str:
    if r"'\t'" in problem:
        return "found a tab: indent with spaces, not with tabs"
    if found := _LEADING.match(problem):
        return f"a value {problem[found.end() :]}"
    found = _UNQUOTED.match(problem)
    return problem if found is None or found[0] == problem else f"{found[0]}a value: put values in quotes"


def place_in(path: Path, *loc: str | int) -> str:
    """Return file, line and column of the value at ``loc``, or of the nearest value around it."""
    from graphweft_rules.files.source import parse

    try:
        root, _ = parse(path.read_bytes(), str(path))  # its findings may quote the value
    except OSError:
        return str(path)
    return str(_place(root, loc))


def _place(root: Node, loc: Sequence[str | int]) -> Place:
    """Return the place of the value at ``loc``, or of the nearest value around it."""
    from graphweft_rules.files.tree import Items, KeyTable

    node, place = root, root.place
    for step in loc:
        match node:
            case KeyTable() if (entry := node.entries.get(str(step))) is not None:
                node, place = entry.value, entry.key
            case Items() if isinstance(step, int) and step < len(node.items):
                node = node.items[step]
                place = node.place
            case _:
                break
    return place
