"""Calls of a model client: functions that report what they do, and streams that report what is read from them."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from typing_extensions import Self

from graphweft.adapters.model_clients.exchange import Shape
from graphweft.adapters.model_clients.recorder import Exchange, Recorder

_RAW: Final = "x-stainless-raw-response"
"""The header by which the clients of OpenAI and Anthropic ask themselves for a raw response."""


def recorded(
    function: Callable[..., Any], shape: Shape, recorder: Recorder, positional: Sequence[str] = ()
) -> Callable[..., Any]:
    """Return ``function``, a call of a model, with context in its prompt and events about it.

    ``positional`` are the names of the arguments that callers may give by position.
    """

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        rest, options = _named(positional, args, named)
        exchange = recorder.begin(shape, options)
        attempt = exchange.attempt(options, exchange.context())
        with exchange.failing():
            response = attempt.ask(lambda request: function(*rest, **request))
        options = attempt.request
        if options.get("stream") is True and not _raw(options):
            return _Stream(response, exchange, options)
        _responded(exchange, response, options)
        return response

    return call


def recorded_async(
    function: Callable[..., Any], shape: Shape, recorder: Recorder, positional: Sequence[str] = ()
) -> Callable[..., Any]:
    """Do the same as ``recorded`` for a function that returns an awaitable."""

    @functools.wraps(function)
    async def call(*args: Any, **named: Any) -> Any:
        rest, options = _named(positional, args, named)
        exchange = recorder.begin(shape, options)
        attempt = exchange.attempt(options, await exchange.acontext())
        with exchange.failing():
            response = await attempt.aask(lambda request: function(*rest, **request))
        options = attempt.request
        if options.get("stream") is True and not _raw(options):
            return _AsyncStream(response, exchange, options)
        _responded(exchange, response, options)
        return response

    return call


def recorded_manager(
    function: Callable[..., Any], shape: Shape, recorder: Recorder, *, is_async: bool
) -> Callable[..., Any]:
    """Do the same for a function that returns the context manager of a stream with ``current_message_snapshot``."""
    manager = _AsyncManager if is_async else _Manager

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        return manager(function, recorder, shape, args, named)

    return call


def _named(
    positional: Sequence[str], args: Sequence[Any], named: Mapping[str, Any]
) -> tuple[Sequence[Any], dict[str, Any]]:
    """Return the arguments that stay positional, and the named ones."""
    known = dict(zip(positional, args, strict=False))
    if len(known) < len(args) or known.keys() & named.keys():  # the function refuses them, or knows more of them
        return args, dict(named)
    return (), {**known, **named}


def _raw(options: Mapping[str, Any]) -> str | None:
    headers = options.get("extra_headers")
    found: Mapping[Any, Any] = headers if isinstance(headers, Mapping) else {}  # pyright: ignore[reportUnknownVariableType]
    return next((str(value) for name, value in found.items() if str(name).lower() == _RAW), None)


def _responded(exchange: Exchange, response: Any, options: Mapping[str, Any]) -> None:
    """Report a response. A raw one is parsed, which the caller's own call then finds done."""
    raw = _raw(options)
    if raw == "true" and options.get("stream") is not True:
        try:
            response = response.parse()
        except Exception:  # noqa: BLE001 - the caller gets the error from its own call
            raw = "unknown"
    if raw in {None, "true"} and options.get("stream") is not True:
        exchange.responded(response)
    else:  # the caller reads the bytes
        exchange.abandoned()


class _Stream:
    """A stream, with its own attributes and methods. Its turn ends when it is read to its end, or closed."""

    def __init__(self, stream: Any, exchange: Exchange, options: Mapping[str, Any]) -> None:
        self._stream = stream
        self._exchange = exchange
        self._reader = exchange.shape.reader(options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            part = next(self._stream)
        except StopIteration:
            self._finished()
            raise
        except BaseException as error:
            self._exchange.failed(error)
            raise
        self._feed(part)
        return part

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the stream."""
        self._exchange.abandoned()
        self._stream.close()

    def _feed(self, part: Any) -> None:
        with self._exchange.guarded("reading a stream"):
            self._reader.feed(part)
            if self._reader.done:  # readers may stop here
                self._finished()

    def _finished(self) -> None:
        with self._exchange.guarded("reading a stream"):
            answer = self._reader.answer()
            if answer is not None:
                self._exchange.answered(answer)
        self._exchange.abandoned()


class _AsyncStream(_Stream):
    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        try:
            part = await anext(self._stream)
        except StopAsyncIteration:
            self._finished()
            raise
        except BaseException as error:
            self._exchange.failed(error)
            raise
        self._feed(part)
        return part

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:  # type: ignore[override]
        """Close the stream."""
        self._exchange.abandoned()
        await self._stream.close()


class _Manager:
    """The context manager of a stream that reads itself. The model is called when the block is entered."""

    def __init__(
        self, make: Callable[..., Any], recorder: Recorder, shape: Shape, args: Sequence[Any], options: dict[str, Any]
    ) -> None:
        self._make = make
        self._recorder = recorder
        self._shape = shape
        self._args = args
        self._options = options
        self._exchange: Exchange | None = None
        self._manager: Any = None
        self._stream: Any = None

    def __enter__(self) -> Any:
        exchange = self._exchange = self._recorder.begin(self._shape, self._options)
        attempt = exchange.attempt(self._options, exchange.context())
        with exchange.failing():
            self._stream = attempt.ask(self._entered)
        return self._stream

    def _entered(self, options: Mapping[str, Any]) -> Any:
        """Return the stream, or an awaitable of it."""
        self._manager = self._make(*self._args, **options)
        return self._manager.__enter__()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> Any:
        self._report(error)
        return self._manager.__exit__(kind, error, trace)

    def _report(self, error: BaseException | None) -> None:
        exchange = self._exchange
        if exchange is None:
            return
        if error is not None:
            exchange.failed(error)
            return
        with exchange.guarded("reading a stream"):
            found = self._stream.current_message_snapshot
            if found.stop_reason is not None:
                exchange.responded(found)
        exchange.abandoned()


class _AsyncManager(_Manager):
    async def __aenter__(self) -> Any:
        exchange = self._exchange = self._recorder.begin(self._shape, self._options)
        attempt = exchange.attempt(self._options, await exchange.acontext())
        with exchange.failing():
            self._stream = await attempt.aask(self._entered)
        return self._stream

    def _entered(self, options: Mapping[str, Any]) -> Any:
        self._manager = self._make(*self._args, **options)
        return self._manager.__aenter__()

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> Any:
        self._report(error)
        return await self._manager.__aexit__(kind, error, trace)
