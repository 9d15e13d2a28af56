"""Whether the device that a binary's key was made for is the one that is there: asked where it is about to run.

The process that made the key may have been told of other hardware than the one where requests run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch

from compile_cache.explain import Difference, differences
from compile_cache.key import canonical, environment

# Of a key's environment. The GPU's name is not among them: parts of one GPU have names of their own, and run the same
# code. Nor is what no device changes: versions, system.
DEVICE = ("device", "capability", "machine", "cpu")


def unlike(made_for: Mapping[str, Any], found: Mapping[str, Any]) -> list[Difference]:
    """In what the device that was found (`here`) differs from the one that a key was made for (`there`), both given as
    environments of keys. What one of them does not say differs from all that the other says."""
    here, there = ({name: place[name] for name in DEVICE if name in place} for place in (found, made_for))
    return differences(here, there)


def place_here(device: torch.device | str) -> dict[str, Any]:
    """The environment of a key that is made in this process for that device, JSON-able.

    Raises RuntimeError or AssertionError where there is no such device.
    """
    return json.loads(canonical(environment(device)))
