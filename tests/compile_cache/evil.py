"""What a repository may offer and must be refused: one table for the store's tests and for those of serving."""

from __future__ import annotations

import hashlib
import json
import subprocess
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from compile_cache.compiler import find_compiler
from compile_cache.key import key_of
from compile_cache.manifest import LARGEST_MANIFEST, PACKAGE, FileRecord, Manifest
from tests.compile_cache.hubs import REPO, Offer
from tests.compile_cache.packages import write_zip
from tests.fixtures.fake_hub import FakeHub


def tripwire(folder: Path) -> tuple[bytes, Path]:
    """(a library, the mark that it leaves in `folder` as soon as it is loaded)."""
    mark, source, library = folder / "mark", folder / "trip.cpp", folder / "trip.so"
    leave = f'std::fclose(std::fopen("{mark}", "w"));'
    source.write_text(f"#include <cstdio>\n__attribute__((constructor)) static void trip() {{ {leave} }}\n")
    subprocess.run([find_compiler(), "-shared", "-fPIC", "-o", library, source], check=True)
    return library.read_bytes(), mark


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


def in_library(package: bytes) -> int:
    """A place inside the packed library."""
    return package.index(b"abc.wrapper.so") + 200


def edited(*changes: tuple[str, object]) -> Callable[[Offer], bytes]:
    """The manifest with fields set (or, for ..., removed), as somebody with an editor would."""

    def edit(made: Offer) -> bytes:
        data = json.loads(made.manifest.to_json())
        for path, value in changes:
            place = data
            *steps, last = path.split("/")
            for step in steps:
                place = place[step]
            if value is ...:
                del place[last]
            else:
                place[last] = value
        return json.dumps(data).encode()

    return edit


def with_library(made: Offer, change: Callable[[bytes], bytes], folder: Path) -> bytes:
    """Its package with another library in it."""
    path = folder / "changed.pt2"
    path.write_bytes(made.package)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    changed = {name: change(data) if name.endswith(".so") else data for name, data in members.items()}
    return write_zip(path, changed).read_bytes()


def vouched(manifest: Manifest, package: bytes) -> Offer:
    """The package with a manifest that vouches for it."""
    record = FileRecord(len(package), hashlib.sha256(package).hexdigest())
    return Offer(replace(manifest, files={PACKAGE: record}), package)


def other(made: Offer, folder: Path) -> Offer:
    """A sound entry of another key."""
    fields = {**made.manifest.fields, "sources": "2" * 64}
    package = with_library(made, lambda library: b"another library", folder)
    return vouched(replace(made.manifest, key=key_of(fields), fields=fields), package)


def with_record(made: Offer, **changes: object) -> bytes:
    """A manifest that states another size or sha256 of its package."""
    record = replace(made.manifest.package, **changes)
    return replace(made.manifest, files={"package.pt2": record}).to_json()


