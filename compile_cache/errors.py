"""The errors of this package. Each text is complete enough to be shown as it is; none carries data."""


class CompileCacheError(Exception):
    """Base of everything raised on purpose by this package."""


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


class RunFailed(CompileCacheError):
    """The binary raised while running. It stays usable."""


class SmokeFailed(CompileCacheError):
    """The trial run in a child process crashed, timed out or gave another result than expected."""


class StoreError(CompileCacheError):
    """The store could not do what was asked: disk full, read-only, not private."""


class HubError(CompileCacheError):
    """The Hub could not be asked, did not answer in time or did not do what was asked."""


class PinsError(CompileCacheError):
    """A pin file is not what it should be."""
