"""What a person is told where a model cannot be used, whatever kind of error said so. Knows no model and no page."""

from __future__ import annotations

import torch

from compile_cache.errors import CompileCacheError, shown

from .config import ConfigError

KNOWN = (ConfigError, CompileCacheError, OSError)  # their texts were written for people
LACKING = ("out of memory", "allocate memory", "not enough memory")  # what torch says in other errors of its own


def fault(error: BaseException) -> str | None:
    """One line on why a model cannot be used; None for a kind of error that nobody foresaw."""
    if lacks_memory(error):
        gpu = isinstance(error, torch.OutOfMemoryError) or "CUDA" in str(error)
        return f"it does not fit in the memory of {'the GPU' if gpu else 'this machine'}"
    if isinstance(error, KNOWN):
        return shown(str(error)) or type(error).__name__
    return None


def lacks_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in LACKING)
