"""Writes the JSON Schemas for editors, or checks them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from graphweft_rules.json_schemas import Kind
from tools.rule_schemas.keywords import Schema
from tools.rule_schemas.ontology_file import ontology_file
from tools.rule_schemas.rule_file import rule_file
from tools.rule_schemas.rule_test_file import rule_test_file

_PROGRAM: Final = "python -m tools.rule_schemas"
_FOLDER: Final = Path("rules/graphweft_rules/json_schemas")


def schemas() -> Mapping[Kind, Schema]:
    """Return every schema by the kind of its files."""
    return {"rules": rule_file(), "test": rule_test_file(), "ontology": ontology_file()}


def generated() -> dict[str, str]:
    """Return the text of each generated file by its name."""
    return {
        f"{kind}.json": json.dumps(schema, indent=2, ensure_ascii=False) + "\n" for kind, schema in schemas().items()
    }


def stale(folder: Path) -> list[str]:
    """Return one line for each file in the folder that is missing, out of date, or not generated."""
    wanted = generated()
    found = {file.name: file.read_text("utf-8") for file in folder.glob("*.json")}
    problems = [
        f"{folder / name}: {'stale' if name in found else 'missing'}"
        for name, text in wanted.items()
        if found.get(name) != text
    ]
    strays = sorted(found.keys() - wanted.keys())
    return problems + [f"{folder / name}: no kind of file has this name: delete it" for name in strays]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the files, or check them; return the exit status."""
    parser = argparse.ArgumentParser(prog=_PROGRAM, description=__doc__)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", action="store_true", help="write the files")
    action.add_argument("--check", action="store_true", help="exit with 1 when a file is not what --write would write")
    parser.add_argument("--out", type=Path, default=_FOLDER, help=f"folder of the files ({_FOLDER})")
    options = parser.parse_args(arguments)
    out: Path = options.out
    if options.write:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in generated().items():
            (out / name).write_text(text, "utf-8")
    problems = stale(out)
    if problems:
        sys.stdout.write("".join(f"{line}\n" for line in problems) + f"renew them with: {_PROGRAM} --write\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
