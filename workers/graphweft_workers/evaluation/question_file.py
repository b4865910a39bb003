"""Reads a file of questions; each fault has file, line and column."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from graphweft_contracts import InvalidSettings
from graphweft_contracts.memory import MemoryScope
from graphweft_rules.files.file_bytes import file_bytes
from graphweft_rules.files.findings import Finding, RulesError, errors
from graphweft_rules.files.form_reader import FormReader, Values
from graphweft_rules.files.source import parse
from graphweft_rules.files.tree import Node
from graphweft_workers.evaluation import form
from graphweft_workers.evaluation.questions import ExpectedMessage, MemoryQuestion

_TO_COMPLETE: Final = (
    "expect is empty: nobody has said yet what answers the question. Write ids, as in [m7] (in a file of "
    "`graphweft eval collect`, take the # away before those that answer it), `contains: [words]` or `nothing: true`, "
    "or remove the question"
)


def load_questions(path: Path) -> tuple[MemoryQuestion, ...]:
    """Return the questions of a file. Raises ``RulesError`` with all findings, and ``InvalidSettings``."""
    try:
        data = file_bytes(path)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InvalidSettings(f"{path}: cannot be read: {why}") from error
    questions, findings = read_questions(data, str(path))
    if errors(findings):
        raise RulesError(findings)
    return questions


def read_questions(data: bytes, file: str) -> tuple[tuple[MemoryQuestion, ...], tuple[Finding, ...]]:
    """Return the questions of a file, and its findings. If one is an error, the questions are incomplete."""
    root, findings = parse(data, file)
    reader = _Reader(findings)
    nodes = reader.table(root, form.QUESTION_FILE).items("questions")
    questions = tuple(question for node in nodes if (question := reader.question(node)) is not None)
    return questions, tuple(reader.findings)


class _Reader(FormReader):
    """The checks of one file."""

    def question(self, node: Node) -> MemoryQuestion | None:
        values = self.table(node, form.QUESTION)
        self.findings[:] = [
            replace(found, message=_TO_COMPLETE) if found.message.startswith("expect is empty") else found
            for found in self.findings
        ]
        scope = self._scope(values)
        if "nothing" in values and values.right.get("nothing") is False:
            message = "nothing is false: write true, or what the answer is (expect or contains)"
            self.error("bad-value", message, values.place_of("nothing"))
        if scope is None or not values.text("question"):
            return None
        return MemoryQuestion(
            text=values.text("question"),
            scope=scope,
            place=values.place_of("question"),
            expect=tuple(ExpectedMessage(id=id, place=place) for id, place in values.texts("expect")),
            contains=tuple(text for text, _ in values.texts("contains")),
            stale=tuple(text for text, _ in values.texts("stale")),
            tags=tuple(text for text, _ in values.texts("tags")),
        )

    def _scope(self, values: Values) -> MemoryScope | None:
        given = {field: text for key, field in form.SCOPES.items() if (text := values.text(key))}
        if not given:
            return None
        try:
            return MemoryScope(**given)
        except ValidationError as error:
            for fault in error.errors(include_input=False, include_url=False, include_context=False):
                key = next((key for key, field in form.SCOPES.items() if fault["loc"] == (field,)), "user")
                message = f"{key} is no scope: write 1 to 256 characters, without control characters and outer blanks"
                self.error("bad-value", message, values.place_of(key))
            return None
