"""Recorded runs in: events made of what agents did before graphweft listened.

* ``runs``         what a record is, and what is wrong with a file
* ``files``        JSON and JSON-lines files, plain or gzip, and standard input
* ``messages``     one chat-completion message, checked
* ``openai_chat``  messages -> turns -> events
"""

from graphweft_workers.imports.files import read_runs
from graphweft_workers.imports.openai_chat import ImportOptions, events_of, events_of_runs
from graphweft_workers.imports.runs import ImportProblem, Run

__all__ = ("ImportOptions", "ImportProblem", "Run", "events_of", "events_of_runs", "read_runs")