# What is committed in the manifest's and the package's place.
COMMITTED = {
    "a flipped bit in the library": (None, lambda m: flipped(m.package, in_library(m.package)), "sha256 of the Hub's"),
    "a truncated package": (None, lambda m: m.package[:-30], "the Hub's package has"),
    "a padded package": (None, lambda m: m.package + b"\0" * 10, "the Hub's package has"),
    "no package": (None, lambda m: None, "the manifest but not the package"),
    "an empty package": (None, lambda m: b"", "the Hub's package has 0 bytes"),
    "a manifest with another field of the key": (edited(("fields/sources", "b" * 64)), None, "not the hash of its"),
    "a manifest with another key": (edited(("key", "0" * 64)), None, "not the hash of its fields"),
    "a manifest with an unknown field": (edited(("surprise", 1)), None, "unknown field 'surprise'"),
    "a manifest with a missing field": (edited(("licence", ...)), None, "missing field licence"),
    "a manifest with a field twice": (lambda m: m.manifest.to_json().replace(b"{", b'{"key": 1,', 1), None, "twice"),
    "a manifest with a name that cannot be printed": (edited(("bound", {"\ud800\n\x1b[2J": 1})), None, "bound: "),
    "a manifest with a name of megabytes": (edited(("bound", {"x" * 4_000_000: 1})), None, "bound: xxx"),
    "a manifest with a number without end": (
        lambda m: m.manifest.to_json().replace(b'"nodes": 3', b'"nodes": 1e999'),
        None,
        "too large",
    ),
    "a manifest with a field that cannot be printed": (
        edited(("fields/environment/torch", "2\x1b]0;x\x07")),
        None,
        "cannot be printed",
    ),
    "a manifest of another schema": (edited(("schema", 99)), None, "schema 99"),
    "a manifest that is a pickle": (lambda m: b"\x80\x04cos\nsystem\n", None, "not JSON"),
    "a manifest that nests too deep": (lambda m: b"[" * 10**5, None, "not JSON"),
    "a manifest that is too big": (lambda m: b" " * (LARGEST_MANIFEST + 1), None, "more than 8388608"),
    "a wrong size in the manifest": (lambda m: with_record(m, size=len(m.package) + 1), None, "the manifest says"),
    "a giant size in the manifest": (lambda m: with_record(m, size=2**60), None, "the size 1152921504606846976"),
    "a wrong sha256 in the manifest": (lambda m: with_record(m, sha256="0" * 64), None, "is not the manifest's"),
}
# What the Hub's storage or the way from there makes of a sound package, while its lists go on saying that it is sound.
SPOILED = {
    "a flipped bit in the library, in storage": (lambda m: flipped(m.package, in_library(m.package)), "another sha256"),
    "corruption of the same length, in storage": (lambda m: bytes(len(m.package)), "another sha256"),
    "truncated in storage": (lambda m: m.package[:-30], "arrived with"),
    "padded in storage": (lambda m: m.package + b"\0" * 10, "arrived with more than"),
}
# Members that make a package of the right size and sha256 a refused one. MODEL: the folder of an entry point.
MEMBERS = {
    "a member that climbs": ({"p/../../../evil.so": b"x"}, "leads out"),
    "a member with an absolute path": ({"/tmp/evil.so": b"x"}, "absolute"),
    "a member with a drive": ({"C:evil.so": b"x"}, "absolute"),
    "a member with a backslash": ({"p\\..\\evil.so": b"x"}, "backslash"),
    "a member that is a link": (zipfile.ZipInfo("MODEL/link.json"), "is a link"),
    "a member twice": (zipfile.ZipInfo("MODEL/abc.wrapper.so"), "twice"),
    "a member twice but for case": (zipfile.ZipInfo("MODEL/ABC.wrapper.so"), "twice"),
    "an oversize member": ({"MODEL/big.json": bytes(8 * 2**20)}, "oversize"),
    "pickled weights": ({"p/data/weights/weight_0": b"x"}, "pickled"),
    "pickled constants": ({"p/data/constants/tensor_0": b"x"}, "pickled"),
    "a pickle among the libraries": ({"MODEL/evil.pkl": b"x"}, "pickled"),
    "a second library": ({"MODEL/two.wrapper.so": b"x"}, "exactly one library"),
    "another entry point": (
        {"p/data/aotinductor/walk/abc.wrapper.so": b"x"},
        "does not hold the manifest's entry points",
    ),
}


def with_member(made: Offer, extra: dict[str, bytes] | zipfile.ZipInfo, folder: Path) -> Offer:
    """Its package with `extra` in it, and a manifest that vouches for it."""
    path, model = folder / "evil.pt2", f"p/data/aotinductor/{made.manifest.fields['entry_points'][0]['name']}"
    path.write_bytes(made.package)
    with warnings.catch_warnings(), zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        warnings.simplefilter("ignore")
        if isinstance(extra, zipfile.ZipInfo):
            info = zipfile.ZipInfo(extra.filename.replace("MODEL", model))
            info.external_attr = (0o120777 if "link" in extra.filename else 0o100600) << 16
            archive.writestr(info, b"/etc/passwd")
        else:
            for name, content in extra.items():
                archive.writestr(name.replace("MODEL", model), content)
    return vouched(made.manifest, path.read_bytes())


def plan(case: str, hub: FakeHub, made: Offer, folder: Path) -> str:
    """Puts the case's content on the Hub; what the reason must say."""
    if case in COMMITTED:
        manifest, package, reason = COMMITTED[case]
        content = made.manifest.to_json() if manifest is None else manifest(made)
        data = made.package if package is None else package(made)
        hub.repos.put(REPO, {made.manifest_path: content, made.package_path: data})
    elif case in SPOILED:
        spoil, reason = SPOILED[case]
        hub.repos.put(REPO, made.files())
        hub.repos.blobs[made.manifest.package.sha256] = spoil(made)
    elif case in MEMBERS:
        extra, reason = MEMBERS[case]
        hub.repos.put(REPO, with_member(made, extra, folder).files())
    elif case == "a bit flipped on the way":
        hub.repos.put(REPO, made.files())
        hub.fail("/blob/", corrupt=True)
        reason = "another sha256"
    elif case == "another key's package":
        hub.repos.put(REPO, {**made.files(), made.package_path: other(made, folder).package})
        reason = "the Hub's package has"
    elif case == "another key's package of the same size":
        twin = with_library(made, lambda library: flipped(library, len(library) - 1), folder)
        hub.repos.put(REPO, {**made.files(), made.package_path: twin})
        reason = "is not the manifest's" if len(twin) == len(made.package) else "the Hub's package has"
    elif case == "another key's entry":
        stranger = other(made, folder)
        files = {made.manifest_path: stranger.manifest.to_json(), made.package_path: stranger.package}
        hub.repos.put(REPO, files)
        reason = "the manifest is that of another key"
    else:
        raise AssertionError(case)
    return reason


OTHERS = (
    "a bit flipped on the way",
    "another key's package",
    "another key's package of the same size",
    "another key's entry",
)
CASES = (*COMMITTED, *SPOILED, *MEMBERS, *OTHERS)
