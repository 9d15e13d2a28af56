"""Building: what comes out, what is refused, and that nothing of the machine or the weights gets in."""

from __future__ import annotations

import os
import shutil
import struct
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import Dim

from compile_cache import elf
from compile_cache.build import build_package
from compile_cache.compiler import compiler_version, find_compiler
from compile_cache.entry import EntryPoint, export_shapes
from compile_cache.errors import BuildFailed, CompilerMissing
from compile_cache.specs import dynamic


def test_figures(toy):
    figures = toy.entry.manifest.figures
    assert figures["rollout"].ops["while_loop"] == 1
    assert figures["rollout"].ops["cond"] == 1
    assert "while_loop" not in figures["encode"].ops
    assert figures["rollout"].nodes > figures["encode"].nodes
    assert all(item.compile_seconds > 0 and item.export_seconds > 0 for item in figures.values())
    assert toy.entry.manifest.compiler
    assert [text.partition(" (")[0] for text in toy.messages] == [
        "exporting rollout",
        "compiling rollout",
        "exporting encode",
        "compiling encode",
        "packing",
        "trying it out in a process of its own",
        "comparing it with eager",
        "storing",
    ]


def test_literals_of_the_code_are_in_the_manifest(toy):
    [literal] = toy.entry.manifest.literals["rollout"].values()
    assert literal.values == (0.25, -0.5)


def test_no_weights_and_no_paths_in_the_package(toy):
    home = str(Path.home()).encode() + b"/"
    torch_home = str(Path(torch.__file__).parent.parent).encode() + b"/"
    weight = toy.entry_points[0].module.body.lin.weight.detach().numpy().tobytes()
    with zipfile.ZipFile(toy.entry.package) as archive:
        assert not any("weights" in name for name in archive.namelist())
        for name in archive.namelist():
            content = archive.read(name)
            for unwanted in (home, torch_home, b"torchinductor_", weight, weight[:32]):
                assert unwanted not in content, (name, unwanted)


def test_libraries_have_no_executable_stack(toy, tmp_path):
    with zipfile.ZipFile(toy.entry.package) as archive:
        for name in (name for name in archive.namelist() if name.endswith(".so")):
            path = tmp_path / Path(name).name
            path.write_bytes(archive.read(name))
            assert not elf.clear_execstack(path)


def small_elf(flags: int) -> bytes:
    head = bytearray(64)
    head[:6] = elf.MAGIC
    struct.pack_into("<Q", head, 32, 64)
    struct.pack_into("<HH", head, 54, 56, 2)
    table = [struct.pack("<II", 1, 5).ljust(56, b"\0"), struct.pack("<II", elf.GNU_STACK, flags).ljust(56, b"\0")]
    return bytes(head) + b"".join(table)


def test_clear_execstack(tmp_path):
    path = tmp_path / "a.so"
    path.write_bytes(small_elf(7))
    assert elf.clear_execstack(path)
    assert path.read_bytes() == small_elf(6)
    assert not elf.clear_execstack(path)
    path.write_bytes(b"\x7fELF\x01\x01" + bytes(100))
    with pytest.raises(ValueError, match="ELF"):
        elf.clear_execstack(path)


def test_mask_paths(tmp_path):
    path = tmp_path / "a.so"
    path.write_bytes(b"..\0/home/alice/x/a.h\0/home/alice2/b.h\0/home/alice/c.h\0")
    assert elf.mask_paths(path, ["/home/alice", "/home/alice/x", "/"]) == 2
    assert path.read_bytes() == b"..\0/____________/a.h\0/home/alice2/b.h\0/__________/c.h\0"


# -- refusals, before or without compiling


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lin(x)


def plain(**changes) -> EntryPoint:
    base = {"name": "run", "module": Plain(), "args": (torch.zeros(2, 4),)}
    return EntryPoint(**{**base, **changes})


def with_odd_weight() -> nn.Module:
    module = Plain()
    module.lin.weight = nn.Parameter(torch.zeros(4, 4).t().contiguous().t())
    module.lin.weight.data = torch.zeros(4, 8)[:, ::2]
    return module


