"""Imports recorded runs, and what other stores of memories hold: makes events of what was before graphweft.

Runs:

* ``files``        reads JSON and JSON-lines files, plain or gzip, and standard input
* ``runs``         splits records into messages and other fields
* ``turns``        groups messages into turns with tool calls
* ``openai_chat``  makes events of turns

Stores:

* ``items``            reads the items of JSON lines and documents
* ``item_fields``      checks types, times and scopes of an item
* ``stored_memories``  makes events of memories, of mem0 and of any other store
* ``graphiti_export``  makes events of episodes, entities and facts
* ``stored_events``    makes an event of each item, which fits the contract and the bus
* ``report``           counts what becomes of the items
"""

from graphweft_workers.imports.files import read_runs
from graphweft_workers.imports.openai_chat import ChatImportOptions, events_of, events_of_runs
from graphweft_workers.imports.runs import ImportProblem, RecordedRun

__all__ = ("ChatImportOptions", "ImportProblem", "RecordedRun", "events_of", "events_of_runs", "read_runs")
