"""All commands: where each is, and the line of it in ``--help``, so that help imports no command.

The line is the first paragraph of the command's docstring; a test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class Place(NamedTuple):
    """Module and function of a command, and the first paragraph of its help."""

    module: str
    function: str
    help: str


class Group(NamedTuple):
    """Commands under one name."""

    help: str
    commands: Mapping[str, Place]


COMMANDS: Final[Mapping[str, Place | Group]] = {
    "init": Place(
        "init",
        "init",
        "Write a small project that runs: rules, tests of them, their JSON Schema, and a script. Overwrites nothing.",
    ),
    "up": Place("run", "up", "Run everything on this machine: bus, graph and services. Ctrl-C stops it."),
    "run": Place(
        "run",
        "run",
        "Run one role until SIGTERM. It uses the servers that GRAPHWEFT_BUS_URL and GRAPHWEFT_GRAPH_URL name.",
    ),
    "token": Group(
        "Tokens for the HTTP gateway.",
        {
            "new": Place(
                "tokens",
                "token_new",
                "Make a token for one app. Prints it once, with the line for the file of GRAPHWEFT_GATEWAY_TOKENS.",
            ),
            "list": Place(
                "tokens",
                "token_list",
                "Show the tokens in the file of GRAPHWEFT_GATEWAY_TOKENS: name, app, roles, workflows and end.",
            ),
        },
    ),
    "key": Group(
        "Keys that sign events and requests.",
        {
            "new": Place(
                "keys",
                "key_new",
                "Make a key that signs events. Prints it once, with the line for the file of GRAPHWEFT_SIGNING_KEYS.",
            ),
        },
    ),
    "acl": Place("acl", "acl", "Print what gives a user of a server exactly the rights of a role. It changes nothing."),
    "emit": Place(
        "emit",
        "emit",
        "Publish events. A file is checked in full first. From standard input, each valid line is sent at once.",
    ),
    "import": Group(
        "Publish as events what other tools recorded: runs, memories, facts.",
        {
            "openai-chat": Place(
                "emit",
                "import_openai_chat",
                "Publish recorded chat-completion runs as events. A second import has no effect within 10,000 entries.",
            ),
            "mem0": Place("import_stores", "import_mem0", "Import the memories that `get_all` of mem0 returns."),
            "graphiti": Place(
                "import_stores",
                "import_graphiti",
                "Import the episodes, entities and facts of Graphiti. No model reads the facts again.",
            ),
            "memories": Place(
                "import_stores",
                "import_memories",
                "Import memories of any other store: JSON with text and user_id, optionally id, time and role.",
            ),
        },
    ),
    "hook": Place(
        "hook",
        "hook",
        "Record what a coding agent does, and print context for it: a command for the hooks of Claude Code and Codex.",
    ),
    "context": Place(
        "context",
        "context",
        "Request the context of one agent turn, as a runtime would, and print the text that the agent would get.",
    ),
    "query": Place("graph", "query", "Read an app's graph, as it is or as it was."),
    "show": Place(
        "show",
        "show",
        "Draw a part of an app's graph: some nodes of the largest labels, and some of their neighbours.",
    ),
    "digest": Place(
        "graph",
        "digest",
        "Print a hash over the content of an app's graph. Equal graphs have equal digests, however they were built.",
    ),
    "rebuild": Place(
        "rebuild",
        "rebuild",
        "Build an app's graph again from the log, as a new graph beside the live one, which stays as it is "
        "without --swap.",
    ),
    "rollback": Place(
        "rollback",
        "rollback",
        "Put the graph of before the last swap back in its place, with the events that came since.",
    ),
    "diff": Place(
        "diff",
        "diff",
        "Show what other rules would have made of an app's history: nodes, relationships, properties, and failures.",
    ),
    "why": Place("why", "why", "Show which events wrote a node, by which rules, and what each changed."),
    "archive": Group(
        "The archive of the log: copy what is on the bus now, check it.",
        {
            "now": Place(
                "archive",
                "archive_now",
                "Copy all entries that are on the bus now into the archive, and end. `graphweft run archive` goes on.",
            ),
            "verify": Place(
                "archive",
                "archive_verify",
                "Read the whole archive: hashes, order, gaps, rules, and whether the bus continues it. A fault exits "
                "with 1.",
            ),
        },
    ),
    "trim": Place(
        "archive",
        "trim_bus",
        "Remove from the bus what is archived and applied. Commands and workers read it from the archive afterwards.",
    ),
    "erase": Place(
        "erase",
        "erase",
        "Erase a user, or a whole app, from the log, the archive, dead letters, snapshots, the graph and caches.",
    ),
    "export": Place(
        "export",
        "export",
        "Write one app into a file: its events, rule sets and dead letters, and the digest of its graph.",
    ),
    "restore": Place(
        "restore",
        "restore",
        "Bring an app back from a file of `graphweft export`, and prove that its graph has the digest in the file.",
    ),
    "memory": Group(
        "Memories of agents: add, search, list, forget, erase.",
        {
            "add": Place(
                "memory",
                "memory_add",
                "Remember texts, or the messages of a file, within a scope. A file is checked in full first.",
            ),
            "search": Place(
                "memory",
                "memory_search",
                "Search the memories of a scope, as a runtime would, and print the text that an agent would get.",
            ),
            "list": Place(
                "memory",
                "memory_list",
                "List the memories of a scope, the latest first. The command reads the graph and needs no responder.",
            ),
            "forget": Place(
                "memory",
                "memory_forget",
                "Forget single memories. Facts, preferences and summaries that came from them stay.",
            ),
            "erase": Place(
                "memory",
                "memory_erase",
                "Erase all memories of a user, in every scope, for ever. A replay of the events does not restore them.",
            ),
        },
    ),
    "status": Place(
        "status",
        "status",
        "Show the position and the lag of every partition, apps that are behind, the use and quotas of apps, "
        "the archive, and what had no effect.",
    ),
    "events": Group(
        "Events on the bus: follow them, show one, and why it has no effect.",
        {
            "tail": Place(
                "events_tail",
                "events_tail",
                "Show the newest events of the bus, the newest last. Workers are not disturbed.",
            ),
            "show": Place(
                "events",
                "events_show",
                "Show one event as a whole, where it lies, whether it took effect, and its copies and retries.",
            ),
            "why": Place(
                "events",
                "events_why",
                "Explain what an event did and why: the active rules, which match and which do not, skips and dead "
                "letters.",
            ),
        },
    ),
    "coverage": Place(
        "coverage", "coverage", "Count which events match no rule, which mutations never match, and which are skipped."
    ),
    "order": Place(
        "order",
        "order",
        "Show in which order events take effect, or change it: all events of an app in log order, or those of a chat.",
    ),
    "dlq": Group(
        "Dead letters: events and mutations that could not be applied.",
        {
            "list": Place(
                "dead_letters",
                "dlq_list",
                "List dead letters, oldest first. One letter may stand for many events of a partition: see its count.",
            ),
            "show": Place(
                "dead_letters", "dlq_show", "Show one dead letter with its (first) event, which may hold personal data."
            ),
            "retry": Place(
                "dead_letters",
                "dlq_retry",
                "Put events back on the bus after a fix. Of each event, only the mutation that failed runs again.",
            ),
            "drop": Place(
                "dead_letters",
                "dlq_drop",
                "Delete letters. Their events and mutations never take effect, in a rebuild neither: the log records "
                "it.",
            ),
            "skip": Place(
                "dead_letters",
                "dlq_skip",
                "Make the workers skip one event, as a last resort when it stops them. Restart the workers afterwards.",
            ),
        },
    ),
    "rules": Group(
        "Rule sets in the log: make them active, list, compare. The JSON Schema of rule files.",
        {
            "push": Place(
                "rules",
                "rules_push",
                "Check rules and make them active: workers and responders follow at one place of the log, without a "
                "restart.",
            ),
            "list": Place("rules", "rules_list", "List the activations of rule sets, the newest last."),
            "show": Place("rules", "rules_show", "Show the files of a rule set, by default of the active one."),
            "diff": Place(
                "rules",
                "rules_diff",
                "Show how a rule set, or a folder, differs from the active one. Exits with 0 in any case.",
            ),
            "rollback": Place(
                "rules", "rules_rollback", "Make the rule set active again that was active before the present one."
            ),
            "ignore": Place(
                "rules",
                "rules_ignore",
                "Pass over the events of a workflow on purpose: they change no graph, and are no dead letters any "
                "more.",
            ),
            "schema": Place(
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
            "install": Place(
                "agent_zero",
                "agent_zero_install",
                "Install the plugin into an Agent Zero, or update it. Prints the files that it wrote.",
            ),
            "uninstall": Place(
                "agent_zero",
                "agent_zero_uninstall",
                "Remove the plugin's files. Files that were changed or added stay.",
            ),
        },
    ),
    "lint": Place(
        "checks",
        "lint",
        "Check rules and ontologies. Every finding has file:line:column. Exits with 1 when there are errors.",
    ),
    "try": Place(
        "try_rules",
        "try_rules",
        "Show what the rules would do with events: the queries with their parameters, and skips with the reason.",
    ),
    "test": Place(
        "rule_tests", "rule_tests", "Run the tests beside rules: the files *_test.yaml. Exits with 1 if a case fails."
    ),
    "doctor": Place(
        "checks",
        "doctor",
        "Check settings, rules and servers, and say how to fix each problem. Exits with 1 when a check fails.",
    ),
    "demo": Place(
        "demo",
        "demo",
        "Start everything, import 100 recorded runs, and show the graph and the context of an agent's turn.",
    ),
}
"""In the order of ``--help``."""
