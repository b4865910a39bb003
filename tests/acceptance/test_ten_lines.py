"""The ten lines of the README, as they are printed, against `graphweft up` in an empty folder."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.edges.test_cli_memory import Up
from tests.services.environment import clean_environment
from tests.services.models import ModelServer

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
[LINES] = re.findall(r"## Ten lines\n.*?```py\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    running = Up(tmp_path)
    try:
        yield running
    finally:
        running.stop()


def test_the_second_request_of_a_new_app_has_what_the_first_one_said(up: Up, model_server: ModelServer) -> None:
    # The budget is a busy machine's; it takes no longer than the worker needs.
    model_server.answer = lambda messages: "I see."
    lines = LINES.replace('user="ada"', 'user="ada", budget_ms=20_000')
    assert lines != LINES
    done = subprocess.run(
        [sys.executable, "-c", lines], cwd=up.folder, capture_output=True, text=True, timeout=200, check=True,
        env=clean_environment(OPENAI_BASE_URL=model_server.url, OPENAI_API_KEY="none"),
    )  # fmt: skip
    assert (done.stderr, done.stdout) == ("", "I see.\nI see.\n")
    first, second = ([each["content"] for each in request.body["messages"]] for request in model_server.requests)
    assert ("My cat is called Tom." in str(first), "Retrieved data" in str(first)) == (True, False)
    assert ("What is my cat called?" in str(second), "My cat is called Tom." in str(second)) == (True, True)
