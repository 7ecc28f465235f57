"""What does not fit is refused with the argument's name; sizes bind from shapes."""

import pytest
import torch
from hand_delta import delta_signature, draw

from fwgen.errors import ArgumentError
from fwgen.runtime.arguments import check
from fwgen.runtime.op import CompiledRule
from fwgen.runtime.signature import Saved, Signature, StateSpec, TensorSpec
from fwgen.runtime.sizes import Axis, bind, evaluate, text

BAD = {
    "too few axes": (lambda x, o: x.update(q=x["q"][0]), "q"),
    "too many axes": (lambda x, o: x.update(beta=x["beta"][..., None]), "beta"),
    "another K": (lambda x, o: x.update(k=x["k"][..., :-1]), r"k: expected K = 5 .*from q.* 4"),
    "another T": (lambda x, o: x.update(v=x["v"][:, :-1]), "v"),
    "another B": (lambda x, o: x.update(v=x["v"][:1]), "v"),
    "heads": (lambda x, o: x.update(k=x["k"][:, :, :3]), "k: .*divides 4.* 3"),
    "float64 among float32": (lambda x, o: x.update(v=x["v"].double()), "v: .*float64"),
    "two half types": (lambda x, o: x.update(k=x["k"].half(), v=x["v"].bfloat16()), "v: .*k"),
    "half state": (lambda x, o: o.update(initial_state=torch.zeros(2, 4, 3, 5).half()), "W"),
    "K = 0": (lambda x, o: x.update(q=x["q"][..., :0], k=x["k"][..., :0]), "q: .*K = 0"),
    "V = 0": (lambda x, o: x.update(v=x["v"][..., :0]), "v: .*V = 0"),
    "no heads": (
        lambda x, o: x.update({n: t[:, :, :0] for n, t in x.items()}),
        "q: .*one or more heads",
    ),
    "integers": (lambda x, o: x.update(beta=torch.zeros(2, 6, 4, dtype=torch.int64)), "beta"),
    "complex": (lambda x, o: x.update(beta=x["beta"].cfloat()), "beta: .*complex64"),
    "sparse": (lambda x, o: x.update(beta=x["beta"].to_sparse()), "beta: .*dense"),
    "a list": (lambda x, o: x.update(k=[1.0, 2.0]), "k: .*list"),
    "None": (lambda x, o: x.update(k=None), "k: .*None"),
    "missing": (lambda x, o: x.pop("beta"), "beta: missing"),
    "unknown keyword": (lambda x, o: o.update(gamma=1), "gamma"),
    "form": (lambda x, o: o.update(form="parallel"), "form: .*parallel"),
    "form of another type": (lambda x, o: o.update(form=["chunk"]), "form"),
    "backend": (lambda x, o: o.update(backend="gpu"), "backend: .*gpu"),
    "state shape": (lambda x, o: o.update(initial_state={"W": torch.zeros(2, 4, 5, 3)}), "W"),
    "state name": (lambda x, o: o.update(initial_state={"X": torch.zeros(2, 4, 3, 5)}), "'X'"),
    "state batch": (lambda x, o: o.update(initial_state=torch.zeros(1, 4, 3, 5)), "W"),
    "state type": (lambda x, o: o.update(initial_state=3), "initial_state: .*int"),
    "unasked param": (lambda x, o: o.update(params={"u": torch.zeros(4)}), "params: .*'u'"),
    "params of another type": (lambda x, o: o.update(params=[torch.zeros(4)]), "params: .*list"),
    "packing of rows": (lambda x, o: o.update(cu_seqlens=torch.tensor([0, 6])), "cu_seqlens: .*B"),
    "packing as a list": (lambda x, o: o.update(cu_seqlens=[0, 6]), "cu_seqlens: .*list"),
    "position": (lambda x, o: o.update(position=torch.zeros(3, dtype=torch.int64)), "position"),
    "position type": (lambda x, o: o.update(position=torch.zeros(2)), "position: .*float32"),
    "negative position": (lambda x, o: o.update(position=-1), "position: .*-1"),
    "position as bool": (lambda x, o: o.update(position=True), "position: .*bool"),
    "chunk size": (lambda x, o: o.update(chunk_size=48), "chunk_size: .*48"),
    "chunk size before form": (lambda x, o: o.update(chunk_size=0, form="chunk"), "chunk_size"),
    "chunk size as text": (lambda x, o: o.update(chunk_size="16"), "chunk_size"),
    "chunk size as bool": (lambda x, o: o.update(chunk_size=True), "chunk_size"),
    "another device": (lambda x, o: x.update(v=x["v"].to("meta")), "v: .*device"),
}


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("name", BAD)
def test_bad_call(op, name, backend):
    spoil, message = BAD[name]
    inputs, options = draw(6), {"backend": backend}
    op(**inputs, **options)  # a good call first: nothing about the bad one may be remembered
    spoil(inputs, options)
    for _ in range(2):
        with pytest.raises(ArgumentError, match=message):
            op(**inputs, **options)


