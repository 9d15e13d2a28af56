"""Frames to files and stream chunks: mp4 with its settings inside, MPEG-TS chunks for a player, frame digests.

Encoding is done by the ffmpeg program that the imageio-ffmpeg package carries, so nothing has to be installed
on the machine. Frames are uint8 RGB arrays [F, H, W, 3]. This file does not know where frames come from, what
the settings mean, or how a page shows a video.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import imageio_ffmpeg
import numpy as np

MAX_SETTINGS_BYTES = 100_000  # one command-line argument may have 128 KiB on Linux
_COLOUR = (
    # Said in the file and done in the conversion, so that no player has to guess the matrix.
    *("-vf", "scale=in_range=pc:out_range=tv:out_color_matrix=bt709"),
    *("-colorspace", "bt709", "-color_primaries", "bt709", "-color_trc", "bt709", "-color_range", "tv"),
    *("-pix_fmt", "yuv420p"),
)


class VideoError(OSError):
    """ffmpeg did not do its work; the text carries what it said."""


def write_mp4(frames: Iterable[np.ndarray], path: Path, fps: int, settings: dict[str, Any]) -> Path:
    """Writes all frames (arrays uint8 [F, H, W, 3] or [H, W, 3], in order) into an H.264 mp4; see Mp4Writer."""
    with Mp4Writer(path, fps, settings) as writer:
        for some in frames:
            writer.add(some)
    return writer.path


class Mp4Writer:
    """An H.264 (yuv420p) mp4 that grows as frames come in and appears under its name when it is complete.

    Use it as a context manager. Leaving the block normally finishes the file, with as many frames as were added;
    leaving it by an exception removes what was written. The settings are stored as JSON in the file's "comment"
    tag, and settings["prompt"], if present, is its title. The same frames and settings give the same bytes.

    Raises VideoError when ffmpeg fails (full disk, folder not writable) or no frame was added, and ValueError
    when the settings are larger than MAX_SETTINGS_BYTES as JSON.
    """

    def __init__(self, path: Path, fps: int, settings: dict[str, Any]) -> None:
        self.path = Path(path)
        self._fps = fps
        self._settings = json.dumps(settings, separators=(",", ":"))
        if len(self._settings) > MAX_SETTINGS_BYTES:
            raise ValueError(f"the settings take {len(self._settings)} bytes, more than {MAX_SETTINGS_BYTES}")
        self._title = str(settings.get("prompt", "")).replace("\0", "")
        self._part = self.path.with_name(f".{self.path.name}.{os.getpid()}.part")
        self._process: subprocess.Popen[bytes] | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by __exit__)

    def add(self, frames: np.ndarray) -> None:
        """Appends frames: uint8 [F, H, W, 3] or [H, W, 3]; the first ones decide height and width (both even)."""
        frames = _checked(frames)
        if self._process is None:
            self._process = self._start(*frames.shape[1:3])
        try:
            self._process.stdin.write(frames.tobytes())
        except OSError as error:  # ffmpeg has gone: its own words say more than "broken pipe"
            raise self._failure() from error

    def __enter__(self) -> Mp4Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            if self._process is not None and self._process.poll() is None:
                self._process.kill()
                self._process.wait()
            self._part.unlink(missing_ok=True)
            self._errors.close()

    def _start(self, height: int, width: int) -> subprocess.Popen[bytes]:
        command = [
            *_raw_input(self._fps, height, width),
            *("-c:v", "libx264", "-preset", "veryfast", "-crf", "16", *_COLOUR),
            *("-fflags", "+bitexact", "-flags:v", "+bitexact", "-movflags", "+faststart"),
            *("-metadata", f"comment={self._settings}", "-metadata", f"title={self._title}"),
            *("-y", "-f", "mp4", os.fspath(self._part)),
        ]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=self._errors)

    def _finish(self) -> None:
        if self._process is None:
            raise VideoError("a video needs at least one frame")
        try:
            self._process.stdin.close()
        except OSError as error:
            raise self._failure() from error
        if self._process.wait() != 0:
            raise self._failure()
        os.replace(self._part, self.path)

    def _failure(self) -> VideoError:
        self._process.wait()
        self._errors.seek(0)
        return VideoError(f"ffmpeg: {_last_words(self._errors.read())}")


class TsEncoder:
    """Turns successive blocks of frames into MPEG-TS chunks that a player strings together without a gap.

    Each chunk starts with a key frame, carries only its own frames, and is timed after all chunks before it, so
    its duration is frames / fps exactly and nobody needs to probe it.
    """

    def __init__(self, fps: int, height: int, width: int) -> None:
        self.fps, self.height, self.width = fps, height, width
        self.sent = 0  # frames handed out so far

    def chunk(self, frames: np.ndarray) -> bytes:
        """uint8 [F, H, W, 3] -> one H.264 MPEG-TS chunk. Raises ValueError on another size, VideoError."""
        frames = _checked(frames)
        if frames.shape[1:3] != (self.height, self.width):
            raise ValueError(f"frames of {frames.shape[1:3]} in a stream of {(self.height, self.width)}")
        command = [
            *_raw_input(self.fps, self.height, self.width),
            # Zero latency also means no B-frames: decode order is display order, from each chunk's first frame.
            *("-c:v", "libx264", "-preset", "veryfast", "-tune", "zerolatency", "-crf", "18", *_COLOUR),
            *("-output_ts_offset", f"{self.sent / self.fps:.6f}", "-muxdelay", "0", "-muxpreload", "0"),
            # Each chunk restarts the packet counters; saying so keeps players from taking it for packet loss.
            *("-mpegts_flags", "+initial_discontinuity", "-f", "mpegts", "pipe:1"),
        ]
        done = subprocess.run(command, input=frames.tobytes(), capture_output=True, check=False)
        if done.returncode != 0:
            raise VideoError(f"ffmpeg: {_last_words(done.stderr)}")
        self.sent += len(frames)
        return done.stdout


def digest(frames: Iterable[np.ndarray]) -> str:
    """sha256 (64 hex digits) over the raw bytes of all frames in order, however they are grouped."""
    running = hashlib.sha256()
    for some in frames:
        running.update(np.ascontiguousarray(some, dtype=np.uint8).data)
    return running.hexdigest()


def read_settings(path: Path) -> dict[str, Any]:
    """The settings that Mp4Writer put into a file.

    The file may come from anyone: only its box headers and the one comment are read, and the values in the
    result are as untrusted as the file. Raises ValueError when there are no settings in it.
    """
    with open(path, "rb") as file:
        end = os.fstat(file.fileno()).st_size
        start = 0
        for name in (b"moov", b"udta", b"meta", b"ilst", b"\xa9cmt", b"data"):
            start, end = _find_box(file, name, start, end)
            if name == b"meta":
                start += 4  # version and flags stand before its children
        file.seek(start + 8)  # type and locale stand before the text
        if end - file.tell() > MAX_SETTINGS_BYTES:
            raise ValueError("the comment in this file is too long to be settings")
        text = file.read(max(0, end - file.tell()))
    try:
        settings = json.loads(text.decode("utf-8"))
    except (UnicodeDecodeError, RecursionError, json.JSONDecodeError):
        settings = None
    if not isinstance(settings, dict):
        raise ValueError("the comment in this file does not hold settings")
    return settings


def _find_box(file: BinaryIO, name: bytes, start: int, end: int) -> tuple[int, int]:
    """Where the content of the first box of that name begins and ends, among the boxes between start and end."""
    for _ in range(10_000):  # a file made to look endless stops here
        if start + 8 > end:
            break
        file.seek(start)
        head = file.read(16)
        size, header = int.from_bytes(head[:4], "big"), 8
        if size == 1:  # the real size follows, in 64 bits
            size, header = int.from_bytes(head[8:16], "big"), 16
        elif size == 0:  # up to the end
            size = end - start
        if size < header or start + size > end:
            break
        if head[4:8] == name:
            return start + header, start + size
        start += size
    raise ValueError("there are no settings in this file")


def _raw_input(fps: int, height: int, width: int) -> list[str]:
    """The beginning of every ffmpeg command here: raw RGB frames on standard input."""
    return [
        *(imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-nostdin"),
        *("-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", str(fps), "-i", "pipe:0"),
    ]


def _checked(frames: np.ndarray) -> np.ndarray:
    """uint8 [F, H, W, 3] with F >= 1, from that or from a single frame [H, W, 3]. Raises ValueError."""
    frames = np.asarray(frames)
    if frames.dtype != np.uint8 or frames.ndim not in (3, 4) or frames.shape[-1] != 3 or frames.size == 0:
        raise ValueError(f"frames must be uint8 [F, H, W, 3], not {frames.dtype} {list(frames.shape)}")
    frames = np.ascontiguousarray(frames.reshape(-1, *frames.shape[-3:]))
    if frames.shape[1] % 2 or frames.shape[2] % 2:
        raise ValueError(f"height and width must be even, not {frames.shape[1]}x{frames.shape[2]}")
    return frames


def _last_words(errors: bytes) -> str:
    return errors.decode("utf-8", "replace").strip()[-500:] or "no reason given"
