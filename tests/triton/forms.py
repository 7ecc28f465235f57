"""The two forms of generated kernels: states in registers, and large states in memory."""

import os

from fwgen.runtime import triton_backend

OLDER = os.environ.get("FWGEN_OLDER_TRITON", "")
"""A folder with Triton 3.6 and a numpy of its time, as `pip install --target` makes it."""

FORMS = ("registers", "memory")
SMALL_ROOM = {"forward": 8, "backward": 8}
"""Numbers of a block, so few that loops take several turns and axes have several tiles."""


def choose(form: str) -> None:
    """From now on this process uses kernels of that form, those in memory with tiny blocks.

    A rule without large states has no kernels that keep them in memory: its only ones are used.
    """
    if form == "memory":
        load = triton_backend.load_module

        def load_small(name, source):
            module = load(name, source)
            module.ROOM = SMALL_ROOM
            return module

        triton_backend.load_module = load_small
        triton_backend.FILES = tuple(reversed(triton_backend.FILES))
    elif form != "registers":
        raise ValueError(f"form: expected one of {FORMS}, found {form!r}")