class Table(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.zeros(5000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.table.sum()


class Branching(Plain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lin(x) if x.sum() > 0 else x


@pytest.mark.parametrize(
    ("points", "reason"),
    [
        ([], "at least one"),
        ([plain(), plain()], "its own name"),
        ([plain(), plain(name="run_more")], "beginning of another"),
        ([plain(name="../run")], "entry point name"),
        ([plain(input_names=())], "one length"),
        ([plain(args=(torch.zeros(2, 4, device="meta"),))], "x is a meta tensor"),
        ([plain(module=Plain().to("meta"))], r"lin\.\w+ is a meta tensor"),
        ([plain(args=(torch.zeros(0, 4),))], "not empty"),
        ([plain(args=(torch.zeros(4, 2).t(),))], "contiguous"),
        ([plain(module=with_odd_weight())], "lin.weight must be contiguous"),
        ([plain(twin=nn.Linear(4, 4))], "twin has other weights than its module, for example bias"),
        ([plain(dynamic_shapes=({0: Dim.DYNAMIC},))], "named Dim"),
        ([plain(module=Table())], "Register it as a buffer"),
        ([plain(module=Branching())], "exporting run"),
        ([plain(dynamic_shapes=({1: Dim("width", min=1, max=9)},))], "exporting run"),
    ],
)
def test_refused(points, reason, tmp_path):
    with pytest.raises(BuildFailed, match=reason):
        build_package(points, tmp_path / "out.pt2")
    assert not (tmp_path / "out.pt2").exists()


def test_a_key_needs_no_weights():
    real = plain().spec()
    meta = plain(module=Plain().to("meta"), args=(torch.zeros(2, 4, device="meta"),))
    assert meta.spec() == real
    assert meta.spec("cuda") != real


@pytest.mark.parametrize("size", ["dynamic", "torch"])
def test_dimensions_as_torch_wants_them(size):
    """4*rows-3 and rows share one root; both spellings are the same spec and export alike."""
    if size == "dynamic":
        rows = dynamic("rows", 2, 9)
        dims = ({0: rows}, {0: rows.times(4, plus=-3)})
    else:
        rows = Dim("rows", min=2, max=9)
        dims = ({0: rows}, {0: 4 * rows - 3})
    point = plain(module=Stretch(), args=(torch.zeros(2, 4), torch.zeros(5, 4)), dynamic_shapes=dims)
    assert [str(item.shape[0]) for item in point.spec().inputs] == ["rows in 2..9", "4*rows-3 in 5..33"]
    exported = torch.export.export(point.module, point.args, dynamic_shapes=export_shapes(point))
    assert len(exported.range_constraints) >= 1
    exported.module()(torch.zeros(9, 4), torch.zeros(33, 4))
    with pytest.raises(Exception, match=r"(?i)guard|shape|expected|dim"):
        exported.module()(torch.zeros(9, 4), torch.zeros(32, 4))


class Stretch(Plain):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.lin(x).sum() + y


class Variadic(Plain):
    def forward(self, x: torch.Tensor, *state: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.lin(x) + sum(state)


def test_input_names():
    assert plain().names == ("x",)
    assert plain(input_names=("pixels",)).spec().inputs[0].name == "pixels"
    many = plain(module=Variadic(), args=(torch.zeros(2, 4),) * 3)
    assert [item.name for item in many.spec().inputs] == ["x", "state_0", "state_1"]


def test_unknown_option(tmp_path):
    with pytest.raises(BuildFailed, match=r"no compiler option cpp\.surprise"):
        build_package([plain()], tmp_path / "out.pt2", {"cpp.surprise": 1})


def test_no_compiler(tmp_path, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CompilerMissing, match=r"no C\+\+ compiler on this machine.*g\+\+ and clang"):
        build_package([plain()], tmp_path / "out.pt2")
    monkeypatch.setenv("CXX", "icpc")
    with pytest.raises(CompilerMissing, match="CXX=icpc"):
        find_compiler()


def test_other_compilers(tmp_path, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    clang = tmp_path / "clang++"
    clang.write_text(f"#!{shutil.which('sh', path=os.defpath)}\necho 'clang version 99'\n")
    clang.chmod(0o700)
    assert find_compiler() == str(clang)
    assert compiler_version(str(clang)) == "clang version 99"
    clang.write_text("#!/nowhere/sh\n")
    with pytest.raises(CompilerMissing, match="cannot be run"):
        compiler_version(str(clang))


def test_a_compiler_that_fails(tmp_path, monkeypatch):
    """As when the C++ headers are not installed: the compiler's own words are in the error."""
    fake = tmp_path / "g++"
    fake.write_text(
        "#!/bin/sh\ncase $1 in --version) echo 'g++ 1';; *) echo 'a.cpp:1: error: no iostream' >&2; exit 1;; esac\n"
    )
    fake.chmod(0o700)
    monkeypatch.setenv("CXX", str(fake))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.raises(BuildFailed, match=r"compiling run.*no iostream"):
        build_package([plain()], tmp_path / "out.pt2", {"cpp.simdlen": 1})
