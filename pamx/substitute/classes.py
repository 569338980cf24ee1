"""Giving a module instance behaviour of its own, and taking it back.

A loaded model is changed instance by instance: the instance gets a subclass of its class, so that
other models, the model's file and mlx-lm stay as they are, and whatever asks `isinstance` gets the
same answer as before. What the instance does is in its own `__dict__`, under names that begin with
`_pamx`; a module's parameters and children are dict items, which this leaves alone.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from mlx.nn.layers.base import Module

Undo = Callable[[], None]
_RUN, _ON_CHANGE = "_pamx_run", "_pamx_on_change"


class Watched(Module):
    """A module that says when a parameter, a child or a setting of it is replaced."""

    def __setitem__(self, key: str, value: Any) -> None:
        changed(self)
        super().__setitem__(key, value)

    def __setattr__(self, key: str, value: Any) -> None:
        if not key.startswith("_"):  # training mode and frozen names are no concern of ours
            changed(self)
        super().__setattr__(key, value)

    def __delattr__(self, key: str) -> None:
        changed(self)
        super().__delattr__(key)  # type: ignore[no-untyped-call]


class Called(Watched):
    """A module whose call is an attribute of the instance."""

    _pamx_run: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._pamx_run(*args, **kwargs)


class Swaps:
    """Which instances have another class now, in order."""

    def __init__(self) -> None:
        self._changed: list[tuple[Module, type]] = []
        self._before: list[Undo] = []

    def swap(self, module: Module, cls: type) -> None:
        self._changed.append((module, type(module)))
        module.__class__ = cls

    def mix_in(self, module: Module, mixin: type[Watched], **attributes: Any) -> None:
        """Puts `mixin` before the module's class, and `attributes` into the instance."""
        self.swap(module, in_front(type(module), mixin))
        own = vars(module)
        own.update({f"_pamx_{name}": value for name, value in attributes.items()})
        own.setdefault(_ON_CHANGE, [])

    def before_undo(self, action: Undo) -> None:
        self._before.append(action)

    def undo(self) -> None:
        """Gives every instance its class back; calling it again does nothing."""
        while self._before:
            self._before.pop()()
        while self._changed:
            module, original = self._changed.pop()
            module.__class__ = original
            if not issubclass(original, Watched):
                own = vars(module)
                for name in [n for n in own if n.startswith("_pamx_")]:
                    del own[name]


def on_change(module: Module, action: Undo) -> None:
    """Calls `action` when somebody replaces a part of a watched module."""
    vars(module)[_ON_CHANGE].append(action)


def changed(module: Module) -> None:
    """Tells whoever built on this module that it is about to be another one."""
    for action in list(vars(module).get(_ON_CHANGE, ())):
        action()


@functools.cache
def in_front(original: type, mixin: type) -> type:
    """`original` with the methods of `mixin` before its own, under its own name."""
    return type(original.__name__, (mixin, original), {"__module__": original.__module__})


def mentions(code: types.CodeType, name: str) -> bool:
    """Whether a function, or one that it makes, uses the global or attribute `name`."""
    return name in code.co_names or any(
        isinstance(c, types.CodeType) and mentions(c, name) for c in code.co_consts
    )


def over_globals(function: types.FunctionType, replaced: dict[str, Any]) -> types.FunctionType:
    """The same code over a copy of its globals with some names replaced."""
    clone = types.FunctionType(
        function.__code__,
        {**function.__globals__, **replaced},
        function.__name__,
        function.__defaults__,
        function.__closure__,  # keeps zero-argument super() working
    )
    clone.__kwdefaults__ = function.__kwdefaults__
    clone.__qualname__ = function.__qualname__
    clone.__doc__ = function.__doc__
    return clone


def clone_methods(
    cls: type, replacements: Callable[[types.FunctionType], dict[str, Any]]
) -> dict[str, Any]:
    """The methods of `cls` that need other globals, cloned over them.

    Args:
        cls: A class.
        replacements: The globals to replace for a method; an empty dict leaves it alone.
    """
    methods: dict[str, Any] = {}
    for base in reversed(cls.__mro__):  # a nearer class's method replaces a farther one's
        for name, value in vars(base).items():
            methods.pop(name, None)
            if isinstance(value, types.FunctionType) and (replaced := replacements(value)):
                methods[name] = over_globals(value, replaced)
    return methods
