"""The compiler options: our defaults, made complete so that nothing outside the key decides the code.

Inductor reads many settings from the environment. Those that change the generated code are spelled
out here, so that a variable on the building machine cannot silently give another binary under the
same key. This file does not import the compiler.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

import torch

from compile_cache.errors import BuildFailed

# What makes the package one of ours; a caller cannot override these.
FIXED: dict[str, Any] = {
    "aot_inductor.package": True,
    "aot_inductor.package_cpp_only": False,
    # No weights in the package, neither in the library nor beside it.
    "aot_inductor.package_constants_in_so": False,
    "aot_inductor.package_constants_on_disk_format": None,
    # Weights are bound later. Without these two, Inductor looks at their present values and drops,
    # for example, a multiplication by a norm weight that happens to be all ones.
    "always_keep_tensor_constants": True,
    "joint_graph_constant_folding": False,
    "freezing": False,
    "aot_inductor.use_runtime_constant_folding": False,
    # Lower ends of dynamic dimensions are checked by us. Inductor would raise them to 2.
    "aot_inductor.check_lowerbound": False,
    "aot_inductor.debug_intermediate_value_printer": "0",
    "cpp.enable_kernel_profile": False,
    "cpp.vec_isa_ok": None,
}

# What a caller may override. None leaves the choice to Inductor's own rule.
DEFAULTS: dict[str, Any] = {
    "aot_inductor.enable_line_tables": False,  # 2.3 MB -> 0.9 MB
    "aot_inductor.enable_frame_pointer": False,
    "aot_inductor.debug_compile": False,
    "aot_inductor.debug_symbols": False,
    "aot_inductor.compile_wrapper_opt_level": "O1",
    # Otherwise the number of threads at build time is compiled in and would belong in the key.
    "cpp.dynamic_threads": True,
    "cpp.march": None,  # None: this machine's processor
    "cpp.simdlen": None,
    "cpp.min_chunk_size": 512,
    "cpp.enable_unsafe_math_opt_flag": False,
    "cpp.enable_floating_point_contract_flag": "off",
    "cpp.weight_prepack": True,
    "cpp.enable_tiling_heuristics": True,
    "cpp.use_decompose_tanh": False,
    "max_autotune": False,
    "max_autotune_gemm": False,
    "max_autotune_pointwise": False,
    "coordinate_descent_tuning": False,
    "epilogue_fusion": True,
    "emulate_precision_casts": False,
    "aggressive_fusion": False,
    "shape_padding": True,
}


def effective_options(device: torch.device | str, overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """All options that `build_package` compiles with, JSON-able and sorted.

    device: "cuda" packages get a portable host part (x86-64-v3), since their host code matters little
    for speed and ZeroGPU machines need not all have the same processor.
    Raises BuildFailed when an override touches one of the fixed options or is not a plain value.
    """
    options = dict(DEFAULTS)
    if torch.device(device).type != "cpu" and platform.machine() in ("x86_64", "AMD64"):
        options.update({"cpp.march": "x86-64-v3", "cpp.simdlen": 256})
    for name, value in (overrides or {}).items():
        if name in FIXED and value != FIXED[name]:
            raise BuildFailed(f"the compiler option {name} is fixed to {FIXED[name]!r} here")
        if not isinstance(value, str | int | float | bool | None):
            raise BuildFailed(f"the compiler option {name} must be a plain value, not {type(value).__name__}")
        options[name] = value
    if not options["cpp.dynamic_threads"] and options.get("cpp.threads", -1) < 1:
        options["cpp.threads"] = torch.get_num_threads()
    return dict(sorted({**options, **FIXED}.items()))
