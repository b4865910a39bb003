"""What commands print: a terminal obeys no character of others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from graphweft_workers.cli import output

HOSTILE = "a\x1b]0;title\x07\x1b[2Jb\rc\x9b31m\u202ed\n\te"


@pytest.mark.parametrize("way", ["say", "aligned", "table", "warn", "error", "json"])
def test_no_control_character_reaches_the_terminal(way: str, capsys: pytest.CaptureFixture[str]) -> None:
    output.stdout.cache_clear()
    output.stderr.cache_clear()
    match way:
        case "say":
            output.say(HOSTILE)
        case "aligned":
            for line in output.aligned([(HOSTILE, "x")]):
                output.say(line)
        case "table":
            output.print_table(["c"], [[HOSTILE], [{"k": HOSTILE}]])
        case "warn":
            output.warn(HOSTILE)
        case "error":
            output.print_error(ValueError(HOSTILE))
        case _:
            output.print_json({"k": HOSTILE})
    printed = capsys.readouterr()
    text = printed.out + printed.err
    output.stdout.cache_clear()
    output.stderr.cache_clear()
    assert "title" in text
    assert not set(text) & set("\x1b\x07\r\x9b\u202e")


def test_lines_and_tabs_stay(capsys: pytest.CaptureFixture[str]) -> None:
    output.say("a\n\tb \u00e9 \u65e5")
    assert capsys.readouterr().out == "a\n\tb \u00e9 \u65e5\n"


@pytest.mark.parametrize("width", [1, 20, 40])
def test_a_narrow_terminal_gets_a_line_for_each_value(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table would leave each column a character or two, or none."""
    stdout = Console(width=width, highlight=False, emoji=False)
    monkeypatch.setattr(output, "stdout", lambda: stdout)
    columns = ("app", "reason", "events", "letters", "place", "message", "")
    rows = [("acme", "no_rules", 1_000, None, "flow:1", "the event has no workflow", "active"), ("b",) * 6 + ("",)]
    output.print_table(columns, rows, title="Without effect")
    assert capsys.readouterr().out == (
        "Without effect\napp: acme\nreason: no_rules\nevents: 1,000\nletters: \nplace: flow:1\n"
        "message: the event has no workflow\n: active\n\n"
        "app: b\nreason: b\nevents: b\nletters: b\nplace: b\nmessage: b\n\n"
    )


def test_a_value_of_several_lines_does_not_pass_for_others(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stdout = Console(width=20, highlight=False, emoji=False)
    monkeypatch.setattr(output, "stdout", lambda: stdout)
    output.print_table(("role", "text", "author"), [("user", "hello\n\nrole: system\ntext: obey", "ada")])
    assert capsys.readouterr().out == "role: user\ntext: hello\n  \n  role: system\n  text: obey\nauthor: ada\n\n"


def test_a_table_that_fits_stays_a_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    stdout = Console(width=20, highlight=False, emoji=False)
    monkeypatch.setattr(output, "stdout", lambda: stdout)
    output.print_table(("id", "item"), [("o1", "a lamp for a desk")])
    output.print_table(("a", "b", "c", "d", "e", "f"), [])
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) == 20 and "id:" not in line for line in lines), lines


@pytest.mark.parametrize(
    "text", ["a lamp", "a lamp for the desk of Ada, who reads much in the evening and writes at night"]
)
@pytest.mark.parametrize("width", [60, 64, 80, 100])
def test_an_id_is_on_one_line_at_any_width(
    text: str, width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "stdout", lambda: Console(width=width, highlight=False, emoji=False))
    ids = ("0b8f6d5e-4f5c-4d39-9a6c-6f1f5f8f0b11", "airline-load")
    output.print_table(("time", "role", "text", "id", "rules"), [("2026-02-01 10:00:00Z", "user", text, *ids)])
    printed = capsys.readouterr().out
    assert all(each in printed for each in ids), printed


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
def test_a_full_disk_is_an_error_without_a_traceback() -> None:
    code = """
from graphweft_workers.cli.options import command
from graphweft_workers.cli.output import say
@command
async def talk() -> None:
    say("much")
talk()
"""
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "No space left on device: free some space" in done.stderr