@pytest.mark.parametrize(
    "bounds", [[0, 4, 3, 6], [1, 6], [0, 5], [0, 7], [-1, 6], [], [0.0, 6.0], [[0, 6]]], ids=str
)
def test_bad_packing(op, bounds):
    with pytest.raises(ArgumentError, match="cu_seqlens"):
        op(*draw(6, B=1).values(), cu_seqlens=torch.tensor(bounds))


def test_too_many_and_repeated(op):
    q, k, v, beta = draw(6).values()
    with pytest.raises(ArgumentError, match="expected 4"):
        op(q, k, v, beta, beta)
    with pytest.raises(ArgumentError, match=r"beta: .*keyword"):
        op(q, k, v, beta, beta=beta)


def test_step_messages_have_no_token_axis(op):
    q, k, v, beta = (t[:, 0] for t in draw(1).values())
    with pytest.raises(ArgumentError, match=r"k: expected shape \[B, H, K\], found \[4, 5\]"):
        op.step(q, k[0], v, beta)
    with pytest.raises(ArgumentError, match="v: expected B = 2 as in q, found"):
        op.step(q, k, v[:1], beta)
    with pytest.raises(ArgumentError, match="k"):
        op.step(q, 1.0, v, beta)


STEP = {
    "state name": ({"state": {"X": torch.zeros(2, 4, 3, 5)}}, r"^state: no state is called 'X'"),
    "state type": ({"state": 3}, "^state: expected a dict by name or a tensor, found int"),
    "state axes": (
        {"state": torch.zeros(2, 4, 3)},
        r"^state\['W'\]: expected shape \[B, H, V, K\]",
    ),
    "state batch": ({"state": torch.zeros(1, 4, 3, 5)}, r"^state\['W'\]: expected 2 "),
    "state size": ({"state": {"W": torch.zeros(2, 4, 5, 3)}}, r"^state\['W'\]: expected V = 3"),
    "state dtype": ({"state": torch.zeros(2, 4, 3, 5).double()}, r"^state\['W'\]: .*float64"),
    "state device": ({"state": torch.zeros(2, 4, 3, 5).to("meta")}, r"^state\['W'\]: .*meta"),
    "name of a call": ({"initial_state": None}, "^initial_state: no such .*did you mean `state`"),
    "option of a call": ({"cu_seqlens": None}, "^cu_seqlens: .*a call takes it, `step` does not"),
    "form": ({"form": "auto"}, "^form: .*a call takes it, `step` does not"),
    "misspelt option": ({"backends": "cpu"}, "^backends: no such .*did you mean `backend`"),
}


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("name", STEP)
def test_a_step_speaks_of_its_own_arguments(op, name, backend):
    options, message = STEP[name]
    tensors = [t[:, 0] for t in draw(1).values()]
    with pytest.raises(ArgumentError, match=message):
        op.step(*tensors, **{"backend": backend, **options})


