"""What each result of a kernel needs of it, so that a call leaves out what nobody asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from fwgen.ir.walk import reads
from fwgen.schedule.plan import Kernel, statements_of

Place = tuple[int, str]
"""An array in one of the sweeps."""


def results(kernel: Kernel) -> Mapping[str, list[Place]]:
    """The tensors that a kernel writes, and the arrays that they are copied from."""
    found: dict[str, list[Place]] = {}
    for number, sweep in enumerate(kernel.sweeps):
        for array, tensor in sweep.stores:
            found.setdefault(tensor, []).append((number, array))
        for carry in sweep.carries:
            if carry.finish:
                found.setdefault(carry.finish, []).append((number, carry.after))
        for array, tensor in kernel.param_gradients:
            found.setdefault(tensor, []).append((number, array))
    return found


def needs(kernel: Kernel) -> tuple[tuple[frozenset[str], ...], ...]:
    """For each phase of each sweep, the results that depend on it."""
    found: list[list[set[str]]] = [[set() for _ in sweep.phases] for sweep in kernel.sweeps]
    graph = _Graph(kernel)
    for tensor, places in results(kernel).items():
        for number, phase in graph.behind(places):
            found[number][phase].add(tensor)
    return tuple(tuple(map(frozenset, sweep)) for sweep in found)


class _Graph:
    """Which phases write an array, and what else is behind it."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.arrays = {a.name: a for a in kernel.arrays}
        self.writers: dict[Place, list[tuple[int | None, list[str]]]] = {}
        """Phase and reads of each statement that writes an array; None: once, at a sweep's end."""
        for number, sweep in enumerate(kernel.sweeps):
            phases = enumerate(map(statements_of, sweep.phases))
            for phase, statements in (*phases, (None, sweep.finale)):
                for statement in statements:
                    own = self.writers.setdefault((number, statement.target), [])
                    own.append((phase, reads(statement)))

    def behind(self, places: Iterable[Place]) -> set[tuple[int, int]]:
        """The phases that the values of arrays depend on."""
        open_, seen, found = list(places), set[Place](), set[tuple[int, int]]()
        while open_:
            place = open_.pop()
            if place in seen:
                continue
            seen.add(place)
            number = place[0]
            for phase, read in self.writers.get(place, ()):
                open_ += [(number, array) for array in read]
                if phase is not None:
                    found.add((number, phase))
            open_ += self.sources(place)
        return found

    def sources(self, place: Place) -> Iterator[Place]:
        """Where a value comes from other than a statement of its sweep."""
        number, name = place
        sweep, array = self.kernel.sweeps[number], self.arrays[name]
        if array.role == "earlier" and array.of is not None:
            yield number, array.of
        for carry in sweep.carries:
            if name in (carry.before, carry.after):
                yield from ((number, carry.before), (number, carry.after))
                if carry.start.startswith("finale "):
                    start = carry.start.removeprefix("finale ")
                    yield from ((earlier, start) for earlier in range(number))
        if name in sweep.fetches:
            yield from ((earlier, name) for earlier in range(number))
