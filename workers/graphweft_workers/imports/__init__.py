"""Imports recorded runs: makes events of runs from before graphweft was installed.

* ``files``        reads JSON and JSON-lines files, plain or gzip, and standard input
* ``runs``         splits records into messages and other fields
* ``messages``     validates one chat-completion message
* ``turns``        groups messages into turns with tool calls
* ``openai_chat``  makes events of turns
"""

from graphweft_workers.imports.files import read_runs
from graphweft_workers.imports.openai_chat import ImportOptions, events_of, events_of_runs
from graphweft_workers.imports.runs import ImportProblem, Run

__all__ = ("ImportOptions", "ImportProblem", "Run", "events_of", "events_of_runs", "read_runs")
