# The rule recurrent_delta, hash aabc7ad9bd999bc22a233de4839c836ae12251dc2a1c9fbb9b184dd40fd54f4c.
# Made by `fwgen compile recurrent_delta`; compile again, do not edit.
"""recurrent_delta: the recurrent form in Triton, forward, step and backward, large states in memory.

One token:

    h[i] = tanh(y[i])
    p[i] = sum_j Rk[i, j] * h[j]
    u[i] = k[i] + p[i]
    m = max_i u[i]
    e[i] = exp(u[i] - stop_gradient(m))
    s = sum_i e[i]
    kf[i] = e[i] / s
    p_1[i] = sum_j Rq[i, j] * h[j]
    u_1[i] = q[i] + p_1[i]
    m_1 = max_i u_1[i]
    e_1[i] = exp(u_1[i] - stop_gradient(m_1))
    s_1 = sum_i e_1[i]
    qf[i] = e_1[i] / s_1
    s_2 = sum_i rb[i] * h[i]
    p_2[i] = sum_j Rv[i, j] * h[j]
    p_3[i] = sum_j W[i, j] * kf[j]
    c = sigmoid(beta + s_2)
    u_2[i] = c * (v[i] + p_2[i] - p_3[i])
    W_1[i, j] = W[i, j] + u_2[i] * kf[j]
    y_1[i] = sum_j W_1[i, j] * qf[j]
    out[i] = y_1[i]
    next W = W_1
    next y = y_1

Adjoint of a token, last statement first:

    d_y_1[i] += d_out[i]
    d_W_1[i, j] += d_y_1[i] * qf[j]
    d_qf[j] += sum_i d_y_1[i] * W_1[i, j]
    d_W[i, j] += d_W_1[i, j]
    d_u_2[i] += sum_j d_W_1[i, j] * kf[j]
    d_kf[j] += sum_i d_W_1[i, j] * u_2[i]
    d_c += sum_i d_u_2[i] * (v[i] + p_2[i] - p_3[i])
    d_v[i] += d_u_2[i] * c
    d_p_2[i] += d_u_2[i] * c
    d_p_3[i] += -d_u_2[i] * c
    d_beta += d_c * c * (1 - c)
    d_s_2 += d_c * c * (1 - c)
    d_W[i, j] += d_p_3[i] * kf[j]
    d_kf[j] += sum_i d_p_3[i] * W[i, j]
    d_Rv[i, j] += d_p_2[i] * h[j]
    d_h[j] += sum_i d_p_2[i] * Rv[i, j]
    d_rb[i] += d_s_2 * h[i]
    d_h[i] += d_s_2 * rb[i]
    d_e_1[i] += d_qf[i] / s_1
    a += sum_i d_qf[i] * qf[i]
    d_s_1 += -a / s_1
    d_e_1[i] += d_s_1
    d_u_1[i] += d_e_1[i] * e_1[i]
    d_q[i] += d_u_1[i]
    d_p_1[i] += d_u_1[i]
    d_Rq[i, j] += d_p_1[i] * h[j]
    d_h[j] += sum_i d_p_1[i] * Rq[i, j]
    d_e[i] += d_kf[i] / s
    a_1 += sum_i d_kf[i] * kf[i]
    d_s += -a_1 / s
    d_e[i] += d_s
    d_u[i] += d_e[i] * e[i]
    d_k[i] += d_u[i]
    d_p[i] += d_u[i]
    d_Rk[i, j] += d_p[i] * h[j]
    d_h[j] += sum_i d_p[i] * Rk[i, j]
    d_y[i] += d_h[i] * (1 - square(h[i]))
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl


@triton.jit
def square(x):
    return x * x


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def expm1(x):
    series = x * (1 / 720 + x * (1 / 5040 + x * (1 / 40320)))
    series = x * (1 + x * (1 / 2 + x * (1 / 6 + x * (1 / 24 + x * (1 / 120 + series)))))
    return tl.where(tl.abs(x) < 0.4, series, tl.exp(x) - 1.0)


@triton.jit
def tanh(x):
    m = expm1(-2.0 * tl.abs(x))
    r = -m / (2.0 + m)
    return tl.where(x < 0.0, -r, r)


@triton.jit
def maximum(x, y):
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def recurrent_forward(
    q_ptr, q_batch, q_token, q_head, q_group,
    k_ptr, k_batch, k_token, k_head, k_group,
    v_ptr, v_batch, v_token, v_head, v_group,
    beta_ptr, beta_batch, beta_token, beta_head, beta_group,
    Rq_ptr,
    Rk_ptr,
    Rv_ptr,
    rb_ptr,
    y_initial, y_batch, y_head,
    y_ptr,
    W_slots,
    y_final,
    saved_ptr,
    cu_seqlens,
    T,
    shift,
    H,
    stage_ptr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROWS_D: tl.constexpr,
):
    """Tokens in order; states lie in memory, every 2**shift tokens they are saved."""
    program = tl.program_id(0).to(tl.int64)
    head = program % H
    sequence = program // H
    at_D = tl.arange(0, BLOCK_D)
    in_D = at_D < D
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
    beta_row = beta_ptr + batch * beta_batch + (head // beta_group) * beta_head
    Rq_row = Rq_ptr + head * (D * D)
    Rk_row = Rk_ptr + head * (D * D)
    Rv_row = Rv_ptr + head * (D * D)
    rb_row = rb_ptr + head * D
    rb = tl.load(rb_row + at_D, mask=in_D, other=0.0).to(tl.float32)
    stage_row = stage_ptr + program * (4 * D)
    if y_initial is not None:
        y = tl.load(y_initial + sequence * y_batch + head * y_head + at_D, mask=in_D, other=0.0).to(tl.float32)
    else:
        y = tl.full((BLOCK_D,), 0.0, tl.float32)
    for step in range(0, length):
        token = start + step
        W_at = W_slots + (step % 2 * tl.num_programs(0) + program) * (D * D)
        W_next_at = W_slots + ((step + 1) % 2 * tl.num_programs(0) + program) * (D * D)
        if saved_ptr is not None:
            if (step >> shift) << shift == step:
                slot = ((batch * T + start) >> shift) + sequence + (step >> shift)
                saved_row = saved_ptr + (slot * H + head) * (D * D + D)
                tl.store(saved_row + D * D + at_D, y, mask=in_D)
                tl.debug_barrier()
                for block in range(0, tl.cdiv(D, ROWS_D)):
                    at_rows_D = block * ROWS_D + tl.arange(0, ROWS_D)
                    in_rows_D = at_rows_D < D
                    at_rows_D_D = at_rows_D[:, None] * D + at_D[None, :]
                    in_rows_D_D = in_rows_D[:, None] & in_D[None, :]
                    W_rows = tl.load(W_at + at_rows_D_D, mask=in_rows_D_D, other=0.0).to(tl.float32)
                    stored_W_rows = W_rows
                    tl.store(saved_row + at_rows_D_D, stored_W_rows, mask=in_rows_D_D)
                tl.debug_barrier()
        q_at = q_row + token * q_token
        k_at = k_row + token * k_token
        v_at = v_row + token * v_token
        beta_at = beta_row + token * beta_token
        beta = tl.load(beta_at).to(tl.float32)
        h = tanh(y)
        s_2 = tl.sum(rb * h, axis=0)
        c = sigmoid(beta + s_2)
        gathered = tl.full((), float("-inf"), tl.float32)
        gathered_2 = tl.full((), float("-inf"), tl.float32)
        tl.debug_barrier()
        for block in range(0, tl.cdiv(D, ROWS_D)):
            at_rows_D = block * ROWS_D + tl.arange(0, ROWS_D)
            in_rows_D = at_rows_D < D
            at_rows_D_D = at_rows_D[:, None] * D + at_D[None, :]
            in_rows_D_D = in_rows_D[:, None] & in_D[None, :]
            Rk_rows = tl.load(Rk_row + at_rows_D_D, mask=in_rows_D_D, other=0.0).to(tl.float32)
            p_rows = tl.sum(Rk_rows * h[None, :], axis=1)
            k_rows = tl.load(k_at + at_rows_D, mask=in_rows_D, other=0.0).to(tl.float32)
            u_rows = k_rows + p_rows
            gathered = maximum(gathered, tl.reduce(tl.where(in_rows_D, u_rows, float("-inf")), axis=0, combine_fn=maximum))
            Rq_rows = tl.load(Rq_row + at_rows_D_D, mask=in_rows_D_D, other=0.0).to(tl.float32)
            p_1_rows = tl.sum(Rq_rows * h[None, :], axis=1)
            q_rows = tl.load(q_at + at_rows_D, mask=in_rows_D, other=0.0).to(tl.float32)
            u_1_rows = q_rows + p_1_rows
            gathered_2 = maximum(gathered_2, tl.reduce(tl.where(in_rows_D, u_1_rows, float("-inf")), axis=0, combine_fn=maximum))
            tl.store(stage_row + at_rows_D, u_rows, mask=in_rows_D)
            tl.store(stage_row + D + at_rows_D, u_1_rows, mask=in_rows_D)
        tl.debug_barrier()
        m = gathered
        m_1 = gathered_2
        u = tl.load(stage_row + at_D, mask=in_D, other=0.0).to(tl.float32)
        e = tl.where(in_D, tl.exp(u - m), 0.0)
        s = tl.sum(e, axis=0)
        kf = e / s
        u_1 = tl.load(stage_row + D + at_D, mask=in_D, other=0.0).to(tl.float32)
        e_1 = tl.where(in_D, tl.exp(u_1 - m_1), 0.0)
        s_1 = tl.sum(e_1, axis=0)
        qf = e_1 / s_1
        tl.debug_barrier()
        for block in range(0, tl.cdiv(D, ROWS_D)):
            at_rows_D = block * ROWS_D + tl.arange(0, ROWS_D)
            in_rows_D = at_rows_D < D
            at_rows_D_D = at_rows_D[:, None] * D + at_D[None, :]
            in_rows_D_D = in_rows_D[:, None] & in_D[None, :]
            Rv_rows = tl.load(Rv_row + at_rows_D_D, mask=in_rows_D_D, other=0.0).to(tl.float32)
            p_2_rows = tl.sum(Rv_rows * h[None, :], axis=1)
            W_rows = tl.load(W_at + at_rows_D_D, mask=in_rows_D_D, other=0.0).to(tl.float32)
            p_3_rows = tl.sum(W_rows * kf[None, :], axis=1)
            v_rows = tl.load(v_at + at_rows_D, mask=in_rows_D, other=0.0).to(tl.float32)
            u_2_rows = c * (v_rows + p_2_rows - p_3_rows)
            W_1_rows = W_rows + u_2_rows[:, None] * kf[None, :]
            y_1_rows = tl.sum(W_1_rows * qf[None, :], axis=1)
            out_rows = y_1_rows
            tl.store(W_next_at + at_rows_D_D, W_1_rows, mask=in_rows_D_D)
            tl.store(stage_row + 2 * D + at_rows_D, y_1_rows, mask=in_rows_D)
            tl.store(stage_row + 3 * D + at_rows_D, out_rows, mask=in_rows_D)
        tl.debug_barrier()
        y_1 = tl.load(stage_row + 2 * D + at_D, mask=in_D, other=0.0).to(tl.float32)
        out = tl.load(stage_row + 3 * D + at_D, mask=in_D, other=0.0).to(tl.float32)
        tl.store(y_ptr + ((batch * T + token) * H + head) * D + at_D, out, mask=in_D)
        y = y_1
    if y_final is not None:
        tl.store(y_final + (sequence * H + head) * D + at_D, y, mask=in_D)


@triton.jit
def recurrent_step(
    q_ptr, q_batch, q_token, q_head, q_group,
    k_ptr, k_batch, k_token, k_head, k_group,
    v_ptr, v_batch, v_token, v_head, v_group,
    beta_ptr, beta_batch, beta_token, beta_head, beta_group,
    Rq_ptr,
    Rk_ptr,
    Rv_ptr,
    rb_ptr,
    W_initial, W_batch, W_head,
    y_initial, y_batch, y_head,
    y_ptr,
    W_final,
    y_final,
    H,
    stage_ptr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROWS_D: tl.constexpr,
):
    """One token: reads the states, writes the output and the new states."""
    program = tl.program_id(0).to(tl.int64)
    head = program % H
    sequence = program // H
    at_D = tl.arange(0, BLOCK_D)
    in_D = at_D < D
    batch = sequence
    token = sequence * 0
    q_row = q_ptr + batch * q_batch + (head // q_group) * q_head
    k_row = k_ptr + batch * k_batch + (head // k_group) * k_head
    v_row = v_ptr + batch * v_batch + (head // v_group) * v_head
    beta_row = beta_ptr + batch * beta_batch + (head // beta_group) * beta_head
    Rq_row = Rq_ptr + head * (D * D)
    Rk_row = Rk_ptr + head * (D * D)
    Rv_row = Rv_ptr + head * (D * D)
    rb_row = rb_ptr + head * D
    rb = tl.load(rb_row + at_D, mask=in_D, other=0.0).to(tl.float32)
    stage_row = stage_ptr + program * (4 * D)
    if y_initial is not None:
        y = tl.load(y_initial + sequence * y_batch + head * y_head + at_D, mask=in_D, other=0.0).to(tl.float32)
    else:
        y = tl.full((BLOCK_D,), 0.0, tl.float32)
    W_at = W_initial + sequence * W_batch + head * W_head
    W_next_at = W_final + (sequence * H + head) * (D * D)
    q_at = q_row + token * q_token
    k_at = k_row + token * k_token
    v_at = v_row + token * v_token
    beta_at = beta_row + token * beta_token
    beta = tl.load(beta_at).to(tl.float32)
    h = tanh(y)
    s_2 = tl.sum(rb * h, axis=0)
    c = sigmoid(beta + s_2)
    gathered = tl.full((), float("-inf"), tl.float32)
    gathered_2 = tl.full((), float("-inf"), tl.float32)
    tl.debug_barrier()
    for block in range(0, tl.cdiv(D, ROWS_D)):
        at_rows_D = block * ROWS_D + tl.arange(0, ROWS_D)
        in_rows_D = at_rows_D < D
        at_rows_D_D = at_rows_D[:, None] * D + at_D[None, :]
        in_rows_D_D = in_rows_D[:, None] & in_D[None, :]
        Rk_rows = tl.load(Rk_row + at_rows_D_D, mask=in_rows_D_D, other=0.0).to(tl.float32)
        p_rows = tl.sum(Rk_rows * h[None, :], axis=1)
        k_rows = tl.load(k_at + at_rows_D, mask=in_rows_D, other=0.0).to(tl.float32)
        u_rows = k_rows + p_rows
        gathered = maximum(gathered, tl.reduce(tl.where(in_rows_D, u_rows, float("-inf")), axis=0, combine_fn=maximum))
        Rq_rows = tl.load(Rq_row + at_rows_D_D, mask=in_rows_D_D, other=0.0).to(tl.float32)
        p_1_rows = tl.sum(Rq_rows * h[None, :], axis=1)
        q_rows = tl.load(q_at + at_rows_D, mask=in_rows_D, other=0.0).to(tl.float32)
        u_1_rows = q_rows + p_1_rows
        gathered_2 = maximum(gathered_2, tl.reduce(tl.where(in_rows_D, u_1_rows, float("-inf")), axis=0, combine_fn=maximum))
        tl.store(stage_row + at_rows_D, u_rows, mask=in_rows_D)
        tl.store(stage_row + D + at_rows_D, u_1_rows, mask=in_rows_D)
    tl.debug_barrier()
    m = gathered
    m_1 = gathered_2
    u = tl.load(stage_row + at_D, mask=in_D, other=0.0).to(tl.float32)
    e = tl.where(in_D, tl.exp(u - m), 0.0)
    s = tl.sum(e, axis=0)
    kf = e / s
    u_1 = tl.load(stage_row + D + at_D, mask=in_D, other=0.0).to(tl.float32)
    e_1 = tl.where(in_D, tl.exp(u_1 - m_1), 0.0)
    s_1 = tl.sum(e_1, axis=0)
    qf = e_1 / s_1
    tl.debug_barrier()
    for block in range(0, tl.cdiv(D, ROWS_D)):
        at_rows_D = block * ROWS_D + tl.arange(0, ROWS_D)
        in_rows_D = at_rows_D < D
        at_rows_D_D = at_rows_D[:, None] * D + at_D[None, :]
        in_rows_D_D = in_rows_D[:, None] & in_D[None, :]
        Rv_rows = tl.load(Rv_row + at_rows_D_D, mask=in_rows_D_D, other=0.0).to(tl.float32)
        p_2_rows = tl.sum(Rv_rows * h[None, :], axis=1)
        W_rows = tl.load(W_at + at_rows_D_D, mask=in_rows_D_D, other=0.0).to(tl.float32)
        p_3_rows = tl.sum(W_rows * kf[None, :], axis=1)
        v_rows = tl.load(v_at + at_rows_D, mask=in_rows_D, other=0.0).to(tl.float32)
        u_2_rows = c * (v_rows + p_2_rows - p_3_rows)
        W_1_rows = W_rows + u_2_rows[:, None] * kf[None, :]
        y_1_rows = tl.sum(W_1_rows * qf[None, :], axis=1)
        out_rows = y_1_rows
        tl.store(W_next_at + at_rows_D_D, W_1_rows, mask=in_rows_D_D)
        tl.store(stage_row + 2 * D + at_rows_D, y_1_rows, mask=in_rows_D)
        tl.store(stage_row + 3 * D + at_rows_D, out_rows, mask=in_rows_D)
    tl.debug_barrier()
    y_1 = tl.load(stage_row + 2 * D + at_D, mask=in_D, other=0.0).to(tl.float32)
    out = tl.load(stage_row + 3 * D + at_D, mask=in_D, other=0.0).to(tl.float32)
    tl.store(y_ptr + (sequence * H + head) * D + at_D, out, mask=in_D)
    if y_final is not None:
        tl.store(y_final + (sequence * H + head) * D + at_D, y_1, mask=in_D)


@triton.jit
def recurrent_backward(
    q_ptr, q_batch, q_token, q_head, q_group,
    k_ptr, k_batch, k_token, k_head, k_group,
    v_ptr, v_batch, v_token, v_head, v_group,
    beta_ptr, beta_batch, beta_token, beta_head, beta_group,
    Rq_ptr,
    Rk_ptr,
    Rv_ptr,
    rb_ptr,
    saved_ptr,
    d_y_ptr,
    W_slots,
    d_y_final,
    W_replay,
    y_replay,
    d_q_ptr,
    d_k_ptr,
    d_v_ptr,
    d_beta_ptr,
    d_Rq_ptr,
    d_Rk_ptr,
    d_Rv_ptr,
    d_rb_ptr,
    d_y_initial,
    cu_seqlens,
    T,
    interval,
    H,
    stage_ptr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROWS_D: tl.constexpr,
):
    """Chunks from last to first: replay from the checkpoint, then the adjoint token by token."""
    program = tl.program_id(0).to(tl.int64)
    head = program % H
    sequence = program // H
    at_D = tl.arange(0, BLOCK_D)
    in_D = at_D < D
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
    beta_row = beta_ptr + batch * beta_batch + (head // beta_group) * beta_head
    Rq_row = Rq_ptr + head * (D * D)
    Rk_row = Rk_ptr + head * (D * D)
    Rv_row = Rv_ptr + head * (D * D)
    rb_row = rb_ptr + head * D
    rb = tl.load(rb_row + at_D, mask=in_D, other=0.0).to(tl.float32)
    stage_row = stage_ptr + program * (max(6 * D, 3 * D))
    if d_y_final is not None:
        d_y_next = tl.load(d_y_final + (sequence * H + head) * D + at_D, mask=in_D, other=0.0).to(tl.float32)
    else:
        d_y_next = tl.full((BLOCK_D,), 0.0, tl.float32)
    total_rb = tl.full((BLOCK_D,), 0.0, tl.float32)
    chunks = (length + interval - 1) // interval
    for chunk in range(0, chunks):
        first = (chunks - 1 - chunk) * interval
        count = tl.minimum(length - first, interval)
        slot = (batch * T + start) // interval + sequence + first // interval
        saved_row = saved_ptr + (slot * H + head) * (D * D + D)
        y = tl.load(saved_row + D * D + at_D, mask=in_D, other=0.0).to(tl.float32)
        W_at = W_replay + program * (interval + 1) * (D * D)
        tl.debug_barrier()
        for block in range(0, tl.cdiv(D, ROWS_D)):
            at_rows_D = block * ROWS_D + tl.arange(0, ROWS_D)
            in_rows_D = at_rows_D < D
            at_rows_D_D = at_rows_D[:, None] * D + at_D[None, :]
            in_rows_D_D = in_rows_D[:, None] & in_D[None, :]
            stored_W_rows = tl.load(saved_row + at_rows_D_D, mask=in_rows_D_D, other=0.0).to(tl.float32)
            W_rows = stored_W_rows
            tl.store(W_at + at_rows_D_D, W_rows, mask=in_rows_D_D)
        tl.debug_barrier()
        # Barriers part what one thread writes from what another reads; do not remove them.
        tl.debug_barrier()
        for step in range(0, count):
            token = start + first + step
            tl.store(y_replay + (program * interval + step) * D + at_D, y, mask=in_D)
            W_at = W_replay + (program * (interval + 1) + step) * (D * D)
            W_next_at = W_at + (D * D)
            q_at = q_row + token * q_token
            k_at = k_row + token * k_token
            v_at = v_row + token * v_token
            beta_at = beta_row + token * beta_token
            beta = tl.load(beta_at).to(tl.float32)
            h = tanh(y)
            s_2 = tl.sum(rb * h, axis=0)
            c = sigmoid(beta + s_2)
            gathered = tl.full((), float("-inf"), tl.float32)
            gathered_2 = tl.full((), float("-inf"), tl.float32)
            tl.debug_barrier()
            for block in range(0, tl.cdiv(D, ROWS_D)):
                at_rows_D = block * ROWS_D + tl.arange(0, ROWS_D)
                in_rows_D = at_rows_D < D
                at_rows_D_D = at_rows_D[:, None] * D + at_D[None, :]
                in_rows_D_D = in_rows_D[:, None] & in_D[None, :]
                Rk_rows = tl.load(Rk_row + at_rows_D_D, mask=in_rows_D_D, other=0.0).to(tl.float32)
                p_rows = tl.sum(Rk_rows * h[None, :], axis=1)
                k_rows = tl.load(k_at + at_rows_D, mask=in_rows_D, other=0.0).to(tl.float32)
                u_rows = k_rows + p_rows
                gathered = maximum(gathered, tl.reduce(tl.where(in_rows_D, u_rows, float("-inf")), axis=0, combine_fn=maximum))
                Rq_rows = tl.load(Rq_row + at_rows_D_D, mask=in_rows_D_D, other=0.0).to(tl.float32)
                p_1_rows = tl.sum(Rq_rows * h[None, :], axis=1)
                q_rows = tl.load(q_at + at_rows_D, mask=in_rows_D, other=0.0).to(tl.float32)
                u_1_rows = q_rows + p_1_rows
                gathered_2 = maximum(gathered_2, tl.reduce(tl.where(in_rows_D, u_1_rows, float("-inf")), axis=0, combine_fn=maximum))
                tl.store(stage_row + at_rows_D, u_rows, mask=in_rows_D)
                tl.store(stage_row + D + at_rows_D, u_1_rows, mask=in_rows_D)
            tl.debug_barrier()
            m = gathered
            m_1 = gathered_2
            u = tl.load(stage_row + at_D, mask=in_D, other=0.0).to(tl.float32)
            e = tl.where(in_D, tl.exp(u - m), 0.0)
            s = tl.sum(e, axis=0)
            kf = e / s
            u_1 = tl.load(stage_row + D + at_D, mask=in_D, other=0.0).to(tl.float32)
            e_1 = tl.where(in_D, tl.exp(u_1 - m_1), 0.0)
            s_1 = tl.sum(e_1, axis=0)
            qf = e_1 / s_1
            tl.debug_barrier()
            for block in range(0, tl.cdiv(D, ROWS_D)):
                at_rows_D = block * ROWS_D + tl.arange(0, ROWS_D)
                in_rows_D = at_rows_D < D
                at_rows_D_D = at_rows_D[:, None] * D + at_D[None, :]
                in_rows_D_D = in_rows_D[:, None] & in_D[None, :]
                Rv_rows = tl.load(Rv_row + at_rows_D_D, mask=in_rows_D_D, other=0.0).to(tl.float32)
                p_2_rows = tl.sum(Rv_rows * h[None, :], axis=1)
                W_rows = tl.load(W_at + at_rows_D_D, mask=in_rows_D_D, other=0.0).to(tl.float32)
                p_3_rows = tl.sum(W_rows * kf[None, :], axis=1)
                v_rows = tl.load(v_at + at_rows_D, mask=in_rows_D, other=0.0).to(tl.float32)
                u_2_rows = c * (v_rows + p_2_rows - p_3_rows)
                W_1_rows = W_rows + u_2_rows[:, None] * kf[None, :]
                y_1_rows = tl.sum(W_1_rows * qf[None, :], axis=1)
                tl.store(W_next_at + at_rows_D_D, W_1_rows, mask=in_rows_D_D)
                tl.store(stage_row + 2 * D + at_rows_D, y_1_rows, mask=in_rows_D)
            tl.debug_barrier()
            y_1 = tl.load(stage_row + 2 * D + at_D, mask=in_D, other=0.0).to(tl.float32)
            y = y_1
        tl.debug_barrier()
        for step in range(0, count):
            row = count - 1 - step
            token = start + first + row
            row_at = (batch * T + token) * H + head
            y = tl.load(y_replay + (program * interval + row) * D + at_D, mask=in_D, other=0.0).to(tl.float32)
            W_at = W_replay + (program * (interval + 1) + row) * (D * D)
            W_next_at = W_at + (D * D)
            d_W_next_at = W_slots + ((length - 1 - first - row) % 2 * tl.num_programs(0) + program) * (D * D)
            d_W_at = W_slots + ((length - first - row) % 2 * tl.num_programs(0) + program) * (D * D)
            q_at = q_row + token * q_token
            k_at = k_row + token * k_token
            v_at = v_row + token * v_token
            beta_at = beta_row + token * beta_token
            beta = tl.load(beta_at).to(tl.float32)
            if d_y_ptr is not None:
                d_out = tl.load(d_y_ptr + row_at * D + at_D, mask=in_D, other=0.0).to(tl.float32)
            else:
                d_out = tl.full((BLOCK_D,), 0.0, tl.float32)
            d_y_1 = d_y_next
            h = tanh(y)
            s_2 = tl.sum(rb * h, axis=0)
            c = sigmoid(beta + s_2)
            d_y_1 += d_out
            tl.debug_barrier()
            tl.store(stage_row + at_D, d_y_1, mask=in_D)
            tl.debug_barrier()
            gathered = tl.full((), float("-inf"), tl.float32)
            gathered_2 = tl.full((), float("-inf"), tl.float32)
            gathered_3 = tl.full((BLOCK_D,), 0.0, tl.float32)
            for block in range(0, tl.cdiv(D, ROWS_D)):
                at_rows_D = block * ROWS_D + tl.arange(0, ROWS_D)
                in_rows_D = at_rows_D < D
                at_rows_D_D = at_rows_D[:, None] * D + at_D[None, :]
                in_rows_D_D = in_rows_D[:, None] & in_D[None, :]
                Rk_rows = tl.load(Rk_row + at_rows_D_D, mask=in_rows_D_D, other=0.0).to(tl.float32)
                p_rows = tl.sum(Rk_rows * h[None, :], axis=1)
                k_rows = tl.load(k_at + at_rows_D, mask=in_rows_D, other=0.0).to(tl.float32)
                u_rows = k_rows + p_rows
                gathered = maximum(gathered, tl.reduce(tl.where(in_rows_D, u_rows, float("-inf")), axis=0, combine_fn=maximum))
                Rq_rows = tl.load(Rq_row + at_rows_D_D, mask=in_rows_D_D, other=0.0).to(tl.float32)
                p_1_rows = tl.sum(Rq_rows * h[None, :], axis=1)
                q_rows = tl.load(q_at + at_rows_D, mask=in_rows_D, other=0.0).to(tl.float32)
                u_1_rows = q_rows + p_1_rows
                gathered_2 = maximum(gathered_2, tl.reduce(tl.where(in_rows_D, u_1_rows, float("-inf")), axis=0, combine_fn=maximum))
                d_y_1_rows = tl.load(stage_row + at_rows_D, mask=in_rows_D, other=0.0).to(tl.float32)
                W_1_rows = tl.load(W_next_at + at_rows_D_D, mask=in_rows_D_D, other=0.0).to(tl.float32)
                gathered_3 += tl.sum(d_y_1_rows[:, None] * W_1_rows, axis=0)
                tl.store(stage_row + D + at_rows_D, u_rows, mask=in_rows_D)
                tl.store(stage_row + 2 * D + at_rows_D, u_1_rows, mask=in_rows_D)
            tl.debug_barrier()
            m = gathered
            m_1 = gathered_2
            d_qf = gathered_3
            u = tl.load(stage_row + D + at_D, mask=in_D, other=0.0).to(tl.float32)
            e = tl.where(in_D, tl.exp(u - m), 0.0)
            s = tl.sum(e, axis=0)
            kf = e / s
            u_1 = tl.load(stage_row + 2 * D + at_D, mask=in_D, other=0.0).to(tl.float32)
            e_1 = tl.where(in_D, tl.exp(u_1 - m_1), 0.0)
            s_1 = tl.sum(e_1, axis=0)
            qf = e_1 / s_1
            d_e_1 = d_qf / s_1
            a = tl.sum(d_qf * qf, axis=0)
            d_s_1 = -(a / s_1)
            d_e_1 += tl.where(in_D, d_s_1, 0.0)
            d_u_1 = d_e_1 * e_1
            d_q = d_u_1
            if d_q_ptr is not None:
                tl.store(d_q_ptr + row_at * D + at_D, d_q, mask=in_D)
            d_p_1 = d_u_1
            tl.debug_barrier()
            tl.store(stage_row + 3 * D + at_D, d_p_1, mask=in_D)
            tl.debug_barrier()
            gathered_4 = tl.full((BLOCK_D,), 0.0, tl.float32)
            gathered_5 = tl.full((), 0.0, tl.float32)
            gathered_6 = tl.full((BLOCK_D,), 0.0, tl.float32)
            gathered_7 = tl.full((BLOCK_D,), 0.0, tl.float32)
            for block in range(0, tl.cdiv(D, ROWS_D)):
                at_rows_D = block * ROWS_D + tl.arange(0, ROWS_D)
                in_rows_D = at_rows_D < D
                at_rows_D_D = at_rows_D[:, None] * D + at_D[None, :]
                in_rows_D_D = in_rows_D[:, None] & in_D[None, :]
                d_next_W_rows = tl.load(d_W_next_at + at_rows_D_D, mask=in_rows_D_D, other=0.0).to(tl.float32)
                d_W_1_rows = d_next_W_rows
                Rv_rows = tl.load(Rv_row + at_rows_D_D, mask=in_rows_D_D, other=0.0).to(tl.float32)
                p_2_rows = tl.sum(Rv_rows * h[None, :], axis=1)
                W_rows = tl.load(W_at + at_rows_D_D, mask=in_rows_D_D, other=0.0).to(tl.float32)
                p_3_rows = tl.sum(W_rows * kf[None, :], axis=1)
                v_rows = tl.load(v_at + at_rows_D, mask=in_rows_D, other=0.0).to(tl.float32)
                u_2_rows = c * (v_rows + p_2_rows - p_3_rows)
                d_y_1_rows = tl.load(stage_row + at_rows_D, mask=in_rows_D, other=0.0).to(tl.float32)
                d_W_1_rows += d_y_1_rows[:, None] * qf[None, :]
                d_W_rows = d_W_1_rows
                d_u_2_rows = tl.sum(d_W_1_rows * kf[None, :], axis=1)
                gathered_4 += tl.sum(d_W_1_rows * u_2_rows[:, None], axis=0)
                gathered_5 += tl.sum(d_u_2_rows * (v_rows + p_2_rows - p_3_rows), axis=0)
                d_v_rows = d_u_2_rows * c
                d_p_2_rows = d_u_2_rows * c
                d_p_3_rows = -(d_u_2_rows * c)
                d_W_rows += d_p_3_rows[:, None] * kf[None, :]
                gathered_6 += tl.sum(d_p_3_rows[:, None] * W_rows, axis=0)
                d_Rv_rows = d_p_2_rows[:, None] * h[None, :]
                gathered_7 += tl.sum(d_p_2_rows[:, None] * Rv_rows, axis=0)
                d_p_1_rows = tl.load(stage_row + 3 * D + at_rows_D, mask=in_rows_D, other=0.0).to(tl.float32)
                d_Rq_rows = d_p_1_rows[:, None] * h[None, :]
                total_d_Rq_rows = tl.load(d_Rq_ptr + (sequence * H + head) * (D * D) + at_rows_D_D, mask=in_rows_D_D, other=0.0).to(tl.float32)
                total_d_Rq_rows += d_Rq_rows
                total_d_Rv_rows = tl.load(d_Rv_ptr + (sequence * H + head) * (D * D) + at_rows_D_D, mask=in_rows_D_D, other=0.0).to(tl.float32)
                total_d_Rv_rows += d_Rv_rows
                tl.debug_barrier()
                tl.store(d_W_at + at_rows_D_D, d_W_rows, mask=in_rows_D_D)
                tl.store(stage_row + 4 * D + at_rows_D, d_v_rows, mask=in_rows_D)
                tl.store(d_Rq_ptr + (sequence * H + head) * (D * D) + at_rows_D_D, total_d_Rq_rows, mask=in_rows_D_D)
                tl.store(d_Rv_ptr + (sequence * H + head) * (D * D) + at_rows_D_D, total_d_Rv_rows, mask=in_rows_D_D)
            tl.debug_barrier()
            d_kf = gathered_4
            d_c = gathered_5
            d_kf += gathered_6
            d_h = gathered_7
            d_beta = d_c * c * (1.0 - c)
            if d_beta_ptr is not None:
                tl.store(d_beta_ptr + row_at * 1, d_beta)
            d_s_2 = d_c * c * (1.0 - c)
            d_rb = d_s_2 * h
            if d_rb_ptr is not None:
                total_rb += d_rb
            d_h += d_s_2 * rb
            d_e = d_kf / s
            a_1 = tl.sum(d_kf * kf, axis=0)
            d_s = -(a_1 / s)
            d_e += tl.where(in_D, d_s, 0.0)
            d_u = d_e * e
            d_k = d_u
            if d_k_ptr is not None:
                tl.store(d_k_ptr + row_at * D + at_D, d_k, mask=in_D)
            d_p = d_u
            tl.debug_barrier()
            tl.store(stage_row + 5 * D + at_D, d_p, mask=in_D)
            tl.debug_barrier()
            gathered_8 = tl.full((BLOCK_D,), 0.0, tl.float32)
            gathered_9 = tl.full((BLOCK_D,), 0.0, tl.float32)
            for block in range(0, tl.cdiv(D, ROWS_D)):
                at_rows_D = block * ROWS_D + tl.arange(0, ROWS_D)
                in_rows_D = at_rows_D < D
                at_rows_D_D = at_rows_D[:, None] * D + at_D[None, :]
                in_rows_D_D = in_rows_D[:, None] & in_D[None, :]
                d_p_1_rows = tl.load(stage_row + 3 * D + at_rows_D, mask=in_rows_D, other=0.0).to(tl.float32)
                Rq_rows = tl.load(Rq_row + at_rows_D_D, mask=in_rows_D_D, other=0.0).to(tl.float32)
                gathered_8 += tl.sum(d_p_1_rows[:, None] * Rq_rows, axis=0)
                d_p_rows = tl.load(stage_row + 5 * D + at_rows_D, mask=in_rows_D, other=0.0).to(tl.float32)
                d_Rk_rows = d_p_rows[:, None] * h[None, :]
                Rk_rows = tl.load(Rk_row + at_rows_D_D, mask=in_rows_D_D, other=0.0).to(tl.float32)
                gathered_9 += tl.sum(d_p_rows[:, None] * Rk_rows, axis=0)
                total_d_Rk_rows = tl.load(d_Rk_ptr + (sequence * H + head) * (D * D) + at_rows_D_D, mask=in_rows_D_D, other=0.0).to(tl.float32)
                total_d_Rk_rows += d_Rk_rows
                tl.debug_barrier()
                tl.store(d_Rk_ptr + (sequence * H + head) * (D * D) + at_rows_D_D, total_d_Rk_rows, mask=in_rows_D_D)
            tl.debug_barrier()
            d_h += gathered_8
            d_h += gathered_9
            d_y = d_h * (1.0 - square(h))
            d_v = tl.load(stage_row + 4 * D + at_D, mask=in_D, other=0.0).to(tl.float32)
            if d_v_ptr is not None:
                tl.store(d_v_ptr + row_at * D + at_D, d_v, mask=in_D)
            d_y_next = d_y
    if d_rb_ptr is not None:
        tl.store(d_rb_ptr + (sequence * H + head) * D + at_D, total_rb, mask=in_D)
    if d_y_initial is not None:
        tl.store(d_y_initial + (sequence * H + head) * D + at_D, d_y_next, mask=in_D)


# The cost model: numbers of a block at first, and numbers that a program may hold at once.
ROOM = {"forward": 4096, "backward": 2048}
MOST = {"forward": 33600, "backward": 24576}


class Plan(NamedTuple):
    """Lengths of blocks, tiles that split the parallel axis, warps, and numbers held at once."""

    BLOCK_D: int
    ROWS_D: int
    tiles: int
    warps: int
    largest: int
    held: int


def plan(D, direction, room=None):
    """Blocks of about `room` numbers, smaller ones where a program would hold too many."""
    room = room or ROOM[direction]
    BLOCK_D = triton.next_power_of_2(D)
    ROWS_D = min(triton.next_power_of_2(D), max(1, room // BLOCK_D))
    largest = max(BLOCK_D, 1, BLOCK_D * ROWS_D, ROWS_D)
    if direction == "forward":
        held = 2 * BLOCK_D * ROWS_D + 2 * BLOCK_D + 2 * ROWS_D
        warps = min(16, largest // 512)
    else:
        held = 5 * BLOCK_D * ROWS_D + 4 * BLOCK_D + 5 * ROWS_D
        warps = min(8, max(largest // 512, triton.next_power_of_2(triton.cdiv(held, 3584))))
    if held > MOST[direction] and room > 256:
        return plan(D, direction, room // 2)
    return Plan(
        BLOCK_D,
        ROWS_D,
        1,
        max(1, warps),
        largest,
        held,
    )


def refusal(sizes, direction):
    """Why the kernels of a direction, forward or backward, do not serve these sizes; "" if they do."""
    D = sizes["D"]
    found = plan(D, direction)
    if found.largest <= 65536:
        return ""
    return (
        f"the recurrent Triton kernels would work on a block of {found.largest} numbers, more than "
        f"65536 (D = {D}); backend='cpu' serves it"
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
    inputs = [rows(inputs[0], 3), rows(inputs[1], 3), rows(inputs[2], 3), rows(inputs[3], 3)]
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
    D = sizes["D"]
    blocks = plan(D, "forward")
    dtype = like.dtype if like.is_floating_point() else torch.float32
    y = torch.empty((B, T, H, D), dtype=dtype, device=like.device)
    stepping = T == 1 and not training and cu_seqlens is None
    finals = [None] * 2
    if want_final or stepping:
        finals = [
            torch.empty((N, H, D, D), dtype=torch.float32, device=like.device),
            torch.empty((N, H, D), dtype=torch.float32, device=like.device),
        ]
    saved = None
    if training:
        slots = B * T // interval(T) + N if T else N
        saved = torch.empty((slots, H, (D * D + D)), dtype=torch.float32, device=like.device)
    if N * H == 0:
        return y, finals if want_final else [], [saved] if training else []
    stage = torch.empty((N * H * blocks.tiles, 4 * D), dtype=torch.float32, device=like.device)
    if stepping:
        if states[0] is None:
            states[0] = torch.full((N, H, D, D), 0.0, device=like.device)
        recurrent_step[(N * H * blocks.tiles,)](
            inputs[0], *strides(inputs[0], H),
            inputs[1], *strides(inputs[1], H),
            inputs[2], *strides(inputs[2], H),
            inputs[3], *strides(inputs[3], H),
            heads[0],
            heads[1],
            heads[2],
            heads[3],
            states[0], *state_strides(states[0]),
            states[1], *state_strides(states[1]),
            y,
            finals[0],
            finals[1],
            H,
            stage,
            D=D,
            BLOCK_D=blocks.BLOCK_D,
            ROWS_D=blocks.ROWS_D,
            **options(blocks.warps),
        )
        return y, finals if want_final else [], []
    slots = [
        two_slots(states[0], 0.0, (N, H, 1, D, D), like.device),
        None,
    ]
    recurrent_forward[(N * H * blocks.tiles,)](
        inputs[0], *strides(inputs[0], H),
        inputs[1], *strides(inputs[1], H),
        inputs[2], *strides(inputs[2], H),
        inputs[3], *strides(inputs[3], H),
        heads[0],
        heads[1],
        heads[2],
        heads[3],
        states[1], *state_strides(states[1]),
        y,
        slots[0],
        finals[1],
        saved,
        cu_seqlens,
        T,
        shift(T),
        H,
        stage,
        D=D,
        BLOCK_D=blocks.BLOCK_D,
        ROWS_D=blocks.ROWS_D,
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
    D = sizes["D"]
    blocks = plan(D, "backward")
    (saved,) = saved
    grad_y = None if grad_y is None else grad_y.contiguous()
    grad_finals = [None if g is None else g.float().contiguous() for g in grad_finals]

    def fresh(*shape):
        return torch.empty(shape, dtype=torch.float32, device=like.device)

    stage = fresh(N * H * blocks.tiles, max(6 * D, 3 * D))
    replay = [
        fresh(N * H * blocks.tiles, interval(T) + 1, (D * D)),
        fresh(N * H * blocks.tiles, interval(T), D),
    ]
    slots = [
        two_slots(None, 0.0, (N, H, 1, D, D), like.device),
        None,
    ]
    for gradient, pair in zip(grad_finals, slots):
        if gradient is not None and pair is not None:
            pair[0, :, :, 0] = gradient
    parts = [
        fresh(B, T, H, D) if wanted[0] else None,
        fresh(B, T, H, D) if wanted[1] else None,
        fresh(B, T, H, D) if wanted[2] else None,
        fresh(B, T, H) if wanted[3] else None,
        fresh(N, H, D, D).zero_(),
        fresh(N, H, D, D).zero_(),
        fresh(N, H, D, D).zero_(),
        fresh(N, H, D) if wanted[7] else None,
        None,
        fresh(N, H, D) if wanted[9] else None,
    ]
    if N * H:
        recurrent_backward[(N * H * blocks.tiles,)](
            inputs[0], *strides(inputs[0], H),
            inputs[1], *strides(inputs[1], H),
            inputs[2], *strides(inputs[2], H),
            inputs[3], *strides(inputs[3], H),
            heads[0],
            heads[1],
            heads[2],
            heads[3],
            saved,
            grad_y,
            slots[0],
            grad_finals[1],
            replay[0],
            replay[1],
            parts[0],
            parts[1],
            parts[2],
            parts[3],
            parts[4],
            parts[5],
            parts[6],
            parts[7],
            parts[9],
            cu_seqlens,
            T,
            interval(T),
            H,
            stage,
            D=D,
            BLOCK_D=blocks.BLOCK_D,
            ROWS_D=blocks.ROWS_D,
            **options(blocks.warps),
        )
    for n, pair in enumerate(slots, len(parts) - 2):
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
    (False, False, False),
    (False, False, False),
    (False, False, False),
    (False, False, False),
    (False, True, False),
    (False, True, False),
    (False, True, False),
    (False, True, False),
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
