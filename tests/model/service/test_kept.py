"""What is kept of a visitor's last video, for whom, and for how long; and that nothing of it lies about."""

from __future__ import annotations

import gc
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path

import pytest

from model.service.kept import Kept, Making
from model.service.recording import Progress, Recording, record
from tests.model.service.test_recording import REQUEST, Source, frames_in

HOUR, PATIENCE = 3600, 60


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def never() -> bool:
    return False


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def make(kept: Kept, owner: str | None) -> Making:
    """Keeps a file that holds the owner's name as its last video."""
    making = kept.begin(owner, never)
    path = making.folder / "a.mp4"
    path.write_text(f"of {owner}")
    making.keep(Recording(path, 1.0, {"owner": owner}, None))
    making.close()
    assert making.settled.wait(PATIENCE)
    return making


def held(folder: Path) -> int:
    """How many files without a name from that folder this process has open."""
    files = [os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    return sum(name.startswith(str(folder)) and name.endswith("(deleted)") for name in files)


def test_each_gets_its_own_and_nothing_lies_about(folder: Path) -> None:
    kept = Kept(HOUR)
    for owner in ("ada", "bob", "ada", None):
        make(kept, owner)
    assert list(folder.iterdir()) == []
    assert held(folder) == 2, "one for each who has a name"
    for owner in ("ada", "bob"):
        copy = kept.last(owner).video.copy_into(folder)
        assert (copy.name, copy.read_text()) == ("a.mp4", f"of {owner}")
        assert kept.last(owner).video.report == {"owner": owner}
    assert [kept.last(owner) for owner in ("eve", "", None)] == [None] * 3
    kept.drop("ada")
    assert kept.last("ada") is None
    assert held(folder) == 1


def test_the_next_one_takes_its_place_even_if_nothing_comes_of_it(folder: Path) -> None:
    kept = Kept(HOUR)
    make(kept, "ada")
    making = kept.begin("ada", never)
    making.close()
    assert making.settled.wait(PATIENCE)
    assert (kept.last("ada"), making.video, held(folder)) == (making, None, 0)


def test_no_more_than_that_many_and_no_longer_than_that(folder: Path) -> None:
    kept = Kept(HOUR, most=2)
    under_way = kept.begin("zoe", never)
    for owner in ("ada", "bob", "eve"):
        make(kept, owner)
    wait_for(lambda: kept.last("ada") is None)
    assert held(folder) == 2
    assert kept.last("zoe") is under_way
    under_way.close()

    kept = Kept(0.05)
    make(kept, "ada")
    wait_for(lambda: kept.last("ada") is None)


def _exit_with_what_is_held(folder: Path) -> None:
    os._exit(held(folder))


def test_a_fork_holds_nothing(folder: Path) -> None:
    kept = Kept(HOUR)
    make(kept, "ada")
    assert held(folder) == 1
    child = multiprocessing.get_context("fork").Process(target=_exit_with_what_is_held, args=(folder,))
    child.start()
    child.join(PATIENCE)
    assert child.exitcode == 0
    assert kept.last("ada").video.copy_into(folder).read_text() == "of ada"


def test_a_video_that_a_garbage_collector_breaks_off_is_finished_and_kept(folder: Path) -> None:
    kept, source = Kept(HOUR), Source()

    def generate() -> Generator[Progress | Recording, None, None]:
        with closing(kept.begin("ada", never)) as making:
            yield from record(source(), REQUEST, 16, making.folder, ending="cancelled", unfinished=making.keep_later)

    watching = generate()
    assert [next(watching).block, next(watching).block] == [1, 2]
    ring: list[object] = [watching]
    ring.append(ring)
    del watching, ring
    collecting = threading.Thread(target=gc.collect)
    collecting.start()
    collecting.join()
    assert source.closed
    making = kept.last("ada")
    assert making.settled.wait(PATIENCE)
    assert frames_in(making.video.copy_into(folder)) == 21
    assert making.video.report["stop_reason"] == "cancelled"
    assert [path.suffix for path in folder.iterdir()] == [".mp4"]


def test_what_cannot_be_finished_does_no_harm(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = Kept(HOUR)
    making = kept.begin("ada", never)
    making.keep_later(lambda: 1 / 0)
    making.close()
    assert making.settled.wait(PATIENCE)
    assert making.video is None
    assert "ZeroDivisionError" in caplog.text
    assert make(kept, "bob").video
