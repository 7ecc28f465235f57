"""Names for new arrays beside those that a rule, or an earlier stage, has already taken."""

from __future__ import annotations

from collections.abc import Iterable


class Names:
    """The names of arrays that are taken; `fresh` takes one more."""

    def __init__(self, taken: Iterable[str]) -> None:
        self.taken = set(taken)

    def fresh(self, base: str, joint: str = "_") -> str:
        """`base`, or the first of `base_1`, `base_2`, ... that is free; `joint` is what joins."""
        name, n = base, 0 if joint else 1
        while name in self.taken:
            n += 1
            name = f"{base}{joint}{n}"
        self.taken.add(name)
        return name
