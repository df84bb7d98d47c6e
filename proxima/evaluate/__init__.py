"""Trained policies in use: evaluation, videos, analysis, export.

`proxima.evaluate(...)` is the function `evaluate.episodes.evaluate`: this package has its name, and so is callable.
"""

import sys
from types import ModuleType


class _CallablePackage(ModuleType):
    def __call__(self, *args: object, **kwargs: object) -> object:
        from proxima.evaluate.episodes import evaluate  # imported here because PyTorch is slow to import

        return evaluate(*args, **kwargs)  # type: ignore[arg-type]


sys.modules[__name__].__class__ = _CallablePackage
