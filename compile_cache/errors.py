"""The errors of this package. Each text is complete enough to be shown as it is; none carries data.

Many quote what a file or a server holds, so every text is made one printable line of bounded length here.
"""

LONGEST = 2000  # characters


def shown(text: str, longest: int = LONGEST) -> str:
    """The text in one line that can be printed, sent and logged: anything else in it is a space, its rest is cut."""
    line = "".join(c if c.isprintable() else " " for c in text[: longest + 1])
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


class CompileCacheError(Exception):
    """Base of everything raised on purpose by this package."""

    def __init__(self, text: str = "") -> None:
        super().__init__(shown(text))


class CompilerMissing(CompileCacheError):
    """There is no C++ compiler on this machine, so nothing can be built here."""


class BuildFailed(CompileCacheError):
    """Export, code generation or compilation failed; the text names the entry point and the stage."""


class ManifestError(CompileCacheError):
    """A manifest is not what the schema asks for."""


class PackageRefused(CompileCacheError):
    """A package failed a check. It was not executed, unless the text says that loading it failed."""


class ConstantMismatch(CompileCacheError):
    """The caller's weights do not fit the binary. Says nothing against the package."""


class InputMismatch(CompileCacheError):
    """A call's inputs do not fit the entry point. The binary stays usable."""


def out_of_memory(text: str) -> bool:
    """Whether that is what native code says where a device's memory is full: nothing against the package."""
    return "out of memory" in text.lower()


class RunFailed(CompileCacheError):
    """The binary raised while running. It stays usable."""


class SmokeFailed(CompileCacheError):
    """The trial run in a child process crashed, timed out or gave another result than expected."""


class TrialUnfinished(SmokeFailed):
    """The trial run was not made, or was ended from outside: that says nothing against the package."""


class DeviceMissing(TrialUnfinished):
    """The process of a trial run has not got the device that the package is for."""


class StoreError(CompileCacheError):
    """The store could not do what was asked: disk full, read-only, not private."""


class HubError(CompileCacheError):
    """The Hub could not be asked, did not answer in time or did not do what was asked."""


class PinsError(CompileCacheError):
    """A pin file is not what it should be."""
