"""What a package may hold, checked from its list of members and while unpacking."""

from __future__ import annotations

import stat
import struct
import warnings
import zipfile
from pathlib import Path

import pytest

from compile_cache import members
from compile_cache.errors import PackageRefused
from compile_cache.members import check_members, extract
from tests.compile_cache.packages import plain_members, write_zip

MODEL = "p/data/aotinductor/run"


def test_a_plain_package_passes(small):
    assert check_members(small[1]) == {"run": (f"{MODEL}/abc.wrapper.so", f"{MODEL}/abc.wrapper_metadata.json")}


def test_the_toys_package(toy, tmp_path):
    found = check_members(toy.entry.package)
    assert set(found) == {"rollout", "encode"}
    suffixes = {name.rpartition(".")[2] for names in found.values() for name in names}
    assert suffixes == {"so", "json"}  # no sources, no weights
    with toy.entry.package.open("rb") as file:
        extract(file, tmp_path)
    for path in (p for p in tmp_path.rglob("*") if p.is_file()):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("p/../../../evil.so", "leads out"),
        ("../evil.so", "leads out"),
        (f"{MODEL}/../../../../evil.so", "leads out"),
        ("/etc/evil.so", "absolute"),
        ("C:/evil.so", "absolute"),
        ("p\\data\\evil.so", "backslash"),
        (f"{MODEL}/..\\evil.so", "backslash"),
        (f"{MODEL}//evil.so", "unclean"),
        (f"{MODEL}/./evil.so", "unclean"),
        (f"{MODEL}/evil\n.so", "unclean"),
        (f"{MODEL}/evil\u202e.so", "unclean"),
        (f"{MODEL}/ABC.wrapper.so", "twice"),
        ("q/data/aotinductor/run/evil.so", "not in one folder"),
        ("p/data/weights/weight_0", "pickled"),
        ("p/data/constants/custom_obj_0", "pickled"),
        (f"{MODEL}/weights_config.json", "pickled"),
        (f"{MODEL}/model.pkl", "pickled"),
        (f"{MODEL}/model.blob", "pickled"),
        (f"{MODEL}/model.cpp", "does not belong"),
        (f"{MODEL}/deeper/evil.so", "does not belong"),
        ("p/data/aotinductor/Run/evil.so", "does not belong"),
        ("p/extra/evil.json", "does not belong"),
        ("p/evil.so", "does not belong"),
        (f"{MODEL}/two.wrapper.so", "exactly one library"),
        (f"{MODEL}/folder/", "unclean"),
    ],
)
def test_refused_members(tmp_path, name, reason):
    path = write_zip(tmp_path / "bad.pt2", {**plain_members(), name: b"x"})
    with pytest.raises(PackageRefused, match=reason):
        check_members(path)
    target = tmp_path / "target"
    target.mkdir()
    with path.open("rb") as file, pytest.raises(PackageRefused, match=reason):
        extract(file, target)
    assert list(target.iterdir()) == []


def with_info(path: Path, **changes) -> Path:
    write_zip(path, plain_members())
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        info = zipfile.ZipInfo(f"{MODEL}/odd.json")
        for name, value in changes.items():
            setattr(info, name, value)
        archive.writestr(info, b"/etc/passwd")
    return path


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"external_attr": (stat.S_IFLNK | 0o777) << 16}, "is a link"),
        ({"external_attr": (stat.S_IFIFO | 0o600) << 16}, "not a plain file"),
        ({"external_attr": (stat.S_IFDIR | 0o700) << 16}, "not a plain file"),
    ],
)
def test_refused_kinds(tmp_path, changes, reason):
    with pytest.raises(PackageRefused, match=reason):
        check_members(with_info(tmp_path / "bad.pt2", **changes))


def test_refused_packing(tmp_path):
    path = tmp_path / "bad.pt2"
    write_zip(path, plain_members())
    with zipfile.ZipFile(path, "a", zipfile.ZIP_LZMA) as archive:
        archive.writestr(f"{MODEL}/odd.json", b"x" * 1000)
    with pytest.raises(PackageRefused, match="packed in an unknown way"):
        check_members(path)
    data = bytearray(write_zip(path, plain_members()).read_bytes())
    data[data.index(b"PK\x01\x02") + 8] |= 1  # says: encrypted
    path.write_bytes(data)
    with pytest.raises(PackageRefused, match="encrypted"):
        check_members(path)


