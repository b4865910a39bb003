"""The options of ``graphweft run mcp``: they say what a model may reach."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from graphweft.searching import make_scope
from graphweft.settings import ClientSettings
from graphweft_contracts import InvalidSettings
from graphweft_workers.cli.memory import IndexKind
from graphweft_workers.cli.options import check_app
from graphweft_workers.cli.reading import MOST_MS, assignments
from graphweft_workers.mcp.access import Access

App = Annotated[str | None, typer.Option("--app", help="mcp: the app; required.", envvar="GRAPHWEFT_MCP_APP")]
User = Annotated[
    str | None, typer.Option("--user", help="mcp: memories of this user only.", envvar="GRAPHWEFT_MCP_USER")
]
Thread = Annotated[
    str | None, typer.Option("--thread", help="mcp: memories of this thread only.", envvar="GRAPHWEFT_MCP_THREAD")
]
AgentId = Annotated[
    str | None, typer.Option("--agent-id", help="mcp: memories of this agent only.", envvar="GRAPHWEFT_MCP_AGENT_ID")
]
Application = Annotated[
    str | None,
    typer.Option("--application", help="mcp: memories of this application only.", envvar="GRAPHWEFT_MCP_APPLICATION"),
]
Workflow = Annotated[
    str | None, typer.Option("--workflow", help="mcp: offer get_context, by the rules of this workflow.")
]
Agent = Annotated[list[str] | None, typer.Option("--agent", help="mcp: whose context may be asked for; repeatable.")]
Chat = Annotated[
    str | None,
    typer.Option("--chat", help="mcp: chat of get_context.", show_default="where memories of the scope go"),
]
Var = Annotated[
    list[str] | None,
    typer.Option("--var", help="mcp: context variable of get_context: k=text, or k:=JSON; repeatable."),
]
IndexType = Annotated[
    IndexKind | None,
    typer.Option(
        "--index-type",
        help="mcp: how memories are searched.",
        show_default="by words, and by vector too where there is an embedder",
    ),
]
BudgetMs = Annotated[
    int | None,
    typer.Option("--budget-ms", min=1, max=MOST_MS, help="mcp: time for one call.", show_default="2000"),
]
MaxTokens = Annotated[
    int | None, typer.Option("--max-tokens", min=1, help="mcp: most tokens of one answer.", show_default="2000")
]

_LONGEST_NAME: Final = 256
"""Characters; the contract of requests refuses longer ones, at each call."""
_AGENTS: Final = "--workflow and --agent go together: the workflow whose rules give context, and for which agents"


def make_access(
    *,
    app: str | None,
    user: str | None,
    thread: str | None,
    agent_id: str | None,
    application: str | None,
    workflow: str | None,
    agents: list[str] | None,
    chat: str | None,
    variables: list[str] | None,
    index_type: IndexKind | None,
    budget_ms: int | None,
    max_tokens: int | None,
) -> Access:
    """Return what the options allow. Raises ``InvalidSettings`` without an app or a scope, and for what cannot work."""
    if not app:
        raise InvalidSettings("`run mcp` needs --app (or GRAPHWEFT_MCP_APP): the app whose memories a model may reach")
    check_app(app)
    try:
        scope = make_scope(application_id=application, agent_id=agent_id, user_id=user, thread_id=thread)
    except ValueError as error:
        raise InvalidSettings(
            f"`run mcp` needs a scope, which no call can leave: --user, --thread, --agent-id or --application. {error}"
        ) from None
    if bool(workflow) != bool(agents):
        raise InvalidSettings(_AGENTS)
    if workflow is None and (chat is not None or variables):
        raise InvalidSettings("--chat and --var are for get_context: give --workflow and --agent too")
    for option, names in (("--workflow", [workflow]), ("--agent", agents or []), ("--chat", [chat])):
        if any(name is not None and not 0 < len(name.strip()) <= _LONGEST_NAME for name in names):
            raise InvalidSettings(f"{option}: a name of 1 to {_LONGEST_NAME} characters is wanted, and no spaces alone")
    more: dict[str, Any] = {"index_type": index_type and index_type.value, "budget_ms": budget_ms}
    more["max_tokens"] = max_tokens
    return Access(
        app_id=app,
        scope=scope,
        workflow=workflow,
        agents=tuple(dict.fromkeys(agents or ())),
        chat_id=chat,
        variables=assignments(variables or [], "--var"),
        writes=ClientSettings.from_environment().capture,
        **{name: value for name, value in more.items() if value is not None},
    )
