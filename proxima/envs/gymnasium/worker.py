"""A worker process of async mode, run as `python -m proxima.envs.gymnasium.worker FD`, and its protocol.

Observations, actions and rewards go through shared memory; the socket carries one byte per step each way. Nothing here
imports torch: a worker starts in a fraction of a second and takes little memory.
"""

import contextlib
import faulthandler
import mmap
import os
import pickle
import select
import signal
import socket
import struct
import sys
import threading
import traceback
from typing import Any

# Parent to worker. A step is one byte that names the bank for the observations; a reset is followed by a frame.
STEP = (b"0", b"1")
RESET = b"r"
GET_STATE = b"g"
SET_STATE = b"p"  # followed by a frame
WHY_INEXACT = b"w"
QUIT = b"q"
# Worker to parent. DONE stands alone, the others are followed by a frame.
DONE = b"."
DONE_WITH_EVENTS = b"e"  # list[Failure]
READY = b"l"  # Layout
REFUSED = b"u"  # (message of the UsageError, traceback)
ANSWER = b"a"  # to GET_STATE, SET_STATE or WHY_INEXACT
GAVE_UP = b"x"  # (message of the EnvFailure, list[Failure])

WHERE_ARE_YOU = signal.SIGUSR1  # the answer is a traceback on stderr
_LENGTH = struct.Struct("<Q")
HEADER_BYTES = _LENGTH.size


def frame(payload: bytes) -> bytes:
    """A payload of any length, as `receive_frame` reads it."""
    return _LENGTH.pack(len(payload)) + payload


def frame_length(header: bytes | bytearray) -> int:
    """How long the payload behind a header of `HEADER_BYTES` is."""
    length: int = _LENGTH.unpack(header)[0]
    return length


def receive(sock: socket.socket, size: int) -> bytes:
    """Exactly `size` bytes.

    Raises:
        EOFError: the other side has gone.
    """
    data = bytearray()
    while len(data) < size:
        part = sock.recv(size - len(data))
        if not part:
            raise EOFError("the other side of the socket has gone")
        data += part
    return bytes(data)


def receive_frame(sock: socket.socket) -> bytes:
    """The payload of a frame."""
    return receive(sock, frame_length(receive(sock, HEADER_BYTES)))


def _die_with_parent(fd: int) -> None:
    """Wait for the parent to vanish, and leave at once: an env may be in the middle of an endless step."""
    poller = select.poll()
    poller.register(fd, 0)  # hang-up is always reported
    poller.poll()
    os._exit(0)


def _build(sock: socket.socket) -> Any:
    """Build the envs that the parent describes and share its memory, or tell it why not."""
    # Here and not above: the signals are already ignored when these take their time.
    import cloudpickle  # type: ignore[import-untyped]

    from proxima.envs.gymnasium.env_group import EnvGroup
    from proxima.envs.gymnasium.spaces import map_buffers
    from proxima.errors import UsageError

    order = pickle.loads(receive_frame(sock))
    start, stop = order["start"], order["stop"]
    try:
        try:
            recipe = pickle.loads(order["recipe"])
        except BaseException as error:  # also a module that calls sys.exit() when it is imported
            raise UsageError(
                f"a worker cannot load the env ({type(error).__name__}: {error}); use sync mode, or move the env to a "
                "module that can be imported"
            ) from error
        group = EnvGroup(recipe, start=start, stop=stop, max_failures=order["max_failures"])
    except UsageError as error:
        sock.sendall(REFUSED + frame(pickle.dumps((str(error), traceback.format_exc()))))
        return None
    sock.sendall(READY + frame(cloudpickle.dumps(group.layout)))
    _, fds, _, _ = socket.recv_fds(sock, 1, 1)
    if not fds:
        raise EOFError("the other side of the socket has gone")
    memory = mmap.mmap(fds[0], 0)
    os.close(fds[0])
    group.attach(map_buffers(group.layout, order["num_envs"], memory).rows(start, stop))
    return group


def _serve(sock: socket.socket) -> None:
    from proxima.errors import EnvFailure

    group = _build(sock)
    while group is not None:
        command = receive(sock, 1)
        try:
            if command == RESET:
                group.reset(**pickle.loads(receive_frame(sock)))
            elif command == SET_STATE:
                sock.sendall(ANSWER + frame(pickle.dumps(_set_state(group, pickle.loads(receive_frame(sock))))))
                continue
            elif command in (GET_STATE, WHY_INEXACT):
                answer = group.get_state() if command == GET_STATE else group.why_inexact()
                sock.sendall(ANSWER + frame(pickle.dumps(answer)))
                continue
            elif command == QUIT:
                group.close()
                return
            else:
                group.step(STEP.index(command))
        except EnvFailure as failure:
            sock.sendall(GAVE_UP + frame(pickle.dumps((str(failure), group.take_events()))))
            continue
        except (EOFError, ConnectionError):  # the parent has gone
            raise
        except Exception as error:  # not an env's failure, and so nothing that a new worker would do better
            traceback.print_exc()
            message = f"a worker failed outside the envs: {type(error).__name__}: {error}"
            sock.sendall(GAVE_UP + frame(pickle.dumps((message, group.take_events()))))
            continue
        if group.events:
            sock.sendall(DONE_WITH_EVENTS + frame(pickle.dumps(group.take_events())))
        else:
            sock.sendall(DONE)


def _set_state(group: Any, arguments: dict[str, Any]) -> str | None:
    """Put states back; None, or why they do not fit."""
    from proxima.envs.gymnasium.snapshot import NotPlain

    try:
        group.set_state(**arguments)
    except NotPlain as error:
        return str(error)
    return None


def main() -> None:
    """Serve the parent at the other end of the socket until it says so or vanishes."""
    # Ctrl-C, a closed terminal and a scheduler's signals reach the whole process group; the parent decides, and still
    # needs its envs.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGXCPU):
        signal.signal(number, signal.SIG_IGN)
    faulthandler.enable()
    faulthandler.register(WHERE_ARE_YOU)
    fd = int(sys.argv[1])
    sock = socket.socket(fileno=fd)
    sock.set_inheritable(False)
    threading.Thread(target=_die_with_parent, args=(fd,), daemon=True).start()
    with contextlib.suppress(EOFError, ConnectionError):
        _serve(sock)


if __name__ == "__main__":
    main()
