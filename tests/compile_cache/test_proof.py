"""The proof: anybody gets the same digest without the weights, another result is refused, a crash is told of."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from compile_cache import trial
from compile_cache.compiler import find_compiler
from compile_cache.errors import SmokeFailed, TrialUnfinished
from compile_cache.key import key_of
from compile_cache.manifest import Manifest, parse
from compile_cache.proof import Call, check, child_variables, prove
from compile_cache.trial import digest_of
from tests.compile_cache.packages import manifest_for, plain_members, write_zip
from tests.compile_cache.toys import WIDTH


def test_whoever_holds_package_manifest_and_calls_gets_the_same_digest(toy):
    """The toy's own weights are nowhere in here."""
    manifest = parse(toy.entry.manifest.to_json())
    check(toy.entry.package, manifest, toy.calls, timeout=120)
    proof = prove(toy.entry.package, manifest, toy.calls, timeout=120)
    assert proof.digest == manifest.reference
    assert [len(outputs) for outputs in proof.outputs] == [2, 2, 2, 1]
    assert [len(inputs) for inputs in proof.inputs] == [3, 3, 3, 1]
    rings = [inputs[1] for inputs in proof.inputs[:3]]
    assert rings[0].any()  # changed by the call, and handed on to the next
    assert not torch.equal(rings[0], rings[1])
    assert not toy.calls[0].inputs[1].any()  # the caller's tensors are left alone


def other_constant(manifest: Manifest) -> Manifest:
    """A binary of the right names and shapes that computes something else, which only running it can show."""
    [(name, literal)] = manifest.literals["rollout"].items()
    other = {"rollout": {name: dataclasses.replace(literal, values=(0.25, -0.25))}, "encode": {}}
    return dataclasses.replace(manifest, literals=other)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m, c: (dataclasses.replace(m, reference="0" * 64), c), "another result here than its publisher's"),
        (lambda m, c: (dataclasses.replace(m, reference=None), c), "no reference result"),
        (lambda m, c: (m, c[:-1]), "another result"),
        (lambda m, c: (other_constant(m), c), "another result"),
        (lambda m, c: (m, []), "no reference calls"),
        (lambda m, c: (dataclasses.replace(m, bound={**m.bound, "encode": ()}), c), "other weights than the manifest"),
    ],
)
def test_refused(toy, change, reason):
    manifest, calls = change(toy.entry.manifest, toy.calls)
    with pytest.raises(SmokeFailed, match=reason):
        check(toy.entry.package, manifest, calls, timeout=120)


def test_a_device_that_only_this_process_has(toy, monkeypatch):
    """A GPU may be lent to a process and not to its children: then it runs the job itself, if it has one."""
    fields = toy.entry.manifest.fields
    fields = {**fields, "environment": {**fields["environment"], "device": "cuda"}}
    manifest = dataclasses.replace(toy.entry.manifest, fields=fields, key=key_of(fields))
    with pytest.raises(TrialUnfinished, match="the process of the trial run has no GPU"):
        check(toy.entry.package, manifest, toy.calls, timeout=120)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(trial, "run", lambda folder: {"digest": json.loads((folder / "job.json").read_text())["keep"]})
    with pytest.raises(SmokeFailed, match="another result here"):
        check(toy.entry.package, manifest, toy.calls, timeout=120)
    monkeypatch.setattr(trial, "run", lambda folder: {"digest": manifest.reference})
    check(toy.entry.package, manifest, toy.calls, timeout=120)


def test_a_call_that_fails(toy):
    """A row that is not in the table: Inductor's own check aborts the process, here only the child's."""
    calls = [Call("encode", (torch.tensor([WIDTH + 5]),))]
    with pytest.raises(SmokeFailed, match="died of SIGABRT"):
        prove(toy.entry.package, toy.entry.manifest, calls)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("*(volatile int*)0 = 1;", "died of SIGSEGV"),
        ("while (1) sleep(1);", "longer than 8 s"),
        ("raise(9);", "died of SIGKILL"),
        ("_exit(3);", "exit code 3: no message"),
        ("_exit(0);", "exit code 0: no message"),
    ],
)
def test_a_library_that_misbehaves_when_it_is_loaded(tmp_path, body, reason):
    source, library = tmp_path / "bad.cpp", tmp_path / "bad.so"
    source.write_text(
        f"#include <csignal>\n#include <unistd.h>\n__attribute__((constructor)) static void bad() {{ {body} }}\n"
    )
    subprocess.run([find_compiler(), "-shared", "-fPIC", "-o", library, source], check=True)
    package = write_zip(tmp_path / "bad.pt2", plain_members(library.read_bytes()))
    with pytest.raises(SmokeFailed, match=reason) as caught:
        prove(package, manifest_for(package), [Call("run", (torch.zeros(2),))], timeout=8 if "while" in body else 120)
    assert isinstance(caught.value, TrialUnfinished) == (reason in ("longer than 8 s", "died of SIGKILL"))


