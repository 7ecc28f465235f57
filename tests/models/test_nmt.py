"""The translator: its forms agree, padding does not leak, beam search is exact."""

import itertools
import math
from dataclasses import replace

import pytest
import torch

import fwgen
from fwgen.models.beam import BeamConfig, search, translate
from fwgen.models.mixer import AttentionConfig
from fwgen.models.nmt import ATTENTIONS, NMTConfig, Translator, build, select

END, VOCAB = 3, 11
# Decoder, encoder, cross-attention.
MODELS = {
    "softmax": ("softmax", "softmax", "softmax"),
    "delta": ("delta", "softmax", "softmax"),
    "linear": ("linear_attention", "linear_attention", "linear_attention"),
    "memory": ("delta", "linear_attention", "delta"),
    "performer": ("performer", "performer", "performer"),
    "recurrent": ("recurrent_delta", "softmax", "gated_delta"),
}
LENGTHS = torch.tensor([4, 7, 1, 5])
TARGETS = torch.tensor([6, 2, 5, 1])


@pytest.fixture(autouse=True)
def one_thread(threads):
    threads(1)


def config(kind="delta", **shape):
    parts = (AttentionConfig(r, heads=2, sizes={"M": 6}, redraw=1) for r in MODELS[kind])
    sizes = {"vocab": VOCAB, "encoder_layers": 1, "decoder_layers": 2, "d_model": 8, "d_ff": 12}
    return NMTConfig(**sizes | shape, **dict(zip(ATTENTIONS, parts, strict=True)))


def model(kind="delta", seed=0, **shape):
    torch.manual_seed(seed)
    return Translator(config(kind, **shape)).eval()


def source():
    """[B, S] padded with a token that is also a word."""
    drawn = torch.randint(VOCAB, (4, 7), generator=torch.Generator().manual_seed(1))
    return torch.where(torch.arange(7) < LENGTHS[:, None], drawn, 0)


def target():
    """What the decoder reads, [B, T]."""
    drawn = torch.randint(VOCAB, (4, 6), generator=torch.Generator().manual_seed(2))
    return torch.cat([torch.full((4, 1), END), drawn[:, 1:]], 1)


