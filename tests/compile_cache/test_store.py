"""The local store: verified reading, all-or-nothing writing, whatever happens half-way."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import resource
import shutil
import signal
import stat
from pathlib import Path

import pytest

from compile_cache import quarantine as quarantine_module
from compile_cache.errors import PackageRefused, StoreError
from compile_cache.manifest import PACKAGE
from compile_cache.place import MOST_FALLBACKS, default_root
from compile_cache.store import MANIFEST, LocalStore
from tests.compile_cache.packages import manifest_for, plain_members, write_zip

fork = multiprocessing.get_context("fork")


def test_put_and_find(store, small):
    manifest, package = small
    assert store.find(manifest.key) is None
    entry = store.put(manifest, package)
    found = store.find(manifest.key)
    assert found == entry
    assert found.manifest == manifest
    assert found.package.read_bytes() == package.read_bytes()
    assert store.entries() == [manifest.key]
    modes = {p: stat.S_IMODE(p.stat().st_mode) for p in (store.root, *store.root.rglob("*"))}
    assert all(mode & 0o077 == 0 for mode in modes.values())
    assert list((store.root / "incoming").iterdir()) == []
    assert store.remove(manifest.key)
    assert not store.remove(manifest.key)
    assert store.find(manifest.key) is None


def test_put_again_keeps_the_first(store, small):
    manifest, package = small
    first = store.put(manifest, package)
    inode = first.package.stat().st_ino
    assert store.put(manifest, package).package.stat().st_ino == inode


def test_put_replaces_a_broken_one(store, small):
    manifest, package = small
    store.put(manifest, package).package.write_bytes(b"broken")
    assert store.put(manifest, package).package.read_bytes() == package.read_bytes()
    assert len(store.quarantined()) == 1


def plant(store: LocalStore, manifest, package: Path) -> None:
    """What somebody else, or an older version of us, might have left in the store."""
    folder = store.root / "v1" / manifest.key
    folder.mkdir(parents=True)
    (folder / MANIFEST).write_bytes(manifest.to_json())
    shutil.copyfile(package, folder / PACKAGE)


EVIL = {**plain_members(), "p/../../evil.so": b"x"}
WALK = {name.replace("/run/", "/walk/"): data for name, data in plain_members().items()}


@pytest.mark.parametrize(("files", "reason"), [(EVIL, "leads out"), (WALK, "entry points")])
def test_put_and_find_check_the_members(store, tmp_path, files, reason):
    package = write_zip(tmp_path / "bad.pt2", files)
    manifest = manifest_for(package)
    with pytest.raises(PackageRefused, match=reason):
        store.put(manifest, package)
    assert store.entries() == []
    assert list((store.root / "incoming").iterdir()) == []
    plant(store, manifest, package)
    with pytest.raises(PackageRefused, match=reason):
        store.find(manifest.key)
    assert reason in store.quarantined()[0][1]


def test_put_refuses_another_package(store, small, tmp_path):
    other = write_zip(tmp_path / "other.pt2", plain_members(b"other"))
    with pytest.raises(PackageRefused, match=r"bytes|sha256"):
        store.put(small[0], other)
    assert store.entries() == []


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def as_link(path: Path) -> None:
    moved = path.rename(path.with_suffix(".real"))
    path.symlink_to(moved)


def as_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def edit(name: str, value):
    def apply(path: Path) -> None:
        data = json.loads(path.read_bytes())
        data[name] = value
        path.write_text(json.dumps(data))

    return apply


@pytest.mark.parametrize(
    ("file", "damage", "reason"),
    [
        (PACKAGE, truncate, "bytes, the manifest says"),
        (PACKAGE, flip, "sha256"),
        (PACKAGE, Path.unlink, "cannot be read"),
        (PACKAGE, as_link, "cannot be read"),
        (PACKAGE, as_pipe, "cannot be read"),
        (MANIFEST, truncate, "not JSON"),
        (MANIFEST, Path.unlink, "cannot be read"),
        (MANIFEST, as_link, "cannot be read"),
        (MANIFEST, as_pipe, "cannot be read"),
        (MANIFEST, edit("key", "0" * 64), "not the hash"),
        (MANIFEST, edit("surprise", 1), "unknown field"),
        (MANIFEST, edit("bound", {"run": ["w"]}), "does not name"),
    ],
)
def test_damage_is_quarantined_with_its_reason(store, small, file, damage, reason):
    manifest, package = small
    entry = store.put(manifest, package)
    damage(entry.package.with_name(file))
    with pytest.raises(PackageRefused, match=reason):
        store.find(manifest.key)
    assert store.find(manifest.key) is None
    [(key, noted)] = store.quarantined()
    assert key == manifest.key
    assert reason in noted
    assert store.put(manifest, package).manifest == manifest


def test_another_keys_entry(store, small, tmp_path):
    manifest, package = small
    other_manifest = manifest_for(package, sources="2" * 64)
    store.put(manifest, package)
    other = store.put(other_manifest, package)
    shutil.rmtree(other.package.parent)
    shutil.copytree(store.root / "v1" / manifest.key, store.root / "v1" / other_manifest.key)
    with pytest.raises(PackageRefused, match="another key"):
        store.find(other_manifest.key)
    assert store.find(manifest.key) is not None


def test_another_keys_package(store, tmp_path):
    """Same size, right manifest, another build's package."""
    packages = [write_zip(tmp_path / f"{n}.pt2", plain_members(bytes([n]) * 9)) for n in (1, 2)]
    entries = [store.put(manifest_for(p, sources=str(i) * 64), p) for i, p in enumerate(packages)]
    shutil.copyfile(packages[1], entries[0].package)
    with pytest.raises(PackageRefused, match=r"sha256|bytes"):
        store.find(entries[0].key)


