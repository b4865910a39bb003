"""JSON Schemas of all messages between processes, for runtimes in other languages.

The models are the source: ``python -m tools.schemas --write`` writes the committed files beside this
package, and ``--check`` lists stale ones. Models are not generated from schemas, because a schema cannot express
validators such as the one for extension names.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field, StringConstraints, create_model
from pydantic.json_schema import GenerateJsonSchema

from graphweft_contracts.context import ContextReply, ContextRequest
from graphweft_contracts.dead_letters import DeadLetter
from graphweft_contracts.events import Event, Payload, registered_payloads
from tools import asyncapi

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_RENEW: Final = "python -m tools.schemas --write"


def schemas() -> dict[str, dict[str, Any]]:
    """Return every schema by its name; the file is ``schemas/<name>.json``.

    Each schema is self-contained. ``wire.decode`` accepts every event that the schema accepts; readers must check
    formats such as ``date-time`` themselves.
    """
    found = {
        "event": _event(
            _with_payload(Payload), "Any event, also of a type of your own. `data.context` holds context variables."
        )
    }
    for name, payload in registered_payloads().items():
        found[name] = _event(_with_payload(payload, name), payload.__doc__ or name)
    for name, model in (
        ("context_request", ContextRequest),
        ("context_reply", ContextReply),
        ("dead_letter", DeadLetter),
    ):
        found[name] = model.model_json_schema(schema_generator=_Untitled)
    return {
        name: {"$schema": DIALECT, "$id": f"urn:graphweft:{name}", **schema} for name, schema in sorted(found.items())
    }


def generated() -> dict[Path, str]:
    """Return the text of every generated file by its path below the output directory."""
    files = {
        Path("schemas", f"{name}.json"): json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
        for name, schema in schemas().items()
    }
    files[Path("asyncapi.yaml")] = asyncapi.render()
    return files


def stale(out: Path) -> list[str]:
    """Return one line for each file below ``out`` that is missing, differs from the models, or is not generated."""
    wanted = generated()
    problems: list[str] = []
    for path, text in wanted.items():
        file = out / path
        if not file.is_file():
            problems.append(f"{file}: missing")
        elif file.read_text(encoding="utf-8") != text:
            problems.append(f"{file}: stale")
    strays = {file.relative_to(out) for file in out.glob("schemas/*.json")} - wanted.keys()
    return problems + [f"{out / path}: no model has this name: delete the file" for path in sorted(strays)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the generated files, or check them; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.schemas", description=__doc__)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", action="store_true", help="write the files")
    action.add_argument("--check", action="store_true", help="exit with 1 when a file is not what --write would write")
    parser.add_argument("--out", type=Path, default=Path("contracts"), help="directory of the files (contracts)")
    options = parser.parse_args(arguments)
    out: Path = options.out
    if options.write:
        for path, text in generated().items():
            file = out / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    problems = stale(out)
    if problems:
        sys.stdout.write("".join(f"{line}\n" for line in problems) + f"renew them with: {_RENEW} --out {out}\n")
    return 1 if problems else 0


class _Untitled(GenerateJsonSchema):
    """Omits titles that only repeat the names of fields."""

    def field_title_should_be_set(self, schema: object) -> bool:
        return False


def _with_payload(payload: type[Payload], name: str | None = None) -> type[BaseModel]:
    """Return the envelope with a payload model, and with the event type ``name`` if given."""
    required = any(field.is_required() for field in payload.model_fields.values())
    fields: dict[str, Any] = {"data": (payload, ... if required else Field(default_factory=payload))}
    if name is not None:
        fields["type"] = (Literal[name], ...)
    if payload.chat_pattern is not None:
        fields["chatid"] = (
            Annotated[str, StringConstraints(min_length=1, pattern=payload.chat_pattern, max_length=256)],
            ...,
        )
    return create_model("Event" if name is None else f"{payload.__name__}Event", __base__=Event, **fields)


def _event(model: type[BaseModel], description: str) -> dict[str, Any]:
    return {**model.model_json_schema(schema_generator=_Untitled), "description": description}


if __name__ == "__main__":
    sys.exit(main())
