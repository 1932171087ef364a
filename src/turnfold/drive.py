"""Runs the async core without an event loop.

The core awaits nothing but the objects it was handed. Where these are synchronous, `immediately` gives each of their
methods the form of a coroutine that never suspends, and `drive` finishes the core with a single `send(None)`: no
loop, no thread, and so no trouble inside a running loop. Exceptions, KeyboardInterrupt included, pass through at
the very call that raised them.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["awaitable", "drive", "immediately"]

T = TypeVar("T")


def drive(core: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never suspends. Raises `RuntimeError` where it does."""
    try:
        core.send(None)
    except StopIteration as finished:
        result: T = finished.value
        return result
    core.close()
    raise RuntimeError("the synchronous functions were handed something asynchronous; use turnfold.aio")


def awaitable(function: Callable[..., T]) -> Callable[..., Coroutine[Any, Any, T]]:
    """A function as a coroutine function. Raises `TypeError` where it returns an awaitable: nobody would await it."""

    async def call(*args: Any, **kwargs: Any) -> T:
        result = function(*args, **kwargs)
        if inspect.isawaitable(result):
            _discard(result)
            raise TypeError(f"{function!r} is asynchronous; hand it to turnfold.aio, or use its synchronous twin here")
        return result

    return call


def immediately(target: Any) -> Any:
    """`target` with every method awaitable. Cast it to the async protocol that its methods then follow."""
    return _Immediate(target)


class _Immediate:
    __slots__ = ("_target",)

    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        return awaitable(value) if inspect.ismethod(value) or inspect.isfunction(value) else value


def _discard(result: Awaitable[Any]) -> None:
    if inspect.iscoroutine(result):
        result.close()
