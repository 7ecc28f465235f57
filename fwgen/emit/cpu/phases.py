"""Batches and scans for the template, and which of their statements assign instead of adding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from fwgen.emit.cpu.fusion import loops
from fwgen.emit.cpu.nest import NestView, Part, nest_view
from fwgen.emit.cpu.statements import view
from fwgen.emit.cpu.storage import Storage
from fwgen.emit.cpu.views import BatchView, ItemView, PairView, ScanView
from fwgen.errors import InternalError
from fwgen.ir.nodes import Array, Statement
from fwgen.schedule.nests import leaves_part
from fwgen.schedule.plan import Batch, Item, Nest, Pair, Scan, Sweep


class PhaseWriter:
    """Turns the phases of one sweep into texts, in order; `done` are the arrays written so far."""

    def __init__(self, arrays: Mapping[str, Array], storage: Storage, done: set[str]) -> None:
        self.arrays, self.storage, self.done = arrays, storage, done

    def phase(self, phase: Batch | Scan) -> BatchView | ScanView:
        """The view of a batch or scan."""
        if isinstance(phase, Scan):
            return self.scan(phase)
        groups = [
            tuple(
                view(self.first(s, self.done), self.storage, "t", batch=not phase.seconds)
                for s in group
            )
            for group in loops(phase.statements, self.arrays)
        ]
        runs = groupby(groups, key=lambda group: group[0].kind == "tokens")
        return BatchView(tuple(tuple(run) for _, run in runs), phase.seconds)

    def scan(self, scan: Scan) -> ScanView:
        """The view of a scan."""
        before = set(self.done)
        items = tuple(self.opening(item, self.done) for item in scan.items)
        first = fused = last = pair = None
        inner: Sequence[Item] = items
        if scan.pair is not None:
            pair = self.pair(scan, scan.pair, items, before)
            inner = items[1:-1]
        elif scan.rotated:
            head, tail = _ends(items)
            start, following = ("tc - 1", "t - 1") if scan.reverse else ("0", "t + 1")
            first = self.nest(scan, head, Part(head.statements, start))
            writes = Part(tail.statements, "t")
            reads_ = Part(head.statements, following, "next", follows=True)
            fused = self.nest(scan, tail, writes, reads_)
            last = self.nest(scan, tail, writes)
            inner = items[1:-1]
        views = tuple(self.item(i, scan) for i in inner)
        nests = [first, fused, last, *(v.nest for v in views)]
        wide = any(n.row_outputs for n in nests if n is not None)
        lane = next((i.lane.dim for i in items if isinstance(i, Nest)), None)
        split = self.storage.dim(lane) if scan.split and lane is not None else ""
        width = 4 if wide else 2
        return ScanView(views, first, fused, last, pair, scan.reverse, split, width)

    def pair(self, scan: Scan, pair: Pair, items: Sequence[Item], before: set[str]) -> PairView:
        """The nests of a scan that takes tokens in pairs.

        Its second tokens have their own first contributions, `before` being what was written ahead
        of the scan; what their reads leave open stays unwritten for the batch that repairs them.
        """
        head, tail = _ends(items)
        reads = tuple(s for s in head.statements if head.row in s.over)
        writes = tuple(s for s in tail.statements if not s.over)
        late = self.opening(Nest(head.row, head.lane, pair.reads), before)
        assert isinstance(late, Nest)
        repairs = tuple(self.first(s, before) for s in pair.repairs)
        self.done -= {s.target for s in reads} - before
        texts = tuple(view(s, self.storage, "t", batch=False, split=scan.split) for s in repairs)
        update = Part((pair.write,), "tp + 1")

        def tokens(first: str, tags: str, follows: bool) -> list[Part]:
            second = {"0": "1", "tp": "tp + 1"}.get(first, "tp + 3")
            return [
                Part(reads, first, tags[0], follows),
                Part(late.statements, second, tags[1], follows),
            ]

        def nest(*parts: Part) -> NestView:
            return self.nest(scan, head, *parts)

        if not scan.rotated:
            fused = nest(*tokens("tp", "01", False), update)
            return PairView(None, fused, None, nest(Part(head.statements, "t")), None, texts)
        return PairView(
            nest(*tokens("0", "01", False)),
            nest(update, *tokens("tp + 2", "23", True)),
            nest(update),
            nest(Part(reads, "t")),
            nest(Part(writes, "t")),
            texts,
        )

    def nest(self, scan: Scan, nest: Nest, *parts: Part) -> NestView:
        """The view of parts over the domain of a nest."""
        return nest_view(nest, parts, scan.carries, self.storage)

    def item(self, item: Item, scan: Scan) -> ItemView:
        """The view of an item that runs by itself."""
        if isinstance(item, Statement):
            return ItemView(view(item, self.storage, "t", batch=False, split=scan.split), None)
        return ItemView(None, self.nest(scan, item, Part(item.statements, "t")))

    def opening(self, item: Item, done: set[str]) -> Item:
        """The item with first contributions as assignments."""
        if isinstance(item, Statement):
            return self.first(item, done)
        done.update(s.target for s in item.statements if item.lane in s.over)
        fresh = [s if item.lane in s.over else self.first(s, done) for s in item.statements]
        return Nest(item.row, item.lane, tuple(fresh))

    def first(self, statement: Statement, done: set[str]) -> Statement:
        """Assign instead of add, where nothing was written before and all is covered."""
        seen = statement.target in done
        done.add(statement.target)
        if not statement.accumulate or seen or partial(statement, False, self.arrays):
            return statement
        if self.storage.places[statement.target].kind == "head":
            return statement
        return replace(statement, accumulate=False)


def _ends(items: Sequence[Item]) -> tuple[Nest, Nest]:
    """The first and the last item of a scan, which are nests."""
    head, tail = items[0], items[-1]
    if not isinstance(head, Nest) or not isinstance(tail, Nest):
        raise InternalError("a rotated scan starts or ends without a nest")
    return head, tail


def partial(statement: Statement, row_sum: bool, arrays: Mapping[str, Array]) -> bool:
    """Whether a first contribution leaves part of the target unwritten."""
    return row_sum or leaves_part(statement, arrays[statement.target])


def added(sweep: Sweep, arrays: Mapping[str, Array]) -> list[str]:
    """Arrays that are only ever added to, and start from zeros."""
    written: dict[str, bool] = {}
    for phase in sweep.phases:
        items = phase.items if isinstance(phase, Scan) else phase.statements
        for item in items:
            inner = [item] if isinstance(item, Statement) else list(item.statements)
            lane = item.lane if isinstance(item, Nest) else None
            for statement in sorted(inner, key=lambda s: lane not in s.over):
                row_sum = lane in statement.over
                adds = statement.accumulate or row_sum
                adds = adds and partial(statement, row_sum, arrays)
                written.setdefault(statement.target, adds)
    return [n for n, adds in written.items() if adds and n not in sweep.fetches]
