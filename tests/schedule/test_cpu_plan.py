"""CPU plans: which backward applies, what is kept, and how the scans are formed."""

import pytest

import fwgen
from fwgen.driver import compile_rule
from fwgen.ir.walk import reads
from fwgen.schedule.plan import CpuPlan, Nest, Scan, Sweep, statements_of

# What the forward keeps for the backward, per token and head: (vectors, scalars).
KEPT = {
    "sum": (0, 0),
    "gla": (0, 0),
    "delta": (1, 0),
    "deltanet": (1, 0),
    "gated_delta": (1, 0),
    "linear_attention": (1, 1),  # its read is divided by another read
    "kda": (1, 0),
    "delta_product": (2, 0),  # two writes per token
}
REPLAYED = ["fwp_additive_tanh", "recurrent_delta", "srwm", "fwm2"]


def plan(name: str) -> CpuPlan:
    return compile_rule(fwgen.load_rule(name), ["cpu"]).plan


def scans(sweep: Sweep) -> list[Scan]:
    return [phase for phase in sweep.phases if isinstance(phase, Scan)]


@pytest.mark.parametrize("name", KEPT)
def test_affine_rule_keeps_no_state(name):
    found = plan(name)
    assert not found.replay and found.reason is None
    ranks = [len(found.step.array(name).dims) for name in found.saved]
    assert (ranks.count(1), ranks.count(0)) == KEPT[name] and max(ranks, default=0) <= 1


@pytest.mark.parametrize("name", REPLAYED)
def test_nonlinear_rule_is_replayed_for_a_reason(name):
    found = plan(name)
    assert found.replay and found.reason and not found.saved
    (sweep,) = found.backward_kernel.sweeps
    assert [scan.history for scan in scans(sweep)].count(True) >= 1


@pytest.mark.parametrize("name", fwgen.list_rules())
def test_every_statement_reads_what_is_complete(name):
    """Batches and scans come in an order in which each array is written before it is read."""
    found = plan(name)
    for kernel in (found.forward_kernel, found.backward_kernel):
        local = {a.name for a in kernel.arrays if a.role == "local"}
        for sweep in kernel.sweeps:
            carried = {n for c in sweep.carries for n in (c.before, c.after)}
            given = {n for n, _ in sweep.loads} | set(sweep.fetches)
            written: set[str] = set()
            for phase in sweep.phases:
                inner = statements_of(phase)
                own = {s.target for s in inner}
                for statement in inner:
                    open_ = set(reads(statement)) & local - written - own - given - carried
                    assert not open_, f"{name}: {statement.target} waits for {open_}"
                written |= own


@pytest.mark.parametrize("name", ["delta", "deltanet", "gated_delta", "kda"])
def test_forward_of_a_delta_rule_passes_once_over_the_state(name):
    """The next token's reads run in the pass that writes; blocks of values are independent."""
    (scan,) = scans(plan(name).forward_kernel.sweeps[0])
    assert scan.rotated and scan.split == "V"
    assert [isinstance(item, Nest) for item in scan.items].count(True) == 2


@pytest.mark.parametrize("name", ["gated_delta", "gla", "kda", "mamba2", "simple_gla"])
def test_gradient_of_a_decay_needs_no_product_of_state_and_adjoint(name):
    found = plan(name)
    old = {s.old for s in found.step.states}
    for sweep in found.backward_kernel.sweeps:
        seeds = {c.before for c in sweep.carries} - old
        for phase in sweep.phases:
            for statement in statements_of(phase):
                names = set(reads(statement))
                assert not (names & old and names & seeds), statement.target


@pytest.mark.parametrize("name", ["rwkv6", "rwkv7"])
def test_read_without_the_decay_keeps_the_product(name):
    """Its telescoping sums would be large where the decay, and their difference, is small."""
    found = plan(name)
    assert found.replay and "d_W needs a state and an adjoint state" in str(found.reason)


@pytest.mark.parametrize("name", ["delta", "gated_delta", "gla", "kda", "sum", "retnet"])
def test_two_tokens_share_a_pass_where_the_update_is_affine(name):
    """The forward and the pass that rebuilds states read both tokens of a pair at once."""
    found = plan(name)
    sweeps = [*found.forward_kernel.sweeps, found.backward_kernel.sweeps[1]]
    for sweep in sweeps:
        for scan in scans(sweep):
            if len(scan.carries) == 1 and not scan.reverse and scan.split is not None:
                assert scan.pair is not None, sweep.carries


@pytest.mark.parametrize("name", fwgen.list_rules())
def test_a_pair_reads_only_the_state_before_it(name):
    found = plan(name)
    for kernel in (found.forward_kernel, found.backward_kernel):
        for sweep in kernel.sweeps:
            for scan in scans(sweep):
                if scan.pair is not None:
                    (carry,) = scan.carries
                    both = (*scan.pair.reads, scan.pair.write, *scan.pair.repairs)
                    assert all(carry.after not in reads(s) for s in both)


# What the backward hands from its first sweep to the second, per token and head: vectors, scalars.
# For the delta rule three adjoints, what was written and the two normalisations.
HANDED_ON = {"sum": (1, 1), "gla": (1, 1), "deltanet": (4, 3)}


@pytest.mark.parametrize("name", HANDED_ON)
def test_products_with_scalars_do_not_cross_sweeps(name):
    found = plan(name).backward_kernel
    ranks = [len(found.array(name).dims) for name in found.sweeps[1].fetches]
    assert (ranks.count(1), ranks.count(0)) == HANDED_ON[name]


def test_what_is_handed_on_spares_loads():
    """The second sweep takes what was written instead of the value, the prediction and the rate."""
    first, second = plan("deltanet").backward_kernel.sweeps
    assert {"v", "p", "beta"} <= {name for name, _ in first.loads}
    assert [name for name, _ in second.loads] == ["q", "k"]


@pytest.mark.parametrize("name", fwgen.list_rules())
def test_sums_over_vectors_are_made_once(name):
    """No sweep computes a forward scalar from vectors that an earlier one has computed."""
    found = plan(name)
    made: set[str] = set()
    for sweep in found.backward_kernel.sweeps:
        statements = [s for phase in sweep.phases for s in statements_of(phase)]
        step = {s.target for s in found.step.statements}
        sums = {s.target for s in statements if s.over and not s.index and s.target in step}
        assert not sums & made
        made |= sums
