"""A stored manifest and package, checked fully without loading anything: the part that all sources share."""

from __future__ import annotations

from pathlib import Path

from compile_cache import members
from compile_cache.errors import ManifestError, PackageRefused
from compile_cache.files import open_plain
from compile_cache.manifest import LARGEST_MANIFEST, Manifest, parse


def read_manifest(path: Path, key: str) -> Manifest:
    """The manifest of `key` from a file, strictly read. Raises PackageRefused."""
    try:
        with open_plain(path) as file:
            manifest = parse(file.read(LARGEST_MANIFEST + 1))
    except OSError as error:
        raise PackageRefused(f"the manifest cannot be read: {error.strerror}") from None
    except ManifestError as error:
        raise PackageRefused(str(error)) from None
    if manifest.key != key:
        raise PackageRefused("the manifest is that of another key")
    return manifest


def check_package(path: Path, manifest: Manifest) -> None:
    """Size, sha256, members and entry points of a package against its manifest. Raises PackageRefused."""
    try:
        with open_plain(path) as file:
            size, sha256 = members.hash_file(file)
    except OSError as error:
        raise PackageRefused(f"the package cannot be read: {error.strerror}") from None
    if size != manifest.package.size:
        raise PackageRefused(f"the package has {size} bytes, the manifest says {manifest.package.size}")
    if sha256 != manifest.package.sha256:
        raise PackageRefused("the package's sha256 is not the manifest's")
    if set(members.check_members(path)) != set(manifest.entry_points):
        raise PackageRefused("the package does not hold the manifest's entry points")
