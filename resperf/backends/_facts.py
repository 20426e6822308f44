"""What an installed framework says of itself and of this machine, asked in a process of its own.

Beside a target's backend lies the module ``BACKEND_facts`` with a function ``facts``: only the
framework knows what it finds here, and loading it takes seconds or fails.
"""

from __future__ import annotations

from dataclasses import dataclass

from resperf.records import Record


@dataclass(frozen=True)
class FrameworkFacts(Record):
    """What a framework says.

    Attributes
    ----------
    version : str
    devices : tuple of str
        Local devices on which it can run, such as ``"cpu"`` and ``"cuda:0"``.
    cuda : str
        Version of CUDA that it was built for; empty if it was built without, or does not say.
    notes : tuple of str
        What else it says: providers, warnings.
    """

    version: str
    devices: tuple[str, ...] = ()
    cuda: str = ""
    notes: tuple[str, ...] = ()
