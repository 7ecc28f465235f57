# The rule sum, hash 2ebca171134ba88a13a3d6e6fac8f69b83b44e5580ddbc7cbbbe5bd9daea2f9c.
# Made by `fwgen compile sum`; compile again, do not edit.
"""sum: the recurrent form in Triton, forward, step and backward, large states in memory.

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
    y_ptr,
    W_slots,
    saved_ptr,
    cu_seqlens,
    T,
    shift,
    H,
    tiles,
    stage_ptr,
    K: tl.constexpr,
    V: tl.constexpr,
    BLOCK_K: tl.constexpr,
    TILE_V: tl.constexpr,
    ROWS_K: tl.constexpr,
):
    """Tokens in order; states lie in memory, every 2**shift tokens they are saved."""
    program = tl.program_id(0).to(tl.int64)
    tile = (program % tiles).to(tl.int32)
    head = (program // tiles) % H
    sequence = program // (tiles * H)
    at_K = tl.arange(0, BLOCK_K)
    in_K = at_K < K
    at_V = tile * TILE_V + tl.arange(0, TILE_V)
    in_V = at_V < V
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
    stage_row = stage_ptr + program * (2 * K)
    for step in range(0, length):
        token = start + step
        W_at = W_slots + (step % 2 * (tl.num_programs(0) // tiles) + (sequence * H + head)) * (K * V)
        W_next_at = W_slots + ((step + 1) % 2 * (tl.num_programs(0) // tiles) + (sequence * H + head)) * (K * V)
        if saved_ptr is not None:
            if (step >> shift) << shift == step:
                slot = ((batch * T + start) >> shift) + sequence + (step >> shift)
                saved_row = saved_ptr + (slot * H + head) * (K * V)
                tl.debug_barrier()
                for block in range(0, tl.cdiv(K, ROWS_K)):
                    at_rows_K = block * ROWS_K + tl.arange(0, ROWS_K)
                    in_rows_K = at_rows_K < K
                    at_V_rows_K = at_V[:, None] * K + at_rows_K[None, :]
                    in_V_rows_K = in_V[:, None] & in_rows_K[None, :]
                    W_rows = tl.load(W_at + at_V_rows_K, mask=in_V_rows_K, other=0.0).to(tl.float32)
                    stored_W_rows = W_rows
                    tl.store(saved_row + at_V_rows_K, stored_W_rows, mask=in_V_rows_K)
                tl.debug_barrier()
        q_at = q_row + token * q_token
        q = tl.load(q_at + at_K, mask=in_K, other=0.0).to(tl.float32)
        k_at = k_row + token * k_token
        k = tl.load(k_at + at_K, mask=in_K, other=0.0).to(tl.float32)
        v_at = v_row + token * v_token
        v = tl.load(v_at + at_V, mask=in_V, other=0.0).to(tl.float32)
        phi_k = tl.where(in_K, elu(k) + 1.0, 0.0)
        phi_q = tl.where(in_K, elu(q) + 1.0, 0.0)
        tl.debug_barrier()
        tl.store(stage_row + at_K, phi_k, mask=in_K)
        tl.store(stage_row + K + at_K, phi_q, mask=in_K)
        tl.debug_barrier()
        gathered = tl.full((TILE_V,), 0.0, tl.float32)
        for block in range(0, tl.cdiv(K, ROWS_K)):
            at_rows_K = block * ROWS_K + tl.arange(0, ROWS_K)
            in_rows_K = at_rows_K < K
            at_V_rows_K = at_V[:, None] * K + at_rows_K[None, :]
            in_V_rows_K = in_V[:, None] & in_rows_K[None, :]
            W_rows = tl.load(W_at + at_V_rows_K, mask=in_V_rows_K, other=0.0).to(tl.float32)
            phi_k_rows = tl.load(stage_row + at_rows_K, mask=in_rows_K, other=0.0).to(tl.float32)
            W_1_rows = W_rows + v[:, None] * phi_k_rows[None, :]
            phi_q_rows = tl.load(stage_row + K + at_rows_K, mask=in_rows_K, other=0.0).to(tl.float32)
            gathered += tl.sum(W_1_rows * phi_q_rows[None, :], axis=1)
            tl.store(W_next_at + at_V_rows_K, W_1_rows, mask=in_V_rows_K)
        tl.debug_barrier()
        y = gathered
        tl.store(y_ptr + ((batch * T + token) * H + head) * V + at_V, y, mask=in_V)


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
    stage_ptr,
    K: tl.constexpr,
    V: tl.constexpr,
    BLOCK_K: tl.constexpr,
    TILE_V: tl.constexpr,
    ROWS_K: tl.constexpr,
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
    batch = sequence
    token = sequence * 0
    q_row = q_ptr + batch * q_batch + (head // q_group) * q_head
    k_row = k_ptr + batch * k_batch + (head // k_group) * k_head
    v_row = v_ptr + batch * v_batch + (head // v_group) * v_head
    stage_row = stage_ptr + program * (2 * K)
    W_at = W_initial + sequence * W_batch + head * W_head
    W_next_at = W_final + (sequence * H + head) * (K * V)
    q_at = q_row + token * q_token
    q = tl.load(q_at + at_K, mask=in_K, other=0.0).to(tl.float32)
    k_at = k_row + token * k_token
    k = tl.load(k_at + at_K, mask=in_K, other=0.0).to(tl.float32)
    v_at = v_row + token * v_token
    v = tl.load(v_at + at_V, mask=in_V, other=0.0).to(tl.float32)
    phi_k = tl.where(in_K, elu(k) + 1.0, 0.0)
    phi_q = tl.where(in_K, elu(q) + 1.0, 0.0)
    tl.debug_barrier()
    tl.store(stage_row + at_K, phi_k, mask=in_K)
    tl.store(stage_row + K + at_K, phi_q, mask=in_K)
    tl.debug_barrier()
    gathered = tl.full((TILE_V,), 0.0, tl.float32)
    for block in range(0, tl.cdiv(K, ROWS_K)):
        at_rows_K = block * ROWS_K + tl.arange(0, ROWS_K)
        in_rows_K = at_rows_K < K
        at_V_rows_K = at_V[:, None] * K + at_rows_K[None, :]
        in_V_rows_K = in_V[:, None] & in_rows_K[None, :]
        W_rows = tl.load(W_at + at_V_rows_K, mask=in_V_rows_K, other=0.0).to(tl.float32)
        phi_k_rows = tl.load(stage_row + at_rows_K, mask=in_rows_K, other=0.0).to(tl.float32)
        W_1_rows = W_rows + v[:, None] * phi_k_rows[None, :]
        phi_q_rows = tl.load(stage_row + K + at_rows_K, mask=in_rows_K, other=0.0).to(tl.float32)
        gathered += tl.sum(W_1_rows * phi_q_rows[None, :], axis=1)
        tl.store(W_next_at + at_V_rows_K, W_1_rows, mask=in_V_rows_K)
    tl.debug_barrier()
    y = gathered
    tl.store(y_ptr + (sequence * H + head) * V + at_V, y, mask=in_V)


@triton.jit
def recurrent_backward(
    q_ptr, q_batch, q_token, q_head, q_group,
    k_ptr, k_batch, k_token, k_head, k_group,
    v_ptr, v_batch, v_token, v_head, v_group,
    saved_ptr,
    d_y_ptr,
    W_slots,
    W_replay,
    d_q_ptr,
    d_q_ptr_tile,
    d_k_ptr,
    d_k_ptr_tile,
    d_v_ptr,
    cu_seqlens,
    T,
    interval,
    H,
    tiles,
    stage_ptr,
    K: tl.constexpr,
    V: tl.constexpr,
    BLOCK_K: tl.constexpr,
    TILE_V: tl.constexpr,
    ROWS_K: tl.constexpr,
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
    stage_row = stage_ptr + program * (max(4 * K, K))
    chunks = (length + interval - 1) // interval
    for chunk in range(0, chunks):
        first = (chunks - 1 - chunk) * interval
        count = tl.minimum(length - first, interval)
        slot = (batch * T + start) // interval + sequence + first // interval
        saved_row = saved_ptr + (slot * H + head) * (K * V)
        W_at = W_replay + (sequence * H + head) * (interval + 1) * (K * V)
        tl.debug_barrier()
        for block in range(0, tl.cdiv(K, ROWS_K)):
            at_rows_K = block * ROWS_K + tl.arange(0, ROWS_K)
            in_rows_K = at_rows_K < K
            at_V_rows_K = at_V[:, None] * K + at_rows_K[None, :]
            in_V_rows_K = in_V[:, None] & in_rows_K[None, :]
            stored_W_rows = tl.load(saved_row + at_V_rows_K, mask=in_V_rows_K, other=0.0).to(tl.float32)
            W_rows = stored_W_rows
            tl.store(W_at + at_V_rows_K, W_rows, mask=in_V_rows_K)
        tl.debug_barrier()
        # Barriers part what one thread writes from what another reads; do not remove them.
        tl.debug_barrier()
        for step in range(0, count):
            token = start + first + step
            W_at = W_replay + ((sequence * H + head) * (interval + 1) + step) * (K * V)
            W_next_at = W_at + (K * V)
            k_at = k_row + token * k_token
            k = tl.load(k_at + at_K, mask=in_K, other=0.0).to(tl.float32)
            v_at = v_row + token * v_token
            v = tl.load(v_at + at_V, mask=in_V, other=0.0).to(tl.float32)
            phi_k = tl.where(in_K, elu(k) + 1.0, 0.0)
            tl.debug_barrier()
            tl.store(stage_row + at_K, phi_k, mask=in_K)
            tl.debug_barrier()
            for block in range(0, tl.cdiv(K, ROWS_K)):
                at_rows_K = block * ROWS_K + tl.arange(0, ROWS_K)
                in_rows_K = at_rows_K < K
                at_V_rows_K = at_V[:, None] * K + at_rows_K[None, :]
                in_V_rows_K = in_V[:, None] & in_rows_K[None, :]
                W_rows = tl.load(W_at + at_V_rows_K, mask=in_V_rows_K, other=0.0).to(tl.float32)
                phi_k_rows = tl.load(stage_row + at_rows_K, mask=in_rows_K, other=0.0).to(tl.float32)
                W_1_rows = W_rows + v[:, None] * phi_k_rows[None, :]
                tl.store(W_next_at + at_V_rows_K, W_1_rows, mask=in_V_rows_K)
            tl.debug_barrier()
        tl.debug_barrier()
        for step in range(0, count):
            row = count - 1 - step
            token = start + first + row
            row_at = (batch * T + token) * H + head
            W_at = W_replay + ((sequence * H + head) * (interval + 1) + row) * (K * V)
            W_next_at = W_at + (K * V)
            d_W_next_at = W_slots + ((length - 1 - first - row) % 2 * (tl.num_programs(0) // tiles) + (sequence * H + head)) * (K * V)
            d_W_at = W_slots + ((length - first - row) % 2 * (tl.num_programs(0) // tiles) + (sequence * H + head)) * (K * V)
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
            phi_k = tl.where(in_K, elu(k) + 1.0, 0.0)
            phi_q = tl.where(in_K, elu(q) + 1.0, 0.0)
            tl.debug_barrier()
            tl.store(stage_row + at_K, phi_q, mask=in_K)
            tl.store(stage_row + K + at_K, phi_k, mask=in_K)
            tl.debug_barrier()
            gathered = tl.full((TILE_V,), 0.0, tl.float32)
            for block in range(0, tl.cdiv(K, ROWS_K)):
                at_rows_K = block * ROWS_K + tl.arange(0, ROWS_K)
                in_rows_K = at_rows_K < K
                at_V_rows_K = at_V[:, None] * K + at_rows_K[None, :]
                in_V_rows_K = in_V[:, None] & in_rows_K[None, :]
                d_next_W_rows = tl.load(d_W_next_at + at_V_rows_K, mask=in_V_rows_K, other=0.0).to(tl.float32)
                d_W_1_rows = d_next_W_rows
                phi_q_rows = tl.load(stage_row + at_rows_K, mask=in_rows_K, other=0.0).to(tl.float32)
                d_W_1_rows += d_y[:, None] * phi_q_rows[None, :]
                W_1_rows = tl.load(W_next_at + at_V_rows_K, mask=in_V_rows_K, other=0.0).to(tl.float32)
                d_phi_q_rows = tl.sum(d_y[:, None] * W_1_rows, axis=0)
                q_rows = tl.load(q_at + at_rows_K, mask=in_rows_K, other=0.0).to(tl.float32)
                d_q_rows = tl.where(in_rows_K, d_phi_q_rows * tl.where(q_rows <= 0.0, tl.exp(q_rows), 1.0), 0.0)
                d_W_rows = d_W_1_rows
                phi_k_rows = tl.load(stage_row + K + at_rows_K, mask=in_rows_K, other=0.0).to(tl.float32)
                gathered += tl.sum(d_W_1_rows * phi_k_rows[None, :], axis=1)
                d_phi_k_rows = tl.sum(d_W_1_rows * v[:, None], axis=0)
                k_rows = tl.load(k_at + at_rows_K, mask=in_rows_K, other=0.0).to(tl.float32)
                d_k_rows = tl.where(in_rows_K, d_phi_k_rows * tl.where(k_rows <= 0.0, tl.exp(k_rows), 1.0), 0.0)
                tl.store(stage_row + 2 * K + at_rows_K, d_q_rows, mask=in_rows_K)
                tl.store(d_W_at + at_V_rows_K, d_W_rows, mask=in_V_rows_K)
                tl.store(stage_row + 3 * K + at_rows_K, d_k_rows, mask=in_rows_K)
            tl.debug_barrier()
            d_v = gathered
            if d_v_ptr is not None:
                tl.store(d_v_ptr + row_at * V + at_V, d_v, mask=in_V)
            d_q = tl.load(stage_row + 2 * K + at_K, mask=in_K, other=0.0).to(tl.float32)
            if d_q_ptr is not None:
                tl.store(d_q_ptr + tile.to(tl.int64) * d_q_ptr_tile + row_at * K + at_K, d_q, mask=in_K)
            d_k = tl.load(stage_row + 3 * K + at_K, mask=in_K, other=0.0).to(tl.float32)
            if d_k_ptr is not None:
                tl.store(d_k_ptr + tile.to(tl.int64) * d_k_ptr_tile + row_at * K + at_K, d_k, mask=in_K)


# The cost model: numbers of a block at first, and numbers that a program may hold at once.
ROOM = {"forward": 4096, "backward": 2048}
MOST = {"forward": 33600, "backward": 24576}


class Plan(NamedTuple):
    """Lengths of blocks, tiles that split the parallel axis, warps, and numbers held at once."""

    BLOCK_K: int
    TILE_V: int
    ROWS_K: int
    tiles: int
    warps: int
    largest: int
    held: int


def plan(K, V, direction, room=None):
    """Blocks of about `room` numbers, smaller ones where a program would hold too many."""
    room = room or ROOM[direction]
    BLOCK_K = triton.next_power_of_2(K)
    TILE_V = min(triton.next_power_of_2(V), 16)
    ROWS_K = min(triton.next_power_of_2(K), max(1, room // TILE_V))
    largest = max(BLOCK_K, ROWS_K * TILE_V, ROWS_K)
    if direction == "forward":
        held = 2 * ROWS_K * TILE_V + 1 * ROWS_K + 1 * TILE_V
        warps = min(16, largest // 512)
    else:
        held = 3 * ROWS_K * TILE_V + 2 * ROWS_K + 1 * TILE_V
        warps = min(8, max(largest // 512, triton.next_power_of_2(triton.cdiv(held, 3584))))
    if held > MOST[direction] and room > 256:
        return plan(K, V, direction, room // 2)
    return Plan(
        BLOCK_K,
        TILE_V,
        ROWS_K,
        triton.cdiv(V, TILE_V),
        max(1, warps),
        largest,
        held,
    )


def refusal(sizes, direction):
    """Why the kernels of a direction, forward or backward, do not serve these sizes; "" if they do."""
    K, V = sizes["K"], sizes["V"]
    found = plan(K, V, direction)
    if found.largest <= 65536:
        return ""
    return (
        f"the recurrent Triton kernels would work on a block of {found.largest} numbers, more than "
        f"65536 (K = {K}, V = {V}); backend='cpu' serves it"
    )


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
    if want_final or stepping:
        finals = [
            torch.empty((N, H, V, K), dtype=torch.float32, device=like.device),
        ]
    saved = None
    if training:
        slots = B * T // interval(T) + N if T else N
        saved = torch.empty((slots, H, (K * V)), dtype=torch.float32, device=like.device)
    if N * H == 0:
        return y, finals if want_final else [], [saved] if training else []
    stage = torch.empty((N * H * blocks.tiles, 2 * K), dtype=torch.float32, device=like.device)
    if stepping:
        if states[0] is None:
            states[0] = torch.full((N, H, V, K), 0.0, device=like.device)
        recurrent_step[(N * H * blocks.tiles,)](
            inputs[0], *strides(inputs[0], H),
            inputs[1], *strides(inputs[1], H),
            inputs[2], *strides(inputs[2], H),
            states[0], *state_strides(states[0]),
            y,
            finals[0],
            H,
            blocks.tiles,
            stage,
            K=K,
            V=V,
            BLOCK_K=blocks.BLOCK_K,
            TILE_V=blocks.TILE_V,
            ROWS_K=blocks.ROWS_K,
            **options(blocks.warps),
        )
        return y, finals if want_final else [], []
    slots = [
        two_slots(states[0], 0.0, (N, H, 1, V, K), like.device),
    ]
    recurrent_forward[(N * H * blocks.tiles,)](
        inputs[0], *strides(inputs[0], H),
        inputs[1], *strides(inputs[1], H),
        inputs[2], *strides(inputs[2], H),
        y,
        slots[0],
        saved,
        cu_seqlens,
        T,
        shift(T),
        H,
        blocks.tiles,
        stage,
        K=K,
        V=V,
        BLOCK_K=blocks.BLOCK_K,
        TILE_V=blocks.TILE_V,
        ROWS_K=blocks.ROWS_K,
        **options(blocks.warps),
    )
    if want_final:
        finals = [x if s is None else landed(s, cu_seqlens, T)[:, :, 0] for x, s in zip(finals, slots)]
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

    stage = fresh(N * H * blocks.tiles, max(4 * K, K))
    replay = [
        fresh(N * H, interval(T) + 1, (K * V)),
    ]
    slots = [
        two_slots(None, 0.0, (N, H, 1, V, K), like.device),
    ]
    for gradient, pair in zip(grad_finals, slots):
        if gradient is not None and pair is not None:
            pair[0, :, :, 0] = gradient
    parts = [
        fresh(blocks.tiles, B, T, H, K) if wanted[0] else None,
        fresh(blocks.tiles, B, T, H, K) if wanted[1] else None,
        fresh(B, T, H, V) if wanted[2] else None,
        None,
    ]
    if N * H:
        recurrent_backward[(N * H * blocks.tiles,)](
            inputs[0], *strides(inputs[0], H),
            inputs[1], *strides(inputs[1], H),
            inputs[2], *strides(inputs[2], H),
            saved,
            grad_y,
            slots[0],
            replay[0],
            parts[0],
            tile_stride(parts[0]),
            parts[1],
            tile_stride(parts[1]),
            parts[2],
            cu_seqlens,
            T,
            interval(T),
            H,
            blocks.tiles,
            stage,
            K=K,
            V=V,
            BLOCK_K=blocks.BLOCK_K,
            TILE_V=blocks.TILE_V,
            ROWS_K=blocks.ROWS_K,
            **options(blocks.warps),
        )
    for n, pair in enumerate(slots, len(parts) - 1):
        if pair is not None:
            part = landed(pair, cu_seqlens, T).movedim(2, 0)
            parts[n] = part if LEADING[n][0] else part[0]
    parts = [part if want else None for part, want in zip(parts, wanted)]
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


def two_slots(start, value, shape, device):
    """Memory [2, N, H, tiles, ...] of a state: that before a token and that after it in turn."""
    slots = torch.empty((2, *shape), dtype=torch.float32, device=device)
    slots[0] = value if start is None else start.unsqueeze(2)
    return slots


def landed(slots, cu_seqlens, T):
    """The slot that the last token of every sequence wrote: [N, H, tiles, ...]."""
    if cu_seqlens is None:
        return slots[T % 2]
    ends = cu_seqlens.clamp(0, T)
    odd = (torch.maximum(ends[1:], ends[:-1]) - ends[:-1]) % 2 == 1
    return torch.where(odd.view(-1, *(1,) * (slots.dim() - 2)), slots[1], slots[0])
