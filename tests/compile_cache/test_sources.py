"""Sources are asked in order; what is passed over is on record, and nothing refused is executed."""

from __future__ import annotations

import dataclasses
import subprocess
import zipfile
from pathlib import Path

import pytest
import torch

from compile_cache.compiler import find_compiler
from compile_cache.errors import ConstantMismatch, PackageRefused, StoreError
from compile_cache.manifest import PACKAGE
from compile_cache.sources import find_first, open_first
from compile_cache.store import MANIFEST, LocalStore
from tests.compile_cache.packages import manifest_for, plain_members, write_zip


class Scripted:
    """A source that returns or raises what it is told."""

    def __init__(self, name: str, answer) -> None:
        self.name = name
        self._answer = answer
        self.rejected: list[tuple[str, str]] = []

    def find(self, key: str):
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    def reject(self, key: str, reason: str) -> None:
        self.rejected.append((key, reason))


def test_order_and_record(toy):
    sources = [
        Scripted("first", None),
        Scripted("second", PackageRefused("its sha256 is wrong")),
        Scripted("third", StoreError("not reachable")),
        Scripted("fourth", OSError("boom")),
        Scripted("fifth", dataclasses.replace(toy.entry, key="0" * 64)),
        toy.store,
        Scripted("never asked", AssertionError()),
    ]
    binary, answer = open_first(toy.key, sources, toy.weights())
    assert binary.key == toy.key
    assert answer.entry == toy.entry
    assert [(a.source, a.outcome) for a in answer.tried] == [
        ("first", "miss"),
        ("second", "refused"),
        ("third", "error"),
        ("fourth", "error"),
        ("fifth", "refused"),
        ("local cache", "hit"),
    ]
    named = find_first(toy.key, sources)
    assert (named.entry, [a.outcome for a in named.tried]) == (answer.entry, [a.outcome for a in answer.tried])
    assert find_first(toy.key, sources[:2]).entry is None
    assert "second: refused (its sha256 is wrong)" in answer.reason
    assert "OSError: boom" in answer.reason


def test_nothing_found():
    assert open_first("0" * 64, [], {})[1].reason == "no source to look in"
    binary, answer = open_first("0" * 64, [Scripted("one", None)], {})
    assert binary is answer.entry is None
    assert answer.reason == "one has none"


def test_open_first_passes_over_what_does_not_load(toy, small):
    manifest, package = small
    broken = Scripted("broken", dataclasses.replace(toy.entry, package=package))
    binary, answer = open_first(toy.key, [broken, toy.store], fresh(toy))
    assert binary.key == toy.key
    assert [a.outcome for a in answer.tried] == ["refused", "hit"]
    assert broken.rejected[0][0] == toy.key
    nothing, answer = open_first(toy.key, [Scripted("empty", None)], toy.weights())
    assert nothing is None
    assert answer.tried[0].outcome == "miss"
    assert manifest.key != toy.key


def fresh(toy) -> dict[str, dict[str, torch.Tensor]]:
    """Weights of their own, so that no binary opened before is handed out."""
    return {e: {n: t.detach().clone() for n, t in w.items()} for e, w in toy.weights().items()}


def test_wrong_weights_say_nothing_against_the_package(toy):
    weights = toy.weights()
    weights["rollout"]["body.gain"] = torch.zeros(3)
    with pytest.raises(ConstantMismatch, match=r"body\.gain"):
        open_first(toy.key, [toy.store], weights)
    assert toy.store.find(toy.key) is not None
    assert toy.store.quarantined() == []


# -- refused before any byte is executed


@pytest.fixture(scope="module")
def tripwire(tmp_path_factory) -> tuple[bytes, Path]:
    """(a library that leaves a mark as soon as it is loaded, where it leaves it)."""
    folder = tmp_path_factory.mktemp("tripwire")
    mark, source, library = folder / "mark", folder / "trip.cpp", folder / "trip.so"
    leave = f'std::fclose(std::fopen("{mark}", "w"));'
    source.write_text(f"#include <cstdio>\n__attribute__((constructor)) static void trip() {{ {leave} }}\n")
    subprocess.run([find_compiler(), "-shared", "-fPIC", "-o", library, source], check=True)
    return library.read_bytes(), mark


