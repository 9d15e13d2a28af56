"""Which C++ compiler this machine has. Knows nothing of what it is used for."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from compile_cache.errors import CompilerMissing


def find_compiler() -> str:
    """Full path of the C++ compiler: $CXX, else g++, else clang++. Raises CompilerMissing."""
    wanted = os.environ.get("CXX")
    for name in (wanted,) if wanted else ("g++", "clang++"):
        path = shutil.which(name)
        if path is not None:
            return path
    tried = f"CXX={wanted}" if wanted else "g++ and clang++"
    raise CompilerMissing(
        f"There is no C++ compiler on this machine (looked for {tried}), so the model cannot be compiled here. "
        "Install one (on Debian and Ubuntu: apt-get install g++) or set CXX to one."
    )


def compiler_version(compiler: str) -> str:
    """First line of `compiler --version`. Raises CompilerMissing when it cannot be run."""
    try:
        done = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise CompilerMissing(f"The C++ compiler {Path(compiler).name} cannot be run: {error}") from None
    return "".join(c for c in done.stdout.partition("\n")[0] if c.isprintable())[:200]
