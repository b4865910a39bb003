"""The options of ``graphweft run mcp``. They limit the data that a model can reach."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from graphweft_contracts import InvalidSettings
from graphweft_contracts.search import IndexType
from graphweft_workers.cli.options import MAX_BUDGET_MS, assignments, check_app, scopes_of

if TYPE_CHECKING:  # the other roles have these options, too
    from graphweft_workers.mcp.access import McpScope

_MAX_NAME: Final = 256
"""Characters; the contract of requests refuses longer names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpOptions:
    """Options of ``run mcp``. The first five can also come from the environment."""

    app: Annotated[str | None, typer.Option("--app", help="mcp: the app; required.", envvar="GRAPHWEFT_MCP_APP")] = None
    user: Annotated[
        str | None, typer.Option("--user", help="mcp: memories of this user only.", envvar="GRAPHWEFT_MCP_USER")
    ] = None
    thread: Annotated[
        str | None, typer.Option("--thread", help="mcp: memories of this thread only.", envvar="GRAPHWEFT_MCP_THREAD")
    ] = None
    agent_id: Annotated[
        str | None,
        typer.Option("--agent-id", help="mcp: memories of this agent only.", envvar="GRAPHWEFT_MCP_AGENT_ID"),
    ] = None
    application: Annotated[
        str | None,
        typer.Option(
            "--application", help="mcp: memories of this application only.", envvar="GRAPHWEFT_MCP_APPLICATION"
        ),
    ] = None
    any_of: Annotated[
        list[str] | None,
        typer.Option(
            "--any-of",
            metavar="SCOPE",
            help="mcp: another scope that is read, but not changed, such as application=team; repeatable.",
        ),
    ] = None
    workflow: Annotated[
        str | None, typer.Option("--workflow", help="mcp: offer get_context, by the rules of this workflow.")
    ] = None
    agents: Annotated[
        list[str] | None,
        typer.Option("--agent", help="mcp: an agent whose context can be requested; repeatable."),
    ] = None
    chat: Annotated[
        str | None,
        typer.Option("--chat", help="mcp: chat of get_context.", show_default="the chat of the scope's memories"),
    ] = None
    variables: Annotated[
        list[str] | None,
        typer.Option("--var", help="mcp: context variable of get_context: k=text, or k:=JSON; repeatable."),
    ] = None
    index_type: Annotated[
        IndexType | None,
        typer.Option(
            "--index-type",
            help="mcp: how memories are searched.",
            show_default="by words, and also by vector where the responder has an embedder",
        ),
    ] = None
    budget_ms: Annotated[
        int | None,
        typer.Option(
            "--budget-ms",
            min=1,
            max=MAX_BUDGET_MS,
            help="mcp: maximum time of one call, in milliseconds.",
            show_default="2000",
        ),
    ] = None
    max_tokens: Annotated[
        int | None,
        typer.Option("--max-tokens", min=1, help="mcp: maximum number of tokens in one result.", show_default="2000"),
    ] = None

    @property
    def misplaced(self) -> bool:
        """Whether an option is given that only ``run mcp`` takes.

        What the environment says does not count: several roles may share one.
        """
        names = ("app", "user", "thread", "agent_id", "application")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        only_mcp = (self.any_of, self.workflow, self.agents, self.chat, self.variables, self.index_type)
        return any((*only_mcp, self.budget_ms, self.max_tokens)) or any(
            value != os.environ.get(f"GRAPHWEFT_MCP_{name.upper()}")  # noqa: TID251 - no setting is read here
            for name, value in given.items()
        )

    def access(self) -> McpScope:
        """Return the access that the options grant. Raises ``InvalidSettings`` without an app or a scope."""
        from graphweft.searching import make_scope
        from graphweft.settings import ClientSettings
        from graphweft_workers.mcp.access import McpScope

        if not self.app:
            raise InvalidSettings("`run mcp` needs --app (or GRAPHWEFT_MCP_APP): the app that a model can reach")
        check_app(self.app)
        try:
            scope = make_scope(
                application_id=self.application, agent_id=self.agent_id, user_id=self.user, thread_id=self.thread
            )
        except ValueError as error:
            raise InvalidSettings(
                "`run mcp` needs a scope, which no call can leave: give --user, --thread, --agent-id or --application. "
                f"{error}"
            ) from None
        if bool(self.workflow) != bool(self.agents):
            raise InvalidSettings("--workflow and --agent go together: give both, or neither")
        if self.workflow is None and (self.chat is not None or self.variables):
            raise InvalidSettings("--chat and --var are for get_context: give --workflow and --agent too")
        for option, names in (("--workflow", [self.workflow]), ("--agent", self.agents or []), ("--chat", [self.chat])):
            if any(name is not None and not 0 < len(name.strip()) <= _MAX_NAME for name in names):
                raise InvalidSettings(f"{option}: a name of 1 to {_MAX_NAME} characters is needed, not only spaces")
        limits = {"budget_ms": self.budget_ms, "max_tokens": self.max_tokens}
        return McpScope(
            app_id=self.app,
            scope=scope,
            any_of=scopes_of(self.any_of),
            workflow=self.workflow,
            agents=tuple(dict.fromkeys(self.agents or ())),
            chat_id=self.chat,
            variables=assignments(self.variables or [], "--var"),
            index_type=self.index_type,
            writes=ClientSettings.from_environment().capture,
            erases=True,
            **{name: value for name, value in limits.items() if value is not None},
        )
