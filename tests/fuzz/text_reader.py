"""Compiles and evaluates random conditions, in a process of its own: ``python -m tests.fuzz.text_reader SEED COUNT``.

Before the library reads a text, the text is on standard output, so the last one is the one that ended the process.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any, Final

from tests.fuzz.texts import Texts

from graphweft_rules.matching.conditions import ConditionError, compile_condition, compile_group
from graphweft_rules.matching.parameters import Scope

_VALUES: Final[dict[str, Any]] = {"a": 1, "list": [1, "b", {"x": 1}], "map": {"x": 1}, "text": "aaa"}


def main() -> None:
    texts = Texts(int(sys.argv[1]))
    scope = Scope(context={"user_id": "u"}, event=_VALUES, app_id="a", chat_id="c")
    found: Counter[str] = Counter()
    sound: list[str] = []
    for _ in range(int(sys.argv[2])):
        text = texts.condition()
        print(repr(text), flush=True)
        try:
            condition = compile_condition(text)
        except ConditionError as error:
            found["refused" if "more than" in str(error) or "characters" in str(error) else "error"] += 1
            continue
        found[
            "decided" if not (verdict := condition.evaluate(scope)).error and not verdict.missing else "undecided"
        ] += 1
        sound.append(text)
        if len(sound) == 16:
            group = compile_group(tuple(sound))
            found["groups"] += group is not None and group.results(scope) is None
            sound.clear()
    print(dict(found))


if __name__ == "__main__":
    main()
