// The call: its arguments, its work space, and copies between tensors and rows or matrices.

#define FW_INLINE_MEMBER inline __attribute__((always_inline))

namespace fw {

FW_INLINE vec wide(vec x) { return x; }
FW_INLINE vec wide(real x) { return splat(x); }

// Vectors from one column of a laned matrix to the next: not a multiple of 4 KB, at which loads would
// wait for stores to other columns.
FW_INLINE constexpr size column(size rows) { return rows + 8; }

// Element (lane, row) of a laned matrix.
FW_INLINE size laned(size lane, size row, size rows) {
    return ((lane / L) * column(rows) + row) * L + lane % L;
}

template <int N> struct constant { static constexpr int value = N; };

// Cover the vectors of n lanes by blocks of NV, then of fewer vectors.
template <int NV, class F> FW_INLINE void blocks(size n, F body) {
    const size count = (n + L - 1) / L;
    size i0 = 0;
    for (; i0 + NV <= count; i0 += NV) body(constant<NV>(), i0);
    if constexpr (NV > 2)
        for (; i0 + 2 <= count; i0 += 2) body(constant<2>(), i0);
    if constexpr (NV > 1)
        for (; i0 < count; ++i0) body(constant<1>(), i0);
}

// One block in parts of W vectors.
template <int NV, int W, class F> FW_INLINE void parts(size i0, F body) {
    constexpr int N = NV < W ? NV : W;
    for (size i = i0; i < i0 + NV; i += N) body(constant<N>(), i);
}

// A tensor of the call: address (0: absent) and strides in elements.
struct Tensor {
    real *data;
    size batch, token, head, group;
};

struct Call {
    size sequences, heads, tokens, longest;
    const long *bounds, *positions;
    const long *dims;
    const long *tensors;
    Tensor tensor(size k) const {
        const long *a = tensors + 5 * k;
        return {(real *)a[0], a[1], a[2], a[3], a[4]};
    }
    size start(size n) const { return bounds ? bounds[n] : 0; }
    size length(size n) const { return bounds ? bounds[n + 1] - bounds[n] : tokens; }
    size position(size n) const { return positions ? positions[n] : 0; }
    size flat_start(size n) const { return bounds ? bounds[n] : n * tokens; }
    // The first token of a sequence in a token tensor.
    real *at(const Tensor &x, size n, size h) const {
        return x.data + (bounds ? bounds[n] * x.token : n * x.batch) + h / x.group * x.head;
    }
};

// Without a name outside this library: a function's static is otherwise one object for all loaded
// libraries (GNU unique symbols), and blocks counted in floats would serve doubles.
namespace {
// One block of memory per thread, kept from call to call; every piece starts aligned. What is taken
// before `plain` is zero at the first task of a call.
struct Space {
    static constexpr size ALIGNED = 64 / sizeof(real);
    size used = 0, cleared = 0;
    bool fresh = true;
    real *data = nullptr;
    size take(size count) {
        const size at = used;
        used += (count + L + ALIGNED - 1) / ALIGNED * ALIGNED;
        return at;
    }
    void plain() { cleared = used; }
    bool allocate() {
        struct Kept {
            real *data = nullptr;
            size count = 0;
            ~Kept() { free(data); }
        };
        static thread_local Kept kept;
        if (kept.count < used) {
            free(kept.data);
            kept.count = 0;
            kept.data = (real *)aligned_alloc(64, sizeof(real) * (unsigned long)used);
            if (!kept.data) return false;
            kept.count = used;
        }
        data = kept.data;
        if (fresh) zero(data, cleared);
        fresh = false;
        return true;
    }
};
}  // namespace

// rows x n elements, dense in a tensor, padded in a row.
FW_INLINE void row_in(real *to, const real *from, size rows, size n) {
    for (size r = 0; r < rows; ++r, to += padded(n), from += n) {
        size e = 0;
        for (; e + L <= n; e += L) store(to + e, load(from + e));
        for (; e < n; ++e) to[e] = from[e];
        for (; e < padded(n); ++e) to[e] = 0;
    }
}
FW_INLINE void row_out(real *to, const real *from, size rows, size n) {
    for (size r = 0; r < rows; ++r, to += n, from += padded(n))
        for (size e = 0; e < n; e += L) store(to, e, n, load(from + e));
}
// All that an n0 x n1 matrix takes, padding included: what another sequence or head has left there,
// such as NaN, must not meet this one's numbers.
static inline void clear(real *to, size n0, size n1, int axis) {
    if (axis == -1) return zero(to, n0 * padded(n1));
    zero(to, axis == 0 ? padded(n0) * column(n1) : padded(n1) * column(n0));
}
// A dense n0 x n1 matrix, in or out of laned form; the lanes run along `axis`.
static inline void matrix_in(real *to, const real *from, size n0, size n1, int axis) {
    clear(to, n0, n1, axis);
    for (size i = 0; i < n0; ++i)
        for (size j = 0; j < n1; ++j)
            to[axis == 0 ? laned(i, j, n1) : laned(j, i, n0)] = from[i * n1 + j];
}
static inline void matrix_out(real *to, const real *from, size n0, size n1, int axis) {
    for (size i = 0; i < n0; ++i)
        for (size j = 0; j < n1; ++j)
            to[i * n1 + j] = from[axis == 0 ? laned(i, j, n1) : laned(j, i, n0)];
}

static inline void fill_in(real *to, real x, size n0, size n1, int axis) {
    if (axis == -2) {
        to[0] = x;
        return;
    }
    clear(to, n0, n1, axis);
    if (x == 0) return;
    for (size i = 0; i < n0; ++i)
        for (size j = 0; j < n1; ++j)
            to[axis == -1 ? i * padded(n1) + j : axis == 0 ? laned(i, j, n1) : laned(j, i, n0)] = x;
}

// Once per sequence and head; axis -1 is row form, -2 a scalar.
static inline void copy_in(real *to, const Tensor &x, size n, size h, size n0, size n1, int axis) {
    if (!x.data) return;
    const real *from = x.data + n * x.batch + h / x.group * x.head;
    if (axis == -2) to[0] = from[0];
    else if (axis == -1) row_in(to, from, n0, n1);
    else matrix_in(to, from, n0, n1, axis);
}
static inline void copy_out(const Tensor &x, size n, size h, const real *from, size n0, size n1, int axis) {
    if (!x.data) return;
    real *to = x.data + n * x.batch + h / x.group * x.head;
    if (axis == -2) to[0] = from[0];
    else if (axis == -1) row_out(to, from, n0, n1);
    else matrix_out(to, from, n0, n1, axis);
}

// The rows of a chunk: in the work space, or in the tensor itself where a row has no padding.
struct Rows {
    real *data;
    size step;
};
FW_INLINE Rows tokens_at(real *rows, const Call &call, size k, size n, size h, size c0, size extent,
                         size n0, size n1) {
    const Tensor x = call.tensor(k);
    if (n0 * n1 != extent || !x.data) return {rows, extent};
    return {call.at(x, n, h) + c0 * x.token, x.token};
}

// Once per token of a chunk that starts at token c0.
FW_INLINE void tokens_in(real *to, const Call &call, size k, size n, size h, size c0, size tc,
                         size extent, size n0, size n1, bool scalar) {
    const Tensor x = call.tensor(k);
    if (!x.data) return zero(to, tc * extent);
    const real *from = call.at(x, n, h) + c0 * x.token;
    for (size t = 0; t < tc; ++t, from += x.token) {
        if (scalar) to[t] = from[0];
        else row_in(to + t * extent, from, n0, n1);
    }
}
FW_INLINE Rows rows_in(real *to, const Call &call, size k, size n, size h, size c0, size tc,
                       size extent, size n0, size n1) {
    const Rows rows = tokens_at(to, call, k, n, h, c0, extent, n0, n1);
    if (rows.data == to) tokens_in(to, call, k, n, h, c0, tc, extent, n0, n1, false);
    return rows;
}

// The tokens that the next chunk loads (WRITE 0) and this chunk stores (1), asked for one by one while
// the chunk computes: the strides of a model's tensors take every token from another place, which
// hardware does not foresee. Asking for an address that is none costs a walk through the page tables
// each time, so without a tensor or a next chunk it is `idle` memory that is asked for. What a scan
// stores is asked for `shift` tokens before its turn, SOON or -SOON.
constexpr size SOON = 8;
template <int WRITE> struct Ahead {
    const real *from;
    size step, count;
    Ahead(const Call &call, size k, size n, size h, size c0, size shift, size reals,
          const real *idle)
        : count(reals) {
        const Tensor x = call.tensor(k);
        const bool some = x.data && c0 >= 0 && c0 < call.length(n);
        from = some ? call.at(x, n, h) + (c0 + shift) * x.token : idle;
        step = some ? x.token : 0;
    }
    FW_INLINE_MEMBER void ask(size t) const {
        constexpr size LINE = 64 / sizeof(real);
        for (size e = 0; e < count; e += LINE) __builtin_prefetch(from + t * step + e, WRITE);
    }
};

FW_INLINE void tokens_out(const Call &call, size k, const real *from, size n, size h, size c0,
                          size tc, size extent, size n0, size n1, bool scalar) {
    const Tensor x = call.tensor(k);
    if (!x.data) return;
    real *to = call.at(x, n, h) + c0 * x.token;
    for (size t = 0; t < tc; ++t, to += x.token) {
        if (scalar) to[0] = from[t];
        else row_out(to, from + t * extent, n0, n1);
    }
}

// A piece of a checkpoint tensor [slots, H, elements].
FW_INLINE real *checkpoint(const Call &call, size k, size n, size h, size chunk, size tokens) {
    const Tensor x = call.tensor(k);
    if (!x.data) return nullptr;
    const size slot = call.flat_start(n) / tokens + n + chunk;
    return x.data + slot * x.batch + h * x.head;
}

// Run a task for every sequence and head; 1 where memory ran out.
template <class Head> static long for_each_head(const long *args, size dims, Head head) {
    Call call = {args[0], args[1], args[2], 0, (const long *)args[3], (const long *)args[4],
                 args + 5, args + 5 + dims};
    for (size n = 0; n < call.sequences; ++n)
        if (call.length(n) > call.longest) call.longest = call.length(n);
    long failed = 0;
    const size tasks = call.sequences * call.heads;
#pragma omp parallel reduction(| : failed) if (tasks > 1)
    {
        Space space;
#pragma omp for schedule(dynamic, 1)
        for (size task = 0; task < tasks; ++task) {
            space.used = 0;
            failed |= !head(call, space, task / call.heads, task % call.heads);
        }
    }
    return failed;
}

}  // namespace fw