def test_variables_that_choose_kernels_do_not_reach_the_child(toy, small, monkeypatch):
    wrong = {
        "ONEDNN_MAX_CPU_ISA": "SSE41", "DNNL_MAX_CPU_ISA": "SSE41", "ATEN_CPU_CAPABILITY": "default",
        "MKL_CBWR": "COMPATIBLE", "MKL_NUM_THREADS": "2", "OMP_NUM_THREADS": "2", "KMP_AFFINITY": "none",
    }  # fmt: skip
    for name, value in wrong.items():
        monkeypatch.setenv(name, value)
    for secret in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY", "DB_PASSWORD"):
        monkeypatch.setenv(secret, "not for code that has not proven itself")
    monkeypatch.setenv("HF_HOME", "/kept")
    native = child_variables(small[0])
    assert {name: value for name, value in native.items() if name in wrong} == {
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }
    assert native["HF_HOME"] == "/kept"
    assert "not for code that has not proven itself" not in native.values()
    check(toy.entry.package, toy.entry.manifest, toy.calls, timeout=120)


def test_a_portable_package_is_tried_with_kernels_of_its_level(small):
    """Else its digest would depend on what more the machine at hand can do."""
    place = {**small[0].fields["environment"], "cpu": {"vector": "avx2", "target": "x86-64-v3", "extensions": []}}
    portable = dataclasses.replace(small[0], fields={**small[0].fields, "environment": place})
    names = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")
    assert [child_variables(portable).get(name) for name in names] == ["avx2", "AVX2", "AVX2"]


HANGS = """
import sys, torch
from pathlib import Path
from compile_cache.key import key_of
from compile_cache.manifest import parse
from compile_cache.proof import Call, prove
package, manifest = Path(sys.argv[1]), parse(Path(sys.argv[2]).read_bytes())
prove(package, manifest, [Call("run", (torch.zeros(2),))])
"""


def test_a_trial_run_ends_with_whoever_wanted_it(tmp_path):
    source, library, loaded = tmp_path / "bad.cpp", tmp_path / "bad.so", tmp_path / "loaded"
    begin = f'std::fprintf(std::fopen("{loaded}", "w"), "%d", getpid()); std::fflush(nullptr); while (1) sleep(1);'
    head = "#include <cstdio>\n#include <unistd.h>\n"
    source.write_text(f"{head}__attribute__((constructor)) static void bad() {{ {begin} }}\n")
    subprocess.run([find_compiler(), "-shared", "-fPIC", "-o", library, source], check=True)
    package = write_zip(tmp_path / "bad.pt2", plain_members(library.read_bytes()))
    (tmp_path / "manifest.json").write_bytes(manifest_for(package).to_json())
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "TMPDIR": str(tmp_path)}
    parent = subprocess.Popen([sys.executable, "-c", HANGS, package, tmp_path / "manifest.json"], env=env)
    wait_for(lambda: loaded.exists() and loaded.read_text())
    child = int(loaded.read_text())
    parent.kill()
    parent.wait()
    wait_for(lambda: not Path(f"/proc/{child}").exists())


def wait_for(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_digest():
    one, other = torch.tensor([1.0, 2.0]), torch.tensor([[1.0], [2.0]])
    assert digest_of([one]) == digest_of([one.clone()])
    assert len({digest_of(t) for t in ([one], [other], [one.double()], [one, one], [torch.tensor(1.0)], [])}) == 6
    assert len(json.dumps(digest_of([torch.zeros(2, dtype=torch.bfloat16)]))) == 66
