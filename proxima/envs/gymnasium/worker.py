"""A worker process of async mode (`python -m proxima.envs.gymnasium.worker SOCKET_FD MEMORY_FD`), and its protocol.

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

# Parent to worker.
STEP = (b"0", b"1")  # the bank that observations are written to
CALL = b"c"  # followed by a pickled (name of a method of EnvGroup, keyword arguments)
QUIT = b"q"
# Worker to parent. DONE stands alone: nothing to answer. The others are followed by a length and a pickled tuple.
DONE = b"."
ANSWER = b"a"  # (result of the method, EnvGroup's failures, its restarts); the first result is the Layout of the envs
GAVE_UP = b"x"  # (message of the EnvFailure, failures, restarts)
REFUSED = b"u"  # (message of the UsageError, traceback)

WHERE_ARE_YOU = signal.SIGUSR1  # answered by a traceback on stderr
LENGTH = struct.Struct("<Q")


def _die_with_parent(fd: int) -> None:
    """Exit as soon as the parent is gone, even if an env is in the middle of an endless step."""
    poller = select.poll()
    poller.register(fd, 0)  # a hang-up is always reported
    poller.poll()
    os._exit(0)


def _send(sock: socket.socket, kind: bytes, content: tuple[Any, ...]) -> None:
    import cloudpickle  # type: ignore[import-untyped]

    payload = cloudpickle.dumps(content)
    sock.sendall(kind + LENGTH.pack(len(payload)) + payload)


def _load_recipe(data: bytes) -> Any:
    from proxima.errors import UsageError

    try:
        return pickle.loads(data)
    except BaseException as error:  # including a module that calls sys.exit() when it is imported
        raise UsageError(
            f"a worker cannot load the env ({type(error).__name__}: {error}); use sync mode, or move the env to a "
            "module that can be imported"
        ) from error


def _serve(sock: socket.socket, memory_fd: int) -> None:
    # Imported here, when the signals are ignored already: the imports take a while.
    from proxima.envs.gymnasium.env_group import EnvGroup
    from proxima.envs.gymnasium.spaces import map_buffers
    from proxima.errors import EnvFailure, UsageError

    stream = sock.makefile("rb")
    order = pickle.load(stream)
    num_envs = order.pop("num_envs")
    try:
        group = EnvGroup(_load_recipe(order.pop("recipe")), **order)
    except UsageError as error:
        return _send(sock, REFUSED, (str(error), traceback.format_exc()))
    _send(sock, ANSWER, (group.layout, [], 0))
    if stream.peek(1)[:1] not in (b"", QUIT):
        # By the first command, the parent has set the size of the shared memory.
        buffers = map_buffers(group.layout, num_envs, mmap.mmap(memory_fd, 0))
        group.attach(buffers.rows(order["start"], order["stop"]))
    os.close(memory_fd)
    while command := stream.read(1):
        kind, answer = ANSWER, None
        try:
            if command == QUIT:
                return group.close()
            elif command == CALL:
                method, arguments = pickle.load(stream)
                answer = getattr(group, method)(**arguments)
            else:
                group.step(STEP.index(command))
        except EnvFailure as failure:
            kind, answer = GAVE_UP, str(failure)
        except Exception as error:  # not a failure of an env: a new worker would fail in the same way
            traceback.print_exc()
            kind, answer = GAVE_UP, f"a worker failed outside the envs: {type(error).__name__}: {error}"
        if kind == ANSWER and answer is None and not group.failures:
            sock.sendall(DONE)
        else:
            _send(sock, kind, (answer, group.failures, group.restarts))
            group.failures.clear()
            group.restarts = 0


def main() -> None:
    """Serve the parent at the other end of the socket until it sends QUIT or is gone."""
    # Ctrl-C, a closed terminal and a scheduler's signals reach the complete process group, but the parent decides when
    # to stop, and it still needs its envs.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGXCPU):
        signal.signal(number, signal.SIG_IGN)
    faulthandler.enable()
    faulthandler.register(WHERE_ARE_YOU)
    fd, memory_fd = map(int, sys.argv[1:])
    os.set_inheritable(memory_fd, False)
    sock = socket.socket(fileno=fd)
    sock.set_inheritable(False)
    threading.Thread(target=_die_with_parent, args=(fd,), daemon=True).start()
    with contextlib.suppress(EOFError, ConnectionError):
        _serve(sock, memory_fd)


if __name__ == "__main__":
    main()
