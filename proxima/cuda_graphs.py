"""Recording of GPU work: CUDA graphs of torch operations, with other launches between them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

_active: list["Tape"] = []


def recording() -> "Tape | None":
    """The tape that is being recorded, if any."""
    return _active[-1] if _active else None


class Tape:
    """A sequence of GPU work that is recorded once and replayed with a few launches.

    Recorded work must always be the same: no reading of results, no shapes that depend on values. It is not executed
    while it is recorded. Tensors that it reads and writes keep their addresses.
    """

    def __init__(self) -> None:
        self._parts: list[Callable[[], None]] = []
        self._graph: torch.cuda.CUDAGraph | None = None
        self._pool = torch.cuda.graph_pool_handle()

    @contextmanager
    def record(self) -> Iterator[None]:
        """Record what torch does on the GPU in this block."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            _active.append(self)
            try:
                self._begin()
                yield
            finally:
                _active.pop()
                self._end()
        torch.cuda.current_stream().wait_stream(stream)

    def outside(self, launch: Callable[[], None]) -> None:
        """Call `launch` at this place of every replay: for work that torch's graphs cannot hold."""
        self._end()
        self._parts.append(launch)
        self._begin()

    def replay(self) -> None:
        """Do the recorded work again, on the current stream."""
        for part in self._parts:
            part()

    def _begin(self) -> None:
        self._graph = torch.cuda.CUDAGraph()
        self._graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")

    def _end(self) -> None:
        assert self._graph is not None
        self._graph.capture_end()
        self._parts.append(self._graph.replay)
