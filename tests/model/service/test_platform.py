"""Every sentence of the platform becomes one that says what to do."""

from __future__ import annotations

import pytest

from model.service.platform import BUSY, ENDED, LOST, MEMORY, NO_ACCOUNT, PENDING, RUNS, SESSION, TROUBLE, plain_words

QUOTA = "ZeroGPU quota exceeded"
WORKER = "ZeroGPU worker error"
OVER = "You have exceeded your {}ZeroGPU quota ({}s requested vs. {}s left). Try again in {}. "
CASES = [
    (QUOTA, OVER.format("", 30, 12, "1:05:00") + "Authenticate with a Hugging Face token for more quota - https://x",
     ("needs 30 s", "12 s are left", "shorter", "sign in to Hugging Face", "in 1 h 5 min.")),
    (QUOTA, OVER.format("free ", 30, 12, "0:00:20"), ("12 s are left", "shorter", "subscribe to PRO", "in 20 s.")),
    (QUOTA, OVER.format("Pro ", 30, 12, "1 day, 0:00:00"), ("12 s are left", "add credits", "in 1 day.")),
    (QUOTA, OVER.format("", 30, 0, "0:10:00"), ("used up", "sign in", "in 10 min.")),
    (QUOTA, OVER.format("free ", 30, -3, "0:10:00"), ("used up", "subscribe to PRO", "in 10 min.")),
    (QUOTA, OVER.format("Pro ", 30, 0, "0:00:00"), ("used up", "add credits", "in a moment.")),
    (QUOTA, OVER.format("", 30, 12, "a while"), ("in a while.",)),
    (QUOTA, "You have exceeded your ZeroGPU runs limit. Subscribe", (RUNS,)),
    (QUOTA, "Space app has reached its GPU limit. Try re-running outside of examples", (NO_ACCOUNT,)),
    (QUOTA, "No GPU was available after 60s. Try re-running outside of examples", (BUSY,)),
    ("ZeroGPU pending credits exceeded", "You have too many ZeroGPU credits allocated", (PENDING,)),
    ("ZeroGPU illegal duration", "The requested GPU duration (900s) is larger than the maximum allowedSubscribe",
     ("needs 900 s", "shorter or smaller")),
    ("ZeroGPU queue timeout", "No GPU was available after 60s [Create a free account](https://x)", (BUSY,)),
    ("ZeroGPU client error", "No GPU was available", (BUSY,)),
    ("ZeroGPU client error", "Expired ZeroGPU proxy token", (SESSION,)),
    (WORKER, "GPU task aborted", (ENDED,)),
    (WORKER, "OutOfMemoryError", (MEMORY,)),
    (WORKER, "MemoryError", (MEMORY,)),
    (WORKER, "PicklingError", ("PicklingError", "try again")),
    ("RuntimeError", "ZeroGPU API /schedule error: 404 (Not Found)", ("status 404", "in a minute")),
    ("RuntimeError", "ZeroGPU API /release error: 500 (Internal Server Error)", ("status 500", "in a minute")),
    ("RuntimeError", "Unexpected end of stream", (LOST,)),
    ("RuntimeError", "Error while re-trying after queue disconnect", (LOST,)),
    ("ReadError", "", (LOST,)),
    ("ConnectError", "[Errno 111] Connection refused", (TROUBLE,)),
    ("", "", (TROUBLE,)),
    ("<b>" * 1000, "x" * 10_000, (TROUBLE,)),
]  # fmt: skip


@pytest.mark.parametrize(("title", "message", "expected"), CASES)
def test_words_say_what_to_do(title: str, message: str, expected: tuple[str, ...]) -> None:
    words = plain_words(title, message)
    assert [part for part in expected if part not in words] == []
    assert len(words) < 300
    assert words.endswith(".")
    assert "ZeroGPU" not in words
