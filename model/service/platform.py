"""What the platform says when it refuses or ends a GPU task, in words for a visitor: what happened and what to do.

Knows the sentences of the spaces package (0.51), not the package. Whatever it has never heard gets a sentence too.
"""

from __future__ import annotations

import re
from collections.abc import Callable

TOKENS = "https://huggingface.co/settings/tokens"
PRO = "https://huggingface.co/subscribe/pro"
CREDITS = "https://huggingface.co/settings/billing"
BUSY = "No GPU is free at the moment. Please try again in a few minutes."
ENDED = (
    "The GPU task was ended before the video was complete: it crashed or ran out of memory or time. "
    "Please try again; if it happens again, make the video shorter or smaller."
)
MEMORY = "The GPU ran out of memory. Please choose a smaller size, or try again."
FAILED = "The compiled graph failed, and is not used any more. What it had made is kept; please try again."
SESSION = "Your sign-in at the platform has expired. Reload the page (programs: connect again), then try again."
TROUBLE = "The platform that lends the GPUs has a problem. It has nothing to do with your video: try again in a minute."
LOST = "The connection to the queue for a GPU was lost. Please try again."
RUNS = "You have started too many GPU tasks. Please wait a few minutes, then try again."
PENDING = "Your running GPU tasks hold all your credits. Try again when one of them has ended."
NO_ACCOUNT = (
    "The GPU time for visitors who are not signed in is used up. Sign in to Hugging Face, or try again later; "
    f"programs send a token ({TOKENS})."
)

_SECONDS = r"\((?P<asked>\d+)s requested vs\. (?P<left>-?\d+)s left\)\. Try again in (?P<wait>.+?)\. "


def plain_words(title: str, message: str) -> str:
    """One or two sentences for an error of the platform with this title and message."""
    text = f"{title}: {message}"
    for pattern, words in _KNOWN:
        if found := re.search(pattern, text):
            return words(found) if callable(words) else words
    return TROUBLE


def too_long(title: str) -> bool:
    """Whether an error with this title means that no wait would help, but asking for less time."""
    return "illegal duration" in title


def _over_quota(found: re.Match[str]) -> str:
    asked, left, wait = int(found["asked"]), max(int(found["left"]), 0), _wait(found["wait"])
    more = {"Pro ": f"add credits ({CREDITS})", "free ": f"subscribe to PRO for more ({PRO})"}.get(
        found["kind"] or "", f"sign in to Hugging Face for more (programs: with a token, {TOKENS})"
    )
    if left:
        have = f"This video needs {asked} s of GPU time, and {left} s are left to you today. Make it shorter, {more}"
    else:
        have = f"Your GPU time for today is used up. To go on now, {more}"
    return f"{have}, or try again in {wait}."


def _too_long(found: re.Match[str]) -> str:
    return f"This video needs {found['asked']} s of GPU time, more than is allowed at once. Make it shorter or smaller."


def _failed(found: re.Match[str]) -> str:
    return f"The GPU worker failed ({found['kind']}). Please try again; if it happens again, change the settings."


def _status(found: re.Match[str]) -> str:
    return f"The platform that lends the GPUs answers with status {found['status']}. Please try again in a minute."


def _wait(text: str) -> str:
    """ "1:05:00" or "1 day, 0:00:20" as "1 h 5 min" or "1 day"; another text as it is."""
    found = re.fullmatch(r"(?:(\d+) days?, )?(\d+):(\d\d):(\d\d)(?:\.\d+)?", text)
    if not found:
        return text
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    parts = [(days, f"day{'s' * (days != 1)}"), (hours, "h"), (minutes, "min"), (seconds, "s")]
    largest = [f"{count} {unit}" for count, unit in parts if count][:2]
    return " ".join(largest) or "a moment"


_KNOWN: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"exceeded your (?P<kind>Pro |free )?ZeroGPU quota " + _SECONDS, _over_quota),
    (r"exceeded your ZeroGPU runs limit", RUNS),
    (r"pending credits exceeded", PENDING),
    (r"illegal duration: .*\((?P<asked>\d+)s\)", _too_long),
    (r"No GPU was available", BUSY),
    (r"reached its GPU limit", NO_ACCOUNT),
    (r"Expired ZeroGPU proxy token", SESSION),
    (r"GPU task aborted", ENDED),
    (r"worker error: (MemoryError|OutOfMemoryError)", MEMORY),
    (r"worker error: (?P<kind>\w{1,80})", _failed),
    (r"/(?:schedule|release) error: (?P<status>\d{3})", _status),
    (r"end of stream|queue disconnect|RemoteProtocolError|ReadError|ReadTimeout", LOST),
)
