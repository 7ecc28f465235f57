"""Rows that share memory: replayed token by token, nobody finds another array's value."""

import itertools

import pytest

import fwgen
from fwgen.driver import compile_rule
from fwgen.emit.cpu.kernel import KernelWriter
from fwgen.emit.cpu.names import Names
from fwgen.emit.cpu.source import backward_tensors, forward_tensors
from fwgen.ir.nodes import Statement
from fwgen.ir.walk import reads
from fwgen.schedule.plan import Kernel, Nest, Scan, Sweep

TOKENS, BLOCKS = 5, 2


class Memory:
    """Which array's value lies at each (place, token, block of lanes)."""

    def __init__(self, kernel: Kernel, root: dict[str, str]) -> None:
        self.arrays, self.root = {a.name: a for a in kernel.arrays}, root
        self.holds: dict[tuple[str, int, int], str] = {}

    def run(self, statement: Statement, token: int, blocks: tuple[int, ...]) -> None:
        for name in reads(statement):
            array = self.arrays[name]
            owner, slot = (array.of, token - 1) if array.role == "earlier" else (name, token)
            for block in blocks if owner in self.root else ():
                found = self.holds.get((self.root[owner], slot, block))
                assert found == owner, f"{statement.target} at {token}: {found} for {owner}"
        if statement.target in self.root:
            for block in blocks:
                self.holds[self.root[statement.target], token, block] = statement.target


def body(item: Statement | Nest) -> tuple[Statement, ...]:
    return item.statements if isinstance(item, Nest) else (item,)


def scanned(memory: Memory, scan: Scan, blocks: tuple[int, ...]) -> None:
    """The tokens of one scan, paired and rotated as its kernel does them."""
    tokens = list(range(TOKENS))[:: -1 if scan.reverse else 1]

    def run(statements: tuple[Statement, ...], token: int) -> None:
        for statement in statements:
            memory.run(statement, token, blocks)

    def items(token: int, which: slice) -> None:
        for item in scan.items[which]:
            run(body(item), token)

    if scan.pair is None and not scan.rotated:
        for token in tokens:
            items(token, slice(None))
        return
    inner, ends = slice(1, -1), slice(-1, None)
    if scan.pair is None:
        items(tokens[0], slice(1))
        for token, following in itertools.pairwise([*tokens, None]):
            items(token, inner)
            items(token, ends)
            if following is not None:
                items(following, slice(1))
        return
    head = scan.items[0]
    assert isinstance(head, Nest)
    first = tuple(s for s in head.statements if head.row in s.over)
    pairs = [(a, a + 1) for a in tokens[:-1:2]]
    if scan.rotated:
        run(first, 0)
        run(scan.pair.reads, 1)
    for a, b in pairs:
        if not scan.rotated:
            run(first, a)
            run(scan.pair.reads, b)
        items(a, inner)
        run(scan.pair.repairs, b)
        items(b, inner)
        run((scan.pair.write,), b)
        if scan.rotated and b + 2 < TOKENS:
            run(first, a + 2)
            run(scan.pair.reads, b + 2)
    items(TOKENS - 1, slice(None))


def swept(memory: Memory, sweep: Sweep, by_token: bool) -> None:
    every = tuple(range(BLOCKS))
    for phase in sweep.phases:
        if isinstance(phase, Scan):
            for blocks in [(b,) for b in every] if phase.split else [every]:
                scanned(memory, phase, blocks)
            continue
        tokens = range(1, TOKENS, 2) if phase.seconds else range(TOKENS)
        steps = itertools.product(tokens, phase.statements)
        if not by_token:
            steps = ((t, s) for s in phase.statements for t in tokens)
        for token, statement in steps:
            memory.run(statement, token, every)


@pytest.mark.parametrize("name", fwgen.list_rules())
def test_nobody_finds_what_another_left(name):
    plan = compile_rule(fwgen.load_rule(name), ["cpu"]).plan
    for kernel, tensors in (
        (plan.forward_kernel, forward_tensors(plan, plan.step)),
        (plan.backward_kernel, backward_tensors(plan, plan.step)),
    ):
        writer = KernelWriter(kernel, tensors, Names(), {})
        writer.write()
        shared = {b.name: b.shared for b in writer.buffers.values() if b.shared}
        bases = {n: base for n, base in writer.rows.items() if base}
        root = {n: shared.get(b, b) for n, b in bases.items()}
        alone = {r for r in root.values() if list(root.values()).count(r) == 1}
        for by_token in (False, True):
            for sweep in kernel.sweeps:
                memory = Memory(kernel, {n: r for n, r in root.items() if r not in alone})
                swept(memory, sweep, by_token)


def test_the_delta_rule_shares():
    """What the forward of the delta rule writes takes the place of the prediction."""
    source = fwgen.compile("deltanet").sources["cpu.cpp"]
    assert "space.data + u_W_at : p;" in source
