"""What the processor can execute, as far as it decides whether a binary built elsewhere may run here.

Inductor compiles for `-march=native` unless told otherwise, so a native binary needs every
instruction-set extension of the machine it was built on; one built for a named level needs that level.
Inductor's own answer costs seconds (it test-compiles) and needs a compiler; ours only reads.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

# Names as in /proc/cpuinfo of the extensions that GCC and Clang use for -march=native on x86-64 and
# that a compiler may emit by itself. Flags of kernels, hypervisors and security fixes are left out.
_X86_NAMES = (
    "adx aes amx_bf16 amx_complex amx_fp16 amx_int8 amx_tile avx avx2 avx512_4fmaps avx512_4vnniw avx512_bf16 "
    "avx512_bitalg avx512_fp16 avx512_vbmi2 avx512_vnni avx512_vp2intersect avx512_vpopcntdq avx512bw avx512cd "
    "avx512dq avx512er avx512f avx512ifma avx512pf avx512vbmi avx512vl avx_ifma avx_ne_convert avx_vnni "
    "avx_vnni_int8 bmi1 bmi2 cldemote clflushopt clwb cmpccxadd cx16 f16c fma fma4 fsgsbase gfni lahf_lm "
    "movbe movdir64b movdiri abm lzcnt pclmulqdq popcnt prefetchi prfchw rdpid rdrand rdseed serialize "
    "sha_ni sse4_1 sse4_2 sse4a ssse3 tbm vaes vpclmulqdq xop xsave xsavec xsaveopt xsaves 3dnowprefetch"
)
X86_EXTENSIONS = frozenset(_X86_NAMES.split())
_V2 = {"cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"}
_V3 = _V2 | {"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"}
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
LEVELS: dict[str, set[str]] = {"x86-64": set(), "x86-64-v2": _V2, "x86-64-v3": _V3, "x86-64-v4": _V4}


def cpu_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """The processor's part of the key, under the given effective options.

    vector: the vectorisation that Inductor would pick; target: "native" or the named level;
    extensions: for a native target all of them, for a named level only whether it is there.
    """
    march = options.get("cpp.march")
    flags = extensions()
    fields: dict[str, Any] = {"vector": vector_level(options.get("cpp.simdlen"))}
    if march in LEVELS and LEVELS[march] <= flags:
        return {**fields, "target": march, "extensions": []}
    # A level that is not there, or a name we do not know, is treated like native: never shared.
    return {**fields, "target": march or "native", "extensions": sorted(flags)}


def extensions() -> set[str]:
    """The instruction-set extensions of this processor."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    for line in text.splitlines():
        label, _, value = line.partition(":")
        if label.strip() == "flags":
            return set(value.split()) & X86_EXTENSIONS
        if label.strip() == "Features":  # ARM: a short list, all of it relevant
            return set(value.split())
    return {name for name, value in torch.cpu.get_capabilities().items() if value is True}


def vector_level(simdlen: int | None) -> str:
    """The vectorisation Inductor picks here for x86-64: its names, plus bf16 and fp16 where they add code.

    Follows torch._inductor.cpu_vec_isa.pick_vec_isa (compared in the tests) on what the hardware
    offers. A compiler too old for a level makes Inductor pick a lower one: such a binary runs here too.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        return torch.backends.cpu.get_cpu_capability()
    found = _x86_levels()
    if simdlen is not None:
        return next((name for name, bits in found if bits == simdlen), "none")
    wanted = os.environ.get("ATEN_CPU_CAPABILITY")
    if wanted == "default":
        return "none"
    if wanted in ("avx2", "avx512"):
        return next((name for name, _ in found if name.startswith(wanted)), found[0][0] if found else "none")
    return found[0][0] if found else "none"


def _x86_levels() -> list[tuple[str, int]]:
    """(name, bits), best first."""
    have = torch.cpu.get_capabilities()
    levels: list[tuple[str, int]] = []
    avx512 = all(have.get(f"avx512_{part}", False) for part in ("f", "vl", "bw", "dq")) and have.get("fma3", False)
    if avx512:
        bf16 = " avx512_bf16" if have.get("avx512_bf16") else ""
        vnni = have.get("avx512_vnni", False)
        if vnni and have.get("amx_tile"):
            fp16 = " amx_fp16" if have.get("amx_fp16") else ""
            levels.append((f"avx512 avx512_vnni amx_tile{bf16}{fp16}", 512))
        if vnni:
            levels.append((f"avx512 avx512_vnni{bf16}", 512))
        levels.append((f"avx512{bf16}", 512))
    if have.get("avx2"):
        levels.append(("avx2", 256))
    return levels