def test_duplicate_name(tmp_path):
    path = write_zip(tmp_path / "bad.pt2", plain_members())
    with warnings.catch_warnings(), zipfile.ZipFile(path, "a") as archive:
        warnings.simplefilter("ignore")
        archive.writestr(f"{MODEL}/abc.wrapper.so", b"the other one")
    with pytest.raises(PackageRefused, match="twice"):
        check_members(path)


def test_oversize(tmp_path, monkeypatch):
    path = write_zip(tmp_path / "bomb.pt2", plain_members(library=bytes(4 * 2**20)))
    with pytest.raises(PackageRefused, match="oversize"):
        check_members(path)
    monkeypatch.setattr(members, "LARGEST_TOTAL", 10)
    with pytest.raises(PackageRefused, match="unpacks to more"):
        check_members(write_zip(tmp_path / "sum.pt2", plain_members()))
    monkeypatch.setattr(members, "MOST_MEMBERS", 3)
    with pytest.raises(PackageRefused, match="members"):
        check_members(write_zip(tmp_path / "many.pt2", plain_members()))


def test_a_size_that_lies(tmp_path):
    """The directory says fewer bytes than the member unpacks to."""
    path = write_zip(tmp_path / "lie.pt2", plain_members(library=b"abc" * 1000))
    data = bytearray(path.read_bytes())
    # The unpacked size stands 24 bytes before the name in the member's own header and 22 before that
    # in the directory's: 46 - 24 and 30 - 22 bytes before the name itself.
    for distance, name_at in (
        (8, data.index(b"p/data/aotinductor/run/abc.wrapper.so")),
        (22, data.rindex(b"p/data/aotinductor/run/abc.wrapper.so")),
    ):
        data[name_at - distance : name_at - distance + 4] = (100).to_bytes(4, "little")
    path.write_bytes(data)
    target = tmp_path / "target"
    target.mkdir()
    with path.open("rb") as file, pytest.raises(PackageRefused, match="damaged"):
        extract(file, target)


def test_a_list_of_members_without_end(tmp_path):
    """Nothing but an empty member's record, again and again: to read them all would take minutes."""
    with zipfile.ZipFile(tmp_path / "one.zip", "w") as archive:
        archive.writestr("x", b"")
    one = (tmp_path / "one.zip").read_bytes()
    start, end = one.index(b"PK\x01\x02"), one.index(b"PK\x05\x06")
    record, count = one[start:end], 1_000_000
    size = len(record) * count
    tail = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, size, start)
    tail += struct.pack("<4sLQL", b"PK\x06\x07", 0, start + size, 1)
    tail += struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    (tmp_path / "many.zip").write_bytes(one[:start] + record * count + tail)
    with pytest.raises(PackageRefused, match="list of members has more than 4194304 bytes"):
        check_members(tmp_path / "many.zip")


@pytest.mark.parametrize("content", [b"", b"PK\x05\x06", b"not a zip at all", bytes(1000)])
def test_not_an_archive(tmp_path, content):
    path = tmp_path / "bad.pt2"
    path.write_bytes(content)
    with pytest.raises(PackageRefused, match="not a readable archive"):
        check_members(path)
    with pytest.raises(PackageRefused, match="cannot be read"):
        check_members(tmp_path / "missing.pt2")


def test_damage_inside_a_member(tmp_path):
    path = write_zip(tmp_path / "bad.pt2", plain_members(library=bytes(range(256)) * 40))
    data = bytearray(path.read_bytes())
    start = data.index(b"abc.wrapper.so") + 40
    for offset in range(0, 60, 7):
        data[start + offset] ^= 0xFF
    path.write_bytes(data)
    target = tmp_path / "target"
    target.mkdir()
    with path.open("rb") as file, pytest.raises(PackageRefused, match="damaged"):
        extract(file, target)
