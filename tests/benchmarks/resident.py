"""Resident memory of this process, as Linux counts it: now, and its peak from a chosen moment on."""

from __future__ import annotations

from pathlib import Path


def status(field: str) -> int:
    """Bytes, from what Linux says of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def from_here() -> int:
    """Bytes that are resident now; the peak, "VmHWM", is one from here on."""
    Path("/proc/self/clear_refs").write_text("5")
    return status("VmRSS")
