"""Videos come out with the frames, the timing and the settings they were given; bad input is refused by name."""

from __future__ import annotations

import json
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import imageio_ffmpeg
import numpy as np
import pytest

from model.service.video import TsEncoder, VideoError, digest, read_settings, write_mp4

FPS = 16


def ramp(count: int, height: int = 32, width: int = 48, start: int = 0) -> np.ndarray:
    """uint8 [count, height, width, 3]: flat grey frames, each six levels brighter than the one before."""
    levels = 20 + 6 * (start + np.arange(count))
    return np.broadcast_to(levels[:, None, None, None], (count, height, width, 3)).astype(np.uint8)


def decode(path: Path) -> tuple[dict, np.ndarray]:
    """What imageio-ffmpeg reads: the file's properties and uint8 [F, H, W, 3]."""
    reader = imageio_ffmpeg.read_frames(str(path))
    meta = next(reader)
    width, height = meta["size"]
    return meta, np.stack([np.frombuffer(frame, np.uint8).reshape(height, width, 3) for frame in reader])


def test_mp4_holds_every_frame_in_order(tmp_path: Path) -> None:
    path = write_mp4([ramp(9), ramp(12, start=9)], tmp_path / "a.mp4", FPS, {"prompt": "x"})
    meta, frames = decode(path)
    assert (meta["codec"], meta["fps"], meta["pix_fmt"].split("(")[0]) == ("h264", FPS, "yuv420p")
    assert frames.shape == (21, 32, 48, 3)
    assert np.abs(frames.mean((1, 2, 3)) - ramp(21).mean((1, 2, 3))).max() < 2.5
    assert list(tmp_path.iterdir()) == [path]


def test_colours_survive(tmp_path: Path) -> None:
    colours = [(220, 30, 30), (30, 200, 40), (40, 60, 230), (240, 220, 40)]
    frames = np.concatenate([np.full((3, 32, 32, 3), c, np.uint8) for c in colours])
    _, read = decode(write_mp4([frames], tmp_path / "a.mp4", FPS, {}))
    assert np.abs(read.astype(int) - frames).max() <= 6


@pytest.mark.parametrize(
    "prompt",
    ["a red ball", 'quote " = ; # \\ back\nline', "emoji 🦊 und Umlaut ü", "שלום עולם", "nul \0 byte", ""],
)
def test_settings_come_back(tmp_path: Path, prompt: str) -> None:
    settings = {"prompt": prompt, "seed": 2**63 - 1, "size": [128, 128], "nested": {"a": None}}
    path = write_mp4([ramp(2)], tmp_path / "a.mp4", FPS, settings)
    assert read_settings(path) == settings


def test_same_input_same_bytes(tmp_path: Path) -> None:
    one = write_mp4([ramp(9), ramp(12)], tmp_path / "a.mp4", FPS, {"seed": 1})
    two = write_mp4(list(np.concatenate([ramp(9), ramp(12)])), tmp_path / "b.mp4", FPS, {"seed": 1})
    assert one.read_bytes() == two.read_bytes()


def test_an_exception_leaves_no_file(tmp_path: Path) -> None:
    def breaks_off() -> Iterator[np.ndarray]:
        yield ramp(3)
        raise KeyError

    with pytest.raises(KeyError):
        write_mp4(breaks_off(), tmp_path / "a.mp4", FPS, {})
    assert list(tmp_path.iterdir()) == []


def test_failures_are_named(tmp_path: Path) -> None:
    with pytest.raises(VideoError, match="at least one frame"):
        write_mp4([], tmp_path / "a.mp4", FPS, {})
    with pytest.raises(VideoError, match="No such file"):
        write_mp4([ramp(2)] * 50, tmp_path / "missing" / "a.mp4", FPS, {})
    with pytest.raises(ValueError, match="more than"):
        write_mp4([ramp(2)], tmp_path / "a.mp4", FPS, {"prompt": "x" * 200_000})
    for wrong in (np.zeros((2, 32, 32, 3), np.float32), np.zeros((2, 32, 32), np.uint8), ramp(2, 31), ramp(0)):
        with pytest.raises(ValueError, match="must be"):
            write_mp4([wrong], tmp_path / "a.mp4", FPS, {})
    assert list(tmp_path.iterdir()) == []


def box(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", 8 + len(content)) + name + content


def nested(comment: bytes) -> bytes:
    data = box(b"data", bytes(8) + comment)
    return box(b"moov", box(b"udta", box(b"meta", bytes(4) + box(b"ilst", box(b"\xa9cmt", data)))))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not a video at all",
        box(b"ftyp", b"isom"),
        struct.pack(">I", 0xFFFFFFFF) + b"moov",
        struct.pack(">I", 3) + b"moov",
        struct.pack(">I", 1) + b"moov" + bytes(8),
        nested(b"hello"),
        nested(b"[1, 2]"),
        nested(b"\xff\xfe"),
        nested(b"[" * 50_000),
        nested(b" " * 200_000),
        box(b"free", b"") * 20_000,
    ],
)
def test_files_without_settings_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.mp4"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="in this file"):
        read_settings(path)


def test_stream_chunks_follow_each_other(tmp_path: Path) -> None:
    encoder = TsEncoder(FPS, 32, 48)
    blocks = [ramp(9), ramp(12, start=9), ramp(12, start=21)]
    path = tmp_path / "all.ts"
    path.write_bytes(b"".join(encoder.chunk(block) for block in blocks))
    assert encoder.sent == 33
    ffmpeg = imageio_ffmpeg.get_ffmpeg_exe()
    listing = subprocess.run(
        [ffmpeg, "-v", "error", "-i", path, "-c", "copy", "-f", "framecrc", "-"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    rows = [line.split(",") for line in listing.splitlines() if not line.startswith("#")]
    times = np.array([int(row[2]) for row in rows]) / 90_000
    assert len(times) == 33
    assert np.allclose(np.diff(times), 1 / FPS, atol=1e-4)  # no gap where one chunk ends and the next begins
    with pytest.raises(ValueError, match="in a stream of"):
        encoder.chunk(ramp(2, 64, 64))


def test_digest_ignores_grouping() -> None:
    frames = ramp(21)
    assert digest([frames]) == digest([frames[:9], frames[9:]]) == digest(list(frames))
    assert digest([frames]) != digest([frames[::-1]])
    assert len(digest([frames])) == 64
    assert digest([json.loads("[]")]) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