# --- forms


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_steps_equal_the_parallel_form(kind, norm):
    translator = model(kind, norm=norm)
    whole = translator(source(), LENGTHS, target()).log_softmax(-1)
    memories, states = translator.encode(source(), LENGTHS), None
    for t in range(target().shape[1]):
        log_probs, states = translator.step(target()[:, t], memories, states, t)
        torch.testing.assert_close(log_probs, whole[:, t], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", MODELS)
def test_padding_does_not_leak(kind):
    """A batch equals its sentences alone; what stands in the padding changes not a bit."""
    translator = model(kind)
    together = translator(source(), LENGTHS, target())
    for b, (S, T) in enumerate(zip(LENGTHS.tolist(), TARGETS.tolist(), strict=True)):
        alone = translator(source()[b : b + 1, :S], LENGTHS[b : b + 1], target()[b : b + 1, :T])
        torch.testing.assert_close(together[b, :T], alone[0], rtol=1e-4, atol=1e-5)
    padded = torch.arange(7) >= LENGTHS[:, None]
    changed = translator(torch.where(padded, 5, source()), LENGTHS, target())
    assert torch.equal(changed, together)
    later = torch.arange(6) >= TARGETS[:, None]
    changed = translator(source(), LENGTHS, torch.where(later, 5, target()))
    assert torch.equal(changed[~later], together[~later])
    assert not torch.equal(changed[later], together[later])


@pytest.mark.parametrize("kind", MODELS)
def test_gradients_see_no_padding(kind):
    translator = model(kind)
    real = torch.arange(6) < TARGETS[:, None]

    def gradients(rows, S, T):
        places = real[rows, :T]
        scores = translator(source()[rows, :S], LENGTHS[rows], target()[rows, :T], places)
        loss = torch.nn.functional.cross_entropy(scores, target()[rows, :T][places])
        return torch.autograd.grad(loss * places.sum(), list(translator.parameters()))

    together = gradients(slice(None), 7, 6)
    alone = [gradients(slice(b, b + 1), int(LENGTHS[b]), int(TARGETS[b])) for b in range(4)]
    for whole, *parts in zip(together, *alone, strict=True):
        torch.testing.assert_close(whole, sum(parts), rtol=1e-3, atol=1e-5)


def test_chosen_places_are_those_of_all():
    translator = model()
    places = torch.arange(6) < TARGETS[:, None]
    whole = translator(source(), LENGTHS, target())
    torch.testing.assert_close(translator(source(), LENGTHS, target(), places), whole[places])


@pytest.mark.parametrize("kind", MODELS)
def test_every_weight_receives_a_gradient(kind):
    translator = model(kind)
    translator(source(), LENGTHS, target()).square().sum().backward()
    for name, parameter in translator.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("kind", ["softmax", "memory"])
def test_a_model_is_rebuilt_from_its_texts(kind):
    translator = model(kind)
    text = config(kind).with_texts().to_json()
    assert NMTConfig.from_json(text) == config(kind).with_texts()
    again = build(NMTConfig.from_json(text), translator.state_dict())
    assert torch.equal(again(source(), LENGTHS, target()), translator(source(), LENGTHS, target()))


def test_shapes_that_cannot_be():
    for change in ({"d_model": 0}, {"norm": "both"}, {"positions": "rotary"}, {"dropout": 1.0}):
        with pytest.raises(fwgen.ArgumentError, match=next(iter(change))):
            replace(config(), **change)


# --- search


def greedy(translator, b, limit):
    """The most probable token again and again, from the parallel form."""
    sentence = source()[b : b + 1, : LENGTHS[b]]
    tokens = [END]
    while len(tokens) <= limit:
        scores = translator(sentence, LENGTHS[b : b + 1], torch.tensor([tokens]))
        tokens.append(END if len(tokens) == limit else int(scores[0, -1].argmax()))
        if tokens[-1] == END:
            break
    return tokens[1:]


def log_p(translator, b, tokens):
    """log p of a translation, from the parallel form."""
    read = torch.tensor([[END, *tokens[:-1]]])
    scores = translator(source()[b : b + 1, : LENGTHS[b]], LENGTHS[b : b + 1], read)
    return scores.log_softmax(-1)[0].gather(1, torch.tensor(tokens)[:, None]).sum().item()


@pytest.mark.parametrize("kind", MODELS)
def test_beam_1_is_greedy(kind):
    how, lengths = BeamConfig(beam=1, stretch=1.5, extra=2), set()
    for seed in range(3):
        translator = model(kind, seed)
        found = search(translator, source(), LENGTHS, END, how)
        for b in range(4):
            (only,) = found[b]
            assert only.tokens == greedy(translator, b, int(LENGTHS[b] * 1.5) + 2)
            lengths.add(len(only.tokens))
    assert len(lengths) > 2


@pytest.mark.parametrize("kind", MODELS)
def test_states_that_were_gathered_equal_recomputation(kind):
    how, crossed = BeamConfig(beam=3, stretch=1, extra=4), 0
    for seed in range(3):
        translator = model(kind, seed)
        found = search(translator, source(), LENGTHS, END, how)
        for b, hypotheses in enumerate(found):
            assert len({tuple(one.tokens) for one in hypotheses}) == len(hypotheses) == 3
            crossed += len({one.tokens[0] for one in hypotheses}) < 3
            for one in hypotheses:
                assert one.tokens[-1] == END
                total = log_p(translator, b, one.tokens)
                assert one.log_p == pytest.approx(total, rel=1e-4, abs=1e-4)
                expected = one.log_p / ((5 + len(one.tokens)) / 6) ** 0.6
                assert one.score == pytest.approx(expected)
            scores = [one.score for one in hypotheses]
            assert scores == sorted(scores, reverse=True)
    assert crossed, "no hypothesis had two descendants: nothing was gathered"


@pytest.mark.parametrize("alpha", [0.0, 1.5])
def test_a_beam_that_drops_nothing_finds_the_best_of_all(alpha):
    translator, words = model("memory", vocab=5), [0, 1, 2, 4]
    every = [
        [*some, END] for n in range(3) for some in itertools.product(words, repeat=n)
    ]  # up to three tokens with the end
    how = BeamConfig(beam=len(every), alpha=alpha, stretch=0, extra=3)
    few = torch.where(source() > 4, 4, source())
    found = search(translator, few, LENGTHS, END, how)
    for b in range(4):
        read = torch.full((len(every), 3), END)
        for row, tokens in enumerate(every):
            read[row, 1 : len(tokens)] = torch.tensor(tokens[:-1])
        many = few[b : b + 1, : LENGTHS[b]].expand(len(every), -1)
        scores = translator(many, LENGTHS[b : b + 1].expand(len(every)), read).log_softmax(-1)
        ranks = {
            tuple(tokens): sum(scores[row, i, token].item() for i, token in enumerate(tokens))
            / ((5 + len(tokens)) / 6) ** alpha
            for row, tokens in enumerate(every)
        }
        assert {tuple(one.tokens) for one in found[b]} == ranks.keys()
        best = max(ranks, key=lambda tokens: ranks[tokens])
        assert found[b][0].tokens == list(best)
        assert found[b][0].score == pytest.approx(ranks[best], rel=1e-4)


def test_longer_translations_are_excused_by_alpha():
    translator = model("softmax")
    lengths = [
        sum(
            len(found[0].tokens)
            for found in search(translator, source(), LENGTHS, END, BeamConfig(5, alpha, 1, 6))
        )
        for alpha in (0.0, 3.0)
    ]
    assert lengths[0] < lengths[1]


@pytest.mark.parametrize("kind", MODELS)
def test_a_batch_is_translated_like_each_sentence_alone(kind):
    translator = model(kind)
    sentences = [source()[b, : LENGTHS[b]].int() for b in range(4)]
    how = BeamConfig(beam=3, stretch=1, extra=4)
    small = replace(how, batch_tokens=1)  # one by one
    together = translate(translator, sentences, END, how)
    for found, alone in zip(together, translate(translator, sentences, END, small), strict=True):
        assert found.tokens == alone.tokens
        assert found.log_p == pytest.approx(alone.log_p, rel=1e-4, abs=1e-5)
    backwards = translate(translator, sentences[::-1], END, how)
    assert [one.tokens for one in backwards[::-1]] == [one.tokens for one in together]


def test_translations_end_at_their_limit():
    translator = model("softmax")
    with torch.no_grad():
        translator.embedding.weight[END] *= 0  # the end is never better than the best word
    found = search(translator, source(), LENGTHS, END, BeamConfig(2, 0.6, 1.0, 2))
    for b in range(4):
        assert max(len(one.tokens) for one in found[b]) <= LENGTHS[b] + 2
        assert all(math.isfinite(one.log_p) for one in found[b])


def test_rows_are_selected_in_their_order():
    states = [{"W": torch.arange(6.0).view(3, 2)}]
    assert select(states, torch.tensor([2, 0, 2]))[0]["W"].tolist() == [[4, 5], [0, 1], [4, 5]]


def test_a_search_that_cannot_be():
    for change in ({"beam": 0}, {"alpha": -1.0}, {"extra": 0}, {"stretch": math.nan}):
        with pytest.raises(fwgen.ArgumentError, match=next(iter(change))):
            BeamConfig(**change)
