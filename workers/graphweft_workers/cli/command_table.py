"""All commands: where each is, and the line of it in ``--help``, so that help imports no command.

The line is the first paragraph of the command's docstring; a test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class CommandPlace(NamedTuple):
    """Module and function of a command, and the first paragraph of its help."""

    module: str
    function: str
    help: str


class Group(NamedTuple):
    """Commands under one name."""

    help: str
    commands: Mapping[str, CommandPlace]


COMMANDS: Final[Mapping[str, CommandPlace | Group]] = {
    "init": CommandPlace(
        "init",
        "init",
        "Write a small project that runs: rules, tests of them, their JSON Schema, and a script. Overwrites nothing.",
    ),
    "up": CommandPlace("run", "up", "Run everything on this machine: bus, graph and services. Ctrl-C stops it."),
    "run": CommandPlace(
        "run",
        "run",
        "Run one role until SIGTERM. It uses the servers that GRAPHWEFT_BUS_URL and GRAPHWEFT_GRAPH_URL name.",
    ),
    "token": Group(
        "Tokens for the HTTP gateway.",
        {
            "new": CommandPlace(
                "tokens",
                "token_new",
                "Make a token for one app. Prints it once, with the line for the file of GRAPHWEFT_GATEWAY_TOKENS.",
            ),
            "list": CommandPlace(
                "tokens",
                "token_list",
                "Show the tokens in the file of GRAPHWEFT_GATEWAY_TOKENS: name, app, roles, workflows and end.",
            ),
        },
    ),
    "key": Group(
        "Keys that sign events and requests.",
        {
            "new": CommandPlace(
                "keys",
                "key_new",
                "Make a key that signs events. Prints it once, with the line for the file of GRAPHWEFT_SIGNING_KEYS.",
            ),
        },
    ),
    "acl": CommandPlace(
        "acl", "acl", "Print what gives a user of a server exactly the rights of a role. It changes nothing."
    ),
    "emit": CommandPlace(
        "emit",
        "emit",
        "Publish events. Those of a file go out in blocks, each checked first; those of standard input at once.",
    ),
    "import": Group(
        "Publish as events what other tools recorded: runs, memories, facts.",
        {
            "openai-chat": CommandPlace(
                "emit",
                "import_openai_chat",
                "Publish recorded chat-completion runs as events. A second import of the same file has no effect.",
            ),
            "mem0": CommandPlace("import_stores", "import_mem0", "Import the memories that `get_all` of mem0 returns."),
            "graphiti": CommandPlace(
                "import_stores",
                "import_graphiti",
                "Import the episodes, entities and facts of Graphiti. No model reads the facts again.",
            ),
            "memories": CommandPlace(
                "import_stores",
                "import_memories",
                "Import memories of any other store: JSON with text and user_id, optionally id, time and role.",
            ),
        },
    ),
    "hook": CommandPlace(
        "hook",
        "hook",
        "Record what a coding agent does, and print context for it: a command for the hooks of Claude Code and Codex.",
    ),
    "context": CommandPlace(
        "context",
        "context",
        "Request the context of one agent turn, as a runtime would, and print the text that the agent would get.",
    ),
    "query": CommandPlace("graph", "query", "Read an app's graph, as it is or as it was."),
    "show": CommandPlace(
        "show",
        "show",
        "Draw a part of an app's graph: some nodes of the largest labels, and some of their neighbours.",
    ),
    "digest": CommandPlace(
        "graph",
        "digest",
        "Print a hash over the content of an app's graph. Equal graphs have equal digests, however they were built.",
    ),
    "rebuild": CommandPlace(
        "rebuild",
        "rebuild",
        "Build an app's graph again from the log, as a new graph beside the live one, which stays as it is "
        "without --swap.",
    ),
    "rollback": CommandPlace(
        "rollback",
        "rollback",
        "Put the graph of before the last swap back in its place, with the events that came since.",
    ),
    "diff": CommandPlace(
        "diff",
        "diff",
        "Show what other rules would have made of an app's history: nodes, relationships, properties, and failures.",
    ),
    "why": CommandPlace("why", "why", "Show which events wrote a node, by which rules, and what each changed."),
    "archive": Group(
        "The archive of the log: copy what is on the bus now, check it.",
        {
            "now": CommandPlace(
                "archive",
                "archive_now",
                "Copy all entries that are on the bus now into the archive, and end. `graphweft run archive` goes on.",
            ),
            "verify": CommandPlace(
                "archive",
                "archive_verify",
                "Read the whole archive: hashes, order, gaps, rules, and whether the bus continues it. A fault exits "
                "with 1.",
            ),
        },
    ),
    "trim": CommandPlace(
        "archive",
        "trim_bus",
        "Remove from the bus what is archived and applied. Commands and workers read it from the archive afterwards.",
    ),
    "erase": CommandPlace(
        "erase",
        "erase",
        "Erase a user, or a whole app, from the log, the archive, dead letters, snapshots, the graph and caches.",
    ),
    "export": CommandPlace(
        "export",
        "export",
        "Write one app into a file: its events, rule sets and dead letters, and the digest of its graph.",
    ),
    "restore": CommandPlace(
        "restore",
        "restore",
        "Bring an app back from a file of `graphweft export`, and prove that its graph has the digest in the file.",
    ),
    "memory": Group(
        "Memories of agents: add, search, list, update, forget, erase.",
        {
            "add": CommandPlace(
                "memory",
                "memory_add",
                "Remember texts, or the messages of a file, within a scope. A file is checked in full first.",
            ),
            "search": CommandPlace(
                "memory",
                "memory_search",
                "Search the memories of a scope, as a runtime would, and print the text that an agent would get.",
            ),
            "list": CommandPlace(
                "memory",
                "memory_list",
                "List the memories of a scope, the latest first. The command reads the graph and needs no responder.",
            ),
            "get": CommandPlace(
                "memory_records",
                "memory_get",
                "Show a memory, and what it said before it was updated. The command reads the graph and needs no "
                "responder.",
            ),
            "update": CommandPlace(
                "memory_records",
                "memory_update",
                "Change a memory: what it says, its tags, its metadata, or whether it is pinned. What it said before "
                "is kept.",
            ),
            "embed": CommandPlace(
                "memory",
                "memory_embed",
                "Make vectors of the memories that have none of the present embedder, such as after it has changed.",
            ),
            "forget": CommandPlace(
                "memory",
                "memory_forget",
                "Forget memories: by their ids, or those of a scope that pass filters. Facts, preferences and "
                "summaries stay.",
            ),
            "erase": CommandPlace(
                "memory",
                "memory_erase",
                "Erase all memories of a user, in every scope, for ever. A replay of the events does not restore them.",
            ),
        },
    ),
    "status": CommandPlace(
        "status",
        "status",
        "Show the position and the lag of every partition, apps that are behind, the use and quotas of apps, "
        "the archive, and what had no effect.",
    ),
    "events": Group(
        "Events on the bus: follow them, show one, and why it has no effect.",
        {
            "tail": CommandPlace(
                "events_tail",
                "events_tail",
                "Show the newest events of the bus, the newest last. Workers are not disturbed.",
            ),
            "show": CommandPlace(
                "events",
                "events_show",
                "Show one event as a whole, where it lies, whether it took effect, and its copies and retries.",
            ),
            "why": CommandPlace(
                "events",
                "events_why",
                "Explain what an event did and why: the active rules, which match and which do not, skips and dead "
                "letters.",
            ),
        },
    ),
    "coverage": CommandPlace(
        "coverage", "coverage", "Count which events match no rule, which mutations never match, and which are skipped."
    ),
    "order": CommandPlace(
        "order",
        "order",
        "Show in which order events take effect, or change it: all events of an app in log order, or those of a chat.",
    ),
    "bus": Group(
        "The bus: mend what takes no events or requests.",
        {
            "mend": CommandPlace(
                "bus",
                "bus_mend",
                "Mend a partition that takes no events, or whose end the bus lost, or the queue of context requests.",
            ),
        },
    ),
    "dlq": Group(
        "Dead letters: events and mutations that could not be applied.",
        {
            "list": CommandPlace(
                "dead_letters",
                "dlq_list",
                "List dead letters, oldest first. One letter may stand for many events of a partition: see its count.",
            ),
            "show": CommandPlace(
                "dead_letters", "dlq_show", "Show one dead letter with its (first) event, which may hold personal data."
            ),
            "retry": CommandPlace(
                "dead_letters",
                "dlq_retry",
                "Put events back on the bus after a fix. Of each event, only the mutation that failed runs again.",
            ),
            "drop": CommandPlace(
                "dead_letters",
                "dlq_drop",
                "Delete letters. Their events and mutations never take effect, in a rebuild neither: the log records "
                "it.",
            ),
            "skip": CommandPlace(
                "dead_letters",
                "dlq_skip",
                "Make the workers skip one event, as a last resort when it stops them. Restart the workers afterwards.",
            ),
        },
    ),
    "rules": Group(
        "Rule sets in the log: make them active, list, compare. The JSON Schema of rule files.",
        {
            "push": CommandPlace(
                "rules",
                "rules_push",
                "Check rules and make them active: workers and responders follow at one place of the log, without a "
                "restart.",
            ),
            "list": CommandPlace("rules", "rules_list", "List the activations of rule sets, the newest last."),
            "show": CommandPlace("rules", "rules_show", "Show the files of a rule set, by default of the active one."),
            "diff": CommandPlace(
                "rules",
                "rules_diff",
                "Show how a rule set, or a folder, differs from the active one. Exits with 0 in any case.",
            ),
            "rollback": CommandPlace(
                "rules", "rules_rollback", "Make the rule set active again that was active before the present one."
            ),
            "ignore": CommandPlace(
                "rules",
                "rules_ignore",
                "Pass over the events of a workflow on purpose: they change no graph, and are no dead letters any "
                "more.",
            ),
            "schema": CommandPlace(
                "rules_schema",
                "rules_schema",
                "Print the JSON Schema of rule files, rule tests or ontologies, with which editors complete and "
                "check them.",
            ),
        },
    ),
    "agent-zero": Group(
        "Install or remove the plugin for Agent Zero.",
        {
            "install": CommandPlace(
                "agent_zero",
                "agent_zero_install",
                "Install the plugin into an Agent Zero, or update it. Prints the files that it wrote.",
            ),
            "uninstall": CommandPlace(
                "agent_zero",
                "agent_zero_uninstall",
                "Remove the plugin's files. Files that were changed or added stay.",
            ),
        },
    ),
    "lint": CommandPlace(
        "checks",
        "lint",
        "Check rules, their tests and ontologies. Each finding has file:line:column. Exits with 1 if there are errors.",
    ),
    "try": CommandPlace(
        "try_rules",
        "try_rules",
        "Show what the rules would do with events: the queries with their parameters, and skips with the reason.",
    ),
    "test": CommandPlace(
        "rule_tests", "rule_tests", "Run the tests beside rules: the files *_test.yaml. Exits with 1 if a case fails."
    ),
    "doctor": CommandPlace(
        "checks",
        "doctor",
        "Check settings, rules and servers, and say how to fix each problem. Exits with 1 when a check fails.",
    ),
    "demo": CommandPlace(
        "demo",
        "demo",
        "Start everything, import 100 recorded runs, and show the graph and the context of an agent's turn.",
    ),
}
"""In the order of ``--help``."""