def test_odd_keys(store):
    for key in ("../../etc", "", "A" * 64, "0" * 63):
        with pytest.raises(StoreError, match="not a key"):
            store.find(key)


# -- no place


def test_disk_full(store, small, monkeypatch):
    manifest, package = small

    def full(source, target, size):
        target.write(source.read()[:20])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "copyfileobj", full)
    with pytest.raises(StoreError, match="No space left"):
        store.put(manifest, package)
    monkeypatch.undo()
    assert store.entries() == []
    assert list((store.root / "incoming").iterdir()) == []
    assert store.put(manifest, package).manifest == manifest


def _put_within(root: Path, manifest, package: Path, queue) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        LocalStore(root).put(manifest, package)
    except StoreError:
        os._exit(7)


def test_a_real_write_error(store, small):
    child = fork.Process(target=_put_within, args=(store.root, *small, None))
    child.start()
    child.join(120)
    assert child.exitcode == 7
    assert store.entries() == []
    assert list((store.root / "incoming").iterdir()) == []


@pytest.fixture
def homeless(monkeypatch, tmp_path) -> Path:
    """No home; the temporary folder is the one returned."""
    monkeypatch.setenv("HOME", "/dev/null/nobody")
    monkeypatch.delenv("ONEGRAPH_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_no_home(homeless, small):
    store = LocalStore()
    assert store.root == homeless / f"onegraph-{os.getuid()}"
    assert "no usable home" in store.note
    assert stat.S_IMODE(store.root.stat().st_mode) == 0o700
    assert store.put(*small).key == small[0].key
    assert LocalStore().find(small[0].key) is not None


def test_the_fallback_is_never_somebody_elses_and_always_the_same(homeless, small):
    (homeless / "theirs").mkdir()
    (homeless / f"onegraph-{os.getuid()}").symlink_to(homeless / "theirs")
    (homeless / f"onegraph-{os.getuid()}-1").write_text("a file")
    assert LocalStore().root == homeless / f"onegraph-{os.getuid()}-2"
    assert LocalStore().put(*small) == LocalStore().find(small[0].key)
    assert list((homeless / "theirs").iterdir()) == []


def test_a_fallback_where_all_names_are_taken_or_nothing_can_be_written(homeless, monkeypatch, small):
    for number in range(MOST_FALLBACKS):
        (homeless / f"onegraph-{os.getuid()}{f'-{number}' if number else ''}").write_text("taken")
    with pytest.raises(StoreError, match="is not a folder"):
        LocalStore()
    monkeypatch.setattr("tempfile.tempdir", "/dev/null")
    assert LocalStore().find(small[0].key) is None
    with pytest.raises(StoreError, match="cannot store"):
        LocalStore().put(*small)


def test_chosen_root(monkeypatch, tmp_path):
    monkeypatch.setenv("ONEGRAPH_CACHE", str(tmp_path / "chosen"))
    assert default_root() == (tmp_path / "chosen", None)
    assert LocalStore().note is None


def test_a_root_that_cannot_be(small):
    store = LocalStore(Path("/dev/null/store"))
    assert store.find("0" * 64) is None
    assert store.entries() == []
    with pytest.raises(StoreError, match="cannot store"):
        store.put(*small)
    with pytest.raises(StoreError, match="cannot store"):
        store.check_writable()


def test_a_root_open_to_others_is_closed(tmp_path):
    root = tmp_path / "store"
    root.mkdir()
    root.chmod(0o777)
    LocalStore(root)
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    (root / "v1").mkdir()
    root.chmod(0o777)
    with pytest.raises(StoreError, match="others may write to the store"):  # who knows what they have put there
        LocalStore(root)
    assert stat.S_IMODE(root.stat().st_mode) == 0o777


def test_a_root_of_another_user(tmp_path, monkeypatch):
    root = tmp_path / "store"
    root.mkdir()
    if os.getuid() == 0:
        os.chown(root, 12345, 12345)
    else:
        monkeypatch.setattr(os, "getuid", lambda: 54321)
    with pytest.raises(StoreError, match="another user"):
        LocalStore(root)


def test_quarantine_is_bounded(store, small, monkeypatch):
    monkeypatch.setattr(quarantine_module, "MOST", 2)
    for _ in range(4):
        store.put(*small)
        store.reject(small[0].key, "because")
    assert store.quarantined() == [(small[0].key, "because")] * 2
    store.empty_quarantine()
    assert store.quarantined() == []
