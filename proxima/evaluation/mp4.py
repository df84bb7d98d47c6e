"""MP4 files that browsers play: H.264, yuv420p, index in front (faststart)."""

import contextlib
from collections.abc import Iterable
from fractions import Fraction
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from proxima.errors import UsageError
from proxima.evaluation.files import complete_file

# The colour space is stored in the file: players that guess it from the frame size do not agree.
_OUTPUT = (
    "-crf 20 -movflags +faststart -f mp4 "
    "-vf scale=out_color_matrix=bt709:out_range=tv -colorspace bt709 -color_primaries bt709 -color_trc bt709"
)


def write_mp4(path: str | Path, frames: Iterable[NDArray], *, fps: float) -> None:
    """Encode frames, uint8 `[height, width, 3]`, as they come; an error leaves no file, and an older one in place.

    The last row or column is repeated where the height or width is odd: yuv420p needs even ones.

    Raises:
        UsageError: the file cannot be written, ffmpeg fails (its own message goes to stderr), or the frames are none,
            of another dtype or of several sizes.
    """
    import imageio_ffmpeg

    path, frames = Path(path), iter(frames)
    if path.suffix != ".mp4":
        raise UsageError(f"the video {path} must end in .mp4.")
    with contextlib.suppress(OSError):  # complete_file reports it
        path.parent.mkdir(parents=True, exist_ok=True)
    with complete_file(path) as temporary:
        first = next(frames, None)
        if first is None:
            raise UsageError(f"the video {path} has no frames.")
        height, width = _even(first, first.shape).shape[:2]
        encoder = imageio_ffmpeg.write_frames(
            str(temporary),
            (width, height),
            fps=Fraction(fps).limit_denominator(1001),
            codec="libx264",
            quality=None,
            macro_block_size=1,
            ffmpeg_log_level="error",
            output_params=_OUTPUT.split(),
        )
        with contextlib.closing(encoder):
            for frame in chain([None, first], frames):  # None starts ffmpeg
                data = None if frame is None else _even(frame, first.shape).tobytes()
                try:
                    encoder.send(data)
                except (OSError, RuntimeError) as error:  # ffmpeg has ended, or there is none for this platform
                    reason = str(error).splitlines()[0]
                    raise UsageError(f"cannot write the video {path}: ffmpeg failed ({reason}).") from error
        with temporary.open("rb") as file:  # faststart puts the index in front when all else is written
            if b"moov" not in file.read(64):
                raise UsageError(f"cannot write the video {path}: ffmpeg failed before the end.")


def _even(frame: NDArray, shape: tuple[int, ...]) -> NDArray:
    if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
        raise UsageError(f"a frame is {frame.dtype} {frame.shape}, but it must be uint8 (height, width, 3).")
    if frame.shape != shape:
        raise UsageError(f"a frame is {frame.shape} after {shape}: all frames of a video have one size.")
    return np.pad(frame, ((0, shape[0] % 2), (0, shape[1] % 2), (0, 0)), mode="edge")
