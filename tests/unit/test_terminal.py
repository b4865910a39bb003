"""What commands print: a terminal obeys no character of others."""

from __future__ import annotations

import io

import pytest

from graphweft_workers.cli import output

HOSTILE = "a\x1b]0;title\x07\x1b[2Jb\rc\x9b31m\u202ed\n\te"


@pytest.mark.parametrize("way", ["say", "aligned", "table", "warn", "error", "json"])
def test_no_control_character_reaches_the_terminal(way: str, capsys: pytest.CaptureFixture[str]) -> None:
    output.stdout.cache_clear()
    output.stderr.cache_clear()
    file = io.StringIO()
    match way:
        case "say":
            output.say(HOSTILE)
        case "aligned":
            output.say_aligned([(HOSTILE, "x")], to=file)
        case "table":
            output.print_table(["c"], [[HOSTILE], [{"k": HOSTILE}]])
        case "warn":
            output.warn(HOSTILE)
        case "error":
            output.print_error(ValueError(HOSTILE))
        case _:
            output.print_json({"k": HOSTILE})
    printed = capsys.readouterr()
    text = printed.out + printed.err + file.getvalue()
    output.stdout.cache_clear()
    output.stderr.cache_clear()
    assert "title" in text
    assert not set(text) & set("\x1b\x07\r\x9b\u202e")


def test_lines_and_tabs_stay(capsys: pytest.CaptureFixture[str]) -> None:
    output.say("a\n\tb \u00e9 \u65e5")
    assert capsys.readouterr().out == "a\n\tb \u00e9 \u65e5\n"
