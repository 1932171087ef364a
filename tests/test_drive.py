"""The driver: a coroutine finished with one send, and nothing asynchronous let through."""

from __future__ import annotations

import asyncio

import pytest

from turnfold.drive import awaitable, drive, immediately


class Store:
    name = "store"

    def double(self, value: int) -> int:
        return 2 * value

    def fail(self) -> None:
        raise KeyboardInterrupt

    async def later(self) -> int:
        return 1


async def core(store: Store) -> int:
    return await store.double(3) + await store.double(4)  # type: ignore[misc]


def test_a_core_runs_without_a_loop() -> None:
    assert drive(core(immediately(Store()))) == 14


def test_a_core_runs_inside_a_running_loop() -> None:
    async def main() -> int:
        return drive(core(immediately(Store())))

    assert asyncio.run(main()) == 14


def test_attributes_that_are_no_methods_stay_as_they_are() -> None:
    assert immediately(Store()).name == "store"


def test_an_exception_passes_through_unchanged() -> None:
    async def failing() -> None:
        await immediately(Store()).fail()

    with pytest.raises(KeyboardInterrupt):
        drive(failing())


def test_an_asynchronous_method_is_refused() -> None:
    async def core_of(store: Store) -> int:
        return await store.later()

    with pytest.raises(TypeError, match=r"turnfold\.aio"):
        drive(core_of(immediately(Store())))


def test_an_asynchronous_function_is_refused() -> None:
    async def model() -> str:
        return ""

    with pytest.raises(TypeError, match="asynchronous"):
        drive(awaitable(model)())


def test_a_core_that_really_waits_is_refused() -> None:
    async def waiting() -> None:
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match=r"turnfold\.aio"):
        drive(waiting())
