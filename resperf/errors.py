"""Every error that a user can cause.

::

    ResperfError                 the root: the command line prints it as one line and exits 2
    ├── LayerError               a layer's fields are missing, unknown or impossible
    ├── NetworkError             a file is not a network that can be read
    │   └── ShapeError           a dimension is not known, or a given one does not fit
    ├── UnsupportedError         a backend cannot build this layer or network
    ├── MeasurementError         a timing could not be taken
    │   └── DeviceLostError      a device does not answer any more
    ├── CampaignError            a campaign file or its resumption is wrong
    ├── DatasetError             a dataset is missing, damaged, or does not fit
    ├── TrainingError            the data cannot be learnt from
    ├── BundleError              a bundle is missing, damaged or unsafe
    │   └── DeviceError          no bundle for this device and framework
    ├── OutputError              an output could not be written (nothing was overwritten)
    └── MissingExtraError        an optional package is not installed

A message says what was wrong, the value, and what to do next.
"""

from __future__ import annotations

import errno
import importlib
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Self


class ResperfError(Exception):
    """Root of all errors that a user can cause and fix."""


class LayerError(ResperfError):
    """A layer's fields are missing, unknown or impossible."""


class NetworkError(ResperfError):
    """A file is not a network that can be read."""


class ShapeError(NetworkError):
    """A dimension is not known, or a given one does not fit."""


class UnsupportedError(ResperfError):
    """A backend cannot build this layer or network."""


class MeasurementError(ResperfError):
    """A timing could not be taken."""


class DeviceLostError(MeasurementError):
    """A device does not answer any more: nothing else can be measured on it."""


class CampaignError(ResperfError):
    """A campaign file or its resumption is wrong."""


class DatasetError(ResperfError):
    """A dataset is missing, damaged, or does not fit."""


class TrainingError(ResperfError):
    """The data cannot be learnt from."""


class BundleError(ResperfError):
    """A bundle is missing, damaged or unsafe."""


class DeviceError(BundleError):
    """No bundle for this device and framework."""


class OutputError(ResperfError):
    """An output could not be written; nothing was overwritten."""


class MissingExtraError(ResperfError):
    """An optional package is not installed."""


class Message(str):
    """A text for the user, with what it has in common with those of other operators.

    Attributes
    ----------
    general : str
        The text without names of nodes, tensors and layers.
    unread : str
        The operator, if the text says that no kind of layer reads it; else empty.
    """

    general: str
    unread: str

    def __new__(cls, text: str, general: str = "", unread: str = "") -> Self:
        """Make a message; without another one, its general text is the text itself."""
        message = super().__new__(cls, text)
        message.general, message.unread = general or text, unread
        return message

    @classmethod
    def of(cls, said: str | Exception) -> Message:
        """Return a text, or that of an error, as the message that it was made of."""
        text = said if isinstance(said, str) else next(iter(said.args), "")
        return text if isinstance(text, Message) else cls(str(said))

    def about(self, name: str) -> Message:
        """Return the message with a name before it, which is not part of the general text."""
        return Message(f"{name}{self}", self.general, self.unread)


_NO_MEMORY = re.compile(
    r"bad_alloc|memoryerror|out ?of ?memory|not enough memory|(failed to|can't|cannot) allocate"
    r"|could not be allocated|memoryallocation",
    re.IGNORECASE,
)


def is_out_of_memory(message: str) -> bool:
    """Whether a message of a framework, of CUDA or of Python reports a lack of memory."""
    return _NO_MEMORY.search(message) is not None


def first_line(error: BaseException) -> str:
    """Return the first line of a foreign error's message, cut to 300 characters."""
    words = str(error).strip().splitlines() or [type(error).__name__]
    return words[0][:300]


def listed(names: Sequence[str], most: int = 3) -> str:
    """List names; of many, the first, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def words_like(word: str, names: Iterable[str]) -> list[str]:
    """Return the names that are spelt like a word, the nearest first."""
    import difflib

    return difflib.get_close_matches(word, names)


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return ``" (did you mean conv or cast?)"``; empty if no name is spelt alike."""
    near = words_like(word, names)
    return f" (did you mean {' or '.join(near)}?)" if near else ""


def printable(text: str) -> str:
    """Return a name with control characters escaped."""
    return text if text.isprintable() else repr(text)[1:-1]


_LONGEST = 1500
"""Letters of an error: values of damaged files may be endless."""
_FREE_SPACE = "; free some space or write to another disk"
_ADVICE = {
    errno.ENOSPC: _FREE_SPACE,
    errno.EDQUOT: _FREE_SPACE,
    errno.EACCES: "; choose a place where you may write, or change its permissions",
    errno.EROFS: "; choose a place where you may write",
    errno.EADDRINUSE: "; another program listens there, choose another --port",
}


def error_line(error: BaseException) -> str:
    """Return what a user is told of an error: one line."""
    text = str(error)
    if isinstance(error, MemoryError):
        text = "not enough memory; use a smaller batch or close other programs"
    elif isinstance(error, OSError):
        prefix = f"{error.filename}: " if error.filename else ""
        text = f"{prefix}{error.strerror or error}{_ADVICE.get(error.errno or 0, '')}"
    elif hasattr(error, "format_message"):  # click's, which name the option
        text = error.format_message()
    line = printable(" ".join(text.split()))
    if len(line) > _LONGEST:
        line = f"{line[: _LONGEST // 2]} ... {line[-_LONGEST // 2 :]}"
    return line


def require(module: str, extra: str) -> ModuleType:
    """Import an optional package, or say how to install it.

    Parameters
    ----------
    module : str
        Import name, such as ``"h5py"``.
    extra : str
        The extra of resperf that installs it.

    Raises
    ------
    MissingExtraError
        If the package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"{error.name} is not installed; install it with: pip install 'resperf[{extra}]'"
        ) from error


@contextmanager
def silent_stderr(descriptor: int = 2) -> Iterator[None]:
    """Discard stderr (1: stdout), for libraries that print before a log level can be set."""
    stream = sys.stderr if descriptor == 2 else sys.stdout
    stream.flush()
    original, null = os.dup(descriptor), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, descriptor)
        yield
    finally:
        stream.flush()
        os.dup2(original, descriptor)
        os.close(original)
        os.close(null)
