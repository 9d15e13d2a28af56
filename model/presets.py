"""The published models we know: where their parts lie, how they are sampled, under which licence.

Knows no Hub and loads nothing. The configurations of Wan 2.1 1.3B, which all of them share, are in wan_1_3b/ in
diffusers layout, with Self-Forcing's sampling in its onegraph.json.
"""

from __future__ import annotations

from pathlib import Path

WAN_1_3B = Path(__file__).parent / "wan_1_3b"
