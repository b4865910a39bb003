"""All commands, and where each is.

Help imports no command: it reads the first paragraph of the docstring in the source.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, NamedTuple

_QUOTES: Final = '"""'


class CommandPlace(NamedTuple):
    """Module and function of a command."""

    module: str
    function: str

    @property
    def help(self) -> str:
        """The first paragraph of its docstring, as it stands in the source."""
        source = Path(__file__).with_name(f"{self.module}.py").read_text("utf-8")
        docstring = source.partition(f"def {self.function}(")[2].split(_QUOTES, 2)[1]
        return " ".join(docstring.partition("\n\n")[0].split())


class Group(NamedTuple):
    """Commands under one name."""

    help: str
    commands: Mapping[str, CommandPlace]
    default: str | None = None
    """The command that runs if the first argument names none."""


Role = Literal["mutation", "injection", "memory", "archive", "gateway", "console", "mcp"]
"""What ``graphweft run`` can be; who types one as a command is told so."""

COMMANDS: Final[Mapping[str, CommandPlace | Group]] = {
    "init": CommandPlace("init", "init"),
    "up": CommandPlace("run", "up"),
    "run": CommandPlace("run", "run"),
    "token": Group(
        "Tokens for the HTTP gateway.",
        {
            "new": CommandPlace("tokens", "token_new"),
            "list": CommandPlace("tokens", "token_list"),
        },
    ),
    "key": Group(
        "Keys that sign events and requests.",
        {
            "new": CommandPlace("keys", "key_new"),
        },
    ),
    "acl": CommandPlace("acl", "acl"),
    "emit": CommandPlace("emit", "emit"),
    "import": Group(
        "Publish as events what other tools recorded: runs, memories, facts.",
        {
            "openai-chat": CommandPlace("emit", "import_openai_chat"),
            "mem0": CommandPlace("import_stores", "import_mem0"),
            "graphiti": CommandPlace("import_stores", "import_graphiti"),
            "memories": CommandPlace("import_stores", "import_memories"),
        },
    ),
    "hook": CommandPlace("hook", "hook"),
    "context": CommandPlace("context", "context"),
    "query": CommandPlace("graph", "query"),
    "show": CommandPlace("show", "show"),
    "digest": CommandPlace("graph", "digest"),
    "rebuild": CommandPlace("rebuild", "rebuild"),
    "rollback": CommandPlace("rollback", "rollback"),
    "diff": CommandPlace("diff", "diff"),
    "why": CommandPlace("why", "why"),
    "archive": Group(
        "The archive of the log: copy what is on the bus now, check it.",
        {
            "now": CommandPlace("archive", "archive_now"),
            "verify": CommandPlace("archive", "archive_verify"),
        },
    ),
    "trim": CommandPlace("archive", "trim_bus"),
    "erase": CommandPlace("erase", "erase"),
    "export": CommandPlace("export", "export"),
    "restore": CommandPlace("restore", "restore"),
    "memory": Group(
        "Memories of agents: add, search, list, update, forget, erase.",
        {
            "add": CommandPlace("memory", "memory_add"),
            "search": CommandPlace("memory", "memory_search"),
            "list": CommandPlace("memory", "memory_list"),
            "profile": CommandPlace("memory", "memory_profile"),
            "get": CommandPlace("memory_records", "memory_get"),
            "update": CommandPlace("memory_records", "memory_update"),
            "embed": CommandPlace("memory", "memory_embed"),
            "forget": CommandPlace("memory", "memory_forget"),
            "erase": CommandPlace("memory", "memory_erase"),
        },
    ),
    "eval": Group(
        "Measure what the memory finds, by questions whose answers are known. `eval FILE` is `eval run FILE`.",
        {
            "run": CommandPlace("evaluate", "eval_run"),
            "collect": CommandPlace("evaluate", "eval_collect"),
        },
        default="run",
    ),
    "status": CommandPlace("status", "status"),
    "events": Group(
        "Events on the bus: follow them, show one, and why it has no effect.",
        {
            "tail": CommandPlace("events_tail", "events_tail"),
            "show": CommandPlace("events", "events_show"),
            "why": CommandPlace("events", "events_why"),
        },
    ),
    "capacity": CommandPlace("capacity", "capacity"),
    "coverage": CommandPlace("coverage", "coverage"),
    "order": CommandPlace("order", "order"),
    "bus": Group(
        "The bus: mend what takes no events or requests.",
        {
            "mend": CommandPlace("bus", "bus_mend"),
        },
    ),
    "dlq": Group(
        "Dead letters: events and mutations that could not be applied.",
        {
            "list": CommandPlace("dead_letters", "dlq_list"),
            "show": CommandPlace("dead_letters", "dlq_show"),
            "retry": CommandPlace("dead_letters", "dlq_retry"),
            "drop": CommandPlace("dead_letters", "dlq_drop"),
            "skip": CommandPlace("dead_letters", "dlq_skip"),
        },
    ),
    "rules": Group(
        "Rule sets in the log: make them active, list, compare. The JSON Schema of rule files.",
        {
            "push": CommandPlace("rules", "rules_push"),
            "list": CommandPlace("rules", "rules_list"),
            "show": CommandPlace("rules", "rules_show"),
            "diff": CommandPlace("rules", "rules_diff"),
            "rollback": CommandPlace("rules", "rules_rollback"),
            "unset": CommandPlace("rules", "rules_unset"),
            "ignore": CommandPlace("rules", "rules_ignore"),
            "schema": CommandPlace("rules_schema", "rules_schema"),
        },
    ),
    "agent-zero": Group(
        "Install or remove the plugin for Agent Zero.",
        {
            "install": CommandPlace("agent_zero", "agent_zero_install"),
            "uninstall": CommandPlace("agent_zero", "agent_zero_uninstall"),
        },
    ),
    "lint": CommandPlace("checks", "lint"),
    "try": CommandPlace("try_rules", "try_rules"),
    "test": CommandPlace("rule_tests", "rule_tests"),
    "doctor": CommandPlace("checks", "doctor"),
    "demo": CommandPlace("demo", "demo"),
}
"""In the order of ``--help``."""
