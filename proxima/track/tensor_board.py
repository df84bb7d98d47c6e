"""Writes TensorBoard events, one record per iteration, synchronously.

PyTorch's `SummaryWriter` writes from another thread, whose errors appear elsewhere and later.
"""

import io
import math
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from proxima.runs.layout import TENSOR_BOARD
from proxima.runs.metrics import tag
from proxima.track.append_file import AppendFile


class TensorBoard:
    """Writes an event file to the run's `tb/`."""

    name = "TensorBoard"

    def __init__(self, run_dir: Path, *, config: str = ""):
        """`config` is shown as text."""
        # Imported here because it is slow.
        from tensorboard.compat.proto.event_pb2 import Event

        self._event = Event
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.0"
        self._path = run_dir / TENSOR_BOARD / name
        self._path.parent.mkdir(exist_ok=True)
        header = _record(Event(wall_time=time.time(), file_version="brain.Event:2"))
        self._file = AppendFile(self._path, header=header + _record(_text_event("config", config)))

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """One event with all metrics that have a value."""
        event = self._event(wall_time=time.time(), step=step)
        for name, value in metrics.items():
            if (shown_as := tag(name)) is not None and math.isfinite(value):
                event.summary.value.add(tag=shown_as, simple_value=value)
        self._path.parent.mkdir(exist_ok=True)  # somebody may have deleted it
        self._file.append(_record(event))

    def close(self) -> None:
        """Write pending events and close the file."""
        self._file.close()


def _record(event: Any) -> bytes:
    """An event as a record of an event file, with length and checksums."""
    from tensorboard.summary.writer.record_writer import RecordWriter

    buffer = io.BytesIO()
    RecordWriter(buffer).write(event.SerializeToString())
    return buffer.getvalue()


def _text_event(name: str, text: str) -> Any:
    """A text for TensorBoard's text page, formatted as code."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.types_pb2 import DT_STRING

    event = Event(wall_time=time.time(), step=0)
    value = event.summary.value.add(tag=name)
    value.metadata.plugin_data.plugin_name = "text"
    value.tensor.dtype = DT_STRING
    value.tensor.tensor_shape.dim.add(size=1)
    indented = "\n".join(f"    {line}" for line in text.splitlines())  # Markdown for code
    value.tensor.string_val.append(indented.encode())
    return event
