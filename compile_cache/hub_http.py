"""One GET request to the Hub, within a deadline, and what may be said when it fails.

Goes through the session of huggingface_hub, so that proxies and certificates are the user's, but not through its
downloads: they have no overall deadline, see bytes only every 10 MB, write a cache that nobody checks, and ask the
Hub for a list of tools first. Knows HTTP and the Hub's headers; knows nothing of keys and packages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import httpx2
import huggingface_hub
from huggingface_hub import constants, get_session
from huggingface_hub.errors import OfflineModeIsEnabled
from huggingface_hub.utils import parse_ratelimit_headers

from compile_cache.deadline import Deadline, megabytes
from compile_cache.errors import HubError

T = TypeVar("T")
PAUSES = (1.0, 2.0)  # before the second and the third try, where trying again may help
TRANSIENT = (408, 429, 500, 502, 503, 504)
REASONS = {
    401: "the repository does not exist, or it is private{and_token}",
    403: "no access to the repository",
    412: "the repository was changed in the meantime",
    429: "too many requests",
    500: "internal server error",
    503: "service unavailable",
}
NOT_FOUND = {
    "RepoNotFound": "there is no such repository",
    "RevisionNotFound": "the repository has no branch main",
    "EntryNotFound": "the file is not there",
}
OFFLINE = "HF_HUB_OFFLINE is set, so the Hub is not asked"


class NotVisible(HubError):
    """The repository is not there for whoever asks: 401, 403, or 404 for the repository."""


class Missing(HubError):
    """Another 404: the file or the branch is not there."""


class Changed(HubError):
    """412: the branch is not where the caller thought."""


class Answer:
    """An answer that has begun to arrive."""

    def __init__(self, response: httpx2.Response, deadline: Deadline) -> None:
        self._response = response
        self._deadline = deadline
        self._chain = [*response.history, response]

    @property
    def size(self) -> int | None:
        """How many bytes the Hub says that the file has."""
        packed = self._response.headers.get("content-encoding", "identity") != "identity"
        text = _first("x-linked-size", self._chain)
        if text is None and not packed:
            text = self._response.headers.get("content-length")
        return int(text) if text is not None and text.isdecimal() else None

    @property
    def content(self) -> str:
        """The Hub's name for the file's content: its sha256 for a large file, another hash for a small one, or ""."""
        found = _first("x-linked-etag", self._chain) or _first("etag", self._chain) or ""
        return found.removeprefix("W/").strip('"')[:200]

    @property
    def next_page(self) -> str | None:
        """Where a list goes on."""
        return self._response.links.get("next", {}).get("url")

    def chunks(self) -> Iterator[bytes]:
        """The content as it arrives. Raises TimeoutError when the time is up."""
        for chunk in self._response.iter_bytes():
            self._deadline.check()
            yield chunk

    def read(self, most: int) -> bytes:
        """The whole content. Raises HubError when it is more than `most` bytes."""
        data = bytearray()
        for chunk in self.chunks():
            data += chunk
            if len(data) > most:
                raise HubError(f"the Hub's answer has more than {most} bytes")
        return bytes(data)


def get(url: str, deadline: Deadline, consume: Callable[[Answer], T], token: str | None = None) -> T:
    """GETs `url` and returns what `consume` makes of the answer; tries again where that may help and time is left.

    A second try calls `consume` anew. Without a token none is sent. Raises NotVisible, Missing or another HubError,
    TimeoutError when the deadline passed while reading, and whatever `consume` raises.
    """
    for pause in (*PAUSES, None):
        problem, asked = HubError(""), None
        try:
            with get_session().stream(
                "GET", url, headers=_headers(token), timeout=_timeout(deadline), follow_redirects=True
            ) as response:
                if response.status_code == 200:
                    return consume(Answer(response, deadline))
                again = response.status_code in TRANSIENT
                asked = retry_after(response)
                problem = refusal(response, token is not None)
        except httpx2.HTTPError as error:
            problem, again = broken(error, deadline), isinstance(error, httpx2.ReadError | httpx2.RemoteProtocolError)
        except OfflineModeIsEnabled:
            raise HubError(OFFLINE) from None
        wait = pause if asked is None else asked
        if not again or pause is None or wait is None:
            raise problem
        if wait >= deadline.left():
            raise HubError(f"{problem}; it asks to wait {wait:g} s, longer than there is time") if asked else problem
        time.sleep(wait)
    raise AssertionError  # the last try returns or raises


def refusal(response: httpx2.Response, with_token: bool) -> HubError:
    """What an answer other than 200 means."""
    status, code = response.status_code, response.headers.get("x-error-code", "")
    reason = NOT_FOUND.get(code, "") if status == 404 else REASONS.get(status, "")
    reason = reason.format(and_token=", or the token is not valid" if with_token else "")
    text = f"the Hub answered {status}" + (f": {reason}" if reason else "")
    if status in (400, 403):
        said = "".join(c for c in response.headers.get("x-error-message", "") if c.isprintable())[:150]
        text += f" ({said})" if said else ""
    if status in (401, 403) or code == "RepoNotFound":
        return NotVisible(text)
    return {404: Missing, 412: Changed}.get(status, HubError)(text)


def broken(error: Exception, deadline: Deadline | None = None) -> HubError:
    """What an error of the HTTP library means."""
    if isinstance(error, httpx2.ConnectTimeout | httpx2.ConnectError):
        return HubError(f"the Hub cannot be reached ({_short(error)})")
    if isinstance(error, httpx2.TimeoutException):
        return HubError(deadline.why() if deadline is not None else "the Hub did not answer in time")
    if not isinstance(error, httpx2.NetworkError | httpx2.RemoteProtocolError):
        return HubError(f"the Hub cannot be asked ({_short(error)})")
    here = deadline.progress if deadline is not None else None
    at = f" after {megabytes(here[0])} of {megabytes(here[1])}" if here else ""
    return HubError(f"the connection to the Hub broke off{at} ({_short(error)})")


def retry_after(response: httpx2.Response) -> float | None:
    """How long the Hub asks to wait, seconds; None when it does not say."""
    text = response.headers.get("retry-after", "").strip()
    if text.isdecimal():
        return float(text)
    limit = parse_ratelimit_headers(response.headers) if response.status_code == 429 else None
    return float(limit.reset_in_seconds) if limit is not None and limit.remaining == 0 else None


def check_token(token: str) -> None:
    """Raises HubError for a token that could not be sent; the library's own error would print it."""
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise HubError("the token is not one word of printable ASCII characters")


def _headers(token: str | None) -> dict[str, str]:
    headers = {
        "user-agent": f"compile_cache; hf_hub/{huggingface_hub.__version__}",
        "accept-encoding": "identity",  # sizes are those of the files
    }
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    return headers


def _timeout(deadline: Deadline) -> httpx2.Timeout:
    left = max(deadline.left(), 0.01)
    return httpx2.Timeout(left, connect=min(left, 10.0))


def endpoint_or_default(endpoint: str | None) -> str:
    """The Hub's address: the one given, or that of huggingface_hub (HF_ENDPOINT)."""
    return (endpoint or constants.ENDPOINT).rstrip("/")


def _first(name: str, responses: list[httpx2.Response]) -> str | None:
    return next((r.headers[name] for r in responses if name in r.headers), None)


def _short(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:200]
