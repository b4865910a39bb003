"""``python -m tools --write`` writes the files that are generated from models, ``--check`` lists stale ones."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tools import alerts, asyncapi, chart, dashboards, metrics, rule_schemas, schemas, typescript

_ROOT: Final = Path(__file__).parents[1]
_MESSAGES: Final = Path("contracts/schemas")
_RULES: Final = Path("rules/graphweft_rules/json_schemas")
_RENEW: Final = "make generate"


def generated() -> dict[Path, str]:
    """Return the text of every generated file by its path below the root."""
    return {
        **_written(_MESSAGES, schemas.schemas()),
        Path("contracts/asyncapi.yaml"): asyncapi.render(),
        Path("clients/typescript/src/contracts.ts"): typescript.render(),
        Path("docs/metrics.md"): metrics.render(),
        Path("docs/alerts.md"): alerts.page(),
        Path(alerts.ALERTS_FILE): alerts.rules(),
        **{Path(dashboards.FOLDER) / f"{name}.json": text for name, text in dashboards.dashboards().items()},
        **_written(_RULES, rule_schemas.schemas()),
        **_written(Path(chart.FOLDER), {"values.schema": chart.schema()}),
        Path(chart.FOLDER, "values.yaml"): chart.values(),
        Path(chart.PAGE): chart.page(),
    }


def stale(root: Path = _ROOT) -> list[str]:
    """Return one line for each file below ``root`` that is missing, differs from the models, or is not generated."""
    wanted = generated()
    problems: list[str] = []
    for path, text in wanted.items():
        if not (root / path).is_file():
            problems.append(f"{path}: missing")
        elif (root / path).read_text("utf-8") != text:
            problems.append(f"{path}: stale")
    found = {file.relative_to(root) for folder in (_MESSAGES, _RULES) for file in (root / folder).glob("*.json")}
    return problems + [f"{path}: no model has this name: delete the file" for path in sorted(found - wanted.keys())]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the generated files, or check them; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools", description=__doc__)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", action="store_true", help="write the files")
    action.add_argument("--check", action="store_true", help="exit with 1 when a file is not what --write would write")
    parser.add_argument("--root", type=Path, default=_ROOT, help="folder of the repository (the one of this file)")
    options = parser.parse_args(arguments)
    root: Path = options.root
    if options.write:
        for path, text in generated().items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text, "utf-8")
    problems = stale(root)
    if problems:
        sys.stdout.write("".join(f"{line}\n" for line in problems) + f"renew them with: {_RENEW}\n")
    return 1 if problems else 0


def _written(folder: Path, found: Mapping[Any, Mapping[str, Any]]) -> dict[Path, str]:
    return {
        folder / f"{name}.json": json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
        for name, schema in found.items()
    }


if __name__ == "__main__":
    sys.exit(main())
