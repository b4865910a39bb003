"""An HTTP endpoint for models with OpenAI's protocol: requests with a timeout, and a meaning for each failure."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Annotated, Any, Final, Literal

import httpx
from pydantic import BaseModel, Field, SecretStr, ValidationError

from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_contracts.errors import Permanent, Transient
from graphweft_workers.support.timing import TIMING
from graphweft_workers.telemetry import tracing_spans
from graphweft_workers.telemetry.metrics import MODEL_CALLS, MODEL_DURATION, MODEL_TOKENS

type _Blame = Literal["content", "perhaps", "other"]
"""What a status says of the content of a request: that it is refused; nothing, so that a test request has to tell; or
that it is not the cause.
"""
_MEANINGS: Final[Mapping[int, tuple[_Blame, str]]] = {
    400: ("content", ""),
    401: ("other", "the key"),
    402: ("other", "the account: it has to be paid for"),
    403: ("perhaps", "the key and its permissions"),  # or a filter before the model
    404: ("perhaps", "the URL and the model"),
    407: ("other", "the proxy and its key"),
    408: ("perhaps", ""),  # a long text takes long
    409: ("other", ""),  # about what the server is doing
    413: ("content", ""),
    422: ("content", ""),
    425: ("other", ""),  # about the connection
    # About a quota. A test request is short, so it may have its place where a long one has none: it is no evidence.
    429: ("other", ""),
}
"""By status: what it says of the content, and what to check; without that, it passes by itself. Other statuses of 400
and more may be a filter's before the model, and those of 500 and more an end that a text has brought about.
"""
_FENCE: Final = re.compile(r"^\s*```[A-Za-z]*\s*\n(.*?)\n?\s*```\s*$", re.DOTALL)
_USAGE: Final = re.compile(rb'"(prompt_tokens|completion_tokens)"\s*:\s*([0-9]{1,12})')
_DIRECTIONS: Final = {b"prompt_tokens": "input", b"completion_tokens": "output"}
_CODE: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)


TRIES: Final = 2
"""How often ``ask_for_json`` asks."""


class EndpointUnavailable(Transient):
    """The endpoint did not answer, or refused for a reason other than the content of the request.

    ``status`` is the HTTP status, None without an answer. ``sent`` is False if the request was not sent.
    """

    def __init__(
        self,
        message: str,
        *,
        retry_after_s: float,
        status: int | None = None,
        sent: bool = True,
        timed_out: bool = False,
    ) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.status = status
        self.sent = sent
        self.timed_out = timed_out

    @property
    def may_be_of_content(self) -> bool:
        """Whether what was sent may be the cause, which a test request tells then."""
        return self.sent and (self.status is None or _meaning(self.status)[0] == "perhaps")


class EndpointRefused(Permanent):
    """The endpoint refuses the content of the request (400, 413 or 422)."""


class Endpoint:
    """Posts JSON below one base URL, with a connection pool.

    Errors name the URL, the status and the endpoint's error code, but not the rest of the answer, which may quote the
    request. Redirects are not followed, because the key is for this host. ``HTTPS_PROXY``, ``NO_PROXY``,
    ``SSL_CERT_FILE`` and similar variables apply.
    """

    def __init__(self, url: str, *, headers: Mapping[str, str], timeout_s: float, concurrency: int) -> None:
        """``url`` is the part before ``/embeddings`` or ``/chat/completions``; ``headers`` carry the key.

        ``timeout_s`` limits one request from the first byte sent to the last byte read. At most ``concurrency``
        requests run at a time; the wait for a turn has no limit.
        """
        self.url = url.rstrip("/")
        self._timeout_s = timeout_s
        self._turns = asyncio.Semaphore(concurrency)
        self._client = httpx.AsyncClient(
            headers={**headers, "Content-Type": "application/json"},
            timeout=timeout_s,
            limits=httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency),
        )

    async def post(self, path: str, body: Mapping[str, Any]) -> bytes:
        """Return the body of a 2xx answer. Raises ``EndpointUnavailable`` or ``EndpointRefused``."""
        kind = "embedding" if path == "/embeddings" else "chat"
        try:
            with MODEL_DURATION.timed(kind), tracing_spans.asked_model(path, body, self.url) as span:
                content = await self._post(path, body)
                tracing_spans.model_used(span, path, content)
        except Transient:
            MODEL_CALLS.add(1, kind, "unavailable")
            raise
        except EndpointRefused:
            MODEL_CALLS.add(1, kind, "refused")
            raise
        MODEL_CALLS.add(1, kind, "ok")
        if MODEL_TOKENS.sink is not None:
            for direction, tokens in _tokens(content):
                MODEL_TOKENS.add(tokens, kind, direction)
        return content

    async def _post(self, path: str, body: Mapping[str, Any]) -> bytes:
        url = self.url + path
        try:
            # As ASCII, because UTF-8 cannot encode lone surrogates.
            content = json.dumps(body).encode("ascii")
            async with self._turns, asyncio.timeout(self._timeout_s):
                answer = await self._client.post(url, content=content)
        except (TimeoutError, httpx.TimeoutException) as error:
            message = f"{url} did not answer in {self._timeout_s:g} s"
            sent = not isinstance(error, httpx.ConnectTimeout)
            raise EndpointUnavailable(message, retry_after_s=TIMING.models.soon_s, sent=sent, timed_out=True) from None
        except (httpx.LocalProtocolError, httpx.InvalidURL) as error:
            # The message may quote a header, and with it the key.
            message = f"cannot send a request to {url} ({type(error).__name__}): check the URL and the key"
            raise EndpointUnavailable(message, retry_after_s=TIMING.models.set_up_s, sent=False) from None
        except (httpx.HTTPError, httpx.StreamError) as error:
            message = f"cannot reach {url} ({type(error).__name__}: {error})"
            sent = not isinstance(error, httpx.ConnectError)
            raise EndpointUnavailable(message, retry_after_s=TIMING.models.soon_s, sent=sent) from error
        if answer.is_success:
            return answer.content
        raise _failure(url, answer)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()


def _tokens(answer: bytes) -> list[tuple[str, int]]:
    """Return how many tokens an answer says that it took, by direction. Texts in it cannot say so: quotes in them are
    escaped.
    """
    found = {name: int(number) for name, number in _USAGE.findall(answer)}
    return [(direction, found[name]) for name, direction in _DIRECTIONS.items() if name in found]


class _Message(BaseModel):
    content: str | None = None


class _Choice(BaseModel):
    message: _Message


class _Completion(BaseModel):
    choices: Annotated[list[_Choice], Field(min_length=1)]


def bearer(api_key: SecretStr | None) -> dict[str, str]:
    """Return the header for a key; no header without one."""
    return {} if api_key is None else {"Authorization": f"Bearer {api_key.get_secret_value()}"}


def chat_text(content: bytes) -> str:
    """Return the text of a ``/chat/completions`` answer, without reasoning (``</think>``) and code fence.

    Raises pydantic's ``ValidationError``, whose message quotes the answer.
    """
    text = (_Completion.model_validate_json(content).choices[0].message.content or "").rpartition("</think>")[2]
    fenced = _FENCE.match(text)
    return fenced[1] if fenced else text


async def ask_for_json[T](
    endpoint: Endpoint, model: str, *, task: str, given: str, read: Callable[[str], T | None]
) -> T | None:
    """Return what a chat model answers about ``given``; it is asked once more if the answer is invalid.

    ``read`` reads an answer; it raises pydantic's ``ValidationError``, or returns None, if that is invalid. None if no
    answer is valid, or the endpoint refuses what is given. Raises ``EndpointUnavailable``.
    """
    body = {
        "model": model,
        "response_format": {"type": "json_object"},
        "messages": [{"role": "system", "content": task}, {"role": "user", "content": given}],
    }
    for _ in range(TRIES):
        try:
            answer = read(chat_text(await endpoint.post("/chat/completions", body)))
        except EndpointRefused:
            return None
        except ValidationError:  # the message quotes the answer
            continue
        if answer is not None:
            return answer
    return None


async def fails_alone(error: EndpointUnavailable, test: Callable[[], Awaitable[object | None]]) -> bool:
    """Tell whether an endpoint that failed does so for what was sent, but answers a test; None is no answer."""
    if not error.may_be_of_content:
        return False
    try:
        return await test() is not None
    except EndpointUnavailable:
        return False


def _failure(url: str, answer: httpx.Response) -> EndpointUnavailable | EndpointRefused:
    status = answer.status_code
    message = f"{url} answered {status}{_code(answer)}"
    blame, check = _meaning(status)
    if blame == "content":
        return EndpointRefused(message)
    if check:
        message += f": check {check}"
    wait_s = _retry_after_s(answer)
    if wait_s is None:
        wait_s = TIMING.models.set_up_s if check else TIMING.models.soon_s
    return EndpointUnavailable(message, retry_after_s=wait_s, status=status)


def _meaning(status: int) -> tuple[_Blame, str]:
    if status in _MEANINGS:
        return _MEANINGS[status]
    return ("other" if status < 400 else "perhaps", "" if status >= 500 else "the URL")


def _code(answer: httpx.Response) -> str:
    """Return the code of an error in OpenAI's form, such as ``insufficient_quota``; never a sentence."""
    try:
        error: Any = answer.json()["error"]
        codes = [error.get(name) for name in ("code", "type")]
    except (ValueError, TypeError, KeyError, AttributeError):  # not JSON, or of another form
        return ""
    return next((f" ({code})" for code in codes if isinstance(code, str) and _CODE.fullmatch(code)), "")


def _retry_after_s(answer: httpx.Response, clock: Clock = SYSTEM_CLOCK) -> float | None:
    """Return the wait of ``retry-after-ms``, or of ``Retry-After`` in seconds or as a date."""
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = answer.headers.get(name, "")
        if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", value, re.ASCII):
            return min(float(value) * unit_s, TIMING.models.longest_s)
    try:
        date = parsedate_to_datetime(answer.headers.get("retry-after", ""))
    except ValueError:
        return None
    wait_s = (date.replace(tzinfo=date.tzinfo or UTC) - clock.now()).total_seconds()
    return min(max(wait_s, 0.0), TIMING.models.longest_s)