@pytest.mark.parametrize(
    "name, hint",
    [
        ("betta", "did you mean `beta`?"),
        ("state", "did you mean `initial_state`?"),
        ("initial_states", "did you mean `initial_state`?"),
        ("chunksize", "did you mean `chunk_size`?"),
        ("param", "did you mean `params`?"),
        ("cu_seqlen", "did you mean `cu_seqlens`?"),
        ("nothing_like_it", "the inputs are q, k, v, beta"),
    ],
)
def test_an_unknown_argument_has_a_hint(op, name, hint):
    for function in (op, op.plan, op.reference):
        with pytest.raises(ArgumentError) as error:
            function(*draw(6).values(), **{name: None})
        assert str(error.value).startswith(f"{name}: no such argument; {hint}")


def poly(**terms):
    """`poly(K=2, one=1)` is 2*K + 1."""
    return tuple(((() if n == "one" else tuple(n.split("_"))), c) for n, c in terms.items())


def test_sizes_bind_where_they_are_linear():
    axes = [Axis("x", poly(D=3, one=1), 10), Axis("y", poly(D_E=1), 12)]
    assert bind(axes, ["D", "E"])[0] == {"D": 3, "E": 4}
    with pytest.raises(ArgumentError, match=r"x: .*3\*D \+ 1.* 9"):
        bind([Axis("x", poly(D=3, one=1), 9)], ["D"])
    with pytest.raises(ArgumentError, match="D"):
        bind([Axis("x", poly(D_D=1), 9)], ["D"])
    with pytest.raises(ArgumentError, match=r"x: .*D = -1"):
        bind([Axis("x", poly(D=1, one=2), 1)], ["D"])


def test_polynomials():
    assert evaluate(poly(K_nu=2, one=-1), {"K": 3, "nu": 4}) == 23
    assert text(poly(K_nu=2, one=-1)) == "2*K*nu - 1" and text(()) == "0"


def polynomial_rule() -> Signature:
    return delta_signature(
        name="hand_polynomial",
        inputs=(TensorSpec("x", (poly(D=3, one=1),)), TensorSpec("flag", (), floating=False)),
        params=(TensorSpec("u", (poly(D=2),)),),
        states=(StateSpec("s", (poly(E=1),)), StateSpec("m", (), -1e38)),
        output=TensorSpec("y", (poly(D=1),)),
        free_dims=("D", "E"),
        uses_position=True,
        saved=(),
    )


def test_checks_of_a_rule_with_everything():
    signature = polynomial_rule()
    x, flag, u = (
        torch.zeros(2, 5, 3, 10),
        torch.zeros(2, 5, 3, dtype=torch.int32),
        torch.zeros(3, 6),
    )
    s = torch.zeros(2, 3, 4)
    at = torch.zeros(2, dtype=torch.int64)
    geometry = check(signature, [x, flag, u, s, None, None, at])
    assert geometry.sizes == {"D": 3, "E": 4} and geometry.dtype == torch.float32
    with pytest.raises(ArgumentError, match=r"position: .*uses t"):
        check(signature, [x, flag, u, s, None, None, None])
    with pytest.raises(ArgumentError, match=r"E: .*initial_state"):
        check(signature, [x, flag, u, None, None, None, None])
    with pytest.raises(ArgumentError, match=r"'u'.*2\*D = 6.*from x.* 7"):
        check(signature, [x, flag, torch.zeros(3, 7), s, None, None, at])
    with pytest.raises(ArgumentError, match=r"'u'.*3 heads.* 1"):
        check(signature, [x, flag, torch.zeros(1, 6), s, None, None, at])
    with pytest.raises(ArgumentError, match=r"x: .*a size of the form"):
        check(signature, [x[..., :9], flag, u, s, None, None, at])


def test_a_dict_may_give_some_states(sources):
    op = CompiledRule(polynomial_rule(), sources)
    assert op._binder.initial({"m": 1}) == [None, 1]
    with pytest.raises(ArgumentError, match="initial_state: expected a dict"):
        op._binder.initial(torch.zeros(1))


@pytest.mark.parametrize("signature", [delta_signature(), polynomial_rule()], ids=["delta", "all"])
def test_signature_survives_json(signature):
    more = delta_signature(saved=(Saved("S", "checkpoint", (poly(K_V=1),), 32),))
    for one in (signature, more):
        assert Signature.from_json(one.to_json()) == one
