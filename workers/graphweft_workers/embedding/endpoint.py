"""One HTTP endpoint of models that speaks OpenAI's protocol: requests with a limit of time, and what failures mean."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

import httpx

from graphweft_contracts.errors import Permanent, Transient

_REFUSALS: Final = frozenset({400, 413, 422})
"""The statuses that may be about the content of a request. All others are about who asks, where and when: a wrong key
(401), a model that is not there (404) or a quota (429) must not pass for a fault of the text."""
_SOON: Final = frozenset({408, 409, 425, 429})
_SOON_S: Final = 1.0
_SET_UP_WRONGLY_S: Final = 30.0
_LONGEST_WAIT_S: Final = 600.0
_CODE: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)


class EndpointUnavailable(Transient):
    """No answer, or none that is about the content of the request.

    ``status`` is that of the answer, None without one. ``sent`` is False when there was no connection to send it over,
    and ``timed_out`` tells that there was no answer in time.
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


class EndpointRefused(Permanent):
    """The endpoint does not take the content of the request (400, 413 or 422)."""


class Endpoint:
    """Posts JSON below one base URL, over kept connections.

    Errors name the URL, the status and the code of the endpoint's error, and nothing else of its answer, for that may
    quote what was sent. Redirects are not followed: the key is for this host. The proxies and certificates that
    ``HTTPS_PROXY``, ``NO_PROXY``, ``SSL_CERT_FILE`` and the like name are honoured.
    """

    def __init__(self, url: str, *, headers: Mapping[str, str], timeout_s: float, concurrency: int) -> None:
        """``url`` is the part before ``/embeddings`` and ``/chat/completions``; ``headers`` carry the key.

        ``timeout_s`` limits one request from the first byte sent to the last one read; at most ``concurrency``
        requests are on the way, and the others wait for their turn without limit.
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
        """Return the content of a good answer. Raises ``EndpointUnavailable`` or ``EndpointRefused``."""
        url = self.url + path
        try:
            # Escaped, so that half a surrogate pair is the server's to judge.
            content = json.dumps(body).encode("ascii")
            async with self._turns, asyncio.timeout(self._timeout_s):
                answer = await self._client.post(url, content=content)
        except (TimeoutError, httpx.TimeoutException) as error:
            message = f"{url} did not answer in {self._timeout_s:g} s"
            sent = not isinstance(error, httpx.ConnectTimeout)
            raise EndpointUnavailable(message, retry_after_s=_SOON_S, sent=sent, timed_out=True) from None
        except (httpx.LocalProtocolError, httpx.InvalidURL) as error:
            # Its text may quote a header, and with it the key.
            message = f"{url} cannot be asked ({type(error).__name__}): check the URL and the key"
            raise EndpointUnavailable(message, retry_after_s=_SET_UP_WRONGLY_S, sent=False) from None
        except (httpx.HTTPError, httpx.StreamError) as error:
            message = f"{url} cannot be reached ({type(error).__name__}: {error})"
            sent = not isinstance(error, httpx.ConnectError)
            raise EndpointUnavailable(message, retry_after_s=_SOON_S, sent=sent) from error
        if answer.is_success:
            return answer.content
        raise _failure(url, answer)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()


def _failure(url: str, answer: httpx.Response) -> EndpointUnavailable | EndpointRefused:
    status = answer.status_code
    message = f"{url} answers {status}{_code(answer)}"
    if status in _REFUSALS:
        return EndpointRefused(message)
    soon = status in _SOON or status >= 500
    if not soon:
        hint = {401: "the key", 403: "the key and what it may do", 404: "the URL and the model"}.get(status, "the URL")
        message += f": check {hint}"
    wait_s = _retry_after_s(answer)
    if wait_s is None:
        wait_s = _SOON_S if soon else _SET_UP_WRONGLY_S
    return EndpointUnavailable(message, retry_after_s=wait_s, status=status)


def _code(answer: httpx.Response) -> str:
    """Return the code of an error in OpenAI's form: ``insufficient_quota``. Only what can be no sentence is shown."""
    try:
        error: Any = answer.json()["error"]
        codes = [error.get(name) for name in ("code", "type")]
    except (ValueError, TypeError, KeyError, AttributeError):  # no JSON, or JSON of another form
        return ""
    return next((f" ({code})" for code in codes if isinstance(code, str) and _CODE.fullmatch(code)), "")


def _retry_after_s(answer: httpx.Response) -> float | None:
    """Return what the endpoint asks for: ``retry-after-ms``, or ``Retry-After`` in seconds or as a date."""
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = answer.headers.get(name, "")
        if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", value, re.ASCII):
            return min(float(value) * unit_s, _LONGEST_WAIT_S)
    try:
        date = parsedate_to_datetime(answer.headers.get("retry-after", ""))
    except ValueError:
        return None
    wait_s = (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return min(max(wait_s, 0.0), _LONGEST_WAIT_S)