def _truncate(folder: Path) -> None:
    path = folder / PACKAGE
    path.write_bytes(path.read_bytes()[:-30])


def _flip(folder: Path) -> None:
    data = bytearray((folder / PACKAGE).read_bytes())
    data[len(data) // 3] ^= 4
    (folder / PACKAGE).write_bytes(data)


def _pad(folder: Path) -> None:
    with (folder / PACKAGE).open("ab") as file:
        file.write(b"\0" * 10)


def _swap(folder: Path) -> None:
    other = write_zip(folder / "other", plain_members(b"other"))
    (folder / MANIFEST).write_bytes(manifest_for(other, sources="9" * 64).to_json())
    other.replace(folder / PACKAGE)


def _forge(folder: Path) -> None:
    (folder / MANIFEST).write_bytes((folder / MANIFEST).read_bytes().replace(b'"g++ 12"', b'"g++ 12", "x": 1'))


FILE_ATTACKS = {
    "truncated": (_truncate, "bytes, the manifest says"),
    "flipped": (_flip, "sha256"),
    "padded": (_pad, "bytes, the manifest says"),
    "swapped": (_swap, "another key"),
    "forged manifest": (_forge, "unknown field"),
}
MODEL = "p/data/aotinductor/run"
MEMBER_ATTACKS = {
    "climbing": ({"p/../../../evil.so": b"x"}, "leads out"),
    "absolute": ({"/tmp/evil.so": b"x"}, "absolute"),
    "backslash": ({"p\\evil.so": b"x"}, "backslash"),
    "pickled": ({"p/data/weights/weight_0": b"x"}, "pickled"),
    "bomb": ({f"{MODEL}/big.json": bytes(8 * 2**20)}, "oversize"),
    "sources": ({f"{MODEL}/abc.wrapper.cpp": b"x"}, "does not belong"),
    "second library": ({f"{MODEL}/two.wrapper.so": b"x"}, "exactly one library"),
    "link": (zipfile.ZipInfo(f"{MODEL}/link.json"), "is a link"),
    "duplicate": (zipfile.ZipInfo(f"{MODEL}/ABC.wrapper.so"), "twice"),
}


def plant(store: LocalStore, package: Path, tamper=None) -> str:
    manifest = manifest_for(package)
    folder = store.root / "v1" / manifest.key
    folder.mkdir(parents=True)
    (folder / MANIFEST).write_bytes(manifest.to_json())
    (folder / PACKAGE).write_bytes(package.read_bytes())
    if tamper is not None:
        tamper(folder)
    return manifest.key


@pytest.mark.parametrize("attack", [*FILE_ATTACKS, *MEMBER_ATTACKS])
def test_refused_before_anything_runs(store, tmp_path, tripwire, attack):
    library, mark = tripwire
    package = write_zip(tmp_path / "package", plain_members(library))
    tamper, reason = FILE_ATTACKS.get(attack, (None, None))
    if attack in MEMBER_ATTACKS:
        extra, reason = MEMBER_ATTACKS[attack]
        with zipfile.ZipFile(package, "a", zipfile.ZIP_DEFLATED) as archive:
            if isinstance(extra, zipfile.ZipInfo):
                extra.external_attr = (0o120777 if attack == "link" else 0o100600) << 16
                archive.writestr(extra, b"/etc/passwd")
            else:
                for name, content in extra.items():
                    archive.writestr(name, content)
    key = plant(store, package, tamper)
    binary, answer = open_first(key, [store, Scripted("next", None)], {})
    assert binary is None
    assert [a.outcome for a in answer.tried] == ["refused", "miss"]
    assert reason in answer.reason
    assert reason in store.quarantined()[0][1]
    assert store.entries() == []
    assert not mark.exists()


def test_the_tripwire_works(store, tmp_path, tripwire):
    """With a manifest that vouches for it the same library is loaded, leaves its mark and is then refused."""
    library, mark = tripwire
    key = plant(store, write_zip(tmp_path / "package", plain_members(library)))
    binary, answer = open_first(key, [store], {})
    assert binary is None
    assert "does not load" in answer.reason
    assert "does not load" in store.quarantined()[0][1]
    assert mark.exists()
    mark.unlink()
