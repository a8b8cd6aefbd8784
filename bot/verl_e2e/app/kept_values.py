"""Values that a process keeps by key, so that what costs much is made once."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Kept(Generic[Value]):
    """The values last asked for by key, at most so many."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[tuple[str, ...], Value] = OrderedDict()

    def get(self, key: tuple[str, ...], make: Callable[[], Value]) -> Value:
        """The value of a key, made when it is not there."""
        # Several looks share this: the second one makes the value again, which changes nothing.
        found = self._values.pop(key, None)
        if found is None:
            found = make()
        return self.put(key, found)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def find(self, key: tuple[str, ...]) -> Value | None:
        """The value of a key, None when it is not there."""
        return self._values.get(key)

    def put(self, key: tuple[str, ...], value: Value) -> Value:
        """Keep a value under a key, in the place of what was there."""
        self._values.pop(key, None)
        self._values[key] = value
        while len(self._values) > self._most:
            self._values.popitem(last=False)
        return value
