"""Frames into an MP4 that browsers play: H.264, yuv420p, the index in front; whole or not there."""

import contextlib
import re
import subprocess
import tempfile
from fractions import Fraction
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from proxima.errors import UsageError

# Said in the file: players that have to guess do so by its size, and not all alike.
COLOURS = "-vf scale=out_color_matrix=bt709:out_range=tv -colorspace bt709 -color_primaries bt709 -color_trc bt709"


class Mp4Writer:
    """Streams frames to ffmpeg, under a hidden name until the block ends well; otherwise nothing is left.

    Example:
        >>> with Mp4Writer("black.mp4", fps=30) as video:  # doctest: +SKIP
        ...     video.write(np.zeros((64, 64, 3), np.uint8))
    """

    def __init__(self, path: str | Path, *, fps: float) -> None:
        self.path = Path(path)
        if self.path.suffix != ".mp4":
            raise UsageError(f"the video {self.path} must end in .mp4.")
        if self.path.exists() and not self.path.is_file():
            raise UsageError(f"cannot write the video {self.path}: there is something that is not a regular file.")
        self._temporary = self.path.with_name(f".{self.path.name}.tmp")
        self._fps = Fraction(fps).limit_denominator(1001)
        self._shape: tuple[int, ...] = ()
        self._ffmpeg: subprocess.Popen[bytes] | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the writer

    def __enter__(self) -> "Mp4Writer":
        return self

    def write(self, frame: NDArray) -> None:
        """Add one frame, uint8 `[height, width, 3]`; the first decides the size."""
        if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
            raise UsageError(f"a frame is {frame.dtype} {frame.shape}, but it must be uint8 (height, width, 3).")
        if self._ffmpeg is None:
            self._ffmpeg, self._shape = self._start(frame), frame.shape
        if frame.shape != self._shape:
            raise UsageError(f"a frame is {frame.shape} after {self._shape}: all frames of a video have one size.")
        assert self._ffmpeg.stdin is not None
        try:
            self._ffmpeg.stdin.write(_even(frame).tobytes())
        except OSError as error:  # ffmpeg has gone, and has said why
            raise UsageError(self._complaint()) from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            self._abandon()

    def _start(self, frame: NDArray) -> "subprocess.Popen[bytes]":
        import imageio_ffmpeg

        height, width = _even(frame).shape[:2]
        source = f"-f rawvideo -pix_fmt rgb24 -s {width}x{height} -r {self._fps} -i -"
        target = f"-an {COLOURS} -c:v libx264 -crf 20 -pix_fmt yuv420p -movflags +faststart -f mp4"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return subprocess.Popen(
                [imageio_ffmpeg.get_ffmpeg_exe(), "-y", "-v", "error", *f"{source} {target}".split(), self._temporary],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self._log,
                start_new_session=True,  # a Ctrl-C is for us to handle
            )
        except (OSError, RuntimeError) as error:  # no right to write there; or no ffmpeg for this platform
            raise UsageError(f"cannot write the video {self.path}: {str(error).splitlines()[0]}.") from error

    def _finish(self) -> None:
        if self._ffmpeg is None:
            raise UsageError(f"the video {self.path} has no frames.")
        assert self._ffmpeg.stdin is not None
        try:
            self._ffmpeg.stdin.close()
        except OSError as error:
            raise UsageError(self._complaint()) from error
        if self._ffmpeg.wait() != 0:
            raise UsageError(self._complaint())
        self._temporary.replace(self.path)

    def _complaint(self) -> str:
        assert self._ffmpeg is not None
        code = self._ffmpeg.wait()
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines() or [f"ffmpeg ended with code {code}"]
        reason = re.sub(r"^\[.*?\] ", "", lines[0])  # without the part of ffmpeg that speaks
        return f"cannot write the video {self.path}: {reason}."

    def _abandon(self) -> None:
        """Free everything; after a good end there is nothing left to remove."""
        if self._ffmpeg is not None:
            self._ffmpeg.kill()
            self._ffmpeg.wait()
            assert self._ffmpeg.stdin is not None
            with contextlib.suppress(OSError):  # what was still to be written has nowhere to go
                self._ffmpeg.stdin.close()
            with contextlib.suppress(OSError):
                self._temporary.unlink()
        self._log.close()


def _even(frame: NDArray) -> NDArray:
    """The frame with its last row and column repeated where their number is odd: yuv420p halves both."""
    height, width = frame.shape[:2]
    if height % 2 == 0 and width % 2 == 0:
        return frame
    return np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
