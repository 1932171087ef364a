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

__all__ = ["awaitable", "drive", "eventual", "eventually", "immediately"]

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


def eventual(function: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    """A function, synchronous or not, as a coroutine function; a synchronous one runs in the caller's thread."""

    async def call(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        return await result if inspect.isawaitable(result) else result

    return call


def immediately(target: Any) -> Any:
    """`target` with every method awaitable, to be handed to a core that names the async protocol it follows."""
    return _Wrapped(target, awaitable)


def eventually(target: Any) -> Any:
    """`target` with every method awaitable, whether it is synchronous or not."""
    return _Wrapped(target, eventual)


class _Wrapped:
    __slots__ = ("_target", "_wrap")

    def __init__(self, target: Any, wrap: Callable[[Any], Any]) -> None:
        self._target = target
        self._wrap = wrap

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        return self._wrap(value) if inspect.ismethod(value) or inspect.isfunction(value) else value


def _discard(result: Awaitable[Any]) -> None:
    if inspect.iscoroutine(result):
        result.close()
