# The rule sum, hash 2ebca171134ba88a13a3d6e6fac8f69b83b44e5580ddbc7cbbbe5bd9daea2f9c.
# Made by `fwgen compile sum`; compile again, do not edit.
"""sum: the recurrent form in Triton, forward, step and backward.

One token:

    phi_k[i] = elu(k[i]) + 1
    W_1[i, j] = W[i, j] + v[i] * phi_k[j]
    phi_q[i] = elu(q[i]) + 1
    y[i] = sum_j W_1[i, j] * phi_q[j]
    next W = W_1

Adjoint of a token, last statement first:

    d_W_1[i, j] += d_y[i] * phi_q[j]
    d_phi_q[j] += sum_i d_y[i] * W_1[i, j]
    d_q[i] += d_phi_q[i] * select(q[i] <= 0, exp(q[i]), 1)
    d_W[i, j] += d_W_1[i, j]
    d_v[i] += sum_j d_W_1[i, j] * phi_k[j]
    d_phi_k[j] += sum_i d_W_1[i, j] * v[i]
    d_k[i] += d_phi_k[i] * select(k[i] <= 0, exp(k[i]), 1)
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl


@triton.jit
def expm1(x):
    series = x * (1 / 720 + x * (1 / 5040 + x * (1 / 40320)))
    series = x * (1 + x * (1 / 2 + x * (1 / 6 + x * (1 / 24 + x * (1 / 120 + series)))))
    return tl.where(tl.abs(x) < 0.4, series, tl.exp(x) - 1.0)


@triton.jit
def elu(x):
    return tl.where(x > 0.0, x, expm1(tl.where(x > 0.0, 0.0, x)))


@triton.jit
def recurrent_forward(
    q_ptr, q_batch, q_token, q_head, q_group,
    k_ptr, k_batch, k_token, k_head, k_group,
    v_ptr, v_batch, v_token, v_head, v_group,
    W_initial, W_batch, W_head,
    y_ptr,
    W_final,
    saved_ptr,
    cu_seqlens,
    T,
    shift,
    H,
    tiles,
    K: tl.constexpr,
    V: tl.constexpr,
    BLOCK_K: tl.constexpr,
    TILE_V: tl.constexpr,
):
    """Tokens in order; states stay in registers, every 2**shift tokens they are saved."""
    program = tl.program_id(0).to(tl.int64)
    tile = (program % tiles).to(tl.int32)
    head = (program // tiles) % H
    sequence = program // (tiles * H)
    at_K = tl.arange(0, BLOCK_K)
    in_K = at_K < K
    at_V = tile * TILE_V + tl.arange(0, TILE_V)
    in_V = at_V < V
    at_V_K = at_V[:, None] * K + at_K[None, :]
    in_V_K = in_V[:, None] & in_K[None, :]
    if cu_seqlens is not None:
        start = tl.minimum(tl.maximum(tl.load(cu_seqlens + sequence).to(tl.int64), 0), T)
        stop = tl.minimum(tl.maximum(tl.load(cu_seqlens + sequence + 1).to(tl.int64), start), T)
        length = stop - start
        batch = sequence * 0
    else:
        start = sequence * 0
        length = sequence * 0 + T
        batch = sequence
    q_row = q_ptr + batch * q_batch + (head // q_group) * q_head
    k_row = k_ptr + batch * k_batch + (head // k_group) * k_head
    v_row = v_ptr + batch * v_batch + (head // v_group) * v_head
    if W_initial is not None:
        W = tl.load(W_initial + sequence * W_batch + head * W_head + at_V_K, mask=in_V_K, other=0.0).to(tl.float32)
    else:
        W = tl.full((TILE_V, BLOCK_K), 0.0, tl.float32)
    for step in range(0, length):
        token = start + step
        if saved_ptr is not None:
            if (step >> shift) << shift == step:
                slot = ((batch * T + start) >> shift) + sequence + (step >> shift)
                saved_row = saved_ptr + (slot * H + head) * (K * V)
                tl.store(saved_row + at_V_K, W, mask=in_V_K)
        q_at = q_row + token * q_token
        q = tl.load(q_at + at_K, mask=in_K, other=0.0).to(tl.float32)
        k_at = k_row + token * k_token
        k = tl.load(k_at + at_K, mask=in_K, other=0.0).to(tl.float32)
        v_at = v_row + token * v_token
        v = tl.load(v_at + at_V, mask=in_V, other=0.0).to(tl.float32)
        phi_k = tl.where(in_K, elu(k) + 1.0, 0.0)
        W_1 = W + v[:, None] * phi_k[None, :]
        phi_q = tl.where(in_K, elu(q) + 1.0, 0.0)
        y = tl.sum(W_1 * phi_q[None, :], axis=1)
        tl.store(y_ptr + ((batch * T + token) * H + head) * V + at_V, y, mask=in_V)
        W = W_1
    if W_final is not None:
        tl.store(W_final + (sequence * H + head) * (K * V) + at_V_K, W, mask=in_V_K)


@triton.jit
def recurrent_step(
    q_ptr, q_batch, q_token, q_head, q_group,
    k_ptr, k_batch, k_token, k_head, k_group,
    v_ptr, v_batch, v_token, v_head, v_group,
    W_initial, W_batch, W_head,
    y_ptr,
    W_final,
    H,
    tiles,
    K: tl.constexpr,
    V: tl.constexpr,
    BLOCK_K: tl.constexpr,
    TILE_V: tl.constexpr,
):
    """One token: reads the states, writes the output and the new states."""
    program = tl.program_id(0).to(tl.int64)
    tile = (program % tiles).to(tl.int32)
    head = (program // tiles) % H
    sequence = program // (tiles * H)
    at_K = tl.arange(0, BLOCK_K)
    in_K = at_K < K
    at_V = tile * TILE_V + tl.arange(0, TILE_V)
    in_V = at_V < V
    at_V_K = at_V[:, None] * K + at_K[None, :]
    in_V_K = in_V[:, None] & in_K[None, :]
    batch = sequence
    token = sequence * 0
    q_row = q_ptr + batch * q_batch + (head // q_group) * q_head
    k_row = k_ptr + batch * k_batch + (head // k_group) * k_head
    v_row = v_ptr + batch * v_batch + (head // v_group) * v_head
    if W_initial is not None:
        W = tl.load(W_initial + sequence * W_batch + head * W_head + at_V_K, mask=in_V_K, other=0.0).to(tl.float32)
    else:
        W = tl.full((TILE_V, BLOCK_K), 0.0, tl.float32)
    q_at = q_row + token * q_token
    q = tl.load(q_at + at_K, mask=in_K, other=0.0).to(tl.float32)
    k_at = k_row + token * k_token
    k = tl.load(k_at + at_K, mask=in_K, other=0.0).to(tl.float32)
    v_at = v_row + token * v_token
    v = tl.load(v_at + at_V, mask=in_V, other=0.0).to(tl.float32)
    phi_k = tl.where(in_K, elu(k) + 1.0, 0.0)
    W_1 = W + v[:, None] * phi_k[None, :]
    phi_q = tl.where(in_K, elu(q) + 1.0, 0.0)
    y = tl.sum(W_1 * phi_q[None, :], axis=1)
    tl.store(y_ptr + (sequence * H + head) * V + at_V, y, mask=in_V)
    if W_final is not None:
        tl.store(W_final + (sequence * H + head) * (K * V) + at_V_K, W_1, mask=in_V_K)


@triton.jit
def recurrent_backward(
    q_ptr, q_batch, q_token, q_head, q_group,
    k_ptr, k_batch, k_token, k_head, k_group,
    v_ptr, v_batch, v_token, v_head, v_group,
    saved_ptr,
    d_y_ptr,
    d_W_final,
    W_replay,
    d_q_ptr,
    d_q_ptr_tile,
    d_k_ptr,
    d_k_ptr_tile,
    d_v_ptr,
    d_W_initial,
    cu_seqlens,
    T,
    interval,
    H,
    tiles,
    K: tl.constexpr,
    V: tl.constexpr,
    BLOCK_K: tl.constexpr,
    TILE_V: tl.constexpr,
):
    """Chunks from last to first: replay from the checkpoint, then the adjoint token by token."""
    program = tl.program_id(0).to(tl.int64)
    tile = (program % tiles).to(tl.int32)
    head = (program // tiles) % H
    sequence = program // (tiles * H)
    at_K = tl.arange(0, BLOCK_K)
    in_K = at_K < K
    at_V = tile * TILE_V + tl.arange(0, TILE_V)
    in_V = at_V < V
    at_V_K = at_V[:, None] * K + at_K[None, :]
    in_V_K = in_V[:, None] & in_K[None, :]
    if cu_seqlens is not None:
        start = tl.minimum(tl.maximum(tl.load(cu_seqlens + sequence).to(tl.int64), 0), T)
        stop = tl.minimum(tl.maximum(tl.load(cu_seqlens + sequence + 1).to(tl.int64), start), T)
        length = stop - start
        batch = sequence * 0
    else:
        start = sequence * 0
        length = sequence * 0 + T
        batch = sequence
    q_row = q_ptr + batch * q_batch + (head // q_group) * q_head
    k_row = k_ptr + batch * k_batch + (head // k_group) * k_head
    v_row = v_ptr + batch * v_batch + (head // v_group) * v_head
    if d_W_final is not None:
        d_W_next = tl.load(d_W_final + (sequence * H + head) * (K * V) + at_V_K, mask=in_V_K, other=0.0).to(tl.float32)
    else:
        d_W_next = tl.full((TILE_V, BLOCK_K), 0.0, tl.float32)
    chunks = (length + interval - 1) // interval
    for chunk in range(0, chunks):
        first = (chunks - 1 - chunk) * interval
        count = tl.minimum(length - first, interval)
        slot = (batch * T + start) // interval + sequence + first // interval
        saved_row = saved_ptr + (slot * H + head) * (K * V)
        W = tl.load(saved_row + at_V_K, mask=in_V_K, other=0.0).to(tl.float32)
        # Barriers part what one thread writes from what another reads; do not remove them.
        tl.debug_barrier()
        for step in range(0, count):
            token = start + first + step
            tl.store(W_replay + ((sequence * H + head) * interval + step) * (K * V) + at_V_K, W, mask=in_V_K)
            k_at = k_row + token * k_token
            k = tl.load(k_at + at_K, mask=in_K, other=0.0).to(tl.float32)
            v_at = v_row + token * v_token
            v = tl.load(v_at + at_V, mask=in_V, other=0.0).to(tl.float32)
            phi_k = tl.where(in_K, elu(k) + 1.0, 0.0)
            W_1 = W + v[:, None] * phi_k[None, :]
            W = W_1
        tl.debug_barrier()
        for step in range(0, count):
            row = count - 1 - step
            token = start + first + row
            row_at = (batch * T + token) * H + head
            W = tl.load(W_replay + ((sequence * H + head) * interval + row) * (K * V) + at_V_K, mask=in_V_K, other=0.0).to(tl.float32)
            q_at = q_row + token * q_token
            q = tl.load(q_at + at_K, mask=in_K, other=0.0).to(tl.float32)
            k_at = k_row + token * k_token
            k = tl.load(k_at + at_K, mask=in_K, other=0.0).to(tl.float32)
            v_at = v_row + token * v_token
            v = tl.load(v_at + at_V, mask=in_V, other=0.0).to(tl.float32)
            if d_y_ptr is not None:
                d_y = tl.load(d_y_ptr + row_at * V + at_V, mask=in_V, other=0.0).to(tl.float32)
            else:
                d_y = tl.full((TILE_V,), 0.0, tl.float32)
            d_W_1 = d_W_next
            phi_k = tl.where(in_K, elu(k) + 1.0, 0.0)
            W_1 = W + v[:, None] * phi_k[None, :]
            phi_q = tl.where(in_K, elu(q) + 1.0, 0.0)
            d_W_1 += d_y[:, None] * phi_q[None, :]
            d_phi_q = tl.sum(d_y[:, None] * W_1, axis=0)
            d_q = tl.where(in_K, d_phi_q * tl.where(q <= 0.0, tl.exp(q), 1.0), 0.0)
            if d_q_ptr is not None:
                tl.store(d_q_ptr + tile.to(tl.int64) * d_q_ptr_tile + row_at * K + at_K, d_q, mask=in_K)
            d_W = d_W_1
            d_v = tl.sum(d_W_1 * phi_k[None, :], axis=1)
            if d_v_ptr is not None:
                tl.store(d_v_ptr + row_at * V + at_V, d_v, mask=in_V)
            d_phi_k = tl.sum(d_W_1 * v[:, None], axis=0)
            d_k = tl.where(in_K, d_phi_k * tl.where(k <= 0.0, tl.exp(k), 1.0), 0.0)
            if d_k_ptr is not None:
                tl.store(d_k_ptr + tile.to(tl.int64) * d_k_ptr_tile + row_at * K + at_K, d_k, mask=in_K)
            d_W_next = d_W
    if d_W_initial is not None:
        tl.store(d_W_initial + (sequence * H + head) * (K * V) + at_V_K, d_W_next, mask=in_V_K)


# The cost model: numbers of a block at first, and numbers that a program may hold at once.
ROOM = {"forward": 2048, "backward": 1024}
MOST = {"forward": 33600, "backward": 24576}


class Plan(NamedTuple):
    """Lengths of blocks, tiles that split the parallel axis, warps, and numbers held at once."""

    BLOCK_K: int
    TILE_V: int
    tiles: int
    warps: int
    largest: int
    held: int


def plan(K, V, direction, room=None):
    """Blocks of about `room` numbers, smaller ones where a program would hold too many."""
    room = room or ROOM[direction]
    BLOCK_K = triton.next_power_of_2(K)
    TILE_V = min(triton.next_power_of_2(V), max(1, room // BLOCK_K))
    largest = max(BLOCK_K, BLOCK_K * TILE_V)
    if direction == "forward":
        held = 2 * BLOCK_K * TILE_V + 2 * BLOCK_K + 1 * TILE_V
        warps = min(16, largest // 512)
    else:
        held = 3 * BLOCK_K * TILE_V + 4 * BLOCK_K + 2 * TILE_V
        warps = min(8, max(largest // 512, triton.next_power_of_2(triton.cdiv(held, 3584))))
    if held > MOST[direction] and room > 256:
        return plan(K, V, direction, room // 2)
    return Plan(
        BLOCK_K,
        TILE_V,
        triton.cdiv(V, TILE_V),
        max(1, warps),
        largest,
        held,
    )


def refusal(sizes, direction):
    """Why the kernels of a direction, forward or backward, do not serve these sizes; "" if they do."""
    K, V = sizes["K"], sizes["V"]
    found = plan(K, V, direction)
    if found.held <= MOST[direction]:
        return ""
    return f"a program would hold {found.held} numbers, more than {MOST[direction]}"


def shift(T):
    """The power of two that is about the square root of the length."""
    return ((T - 1).bit_length() + 1) // 2 if T else 0


def interval(T):
    """Tokens between two checkpoints."""
    return 1 << shift(T)


def options(warps):
    """How a kernel is compiled.

    NVIDIA's assembler is told how many registers there are for a thread; where it is not, it may
    spill a few numbers so that more programs run side by side.
    """
    found = {"num_warps": warps, "enable_fp_fusion": True}
    if torch.version.hip is None:
        found["maxnreg"] = min(255, 2048 // warps)
    return found


def rows(x, lead):
    """A tensor whose axes after the first `lead` are contiguous."""
    expected = 1
    for length, stride in zip(reversed(x.shape[lead:]), reversed(x.stride()[lead:])):
        if length != 1 and stride != expected:
            return x.contiguous()
        expected *= length
    return x


def whole(x, lead):
    """Flags may hold any type; the kernels read integers and float32."""
    if x.dtype == torch.bool:
        return rows(x.to(torch.int8), lead)
    return rows(x.float() if x.is_floating_point() else x, lead)


def strides(x, H):
    """Strides of batch, token and head, and how many heads share one of this input."""
    return (*x.stride()[:3], H // x.shape[2])


def state_strides(x):
    """Strides of sequence and head of a state that may be absent."""
    return (0, 0) if x is None else x.stride()[:2]


def tile_stride(x):
    """Between the partial sums of two tiles in a gradient that may be absent."""
    return 0 if x is None else x.stride(0)


def take(inputs, params, buffers, states):
    """The tensors of a call as the kernels read them."""
    inputs = [rows(inputs[0], 3), rows(inputs[1], 3), rows(inputs[2], 3)]
    heads = [x.contiguous() for x in (*params, *buffers)]
    return inputs, heads, [None if x is None else rows(x, 2) for x in states]


def forward(sizes, inputs, params, buffers, states, cu_seqlens, position, training, want_final):
    """y [B, T, H, ...], final states [N, H, ...] (if wanted) and, for training, the checkpoints.

    sizes: the named dims. inputs [B, T, heads, ...], params and buffers [H, ...], states
    [N, H, ...] or None for the start value, cu_seqlens [N + 1] or None, position [N] or None.
    """
    inputs, heads, states = take(inputs, params, buffers, states)
    like, H = inputs[0], max(x.shape[2] for x in inputs)
    B, T = like.shape[:2]
    N = B if cu_seqlens is None else cu_seqlens.shape[0] - 1
    K, V = sizes["K"], sizes["V"]
    blocks = plan(K, V, "forward")
    dtype = like.dtype if like.is_floating_point() else torch.float32
    y = torch.empty((B, T, H, V), dtype=dtype, device=like.device)
    stepping = T == 1 and not training and cu_seqlens is None
    finals = [None] * 1
    if want_final:
        finals = [
            torch.empty((N, H, V, K), dtype=torch.float32, device=like.device),
        ]
    saved = None
    if training:
        slots = B * T // interval(T) + N if T else N
        saved = torch.empty((slots, H, (K * V)), dtype=torch.float32, device=like.device)
    if N * H == 0:
        return y, finals if want_final else [], [saved] if training else []
    if stepping:
        recurrent_step[(N * H * blocks.tiles,)](
            inputs[0], *strides(inputs[0], H),
            inputs[1], *strides(inputs[1], H),
            inputs[2], *strides(inputs[2], H),
            states[0], *state_strides(states[0]),
            y,
            finals[0],
            H,
            blocks.tiles,
            K=K,
            V=V,
            BLOCK_K=blocks.BLOCK_K,
            TILE_V=blocks.TILE_V,
            **options(blocks.warps),
        )
        return y, finals if want_final else [], []
    recurrent_forward[(N * H * blocks.tiles,)](
        inputs[0], *strides(inputs[0], H),
        inputs[1], *strides(inputs[1], H),
        inputs[2], *strides(inputs[2], H),
        states[0], *state_strides(states[0]),
        y,
        finals[0],
        saved,
        cu_seqlens,
        T,
        shift(T),
        H,
        blocks.tiles,
        K=K,
        V=V,
        BLOCK_K=blocks.BLOCK_K,
        TILE_V=blocks.TILE_V,
        **options(blocks.warps),
    )
    return y, finals if want_final else [], [saved] if training else []


def backward(sizes, inputs, params, buffers, states, cu_seqlens, position, saved, grad_y, grad_finals, wanted):
    """Gradients of inputs [B, T, H, ...], params [H, ...] and states [N, H, ...], None if unwanted.

    `saved` is what `forward` kept; `grad_finals` holds None for states without a gradient;
    `wanted` has a truth value per input, param and state.
    """
    inputs, heads, states = take(inputs, params, buffers, states)
    like, H = inputs[0], max(x.shape[2] for x in inputs)
    B, T = like.shape[:2]
    N = B if cu_seqlens is None else cu_seqlens.shape[0] - 1
    K, V = sizes["K"], sizes["V"]
    blocks = plan(K, V, "backward")
    (saved,) = saved
    grad_y = None if grad_y is None else grad_y.contiguous()
    grad_finals = [None if g is None else g.float().contiguous() for g in grad_finals]

    def fresh(*shape):
        return torch.empty(shape, dtype=torch.float32, device=like.device)

    replay = [
        fresh(N * H, interval(T), (K * V)),
    ]
    parts = [
        fresh(blocks.tiles, B, T, H, K) if wanted[0] else None,
        fresh(blocks.tiles, B, T, H, K) if wanted[1] else None,
        fresh(B, T, H, V) if wanted[2] else None,
        fresh(N, H, V, K) if wanted[3] else None,
    ]
    if N * H:
        recurrent_backward[(N * H * blocks.tiles,)](
            inputs[0], *strides(inputs[0], H),
            inputs[1], *strides(inputs[1], H),
            inputs[2], *strides(inputs[2], H),
            saved,
            grad_y,
            grad_finals[0],
            replay[0],
            parts[0],
            tile_stride(parts[0]),
            parts[1],
            tile_stride(parts[1]),
            parts[2],
            parts[3],
            cu_seqlens,
            T,
            interval(T),
            H,
            blocks.tiles,
            K=K,
            V=V,
            BLOCK_K=blocks.BLOCK_K,
            TILE_V=blocks.TILE_V,
            **options(blocks.warps),
        )
    found = []
    for part, (tiled, summed, zero) in zip(parts, LEADING):
        if part is not None and zero:
            part = part.zero_()
        if part is not None and tiled:
            part = total(part)
        if part is not None and summed:
            part = total(part)
        found.append(part)
    return found


# For inputs, params and states: partial sums of tiles lead, those of sequences, no gradient flows.
LEADING = [
    (True, False, False),
    (True, False, False),
    (False, False, False),
    (False, False, False),
]


def total(parts):
    """The sum over the first axis, in index order."""
    if len(parts) == 0:
        return parts.new_zeros(parts.shape[1:])
    first, *rest = parts.unbind(0)
    for part in rest:
        first = first + part
    return first
