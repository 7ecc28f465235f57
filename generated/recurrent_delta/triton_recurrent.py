# The rule recurrent_delta, hash aabc7ad9bd999bc22a233de4839c836ae12251dc2a1c9fbb9b184dd40fd54f4c.
# Made by `fwgen compile recurrent_delta`; compile again, do not edit.
"""recurrent_delta: the recurrent form in Triton, forward, step and backward.

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
    W_initial, W_batch, W_head,
    y_initial, y_batch, y_head,
    y_ptr,
    W_final,
    y_final,
    saved_ptr,
    cu_seqlens,
    T,
    shift,
    H,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Tokens in order; states stay in registers, every 2**shift tokens they are saved."""
    program = tl.program_id(0).to(tl.int64)
    head = program % H
    sequence = program // H
    at_D = tl.arange(0, BLOCK_D)
    in_D = at_D < D
    at_D_D = at_D[:, None] * D + at_D[None, :]
    in_D_D = in_D[:, None] & in_D[None, :]
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
    if W_initial is not None:
        W = tl.load(W_initial + sequence * W_batch + head * W_head + at_D_D, mask=in_D_D, other=0.0).to(tl.float32)
    else:
        W = tl.full((BLOCK_D, BLOCK_D), 0.0, tl.float32)
    if y_initial is not None:
        y = tl.load(y_initial + sequence * y_batch + head * y_head + at_D, mask=in_D, other=0.0).to(tl.float32)
    else:
        y = tl.full((BLOCK_D,), 0.0, tl.float32)
    for step in range(0, length):
        token = start + step
        if saved_ptr is not None:
            if (step >> shift) << shift == step:
                slot = ((batch * T + start) >> shift) + sequence + (step >> shift)
                saved_row = saved_ptr + (slot * H + head) * (D * D + D)
                tl.store(saved_row + at_D_D, W, mask=in_D_D)
                tl.store(saved_row + D * D + at_D, y, mask=in_D)
        q_at = q_row + token * q_token
        q = tl.load(q_at + at_D, mask=in_D, other=0.0).to(tl.float32)
        k_at = k_row + token * k_token
        k = tl.load(k_at + at_D, mask=in_D, other=0.0).to(tl.float32)
        v_at = v_row + token * v_token
        v = tl.load(v_at + at_D, mask=in_D, other=0.0).to(tl.float32)
        beta_at = beta_row + token * beta_token
        beta = tl.load(beta_at).to(tl.float32)
        h = tanh(y)
        Rk = tl.load(Rk_row + at_D_D, mask=in_D_D, other=0.0).to(tl.float32)
        p = tl.sum(Rk * h[None, :], axis=1)
        u = k + p
        m = tl.reduce(tl.where(in_D, u, float("-inf")), axis=0, combine_fn=maximum)
        e = tl.where(in_D, tl.exp(u - m), 0.0)
        s = tl.sum(e, axis=0)
        kf = e / s
        Rq = tl.load(Rq_row + at_D_D, mask=in_D_D, other=0.0).to(tl.float32)
        p_1 = tl.sum(Rq * h[None, :], axis=1)
        u_1 = q + p_1
        m_1 = tl.reduce(tl.where(in_D, u_1, float("-inf")), axis=0, combine_fn=maximum)
        e_1 = tl.where(in_D, tl.exp(u_1 - m_1), 0.0)
        s_1 = tl.sum(e_1, axis=0)
        qf = e_1 / s_1
        s_2 = tl.sum(rb * h, axis=0)
        Rv = tl.load(Rv_row + at_D_D, mask=in_D_D, other=0.0).to(tl.float32)
        p_2 = tl.sum(Rv * h[None, :], axis=1)
        p_3 = tl.sum(W * kf[None, :], axis=1)
        c = sigmoid(beta + s_2)
        u_2 = c * (v + p_2 - p_3)
        W_1 = W + u_2[:, None] * kf[None, :]
        y_1 = tl.sum(W_1 * qf[None, :], axis=1)
        out = y_1
        tl.store(y_ptr + ((batch * T + token) * H + head) * D + at_D, out, mask=in_D)
        W = W_1
        y = y_1
    if W_final is not None:
        tl.store(W_final + (sequence * H + head) * (D * D) + at_D_D, W, mask=in_D_D)
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
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """One token: reads the states, writes the output and the new states."""
    program = tl.program_id(0).to(tl.int64)
    head = program % H
    sequence = program // H
    at_D = tl.arange(0, BLOCK_D)
    in_D = at_D < D
    at_D_D = at_D[:, None] * D + at_D[None, :]
    in_D_D = in_D[:, None] & in_D[None, :]
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
    if W_initial is not None:
        W = tl.load(W_initial + sequence * W_batch + head * W_head + at_D_D, mask=in_D_D, other=0.0).to(tl.float32)
    else:
        W = tl.full((BLOCK_D, BLOCK_D), 0.0, tl.float32)
    if y_initial is not None:
        y = tl.load(y_initial + sequence * y_batch + head * y_head + at_D, mask=in_D, other=0.0).to(tl.float32)
    else:
        y = tl.full((BLOCK_D,), 0.0, tl.float32)
    q_at = q_row + token * q_token
    q = tl.load(q_at + at_D, mask=in_D, other=0.0).to(tl.float32)
    k_at = k_row + token * k_token
    k = tl.load(k_at + at_D, mask=in_D, other=0.0).to(tl.float32)
    v_at = v_row + token * v_token
    v = tl.load(v_at + at_D, mask=in_D, other=0.0).to(tl.float32)
    beta_at = beta_row + token * beta_token
    beta = tl.load(beta_at).to(tl.float32)
    h = tanh(y)
    Rk = tl.load(Rk_row + at_D_D, mask=in_D_D, other=0.0).to(tl.float32)
    p = tl.sum(Rk * h[None, :], axis=1)
    u = k + p
    m = tl.reduce(tl.where(in_D, u, float("-inf")), axis=0, combine_fn=maximum)
    e = tl.where(in_D, tl.exp(u - m), 0.0)
    s = tl.sum(e, axis=0)
    kf = e / s
    Rq = tl.load(Rq_row + at_D_D, mask=in_D_D, other=0.0).to(tl.float32)
    p_1 = tl.sum(Rq * h[None, :], axis=1)
    u_1 = q + p_1
    m_1 = tl.reduce(tl.where(in_D, u_1, float("-inf")), axis=0, combine_fn=maximum)
    e_1 = tl.where(in_D, tl.exp(u_1 - m_1), 0.0)
    s_1 = tl.sum(e_1, axis=0)
    qf = e_1 / s_1
    s_2 = tl.sum(rb * h, axis=0)
    Rv = tl.load(Rv_row + at_D_D, mask=in_D_D, other=0.0).to(tl.float32)
    p_2 = tl.sum(Rv * h[None, :], axis=1)
    p_3 = tl.sum(W * kf[None, :], axis=1)
    c = sigmoid(beta + s_2)
    u_2 = c * (v + p_2 - p_3)
    W_1 = W + u_2[:, None] * kf[None, :]
    y_1 = tl.sum(W_1 * qf[None, :], axis=1)
    out = y_1
    tl.store(y_ptr + (sequence * H + head) * D + at_D, out, mask=in_D)
    if W_final is not None:
        tl.store(W_final + (sequence * H + head) * (D * D) + at_D_D, W_1, mask=in_D_D)
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
    d_W_final,
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
    d_W_initial,
    d_y_initial,
    cu_seqlens,
    T,
    interval,
    H,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Chunks from last to first: replay from the checkpoint, then the adjoint token by token."""
    program = tl.program_id(0).to(tl.int64)
    head = program % H
    sequence = program // H
    at_D = tl.arange(0, BLOCK_D)
    in_D = at_D < D
    at_D_D = at_D[:, None] * D + at_D[None, :]
    in_D_D = in_D[:, None] & in_D[None, :]
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
    if d_W_final is not None:
        d_W_next = tl.load(d_W_final + (sequence * H + head) * (D * D) + at_D_D, mask=in_D_D, other=0.0).to(tl.float32)
    else:
        d_W_next = tl.full((BLOCK_D, BLOCK_D), 0.0, tl.float32)
    if d_y_final is not None:
        d_y_next = tl.load(d_y_final + (sequence * H + head) * D + at_D, mask=in_D, other=0.0).to(tl.float32)
    else:
        d_y_next = tl.full((BLOCK_D,), 0.0, tl.float32)
    if d_Rq_ptr is not None:
        total_Rq = d_Rq_ptr + (sequence * H + head) * (D * D)
        tl.store(total_Rq + at_D_D, tl.full((BLOCK_D, BLOCK_D), 0.0, tl.float32), mask=in_D_D)
    if d_Rk_ptr is not None:
        total_Rk = d_Rk_ptr + (sequence * H + head) * (D * D)
        tl.store(total_Rk + at_D_D, tl.full((BLOCK_D, BLOCK_D), 0.0, tl.float32), mask=in_D_D)
    if d_Rv_ptr is not None:
        total_Rv = d_Rv_ptr + (sequence * H + head) * (D * D)
        tl.store(total_Rv + at_D_D, tl.full((BLOCK_D, BLOCK_D), 0.0, tl.float32), mask=in_D_D)
    total_rb = tl.full((BLOCK_D,), 0.0, tl.float32)
    chunks = (length + interval - 1) // interval
    for chunk in range(0, chunks):
        first = (chunks - 1 - chunk) * interval
        count = tl.minimum(length - first, interval)
        slot = (batch * T + start) // interval + sequence + first // interval
        saved_row = saved_ptr + (slot * H + head) * (D * D + D)
        W = tl.load(saved_row + at_D_D, mask=in_D_D, other=0.0).to(tl.float32)
        y = tl.load(saved_row + D * D + at_D, mask=in_D, other=0.0).to(tl.float32)
        # Barriers part what one thread writes from what another reads; do not remove them.
        tl.debug_barrier()
        for step in range(0, count):
            token = start + first + step
            tl.store(W_replay + (program * interval + step) * (D * D) + at_D_D, W, mask=in_D_D)
            tl.store(y_replay + (program * interval + step) * D + at_D, y, mask=in_D)
            q_at = q_row + token * q_token
            q = tl.load(q_at + at_D, mask=in_D, other=0.0).to(tl.float32)
            k_at = k_row + token * k_token
            k = tl.load(k_at + at_D, mask=in_D, other=0.0).to(tl.float32)
            v_at = v_row + token * v_token
            v = tl.load(v_at + at_D, mask=in_D, other=0.0).to(tl.float32)
            beta_at = beta_row + token * beta_token
            beta = tl.load(beta_at).to(tl.float32)
            h = tanh(y)
            Rk = tl.load(Rk_row + at_D_D, mask=in_D_D, other=0.0).to(tl.float32)
            p = tl.sum(Rk * h[None, :], axis=1)
            u = k + p
            m = tl.reduce(tl.where(in_D, u, float("-inf")), axis=0, combine_fn=maximum)
            e = tl.where(in_D, tl.exp(u - m), 0.0)
            s = tl.sum(e, axis=0)
            kf = e / s
            Rq = tl.load(Rq_row + at_D_D, mask=in_D_D, other=0.0).to(tl.float32)
            p_1 = tl.sum(Rq * h[None, :], axis=1)
            u_1 = q + p_1
            m_1 = tl.reduce(tl.where(in_D, u_1, float("-inf")), axis=0, combine_fn=maximum)
            e_1 = tl.where(in_D, tl.exp(u_1 - m_1), 0.0)
            s_1 = tl.sum(e_1, axis=0)
            qf = e_1 / s_1
            s_2 = tl.sum(rb * h, axis=0)
            Rv = tl.load(Rv_row + at_D_D, mask=in_D_D, other=0.0).to(tl.float32)
            p_2 = tl.sum(Rv * h[None, :], axis=1)
            p_3 = tl.sum(W * kf[None, :], axis=1)
            c = sigmoid(beta + s_2)
            u_2 = c * (v + p_2 - p_3)
            W_1 = W + u_2[:, None] * kf[None, :]
            y_1 = tl.sum(W_1 * qf[None, :], axis=1)
            W = W_1
            y = y_1
        tl.debug_barrier()
        for step in range(0, count):
            row = count - 1 - step
            token = start + first + row
            row_at = (batch * T + token) * H + head
            W = tl.load(W_replay + (program * interval + row) * (D * D) + at_D_D, mask=in_D_D, other=0.0).to(tl.float32)
            y = tl.load(y_replay + (program * interval + row) * D + at_D, mask=in_D, other=0.0).to(tl.float32)
            q_at = q_row + token * q_token
            q = tl.load(q_at + at_D, mask=in_D, other=0.0).to(tl.float32)
            k_at = k_row + token * k_token
            k = tl.load(k_at + at_D, mask=in_D, other=0.0).to(tl.float32)
            v_at = v_row + token * v_token
            v = tl.load(v_at + at_D, mask=in_D, other=0.0).to(tl.float32)
            beta_at = beta_row + token * beta_token
            beta = tl.load(beta_at).to(tl.float32)
            if d_y_ptr is not None:
                d_out = tl.load(d_y_ptr + row_at * D + at_D, mask=in_D, other=0.0).to(tl.float32)
            else:
                d_out = tl.full((BLOCK_D,), 0.0, tl.float32)
            d_W_1 = d_W_next
            d_y_1 = d_y_next
            h = tanh(y)
            Rk = tl.load(Rk_row + at_D_D, mask=in_D_D, other=0.0).to(tl.float32)
            p = tl.sum(Rk * h[None, :], axis=1)
            u = k + p
            m = tl.reduce(tl.where(in_D, u, float("-inf")), axis=0, combine_fn=maximum)
            e = tl.where(in_D, tl.exp(u - m), 0.0)
            s = tl.sum(e, axis=0)
            kf = e / s
            Rq = tl.load(Rq_row + at_D_D, mask=in_D_D, other=0.0).to(tl.float32)
            p_1 = tl.sum(Rq * h[None, :], axis=1)
            u_1 = q + p_1
            m_1 = tl.reduce(tl.where(in_D, u_1, float("-inf")), axis=0, combine_fn=maximum)
            e_1 = tl.where(in_D, tl.exp(u_1 - m_1), 0.0)
            s_1 = tl.sum(e_1, axis=0)
            qf = e_1 / s_1
            s_2 = tl.sum(rb * h, axis=0)
            Rv = tl.load(Rv_row + at_D_D, mask=in_D_D, other=0.0).to(tl.float32)
            p_2 = tl.sum(Rv * h[None, :], axis=1)
            p_3 = tl.sum(W * kf[None, :], axis=1)
            c = sigmoid(beta + s_2)
            u_2 = c * (v + p_2 - p_3)
            W_1 = W + u_2[:, None] * kf[None, :]
            d_y_1 += d_out
            d_W_1 += d_y_1[:, None] * qf[None, :]
            d_qf = tl.sum(d_y_1[:, None] * W_1, axis=0)
            d_W = d_W_1
            d_u_2 = tl.sum(d_W_1 * kf[None, :], axis=1)
            d_kf = tl.sum(d_W_1 * u_2[:, None], axis=0)
            d_c = tl.sum(d_u_2 * (v + p_2 - p_3), axis=0)
            d_v = d_u_2 * c
            if d_v_ptr is not None:
                tl.store(d_v_ptr + row_at * D + at_D, d_v, mask=in_D)
            d_p_2 = d_u_2 * c
            d_p_3 = -(d_u_2 * c)
            d_beta = d_c * c * (1.0 - c)
            if d_beta_ptr is not None:
                tl.store(d_beta_ptr + row_at * 1, d_beta)
            d_s_2 = d_c * c * (1.0 - c)
            d_W += d_p_3[:, None] * kf[None, :]
            d_kf += tl.sum(d_p_3[:, None] * W, axis=0)
            d_Rv = d_p_2[:, None] * h[None, :]
            if d_Rv_ptr is not None:
                tl.debug_barrier()
                tl.store(total_Rv + at_D_D, tl.load(total_Rv + at_D_D, mask=in_D_D, other=0.0).to(tl.float32) + d_Rv, mask=in_D_D)
            Rv = tl.load(Rv_row + at_D_D, mask=in_D_D, other=0.0).to(tl.float32)
            d_h = tl.sum(d_p_2[:, None] * Rv, axis=0)
            d_rb = d_s_2 * h
            if d_rb_ptr is not None:
                total_rb += d_rb
            d_h += d_s_2 * rb
            d_e_1 = d_qf / s_1
            a = tl.sum(d_qf * qf, axis=0)
            d_s_1 = -(a / s_1)
            d_e_1 += tl.where(in_D, d_s_1, 0.0)
            d_u_1 = d_e_1 * e_1
            d_q = d_u_1
            if d_q_ptr is not None:
                tl.store(d_q_ptr + row_at * D + at_D, d_q, mask=in_D)
            d_p_1 = d_u_1
            d_Rq = d_p_1[:, None] * h[None, :]
            if d_Rq_ptr is not None:
                tl.debug_barrier()
                tl.store(total_Rq + at_D_D, tl.load(total_Rq + at_D_D, mask=in_D_D, other=0.0).to(tl.float32) + d_Rq, mask=in_D_D)
            Rq = tl.load(Rq_row + at_D_D, mask=in_D_D, other=0.0).to(tl.float32)
            d_h += tl.sum(d_p_1[:, None] * Rq, axis=0)
            d_e = d_kf / s
            a_1 = tl.sum(d_kf * kf, axis=0)
            d_s = -(a_1 / s)
            d_e += tl.where(in_D, d_s, 0.0)
            d_u = d_e * e
            d_k = d_u
            if d_k_ptr is not None:
                tl.store(d_k_ptr + row_at * D + at_D, d_k, mask=in_D)
            d_p = d_u
            d_Rk = d_p[:, None] * h[None, :]
            if d_Rk_ptr is not None:
                tl.debug_barrier()
                tl.store(total_Rk + at_D_D, tl.load(total_Rk + at_D_D, mask=in_D_D, other=0.0).to(tl.float32) + d_Rk, mask=in_D_D)
            Rk = tl.load(Rk_row + at_D_D, mask=in_D_D, other=0.0).to(tl.float32)
            d_h += tl.sum(d_p[:, None] * Rk, axis=0)
            d_y = d_h * (1.0 - square(h))
            d_W_next = d_W
            d_y_next = d_y
    if d_rb_ptr is not None:
        tl.store(d_rb_ptr + (sequence * H + head) * D + at_D, total_rb, mask=in_D)
    if d_W_initial is not None:
        tl.store(d_W_initial + (sequence * H + head) * (D * D) + at_D_D, d_W_next, mask=in_D_D)
    if d_y_initial is not None:
        tl.store(d_y_initial + (sequence * H + head) * D + at_D, d_y_next, mask=in_D)


# The cost model: numbers of a block at first, and numbers that a program may hold at once.
ROOM = {"forward": 2048, "backward": 1024}
MOST = {"forward": 33600, "backward": 24576}


class Plan(NamedTuple):
    """Lengths of blocks, tiles that split the parallel axis, warps, and numbers held at once."""

    BLOCK_D: int
    tiles: int
    warps: int
    largest: int
    held: int


def plan(D, direction, room=None):
    """Blocks of about `room` numbers, smaller ones where a program would hold too many."""
    room = room or ROOM[direction]
    BLOCK_D = triton.next_power_of_2(D)
    largest = max(BLOCK_D, BLOCK_D * BLOCK_D, 1)
    if direction == "forward":
        held = 2 * BLOCK_D * BLOCK_D + 7 * BLOCK_D
        warps = min(16, largest // 512)
    else:
        held = 3 * BLOCK_D * BLOCK_D + 14 * BLOCK_D
        warps = min(8, max(largest // 512, triton.next_power_of_2(triton.cdiv(held, 3584))))
    if held > MOST[direction] and room > 256:
        return plan(D, direction, room // 2)
    return Plan(
        BLOCK_D,
        1,
        max(1, warps),
        largest,
        held,
    )


def refusal(sizes, direction):
    """Why the kernels of a direction, forward or backward, do not serve these sizes; "" if they do."""
    D = sizes["D"]
    found = plan(D, direction)
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
    if want_final:
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
    if stepping:
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
            D=D,
            BLOCK_D=blocks.BLOCK_D,
            **options(blocks.warps),
        )
        return y, finals if want_final else [], []
    recurrent_forward[(N * H * blocks.tiles,)](
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
        saved,
        cu_seqlens,
        T,
        shift(T),
        H,
        D=D,
        BLOCK_D=blocks.BLOCK_D,
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
    D = sizes["D"]
    blocks = plan(D, "backward")
    (saved,) = saved
    grad_y = None if grad_y is None else grad_y.contiguous()
    grad_finals = [None if g is None else g.float().contiguous() for g in grad_finals]

    def fresh(*shape):
        return torch.empty(shape, dtype=torch.float32, device=like.device)

    replay = [
        fresh(N * H * blocks.tiles, interval(T), (D * D)),
        fresh(N * H * blocks.tiles, interval(T), D),
    ]
    parts = [
        fresh(B, T, H, D) if wanted[0] else None,
        fresh(B, T, H, D) if wanted[1] else None,
        fresh(B, T, H, D) if wanted[2] else None,
        fresh(B, T, H) if wanted[3] else None,
        fresh(N, H, D, D) if wanted[4] else None,
        fresh(N, H, D, D) if wanted[5] else None,
        fresh(N, H, D, D) if wanted[6] else None,
        fresh(N, H, D) if wanted[7] else None,
        fresh(N, H, D, D) if wanted[8] else None,
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
            grad_finals[0],
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
            parts[8],
            parts[9],
            cu_seqlens,
            T,
            interval(T),
            H,
            D=D,
            BLOCK_D=blocks.BLOCK_D,
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
