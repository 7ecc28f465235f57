"""How fast whole models are, with any rule beside softmax: `python -m fwgen.models.speed`.

The same small language model, by rule, side by side in one process: training steps over B * T =
8192 tokens for short and long sequences, and decoding after contexts of many lengths. What carries
over to other machines are the ratios to softmax; all of a row's contenders take turns.

Letters: B sequences, T tokens of each, V vocabulary.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import torch

from fwgen.bench.timing import BUSY, Quiet, peak_bytes

from .attention_config import SOFTMAX, AttentionConfig
from .figures import text_table
from .lm import LanguageModel, LMConfig, States, state_tensors

MODEL = LMConfig(d_model=256, d_ff=1024)
TOKENS = 8192  # of a training step
RULES = (SOFTMAX, "sum", "delta", "gated_delta", "recurrent_delta")  # the last one is nonlinear
LENGTHS = (256, 1024, 4096)
CONTEXTS = (1024, 16_384, 65_536)
STEPS = 16  # tokens decoded at once
GOALS = {("delta", 1024): 1.0, ("delta", 4096): 2.4}  # training: times as fast as softmax
FLAT = 1.25  # decoding with a rule may take so many times as long after the longest context


@dataclass(frozen=True)
class Row:
    """One model at one length: `kind` is "train" or "decode", `tokens` the length or context.

    `rate` is tokens per second, `ratio` that over softmax's. `memory` in bytes: of a training step
    (peak beyond model and optimiser, None where unknown), or of a sequence's state.
    """

    kind: str
    rule: str
    tokens: int
    rate: float
    ratio: float | None
    memory: int | None


def model_of(rule: str, config: LMConfig | None = None) -> LanguageModel:
    """Bytes, four layers, four heads; every rule as it is shipped."""
    torch.manual_seed(0)
    return LanguageModel(replace(config or MODEL, attention=AttentionConfig(rule, heads=4)))


def interleaved(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The median seconds of each call, all of them in turn, after one untimed round."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(-1, rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if turn >= 0:
                found[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in found.items()}


def _training_step(model: LanguageModel, length: int, tokens: int) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    drawn = torch.randint(model.config.vocab, (tokens // length, length + 1))

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        nll, _ = model(drawn[:, :-1], drawn[:, 1:])
        torch.autograd.backward(nll.mean())
        optimizer.step()

    return step


def training(
    models: Mapping[str, LanguageModel], length: int, rounds: int, tokens: int = 0
) -> list[Row]:
    """One row per model: training steps over sequences of `length`, `tokens` in all."""
    tokens = tokens or TOKENS
    calls = {rule: _training_step(model.train(), length, tokens) for rule, model in models.items()}
    seconds = interleaved(calls, rounds)
    rows = []
    for rule, call in calls.items():
        ratio = seconds[SOFTMAX] / seconds[rule] if SOFTMAX in seconds else None
        rate, memory = tokens / seconds[rule], peak_bytes(call)
        rows.append(Row("train", rule, length, rate, ratio, memory))
    return rows


@torch.no_grad()
def state_after(model: LanguageModel, context: int) -> States:
    """The state of one sequence. A rule reads the tokens; softmax's keys and values are drawn,
    since decoding takes the same whatever they are and reading takes time with its square.
    """
    config = model.config
    if config.attention.rule == SOFTMAX:
        heads = config.attention.heads
        shape = (1, heads, context, config.d_model // heads)
        return [{n: torch.randn(shape) for n in ("k", "v")} for _ in range(config.layers)]
    state: States | None = None
    for start in range(0, context, 2048):
        tokens = torch.randint(config.vocab, (1, min(2048, context - start)))
        _, state = model.read(tokens, state, start)
    assert state is not None
    return state


def decoding(
    models: Mapping[str, LanguageModel], contexts: Sequence[int], rounds: int, steps: int = STEPS
) -> list[Row]:
    """One row per context and model: a single sequence, token by token from its state."""
    calls, sizes = {}, {}
    for rule, model in models.items():
        for context in contexts:
            state = state_after(model.eval(), context)
            kept = state_tensors(state).values()
            sizes[rule, context] = sum(x.numel() * x.element_size() for x in kept)
            calls[f"{rule} {context}"] = _decoder(model, state, context, steps)
    seconds = interleaved(calls, rounds)
    rows = []
    for context in contexts:
        softmax = seconds.get(f"{SOFTMAX} {context}")
        for rule in models:
            own = seconds[f"{rule} {context}"]
            ratio = softmax / own if softmax else None
            rows.append(Row("decode", rule, context, steps / own, ratio, sizes[rule, context]))
    return rows


def _decoder(
    model: LanguageModel, start: States, context: int, steps: int
) -> Callable[[], torch.Tensor]:
    @torch.no_grad()
    def decode() -> torch.Tensor:
        state, token = start, torch.zeros(1, dtype=torch.int64)
        for position in range(context, context + steps):
            scores, state = model.step(token, state, position)
            token = scores.argmax(-1)
        return token

    return decode


def missed(rows: Sequence[Row]) -> list[str]:
    """What the table falls short of, a line each."""
    found = []
    for row in rows:
        least = GOALS.get((row.rule, row.tokens)) if row.kind == "train" else None
        if least and row.ratio is not None and row.ratio < least:
            found.append(f"{row.rule} at {row.tokens}: {row.ratio:.2f} x softmax, aim {least}")
    for rule in dict.fromkeys(row.rule for row in rows if row.rule != SOFTMAX):
        own = [row for row in rows if (row.kind, row.rule) == ("decode", rule)]
        if own and own[0].rate > FLAT * own[-1].rate:
            found.append(f"{rule}: decoding slows down from {own[0].tokens} to {own[-1].tokens}")
        if len({row.memory for row in own}) > 1:
            found.append(f"{rule}: the state grows with the context")
    return found


def table(rows: Sequence[Row]) -> str:
    """The rows as text."""
    lines = [["", "tokens", "rule", "tokens/s", "x softmax", "MiB"]]
    for row in rows:
        ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
        memory = "-" if row.memory is None else f"{row.memory / 2**20:,.2f}"
        lines.append([row.kind, f"{row.tokens:,}", row.rule, f"{row.rate:,.0f}", ratio, memory])
    return text_table(lines)


def measure(
    rules: Sequence[str], lengths: Sequence[int], contexts: Sequence[int], rounds: int
) -> Iterator[Row]:
    """All rows of the table, those of one length or of decoding at once."""
    models = {rule: model_of(rule) for rule in rules}
    for length in lengths:
        print(f"training, {length} tokens ...", file=sys.stderr)
        yield from training(models, length, rounds)
    if contexts:
        print("decoding ...", file=sys.stderr)
        yield from decoding(models, contexts, rounds)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; exit 1 when an aim was missed on a quiet machine."""
    parser = argparse.ArgumentParser(prog="python -m fwgen.models.speed", description=__doc__)
    parser.add_argument("--rules", default=",".join(RULES), help="separated by commas")
    parser.add_argument("--lengths", default=",".join(map(str, LENGTHS)), help="of training")
    parser.add_argument("--contexts", default=",".join(map(str, CONTEXTS)), help="of decoding")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds (default: 5)")
    parser.add_argument("--threads", type=int, default=2, help="of PyTorch (default: 2)")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    lengths, contexts = (
        [int(n) for n in text.split(",") if n] for text in (options.lengths, options.contexts)
    )
    with Quiet() as quiet:
        rows = list(measure(options.rules.split(","), lengths, contexts, options.rounds))
    faults = missed(rows)
    if options.json:
        document = {"rows": [asdict(row) for row in rows], "missed": faults}
        print(json.dumps(document | {"threads": options.threads, "others": quiet.others}))
    else:
        print(table(rows))
    for fault in faults:
        print(f"missed: {fault}", file=sys.stderr)
    if quiet.others > BUSY:
        print(f"others used {quiet.others:.2f} processors: no verdict", file=sys.stderr)
        return 0
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
