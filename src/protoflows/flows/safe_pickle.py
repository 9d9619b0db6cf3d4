"""Reading files that are pickles inside, without running the code that a pickle may carry.

A pickle is a small program: it may name any function of any installed module and have it called.
The published checkpoints come as an `args.pickle` and as torch files, which are pickles in a zip.
Both are read here with everything refused that is not on a short list of plain values. Code from
the file never runs; a file that is built to waste time or memory can still do so.
"""

import argparse
import pickle
import pickletools
import re
from collections import OrderedDict
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, NoReturn

import torch

# Arguments of a training run take a few kilobytes.
MAX_NAMESPACE_BYTES = 1 << 20

# Opcodes that fetch an object from elsewhere without asking `find_class` every time: the extension
# registry is cached by the interpreter, persistent ids and buffers come from outside the file.
_REFUSED_OPCODES = frozenset(
    {"EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID", "NEXT_BUFFER", "READONLY_BUFFER"}
)


class UnsafePickleError(ValueError):
    """A file asks for more than plain values, and was refused before anything of it ran."""


class _Sealed(type):
    """A class whose own attributes cannot be set, not even by a pickle's BUILD instruction."""

    def __setattr__(cls, name: str, value: object) -> NoReturn:
        raise TypeError(f"cannot set {name!r} on {cls.__name__}")


class _Namespace(argparse.Namespace, metaclass=_Sealed):
    """Stands in for `argparse.Namespace`, so that a file cannot alter the class all others use."""


_BUILTINS: tuple[type, ...] = (
    *(list, dict, tuple, set, frozenset),
    *(bool, int, float, complex, str, bytes),
)
# The whole of what a namespace file may name. Looked up as one exact key: no import, no getattr,
# hence no way along a dotted name ("Namespace.__init__.__globals__") to anything else.
_ADMITTED: dict[tuple[str, str], type] = {
    ("argparse", "Namespace"): _Namespace,
    ("collections", "OrderedDict"): OrderedDict,
    # Up to protocol 2 the builtins go by their Python 2 names.
    **{(m, t.__name__): t for m in ("builtins", "__builtin__") for t in _BUILTINS},
    ("__builtin__", "long"): int,
    ("__builtin__", "unicode"): str,
}


class _NamespaceUnpickler(pickle.Unpickler):
    """An unpickler that knows the names in `_ADMITTED` and no others."""

    def find_class(self, module: str, name: str) -> type:
        """Return the admitted type of that name."""
        try:
            return _ADMITTED[module, name]
        except KeyError:
            raise UnsafePickleError(f"it names {module}.{name}") from None


def load_namespace(path: str | Path, *, max_bytes: int = MAX_NAMESPACE_BYTES) -> dict[str, Any]:
    """Read a pickled `argparse.Namespace` (or dict) of plain values, such as `args.pickle`.

    Args:
        path: the file.
        max_bytes: a longer file is refused unread.

    Returns:
        The namespace's entries. Namespaces inside it stay namespaces.

    Raises:
        FileNotFoundError: there is no such file.
        UnsafePickleError: the file names anything but `argparse.Namespace`, `OrderedDict` and the
            builtin containers and scalars, or is longer than `max_bytes`.
        ValueError: the file is no pickle, is damaged, or holds something else than a namespace.
    """
    path = _existing_file(path)
    with path.open("rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise UnsafePickleError(
            f"path: {path} was refused: a file of saved arguments is expected to be at most "
            f"{max_bytes} bytes long, and this one is longer."
        )
    try:
        _check_opcodes(content)
        value = _NamespaceUnpickler(BytesIO(content)).load()
    except UnsafePickleError as error:
        raise UnsafePickleError(
            f"path: {path} was refused: {error}, but a file of saved arguments may hold only "
            "argparse.Namespace and builtin containers and numbers. Nothing of it was run."
        ) from None
    except Exception as error:  # a damaged pickle can raise almost anything
        raise ValueError(
            f"path: {path} is not a readable pickle ({type(error).__name__}: {error}). "
            "Was it copied or downloaded completely?"
        ) from error
    if isinstance(value, argparse.Namespace):
        value = dict(vars(value))
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ValueError(
            f"path: {path} holds a {type(value).__name__}, expected an argparse.Namespace or a "
            "dict whose keys are strings."
        )
    return value


def load_torch(path: str | Path) -> Mapping[Any, Any]:
    """Read a torch file that holds a mapping of tensors and plain values, onto the CPU.

    Args:
        path: the file, as written by `torch.save`.

    Returns:
        The mapping, for example a checkpoint's `{"model": state_dict, "epoch": 3}`.

    Raises:
        FileNotFoundError: there is no such file.
        UnsafePickleError: the file holds more than tensors, builtin values and
            `argparse.Namespace`.
        ValueError: the file is no torch file, is damaged, or holds something else than a mapping.
    """
    path = _existing_file(path)
    # The stand-in answers to the real name, see `_Namespace`.
    admitted = torch.serialization.safe_globals([(_Namespace, "argparse.Namespace")])
    try:
        with admitted:
            value = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        # Without its cause on purpose: torch's own text advises to load the file unsafely.
        raise UnsafePickleError(
            f"path: {path} was refused: {_torch_reason(str(error))}, but a checkpoint may hold "
            "only tensors, builtin containers and numbers, and argparse.Namespace. Nothing of it "
            "was run."
        ) from None
    except Exception as error:  # zip, legacy and text files each fail in their own way
        raise ValueError(
            f"path: {path} is not a readable torch file ({type(error).__name__}: {error}). "
            "Was it copied or downloaded completely?"
        ) from error
    if not isinstance(value, Mapping):
        raise ValueError(
            f"path: {path} holds a {type(value).__name__}, expected a mapping such as a state "
            "dict or a checkpoint."
        )
    return value


def _existing_file(path: str | Path) -> Path:
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"path: {path} is a folder, expected a file.")
    if not path.is_file():
        raise FileNotFoundError(f"path: there is no file {path}.")
    return path


def _check_opcodes(content: bytes) -> None:
    """Walk over a pickle's instructions, executing none, and refuse those that reach outside."""
    for opcode, _, position in pickletools.genops(content):
        if opcode.name in _REFUSED_OPCODES:
            raise UnsafePickleError(f"it has the instruction {opcode.name} at byte {position}")


def _torch_reason(message: str) -> str:
    """Say in a few words what torch's weights-only unpickler stumbled over."""
    if found := re.search(r"GLOBAL ([\w.<>]+)", message):
        return f"it names {found[1]}"
    if found := re.search(r"Unsupported operand (\d+)", message):
        return f"it has the pickle instruction {found[1]}, which plain checkpoints do not use"
    return "it holds objects that are not plain values"
