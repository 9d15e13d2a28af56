"""The compiler's settings for the length of a build: those of the key, and for all others torch's own defaults.

Inductor, Dynamo and export have some thousand settings, most of which a variable or a line of the calling program can
change, and many change the code that comes out. Those that a caller may choose are in `options`, and in the key. All
others must be the same for every builder of a key. They cannot be put in the key too: a process that only looks a
key up does not import the compiler.

As a program, python -m compile_cache.settled, it prints the defaults: they are read in a process that was given none
of the variables, because a variable's value replaces a default for good when the compiler is imported.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from compile_cache.errors import BuildFailed

CONFIGS = (
    "torch._inductor.config",
    "torch._functorch.config",
    "torch._dynamo.config",
    "torch._export.config",
    "torch.fx.experimental._config",
)
# Read when the compiler is imported or while it works. Names that end in a place, a number of threads or logging are
# left: they decide where and how fast, not what.
STEERING = re.compile(
    r"(TORCHINDUCTOR|AOTINDUCTOR|AOT_INDUCTOR|INDUCTOR|TORCHDYNAMO|TORCH_DYNAMO|TORCH_COMPILE|TORCHEXPORT|TRITON)_"
    r"(?!.*(_DIR|_PATH|_HOME|_THREADS|_LOGS|_URL|_TIMEOUT|_TIMEOUT_SECONDS|_START)$).*"
)
PASSED_ON = ("PATH", "HOME", "LD_LIBRARY_PATH", "TMPDIR", "LANG")  # to the process that reads the defaults


@contextmanager
def settled() -> Iterator[None]:
    """Within, the compiler generates what torch's defaults say, and `options` on top. Raises BuildFailed.

    Changes variables and settings of the whole process, and puts them back.
    """
    defaults = _defaults()
    with ExitStack() as stack:
        for name in [name for name in os.environ if STEERING.fullmatch(name)]:
            stack.callback(os.environ.__setitem__, name, os.environ.pop(name))
        for module, values in defaults.items():
            _settle(importlib.import_module(module), values, stack)
        _settle_process(stack)
        yield


def _settle(config: Any, defaults: Mapping[str, Any], stack: ExitStack) -> None:
    """Patches what differs. A variable that overrides even a patch was read at import: its value is taken away."""
    changes = {name: value for name, value in defaults.items() if _plain(getattr(config, name)) != [value]}
    for name in changes:
        entry = config._config[name]
        untouched = type(entry).env_value_force
        if entry.env_value_force is not untouched:
            stack.callback(setattr, entry, "env_value_force", entry.env_value_force)
            entry.env_value_force = untouched
        if isinstance(entry.default, tuple):
            changes[name] = tuple(changes[name])
    stack.enter_context(config.patch(changes))
    for name in changes:
        if _plain(getattr(config, name)) != [defaults[name]]:
            raise BuildFailed(f"the compiler setting {config.__name__}.{name} cannot be set to {defaults[name]!r}")


def _settle_process(stack: ExitStack) -> None:
    """State of torch outside the compiler that its output depends on."""
    stack.callback(torch.set_default_dtype, torch.get_default_dtype())
    torch.set_default_dtype(torch.float32)
    stack.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
    torch.set_float32_matmul_precision("highest")
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    stack.callback(
        torch.use_deterministic_algorithms, torch.are_deterministic_algorithms_enabled(), warn_only=warn_only
    )
    torch.use_deterministic_algorithms(False)
    stack.callback(torch._C._set_mkldnn_enabled, torch._C._get_mkldnn_enabled())  # mkldnn.flags warns of other flags
    torch._C._set_mkldnn_enabled(True)
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            stack.enter_context(torch.autocast(device, enabled=False))


def _defaults() -> dict[str, dict[str, Any]]:
    passed = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    passed["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, "-m", "compile_cache.settled"]
    try:
        done = subprocess.run(command, env=passed, capture_output=True, text=True, timeout=300, check=True)
        return json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        words = (getattr(error, "stderr", None) or str(error)).strip().splitlines() or ["no message"]
        raise BuildFailed(f"the compiler's default settings cannot be read: {words[-1][:300]}") from error


def _plain(value: Any) -> list[Any]:
    """[value as JSON has it]; [] for what JSON cannot hold (a function, a class)."""
    try:
        return [json.loads(json.dumps(value))]
    except (TypeError, ValueError):
        return []


def _settings(config: Any) -> dict[str, Any]:
    """The settings that torch itself says decide the code, of those that JSON can hold."""
    own_passes = ("post_grad_custom", "joint_custom", "pre_grad_custom", "_pre_fusion_custom", "_fuse_ddp")
    ignored = getattr(config, "_cache_config_ignore_prefix", ())  # but passes of the caller's do change the code
    ignored = tuple(name for name in ignored if not name.startswith(own_passes))
    names = [n for n, e in config._config.items() if not (e.alias or e.deprecated or n.startswith(ignored))]
    return {name: value[0] for name in names if (value := _plain(getattr(config, name)))}


if __name__ == "__main__":
    print(json.dumps({name: _settings(importlib.import_module(name)) for name in CONFIGS}))
