"""Packs plain data into JSON text and one block of bytes for the arrays in it, which any safe loader can read."""

import json
from typing import Any

import numpy as np

Plain = Any
"""None, bool, int, float, str, bytes, numpy arrays without objects, and lists and dicts (with str keys) of these."""

_KEY = "\0"  # a dict with this key stands for an array or bytes


def pack(value: Plain) -> tuple[str, np.ndarray]:
    """Text and bytes (uint8) of a value; exact, also for floats and integers of any size."""
    parts: list[bytes] = []
    offset = 0

    def put(data: bytes, kind: str, shape: tuple[int, ...] | None) -> dict[str, Any]:
        nonlocal offset
        parts.append(data)
        offset += len(data)
        return {_KEY: [kind, shape, offset - len(data), len(data)]}

    def walk(item: Plain) -> Any:
        if isinstance(item, np.ndarray):
            return put(np.ascontiguousarray(item).tobytes(), item.dtype.str, item.shape)
        if isinstance(item, bytes):
            return put(item, "bytes", None)
        if isinstance(item, list):
            return [walk(each) for each in item]
        if isinstance(item, dict):
            return {key: walk(each) for key, each in item.items()}
        return item

    text = json.dumps(walk(value))
    return text, np.frombuffer(b"".join(parts), np.uint8).copy()


def unpack(text: str, data: np.ndarray) -> Plain:
    """The value that was packed."""
    buffer = data.tobytes()

    def walk(item: Any) -> Plain:
        if isinstance(item, list):
            return [walk(each) for each in item]
        if not isinstance(item, dict):
            return item
        if _KEY not in item:
            return {key: walk(each) for key, each in item.items()}
        kind, shape, offset, size = item[_KEY]
        raw = buffer[offset : offset + size]
        return raw if kind == "bytes" else np.frombuffer(raw, np.dtype(kind)).reshape(shape).copy()

    return walk(json.loads(text))
