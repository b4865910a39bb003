"""Returns copies of model clients whose calls get context and emit events. The clients themselves do not change."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar, cast
from uuid import uuid4

from graphweft.adapters.context_place import DEFAULT_PLACE, ContextPlace, check_place
from graphweft.adapters.core import Adapter
from graphweft.adapters.model_clients.anthropic_messages import Messages
from graphweft.adapters.model_clients.calls import (
    recorded,
    recorded_async,
    recorded_manager,
)
from graphweft.adapters.model_clients.exchange import Shape
from graphweft.adapters.model_clients.openai_chat import ChatCompletions
from graphweft.adapters.model_clients.openai_responses import Responses
from graphweft.adapters.model_clients.recorder import Recorder
from graphweft.argument_checks import check_app, check_scope
from graphweft_contracts import InvalidSettings
from graphweft_contracts.argument_names import takes_synonyms
from graphweft_contracts.events import DEFAULT_WORKFLOW

C = TypeVar("C")
F = TypeVar("F", bound=Callable[..., Any])

_AGENT: Final = "assistant"


@takes_synonyms
def wrap_openai(
    client: C,
    *,
    app: str | None = None,
    user: str | None = None,
    chat: str | None = None,
    agent: str = _AGENT,
    workflow: str | None = None,
    remember: bool = True,
    context_place: ContextPlace = DEFAULT_PLACE,
    adapter: Adapter | None = None,
    **settings: Any,
) -> C:
    """Return a copy of an ``OpenAI`` or ``AsyncOpenAI`` client that puts context into prompts and emits events.

    It covers ``chat.completions`` and ``responses``: ``create``, ``parse`` and ``stream``. A turn begins with a message
    of the user and ends with an answer without tool calls. ``chat`` is the conversation; without it each wrapped client
    is one. ``workflow`` selects the rules, by default those of ``default``. With ``remember`` the messages of the user
    and the answers become memories of the user. ``context_place`` is where the context stands: see ``ContextPlace``. If
    the provider refuses a request with context, it is called once more without, which is counted and logged once.

    ``settings`` are those of ``Adapter``; or pass an ``adapter`` that several wrapped clients share, for its ``stats``
    and ``close``. Answers, streams and errors of the model are those of the client; failures of graphweft are counted
    and logged once. Raises ``InvalidSettings`` without an app, and for an object of another type.
    """
    ids = {"app_id": app, "user_id": user, "chat_id": chat, "workflow_name": workflow}
    recorder = _recorder("openai", adapter, settings, ids=ids, agent=agent, remember=remember, place=context_place)
    return cast("C", _openai(client, recorder))


@takes_synonyms
def wrap_anthropic(
    client: C,
    *,
    app: str | None = None,
    user: str | None = None,
    chat: str | None = None,
    agent: str = _AGENT,
    workflow: str | None = None,
    remember: bool = True,
    context_place: ContextPlace = DEFAULT_PLACE,
    adapter: Adapter | None = None,
    **settings: Any,
) -> C:
    """Do the same as ``wrap_openai`` for ``messages`` of an ``Anthropic`` or ``AsyncAnthropic`` client."""
    ids = {"app_id": app, "user_id": user, "chat_id": chat, "workflow_name": workflow}
    recorder = _recorder("anthropic", adapter, settings, ids=ids, agent=agent, remember=remember, place=context_place)
    return cast("C", _anthropic(client, recorder))


@takes_synonyms
def wrap_litellm(
    function: F,
    *,
    app: str | None = None,
    user: str | None = None,
    chat: str | None = None,
    agent: str = _AGENT,
    workflow: str | None = None,
    remember: bool = True,
    context_place: ContextPlace = DEFAULT_PLACE,
    adapter: Adapter | None = None,
    **settings: Any,
) -> F:
    """Do the same as ``wrap_openai`` for ``litellm.completion`` or ``litellm.acompletion``, or a function like them."""
    ids = {"app_id": app, "user_id": user, "chat_id": chat, "workflow_name": workflow}
    recorder = _recorder("litellm", adapter, settings, ids=ids, agent=agent, remember=remember, place=context_place)
    if not callable(function):
        raise InvalidSettings(f"cannot wrap {type(function).__name__}: expected litellm.completion or acompletion")
    wrap = recorded_async if inspect.iscoroutinefunction(function) else recorded
    found: Any = wrap(function, ChatCompletions(), recorder, ("model", "messages"))
    return cast("F", found)


def _recorder(
    kind: str,
    adapter: Adapter | None,
    settings: Mapping[str, Any],
    *,
    ids: Mapping[str, str | None],
    agent: str,
    remember: bool,
    place: ContextPlace,
) -> Recorder:
    check_place(place)
    check_app(ids["app_id"], "app")
    if adapter is not None and settings:
        raise TypeError(f"unexpected settings with an adapter: {', '.join(sorted(settings))}; set them on the adapter")
    mine: dict[str, Any] = {"source": f"/graphweft/{kind}", **settings}
    core = adapter or Adapter(**mine)
    variables: dict[str, Any] = {"chat_id": uuid4().hex} | {name: value for name, value in ids.items() if value}
    found = core.chat(variables)
    if found is None:
        raise InvalidSettings(
            "app is required: name the app, the tenant whose graph remembers, or set it on the client"
        )
    if found.workflow is None:
        variables["workflow_name"] = DEFAULT_WORKFLOW
    if remember:
        check_scope({"chat": found.chat_id} | ({"user": found.user_id} if found.user_id else {}))
    scope = {"thread_id": found.chat_id} | ({"user_id": found.user_id} if found.user_id else {})
    return Recorder(core, variables, agent=agent, scope=scope, remember=remember, place=place)


def _openai(client: Any, recorder: Recorder) -> Any:
    shapes: Mapping[str, Shape] = {"chat.completions": ChatCompletions(), "responses": Responses()}
    wrapped = _with_copies(client, "OpenAI", recorder, _openai)
    run = recorded_async if _is_async(client) else recorded
    for path, shape in shapes.items():
        resource = _own(wrapped, path, "OpenAI")
        for name in ("create", "parse"):
            if hasattr(resource, name):
                setattr(resource, name, run(getattr(resource, name), shape, recorder))
    return wrapped


def _anthropic(client: Any, recorder: Recorder) -> Any:
    wrapped = _with_copies(client, "Anthropic", recorder, _anthropic)
    resource = _own(wrapped, "messages", "Anthropic")
    run = recorded_async if _is_async(client) else recorded
    shape = Messages()
    for name in ("create", "parse"):
        if hasattr(resource, name):
            setattr(resource, name, run(getattr(resource, name), shape, recorder))
    if hasattr(resource, "stream"):
        resource.stream = recorded_manager(resource.stream, shape, recorder, is_async=_is_async(client))
    return wrapped


def _with_copies(client: Any, kind: str, recorder: Recorder, wrap: Callable[[Any, Recorder], Any]) -> Any:
    """Return a copy of a client; the clients that its ``copy`` and ``with_options`` make are wrapped as well."""
    try:
        wrapped = copy.copy(client)
        make = wrapped.copy
    except AttributeError:
        raise InvalidSettings(f"cannot wrap {type(client).__name__}: expected a client of {kind}") from None

    def made(**options: Any) -> Any:
        return wrap(make(**options), recorder)

    wrapped.copy = wrapped.with_options = made
    return wrapped


def _own(wrapped: Any, path: str, kind: str) -> Any:
    """Return the resource at a path, which from now on is the wrapped client's own."""
    owner = wrapped
    for name in path.split("."):
        found = getattr(owner, name, None)
        if found is None:
            raise InvalidSettings(f"cannot wrap {type(wrapped).__name__}: a client of {kind} has {path}")
        found = copy.copy(found)
        _forget_views(found)
        setattr(owner, name, found)
        owner = found
    _forget_views(wrapped)
    return owner


def _forget_views(owner: Any) -> None:
    """Remove the views of an object, which are made at their first use and then kept: they call what it had then."""
    for view in ("with_raw_response", "with_streaming_response"):
        if view in owner.__dict__:
            delattr(owner, view)


def _is_async(client: Any) -> bool:
    return any(each.__name__ == "AsyncAPIClient" for each in type(client).__mro__)
