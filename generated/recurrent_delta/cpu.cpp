// The rule recurrent_delta, hash aabc7ad9bd999bc22a233de4839c836ae12251dc2a1c9fbb9b184dd40fd54f4c.
// Made by `fwgen compile recurrent_delta`; compile again, do not edit.
//
//   h[i] = tanh(y[i])
//   p[i] = sum_j Rk[i, j] * h[j]
//   u[i] = k[i] + p[i]
//   m = max_i u[i]
//   e[i] = exp(u[i] - stop_gradient(m))
//   s = sum_i e[i]
//   kf[i] = e[i] / s
//   p_1[i] = sum_j Rq[i, j] * h[j]
//   u_1[i] = q[i] + p_1[i]
//   m_1 = max_i u_1[i]
//   e_1[i] = exp(u_1[i] - stop_gradient(m_1))
//   s_1 = sum_i e_1[i]
//   qf[i] = e_1[i] / s_1
//   s_2 = sum_i rb[i] * h[i]
//   p_2[i] = sum_j Rv[i, j] * h[j]
//   p_3[i] = sum_j W[i, j] * kf[j]
//   a = sigmoid(beta + s_2)
//   u_W[i] = a * (v[i] + p_2[i] - p_3[i])
//   W_1[i, j] = W[i, j] + u_W[i] * kf[j]
//   r_y_1[i] = sum_j W[i, j] * qf[j]
//   s_y_1 = sum_j qf[j] * kf[j]
//   y_1[i] = r_y_1[i] + u_W[i] * s_y_1
//   out[i] = y_1[i]
//
// A call handles N sequences of H heads, in tasks of one head. A task walks its sequence in chunks of
// TC tokens; per chunk, statements that do not wait for the recurrence run for all tokens first.
// fwgen_forward: 1 sweep over the sequence.
// fwgen_backward: 1 sweep over the sequence.

// Vectors of `real` without headers: loads, sums over lanes, and elementary functions.
//
//   real   float or double (FWGEN_REAL)
//   L      lanes of a vector
//   vec    L reals; mask: what comparing two of them gives

using real = FWGEN_REAL;
using size = long;

extern "C" void *aligned_alloc(unsigned long alignment, unsigned long bytes) noexcept;
extern "C" void free(void *pointer) noexcept;

#define FW_INLINE static inline __attribute__((always_inline))
#define FW_UNROLL _Pragma("GCC unroll 16")

namespace fw {

#if defined(FWGEN_VECTOR_BYTES)
constexpr int BYTES = FWGEN_VECTOR_BYTES;
#elif defined(__AVX512F__)
constexpr int BYTES = 64;
#elif defined(__AVX2__)
constexpr int BYTES = 32;
#else
constexpr int BYTES = 16;
#endif
constexpr int L = BYTES / int(sizeof(real));

template <class T> struct integer_of;
template <> struct integer_of<float> { using type = int; };
template <> struct integer_of<double> { using type = long; };
using integer = integer_of<real>::type;

typedef real vec __attribute__((vector_size(BYTES)));
typedef integer mask __attribute__((vector_size(BYTES)));
typedef real unaligned __attribute__((vector_size(BYTES), aligned(sizeof(real)), may_alias));

// Memory. Rows of narrow values are padded to whole vectors, and the padding is zero.

FW_INLINE constexpr size padded(size n) { return (n + L - 1) / L * L; }
FW_INLINE vec splat(real x) { return x - vec{}; }
FW_INLINE vec load(const real *p) { return *(const unaligned *)p; }
FW_INLINE void store(real *p, vec x) { *(unaligned *)p = x; }

FW_INLINE vec lanes() {
    vec v = {};
    for (int i = 0; i < L; ++i) v[i] = real(i);
    return v;
}

// Zero beyond element n of a row, for the vector that starts at element i.
FW_INLINE vec tail(size i, size n, vec x) {
    if (i + L <= n) return x;
    return lanes() < splat(real(n - i)) ? x : vec{};
}
FW_INLINE vec tail(size i, size n, real x) { return tail(i, n, splat(x)); }
FW_INLINE vec tail(size i, size n, vec x, real beyond) {
    if (i + L <= n) return x;
    return lanes() < splat(real(n - i)) ? x : splat(beyond);
}

// Store only the elements before n.
FW_INLINE void store(real *p, size i, size n, vec x) {
    if (i + L <= n) return store(p + i, x);
    for (int l = 0; i + l < n; ++l) p[i + l] = x[l];
}

FW_INLINE void zero(real *p, size n) { __builtin_memset(p, 0, sizeof(real) * (unsigned long)n); }
FW_INLINE void fill(real *p, size n, real x) {
    for (size i = 0; i < n; ++i) p[i] = x;
}

// Sums over lanes.

template <int...> struct series {};
template <int N, int... I> struct count : count<N - 1, N - 1, I...> {};
template <int... I> struct count<0, I...> { using type = series<I...>; };

template <int S, int... I> FW_INLINE vec swapped(vec x, series<I...>) {
    return __builtin_shufflevector(x, x, (I ^ S)...);
}
template <int S = L / 2> FW_INLINE real sum(vec x) {
    if constexpr (S == 0) return x[0];
    else return sum<S / 2>(x + swapped<S>(x, count<L>::type()));
}

// Neighbours added: of `a` into the first half of each group of G units of U lanes, of `b` into the
// second. Within 16 bytes, and between groups of 16 bytes, processors shuffle two vectors at once.
constexpr int QUAD = 16 / int(sizeof(real));

template <int U, int G> constexpr int neighbour(int i, int odd) {
    const int unit = i / U % G, half = G / 2;
    return (unit < half ? 0 : L) + i / (U * G) * (U * G) + (unit % half * 2 + odd) * U + i % U;
}
template <int U, int G, int... I> FW_INLINE vec neighbours(vec a, vec b, series<I...>) {
    return __builtin_shufflevector(a, b, neighbour<U, G>(I, 0)...) +
           __builtin_shufflevector(a, b, neighbour<U, G>(I, 1)...);
}

// The sums over lanes of L vectors, as one vector.
template <int N = L> FW_INLINE vec sums(const vec *rows) {
    if constexpr (N == 1) return rows[0];
    else {
        const vec a = sums<N / 2>(rows), b = sums<N / 2>(rows + N / 2);
        if constexpr (N <= QUAD) return neighbours<1, QUAD>(a, b, typename count<L>::type());
        else return neighbours<QUAD, L / QUAD>(a, b, typename count<L>::type());
    }
}

FW_INLINE real largest(vec x) {
    real m = x[0];
    for (int i = 1; i < L; ++i) m = x[i] > m || x[i] != x[i] ? x[i] : m;
    return m;
}
FW_INLINE real smallest(vec x) { return -largest(-x); }

// Conditions. A condition is a mask, or a bool where it is the same for all lanes.

FW_INLINE mask spread(bool c) { return mask{} - (c ? 1 : 0); }
FW_INLINE mask both(mask a, mask b) { return a & b; }
FW_INLINE mask both(bool a, mask b) { return spread(a) & b; }
FW_INLINE mask both(mask a, bool b) { return a & spread(b); }
FW_INLINE bool both(bool a, bool b) { return a && b; }
FW_INLINE mask either(mask a, mask b) { return a | b; }
FW_INLINE mask either(bool a, mask b) { return spread(a) | b; }
FW_INLINE mask either(mask a, bool b) { return a | spread(b); }
FW_INLINE bool either(bool a, bool b) { return a || b; }
FW_INLINE mask opposite(mask a) { return ~a; }
FW_INLINE bool opposite(bool a) { return !a; }

FW_INLINE vec select(mask c, vec a, vec b) { return c ? a : b; }
FW_INLINE vec select(mask c, real a, vec b) { return c ? splat(a) : b; }
FW_INLINE vec select(mask c, vec a, real b) { return c ? a : splat(b); }
FW_INLINE vec select(mask c, real a, real b) { return c ? splat(a) : splat(b); }
FW_INLINE vec select(bool c, vec a, vec b) { return c ? a : b; }
FW_INLINE vec select(bool c, real a, vec b) { return c ? splat(a) : b; }
FW_INLINE vec select(bool c, vec a, real b) { return c ? a : splat(b); }
FW_INLINE real select(bool c, real a, real b) { return c ? a : b; }
FW_INLINE size select(bool c, size a, size b) { return c ? a : b; }
FW_INLINE size modulo(size a, size n) { return ((a % n) + n) % n; }

// Elementary functions of vectors. double goes through the C library, lane by lane; float through
// polynomials with an error of about one unit in the last place.

template <class F> FW_INLINE vec each(F f, vec x) {
    for (int i = 0; i < L; ++i) x[i] = f(x[i]);
    return x;
}
#define FW_BUILTIN(name)                                                                           \
    FW_INLINE vec library_##name(vec x) {                                                          \
        return each([](real u) { return real(sizeof(real) == 4 ? __builtin_##name##f(float(u))     \
                                                              : __builtin_##name(double(u))); },   \
                    x);                                                                            \
    }
FW_BUILTIN(exp) FW_BUILTIN(log) FW_BUILTIN(log1p) FW_BUILTIN(expm1) FW_BUILTIN(sqrt)
FW_BUILTIN(sin) FW_BUILTIN(cos) FW_BUILTIN(tanh) FW_BUILTIN(erf)

FW_INLINE vec abs(vec x) { return x < 0 ? -x : x; }
FW_INLINE vec maximum(vec a, vec b) { return (a > b) | (a != a) ? a : b; }
FW_INLINE vec minimum(vec a, vec b) { return (a < b) | (a != a) ? a : b; }
FW_INLINE vec clamp(vec x, vec low, vec high) { return minimum(maximum(x, low), high); }
FW_INLINE vec sign(vec x) { return x > 0 ? splat(1) : (x < 0 ? splat(-1) : vec{}); }
FW_INLINE vec square(vec x) { return x * x; }
FW_INLINE vec sqrt(vec x) { return library_sqrt(x); }
FW_INLINE vec rsqrt(vec x) { return real(1) / sqrt(x); }
FW_INLINE vec sin(vec x) { return library_sin(x); }
FW_INLINE vec cos(vec x) { return library_cos(x); }
FW_INLINE vec erf(vec x) { return library_erf(x); }

// 2^n for integral n in [-126, 127].
FW_INLINE vec power_of_two(mask n) {
    mask bits = (n + 127) << 23;
    return (vec)bits;
}

// x = n ln(2) + r with |r| <= ln(2)/2; gives exp(r) - 1 and n, for x clamped to [-104, 89].
FW_INLINE vec reduced_expm1(vec x, mask &n) {
    const real shift = real(12582912);
    vec low = x > real(-104) ? x : splat(-104);
    vec u = low < real(89) ? low : splat(89);
    vec whole = (u * real(1.44269504088896341) + shift) - shift;
    vec r = u - whole * real(0.693359375);
    r = r + whole * real(2.12194440054690583e-4);
    vec p = splat(real(1.9875691500e-4));
    p = p * r + real(1.3981999507e-3);
    p = p * r + real(8.3334519073e-3);
    p = p * r + real(4.1665795894e-2);
    p = p * r + real(1.6666665459e-1);
    p = p * r + real(5.0000001201e-1);
    n = __builtin_convertvector(whole, mask);
    return p * (r * r) + r;
}

FW_INLINE vec exp(vec x) {
    if constexpr (sizeof(real) == 8) return library_exp(x);
    mask n;
    vec y = reduced_expm1(x, n) + real(1);
    mask half = n >> 1;  // 2^n in two factors, so that it may be subnormal
    y = y * power_of_two(half) * power_of_two(n - half);
    return x == x ? y : x;
}

FW_INLINE vec log(vec x) {
    if constexpr (sizeof(real) == 8) return library_log(x);
    // x = 2^e m, m in [sqrt(1/2), sqrt(2)); subnormal x are scaled first.
    mask tiny = x < real(1.17549435e-38);
    vec scaled = tiny ? x * real(8388608) : x;
    mask bits = (mask)scaled;
    mask e = ((bits >> 23) & 255) - 126;
    vec m = (vec)((bits & 0x007fffff) | 0x3f000000);
    mask small = m < real(0.707106781186547524);
    e = e + small;
    m = small ? m + m - real(1) : m - real(1);
    vec k = __builtin_convertvector(e, vec);
    k = tiny ? k - real(23) : k;
    vec z = m * m;
    vec p = splat(real(7.0376836292e-2));
    p = p * m - real(1.1514610310e-1);
    p = p * m + real(1.1676998740e-1);
    p = p * m - real(1.2420140846e-1);
    p = p * m + real(1.4249322787e-1);
    p = p * m - real(1.6668057665e-1);
    p = p * m + real(2.0000714765e-1);
    p = p * m - real(2.4999993993e-1);
    p = p * m + real(3.3333331174e-1);
    vec y = p * m * z - k * real(2.12194440e-4) - z * real(0.5);
    y = m + y + k * real(0.693359375);
    y = x > 0 ? y : (x == 0 ? splat(-__builtin_inff()) : splat(__builtin_nanf("")));
    return x < splat(__builtin_inff()) ? y : x;
}

FW_INLINE vec log1p(vec x) {
    if constexpr (sizeof(real) == 8) return library_log1p(x);
    vec u = real(1) + x;
    vec y = log(u) + (x - (u - real(1))) / u;
    y = u == splat(__builtin_inff()) ? u : y;
    return (u == real(1)) | (x != x) ? x : (x == real(-1) ? splat(-__builtin_inff()) : y);
}

FW_INLINE vec expm1(vec x) {
    if constexpr (sizeof(real) == 8) return library_expm1(x);
    // exp(x) - 1 = 2^n (exp(r) - 1) + (2^n - 1)
    mask n;
    vec y = reduced_expm1(x, n);
    n = n > -127 ? n : mask{} - 126;
    mask half = n >> 1;
    vec a = power_of_two(half), b = power_of_two(n - half);
    y = (y * a) * b + (a * b - real(1));
    return x == x ? y : x;
}

FW_INLINE vec tanh(vec x) {
    if constexpr (sizeof(real) == 8) return library_tanh(x);
    // An odd rational approximation on [-9, 9]; beyond, tanh is 1 in float.
    vec u = abs(x) < real(9) ? x : (x < 0 ? splat(-9) : splat(9));
    vec z = u * u;
    vec p = splat(real(-2.76076847742355e-16));
    p = p * z + real(2.00018790482477e-13);
    p = p * z - real(8.60467152213735e-11);
    p = p * z + real(5.12229709037114e-08);
    p = p * z + real(1.48572235717979e-05);
    p = p * z + real(6.37261928875436e-04);
    p = p * z + real(4.89352455891786e-03);
    vec q = splat(real(1.19825839466702e-06));
    q = q * z + real(1.18534705686654e-04);
    q = q * z + real(2.26843463243900e-03);
    q = q * z + real(4.89352518554385e-03);
    vec y = abs(x) < real(4e-4) ? x : u * p / q;
    return x == x ? y : x;
}

FW_INLINE vec sigmoid(vec x) { return real(1) / (real(1) + exp(-x)); }
FW_INLINE vec softplus(vec x) { return maximum(x, vec{}) + log1p(exp(-abs(x))); }
FW_INLINE vec logsigmoid(vec x) { return -softplus(-x); }
FW_INLINE vec relu(vec x) { return x > 0 ? x : (x == x ? vec{} : x); }
FW_INLINE vec elu(vec x) { return x > 0 ? x : expm1(x); }
FW_INLINE vec silu(vec x) { return x * sigmoid(x); }
FW_INLINE vec gelu(vec x) {
    return real(0.5) * x * (real(1) + erf(x * real(0.707106781186547524400844362)));
}

FW_INLINE vec power(vec x, real n) {
    for (int i = 0; i < L; ++i)
        x[i] = sizeof(real) == 4 ? real(__builtin_powf(float(x[i]), float(n)))
                                 : real(__builtin_pow(double(x[i]), double(n)));
    return x;
}
FW_INLINE vec power(vec x, vec n) {
    for (int i = 0; i < L; ++i) x[i] = power(splat(x[i]), n[i])[0];
    return x;
}
FW_INLINE vec power(real x, vec n) { return power(splat(x), n); }

// Scalars take the first lane of the same code, so that both give the same bits.

#define FW_SCALAR(name)                                                                            \
    FW_INLINE real name(real x) { return name(splat(x))[0]; }
FW_SCALAR(abs) FW_SCALAR(sign) FW_SCALAR(square) FW_SCALAR(sin) FW_SCALAR(cos) FW_SCALAR(erf)
FW_SCALAR(exp) FW_SCALAR(log) FW_SCALAR(log1p) FW_SCALAR(expm1) FW_SCALAR(tanh) FW_SCALAR(sigmoid)
FW_SCALAR(softplus) FW_SCALAR(logsigmoid) FW_SCALAR(relu) FW_SCALAR(elu) FW_SCALAR(silu)
FW_SCALAR(gelu)
FW_INLINE real sqrt(real x) {
    return real(sizeof(real) == 4 ? __builtin_sqrtf(float(x)) : __builtin_sqrt(double(x)));
}
FW_INLINE real rsqrt(real x) { return real(1) / sqrt(x); }
FW_INLINE real power(real x, real n) { return power(splat(x), n)[0]; }

#define FW_MIXED(name)                                                                             \
    FW_INLINE vec name(real a, vec b) { return name(splat(a), b); }                                \
    FW_INLINE vec name(vec a, real b) { return name(a, splat(b)); }                                \
    FW_INLINE real name(real a, real b) { return name(splat(a), splat(b))[0]; }
FW_MIXED(maximum) FW_MIXED(minimum)
FW_INLINE vec clamp(vec x, real low, real high) { return clamp(x, splat(low), splat(high)); }
FW_INLINE real clamp(real x, real low, real high) { return clamp(splat(x), low, high)[0]; }
FW_INLINE vec clamp(vec x, vec low, real high) { return clamp(x, low, splat(high)); }
FW_INLINE vec clamp(vec x, real low, vec high) { return clamp(x, splat(low), high); }
FW_INLINE vec clamp(real x, vec low, vec high) { return clamp(splat(x), low, high); }
FW_INLINE vec clamp(real x, vec low, real high) { return clamp(splat(x), low, splat(high)); }
FW_INLINE vec clamp(real x, real low, vec high) { return clamp(splat(x), splat(low), high); }

}  // namespace fw

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

namespace {

constexpr size TC = 16;  // tokens of a chunk

#ifndef FWGEN_NO_FORWARD
bool forward_head(const fw::Call &call, fw::Space &space, const size n, const size h) {
#ifdef FWGEN_SIZE_0
    constexpr size n_D = FWGEN_SIZE_0;
#else
    const size n_D = call.dims[0];
#endif
    const size row_D = fw::padded(n_D);
    const size row_D__D = fw::padded(n_D) * fw::column(n_D);
    const size T = call.length(n);
    const size C = call.longest < TC ? call.longest : TC;

    const size q_at = space.take((C + 1) * row_D);  // [D]
    const size k_at = space.take((C + 1) * row_D);  // [D]
    const size v_at = space.take((C + 1) * row_D);  // [D]
    const size beta_at = space.take(C + 1);  // []
    const size W_0_at = space.take(row_D__D);  // [D, D]
    const size y_at = space.take((C + 1) * row_D);  // [D]
    const size h__at = space.take((C + 1) * row_D);  // [D]
    const size Rk_at = space.take(row_D__D);  // [D, D]
    const size p_at = space.take((C + 1) * row_D);  // [D]
    const size Rq_at = space.take(row_D__D);  // [D, D]
    const size p_1_at = space.take((C + 1) * row_D);  // [D]
    const size Rv_at = space.take(row_D__D);  // [D, D]
    const size p_2_at = space.take((C + 1) * row_D);  // [D]
    const size m_at = space.take(C + 1);  // []
    const size e__at = space.take((C + 1) * row_D);  // [D]
    const size s_at = space.take(C + 1);  // []
    const size kf_at = space.take((C + 1) * row_D);  // [D]
    const size m_1_at = space.take(C + 1);  // []
    const size e_1_at = space.take((C + 1) * row_D);  // [D]
    const size s_1_at = space.take(C + 1);  // []
    const size qf_at = space.take((C + 1) * row_D);  // [D]
    const size rb_at = space.take(row_D);  // [D]
    const size s_2_at = space.take(C + 1);  // []
    const size p_3_at = space.take((C + 1) * row_D);  // [D]
    const size r_y_1_at = space.take((C + 1) * row_D);  // [D]
    const size a_at = space.take(C + 1);  // []
    const size s_y_1_at = space.take(C + 1);  // []
    const size out_at = space.take((C + 1) * row_D);  // [D]
    space.plain();
    if (!space.allocate()) return false;
    real *const q = space.data + q_at;
    real *const k = space.data + k_at;
    real *const v = space.data + v_at;
    real *const beta = space.data + beta_at;
    real *const W_0 = space.data + W_0_at;
    real *const y = space.data + y_at;
    real *const h_ = space.data + h__at;
    real *const Rk = space.data + Rk_at;
    real *const p = space.data + p_at;
    real *const Rq = space.data + Rq_at;
    real *const p_1 = space.data + p_1_at;
    real *const Rv = space.data + Rv_at;
    real *const p_2 = space.data + p_2_at;
    real *const u = p;  // p is read no more by then
    real *const m = space.data + m_at;
    real *const e_ = space.data + e__at;
    real *const s = space.data + s_at;
    real *const kf = space.data + kf_at;
    real *const u_1 = p_1;  // p_1 is read no more by then
    real *const m_1 = space.data + m_1_at;
    real *const e_1 = space.data + e_1_at;
    real *const s_1 = space.data + s_1_at;
    real *const qf = space.data + qf_at;
    real *const rb = space.data + rb_at;
    real *const s_2 = space.data + s_2_at;
    real *const p_3 = space.data + p_3_at;
    real *const r_y_1 = space.data + r_y_1_at;
    real *const a = space.data + a_at;
    real *const u_W = p_2;  // p_2 is read no more by then
    real *const s_y_1 = space.data + s_y_1_at;
    real *const out = space.data + out_at;

    {
        fw::copy_in(Rk, call.tensor(5), n, h, n_D, n_D, 0);
        fw::copy_in(Rq, call.tensor(4), n, h, n_D, n_D, 0);
        fw::copy_in(Rv, call.tensor(6), n, h, n_D, n_D, 0);
        fw::copy_in(rb, call.tensor(7), n, h, 1, n_D, -1);
        if (call.tensor(8).data) fw::copy_in(W_0, call.tensor(8), n, h, n_D, n_D, 0);
        else fw::fill_in(W_0, real(0.0), n_D, n_D, 0);

        if (call.tensor(9).data) fw::copy_in(y, call.tensor(9), n, h, 1, n_D, -1);
        else fw::fill_in(y, real(0.0), 1, n_D, -1);

        for (size c0 = 0; c0 < T; c0 += TC) {
            const size tc = T - c0 < TC ? T - c0 : TC;
            const fw::Rows q_rows = fw::rows_in(q, call, 0, n, h, c0, tc, row_D, 1, n_D);
            const fw::Rows k_rows = fw::rows_in(k, call, 1, n, h, c0, tc, row_D, 1, n_D);
            const fw::Rows v_rows = fw::rows_in(v, call, 2, n, h, c0, tc, row_D, 1, n_D);
            fw::tokens_in(beta, call, 3, n, h, c0, tc, 1, 1, 1, true);
            const fw::Rows out_rows = fw::tokens_at(out, call, 10, n, h, c0, row_D, 1, n_D);
            if (real *const kept = fw::checkpoint(call, 13, n, h, c0 / TC, TC))
                __builtin_memcpy(kept, W_0, sizeof(real) * row_D__D);
            if (real *const kept = fw::checkpoint(call, 14, n, h, c0 / TC, TC))
                __builtin_memcpy(kept, y, sizeof(real) * row_D);
            const fw::Ahead<0> q_ahead0(call, 0, n, h, c0 + TC, 0, 1 * (n_D), q);
            const fw::Ahead<0> k_ahead1(call, 1, n, h, c0 + TC, 0, 1 * (n_D), k);
            const fw::Ahead<0> v_ahead2(call, 2, n, h, c0 + TC, 0, 1 * (n_D), v);
            const fw::Ahead<0> beta_ahead3(call, 3, n, h, c0 + TC, 0, 1 * (1), beta);
            const fw::Ahead<1> out_ahead10(call, 10, n, h, c0, 0, 1 * (n_D), out);
            for (size t = 0; t < tc; ++t) {
                {
                    q_ahead0.ask(t);
                    k_ahead1.ask(t);
                    v_ahead2.ask(t);
                    beta_ahead3.ask(t);
                    out_ahead10.ask(t);
                }

                // h[i] = tanh(y[i])
                for (size e = 0; e < n_D; e += fw::L) {
                    fw::store(h_ + t * row_D + e, fw::tail(e, n_D, fw::tanh(fw::load(y + t * row_D + e))));

                }

                fw::blocks<2>(n_D, [&](auto block, const size i0) {
                    constexpr int NV = block.value;
                    {
                        // p[i] = sum_j Rk[i, j] * h[j]
                        // p_1[i] = sum_j Rq[i, j] * h[j]
                        // p_2[i] = sum_j Rv[i, j] * h[j]
                        const size rows = n_D;
                        const real *const h_j_row = h_ + t * row_D;
                        const real *const Rk_ij_from = Rk;
                        const real *const Rq_ij_from = Rq;
                        const real *const Rv_ij_from = Rv;
                        fw::vec p_lane_sum[NV], p_1_lane_sum[NV], p_2_lane_sum[NV];
                        FW_UNROLL
                        for (int b = 0; b < NV; ++b) {
                            p_lane_sum[b] = fw::vec{};
                            p_1_lane_sum[b] = fw::vec{};
                            p_2_lane_sum[b] = fw::vec{};
                        }
                        const size fours = rows / 4 * 4;
                        for (size j = 0; j < fours; j += 4) {
                            FW_UNROLL
                            for (int step = 0; step < 4; ++step) {
                                const size at_row = j + step;
                                const fw::vec h_j = fw::splat(h_j_row[at_row]);
                                FW_UNROLL
                                for (int b = 0; b < NV; ++b) {
                                    const size at = ((i0 + b) * fw::column(rows) + at_row) * fw::L;
                                    const fw::vec Rk_ij = fw::load(Rk_ij_from + at);
                                    const fw::vec Rq_ij = fw::load(Rq_ij_from + at);
                                    const fw::vec Rv_ij = fw::load(Rv_ij_from + at);
                                    p_lane_sum[b] += Rk_ij * h_j;
                                    p_1_lane_sum[b] += Rq_ij * h_j;
                                    p_2_lane_sum[b] += Rv_ij * h_j;
                                }

                            }
                        }
                        for (size j = fours; j < rows; ++j) {
                            const size at_row = j;
                            const fw::vec h_j = fw::splat(h_j_row[at_row]);
                            FW_UNROLL
                            for (int b = 0; b < NV; ++b) {
                                const size at = ((i0 + b) * fw::column(rows) + at_row) * fw::L;
                                const fw::vec Rk_ij = fw::load(Rk_ij_from + at);
                                const fw::vec Rq_ij = fw::load(Rq_ij_from + at);
                                const fw::vec Rv_ij = fw::load(Rv_ij_from + at);
                                p_lane_sum[b] += Rk_ij * h_j;
                                p_1_lane_sum[b] += Rq_ij * h_j;
                                p_2_lane_sum[b] += Rv_ij * h_j;
                            }

                        }
                        FW_UNROLL
                        for (int b = 0; b < NV; ++b) {
                            real *const to = p + t * row_D + (i0 + b) * fw::L;
                            fw::store(to, p_lane_sum[b]);
                        }
                        FW_UNROLL
                        for (int b = 0; b < NV; ++b) {
                            real *const to = p_1 + t * row_D + (i0 + b) * fw::L;
                            fw::store(to, p_1_lane_sum[b]);
                        }
                        FW_UNROLL
                        for (int b = 0; b < NV; ++b) {
                            real *const to = p_2 + t * row_D + (i0 + b) * fw::L;
                            fw::store(to, p_2_lane_sum[b]);
                        }
                    }

                });


                // u[i] = k[i] + p[i]
                for (size e = 0; e < n_D; e += fw::L) {
                    fw::store(u + t * row_D + e, fw::tail(e, n_D, fw::load(k_rows.data + t * k_rows.step + e) + fw::load(p + t * row_D + e)));

                }

                // m = max_i u[i]
                {
                    fw::vec sum = fw::splat(real(-__builtin_inf()));
                    for (size e = 0; e < n_D; e += fw::L)
                        sum = fw::maximum(sum, fw::tail(e, n_D, fw::wide(fw::load(u + t * row_D + e)), real(-__builtin_inf())));
                    m[t] = fw::largest(sum);
                }

                // e[i] = exp(u[i] - stop_gradient(m))
                for (size e = 0; e < n_D; e += fw::L) {
                    fw::store(e_ + t * row_D + e, fw::tail(e, n_D, fw::exp(fw::load(u + t * row_D + e) - m[t])));

                }

                // s = sum_i e[i]
                {
                    fw::vec sum = fw::splat(real(0));
                    for (size e = 0; e < n_D; e += fw::L)
                        sum += fw::tail(e, n_D, fw::load(e_ + t * row_D + e));
                    s[t] = fw::sum(sum);
                }

                // kf[i] = e[i] / s
                for (size e = 0; e < n_D; e += fw::L) {
                    fw::store(kf + t * row_D + e, fw::tail(e, n_D, fw::load(e_ + t * row_D + e) / s[t]));

                }

                // u_1[i] = q[i] + p_1[i]
                for (size e = 0; e < n_D; e += fw::L) {
                    fw::store(u_1 + t * row_D + e, fw::tail(e, n_D, fw::load(q_rows.data + t * q_rows.step + e) + fw::load(p_1 + t * row_D + e)));

                }

                // m_1 = max_i u_1[i]
                {
                    fw::vec sum = fw::splat(real(-__builtin_inf()));
                    for (size e = 0; e < n_D; e += fw::L)
                        sum = fw::maximum(sum, fw::tail(e, n_D, fw::wide(fw::load(u_1 + t * row_D + e)), real(-__builtin_inf())));
                    m_1[t] = fw::largest(sum);
                }

                // e_1[i] = exp(u_1[i] - stop_gradient(m_1))
                for (size e = 0; e < n_D; e += fw::L) {
                    fw::store(e_1 + t * row_D + e, fw::tail(e, n_D, fw::exp(fw::load(u_1 + t * row_D + e) - m_1[t])));

                }

                // s_1 = sum_i e_1[i]
                {
                    fw::vec sum = fw::splat(real(0));
                    for (size e = 0; e < n_D; e += fw::L)
                        sum += fw::tail(e, n_D, fw::load(e_1 + t * row_D + e));
                    s_1[t] = fw::sum(sum);
                }

                // qf[i] = e_1[i] / s_1
                for (size e = 0; e < n_D; e += fw::L) {
                    fw::store(qf + t * row_D + e, fw::tail(e, n_D, fw::load(e_1 + t * row_D + e) / s_1[t]));

                }

                // s_2 = sum_i rb[i] * h[i]
                {
                    fw::vec sum = fw::splat(real(0));
                    for (size e = 0; e < n_D; e += fw::L)
                        sum += fw::tail(e, n_D, fw::load(rb + e) * fw::load(h_ + t * row_D + e));
                    s_2[t] = fw::sum(sum);
                }

                fw::blocks<2>(n_D, [&](auto block, const size i0) {
                    constexpr int NV = block.value;
                    {
                        // p_3[i] = sum_j W[i, j] * kf[j]
                        // r_y_1[i] = sum_j W[i, j] * qf[j]
                        const size rows = n_D;
                        const real *const kf_j_row = kf + t * row_D;
                        const real *const qf_j_row = qf + t * row_D;
                        const real *const W_ij_from = W_0;
                        fw::vec p_3_lane_sum[NV], r_y_1_lane_sum[NV];
                        FW_UNROLL
                        for (int b = 0; b < NV; ++b) {
                            p_3_lane_sum[b] = fw::vec{};
                            r_y_1_lane_sum[b] = fw::vec{};
                        }
                        const size fours = rows / 4 * 4;
                        for (size j = 0; j < fours; j += 4) {
                            FW_UNROLL
                            for (int step = 0; step < 4; ++step) {
                                const size at_row = j + step;
                                const fw::vec kf_j = fw::splat(kf_j_row[at_row]);
                                const fw::vec qf_j = fw::splat(qf_j_row[at_row]);
                                FW_UNROLL
                                for (int b = 0; b < NV; ++b) {
                                    const size at = ((i0 + b) * fw::column(rows) + at_row) * fw::L;
                                    const fw::vec W_ij = fw::load(W_ij_from + at);
                                    p_3_lane_sum[b] += W_ij * kf_j;
                                    r_y_1_lane_sum[b] += W_ij * qf_j;
                                }

                            }
                        }
                        for (size j = fours; j < rows; ++j) {
                            const size at_row = j;
                            const fw::vec kf_j = fw::splat(kf_j_row[at_row]);
                            const fw::vec qf_j = fw::splat(qf_j_row[at_row]);
                            FW_UNROLL
                            for (int b = 0; b < NV; ++b) {
                                const size at = ((i0 + b) * fw::column(rows) + at_row) * fw::L;
                                const fw::vec W_ij = fw::load(W_ij_from + at);
                                p_3_lane_sum[b] += W_ij * kf_j;
                                r_y_1_lane_sum[b] += W_ij * qf_j;
                            }

                        }
                        FW_UNROLL
                        for (int b = 0; b < NV; ++b) {
                            real *const to = p_3 + t * row_D + (i0 + b) * fw::L;
                            fw::store(to, p_3_lane_sum[b]);
                        }
                        FW_UNROLL
                        for (int b = 0; b < NV; ++b) {
                            real *const to = r_y_1 + t * row_D + (i0 + b) * fw::L;
                            fw::store(to, r_y_1_lane_sum[b]);
                        }
                    }

                });


                // a = sigmoid(beta + s_2)
                {
                    a[t] = fw::sigmoid(beta[t] + s_2[t]);
                }

                // u_W[i] = a * (v[i] + p_2[i] - p_3[i])
                for (size e = 0; e < n_D; e += fw::L) {
                    fw::store(u_W + t * row_D + e, fw::tail(e, n_D, a[t] * (fw::load(v_rows.data + t * v_rows.step + e) + fw::load(p_2 + t * row_D + e) - fw::load(p_3 + t * row_D + e))));

                }

                fw::blocks<2>(n_D, [&](auto block, const size i0) {
                    constexpr int NV = block.value;
                    {
                        // W_1[i, j] = W[i, j] + u_W[i] * kf[j]
                        const size rows = n_D;
                        const real *const kf_j_row = kf + t * row_D;
                        const real *const W_ij_from = W_0;
                        real *const W_1_ij_to = W_0;
                        fw::vec u_W_v[NV];
                        FW_UNROLL
                        for (int b = 0; b < NV; ++b) {
                            u_W_v[b] = fw::load(u_W + t * row_D + (i0 + b) * fw::L);
                        }
                        const size fours = rows / 4 * 4;
                        for (size j = 0; j < fours; j += 4) {
                            FW_UNROLL
                            for (int step = 0; step < 4; ++step) {
                                const size at_row = j + step;
                                const fw::vec kf_j = fw::splat(kf_j_row[at_row]);
                                FW_UNROLL
                                for (int b = 0; b < NV; ++b) {
                                    const size at = ((i0 + b) * fw::column(rows) + at_row) * fw::L;
                                    const fw::vec W_ij = fw::load(W_ij_from + at);
                                    const fw::vec W_1_ij = fw::wide(W_ij + u_W_v[b] * kf_j);
                                    fw::store(W_1_ij_to + at, W_1_ij);
                                }

                            }
                        }
                        for (size j = fours; j < rows; ++j) {
                            const size at_row = j;
                            const fw::vec kf_j = fw::splat(kf_j_row[at_row]);
                            FW_UNROLL
                            for (int b = 0; b < NV; ++b) {
                                const size at = ((i0 + b) * fw::column(rows) + at_row) * fw::L;
                                const fw::vec W_ij = fw::load(W_ij_from + at);
                                const fw::vec W_1_ij = fw::wide(W_ij + u_W_v[b] * kf_j);
                                fw::store(W_1_ij_to + at, W_1_ij);
                            }

                        }
                    }

                });


                // s_y_1 = sum_j qf[j] * kf[j]
                {
                    fw::vec sum = fw::splat(real(0));
                    for (size e = 0; e < n_D; e += fw::L)
                        sum += fw::tail(e, n_D, fw::load(qf + t * row_D + e) * fw::load(kf + t * row_D + e));
                    s_y_1[t] = fw::sum(sum);
                }

                // y_1[i] = r_y_1[i] + u_W[i] * s_y_1
                for (size e = 0; e < n_D; e += fw::L) {
                    fw::store(y + (t + 1) * row_D + e, fw::tail(e, n_D, fw::load(r_y_1 + t * row_D + e) + s_y_1[t] * fw::load(u_W + t * row_D + e)));

                }


            }



            for (size t = 0; t < tc; ++t) {
                // out[i] = y_1[i]
                for (size e = 0; e < n_D; e += fw::L) {
                    fw::store(out_rows.data + t * out_rows.step + e, fw::tail(e, n_D, fw::load(y + (t + 1) * row_D + e)));

                }

            }

            if (out_rows.data == out) fw::tokens_out(call, 10, out, n, h, c0, tc, row_D, 1, n_D, false);
            __builtin_memmove(y, y + tc * row_D, sizeof(real) * row_D);
        }
        fw::copy_out(call.tensor(11), n, h, W_0, n_D, n_D, 0);
        fw::copy_out(call.tensor(12), n, h, y, 1, n_D, -1);
    }

    return true;
}
#endif

#ifndef FWGEN_NO_BACKWARD
bool backward_head(const fw::Call &call, fw::Space &space, const size n, const size h) {
#ifdef FWGEN_SIZE_0
    constexpr size n_D = FWGEN_SIZE_0;
#else
    const size n_D = call.dims[0];
#endif
    const size row_D = fw::padded(n_D);
    const size row_D__D = fw::padded(n_D) * fw::column(n_D);
    const size T = call.length(n);
    const size C = call.longest < TC ? call.longest : TC;
    // What nobody asked for is left out: whether there is a tensor for one of these gradients.
    const bool wanted_1 = call.tensor(15).data || call.tensor(16).data || call.tensor(17).data || call.tensor(18).data || call.tensor(19).data || call.tensor(20).data || call.tensor(21).data || call.tensor(22).data;  // q, k, v, beta, Rq, Rk, Rv, rb

    const size q_at = space.take((C + 1) * row_D);  // [D]
    const size k_at = space.take((C + 1) * row_D);  // [D]
    const size v_at = space.take((C + 1) * row_D);  // [D]
    const size beta_at = space.take(C + 1);  // []
    const size d_out_at = space.take((C + 1) * row_D);  // [D]
    const size W_0_at = space.take((C + 1) * row_D__D);  // [D, D]
    const size y_at = space.take((C + 1) * row_D);  // [D]
    const size d_W_1_0_at = space.take(row_D__D);  // [D, D]
    const size d_y_1_at = space.take((C + 1) * row_D);  // [D]
    const size h__at = space.take((C + 1) * row_D);  // [D]
    const size Rk_at = space.take(row_D__D);  // [D, D]
    const size p_at = space.take((C + 1) * row_D);  // [D]
    const size Rq_at = space.take(row_D__D);  // [D, D]
    const size p_1_at = space.take((C + 1) * row_D);  // [D]
    const size Rv_at = space.take(row_D__D);  // [D, D]
    const size p_2_at = space.take((C + 1) * row_D);  // [D]
    const size m_at = space.take(C + 1);  // []
    const size e__at = space.take((C + 1) * row_D);  // [D]
    const size s_at = space.take(C + 1);  // []
    const size kf_at = space.take((C + 1) * row_D);  // [D]
    const size m_1_at = space.take(C + 1);  // []
    const size e_1_at = space.take((C + 1) * row_D);  // [D]
    const size s_1_at = space.take(C + 1);  // []
    const size qf_at = space.take((C + 1) * row_D);  // [D]
    const size rb_at = space.take(row_D);  // [D]
    const size s_2_at = space.take(C + 1);  // []
    const size p_3_at = space.take((C + 1) * row_D);  // [D]
    const size r_y_1_at = space.take((C + 1) * row_D);  // [D]
    const size a_at = space.take(C + 1);  // []
    const size u_W_at = space.take((C + 1) * row_D);  // [D]
    const size s_y_1_at = space.take(C + 1);  // []
    const size d_s_y_1_at = space.take(C + 1);  // []
    const size d_qf_at = space.take((C + 1) * row_D);  // [D]
    const size d_kf_at = space.take((C + 1) * row_D);  // [D]
    const size d_a_at = space.take(C + 1);  // []
    const size d_p_2_at = space.take((C + 1) * row_D);  // [D]
    const size d_p_3_at = space.take((C + 1) * row_D);  // [D]
    const size d_s_2_at = space.take(C + 1);  // []
    const size d_h_at = space.take((C + 1) * row_D);  // [D]
    const size a_1_at = space.take(C + 1);  // []
    const size d_s_1_at = space.take(C + 1);  // []
    const size d_e_1_at = space.take((C + 1) * row_D);  // [D]
    const size a_2_at = space.take(C + 1);  // []
    const size d_s_at = space.take(C + 1);  // []
    const size d_e_at = space.take((C + 1) * row_D);  // [D]
    const size d_v_at = space.take((C + 1) * row_D);  // [D]
    const size d_Rv_at = space.take(row_D__D);  // [D, D]
    const size d_rb_at = space.take(row_D);  // [D]
    const size d_q_at = space.take((C + 1) * row_D);  // [D]
    const size d_Rq_at = space.take(row_D__D);  // [D, D]
    const size d_k_at = space.take((C + 1) * row_D);  // [D]
    const size d_Rk_at = space.take(row_D__D);  // [D, D]
    const size d_beta_at = space.take(C + 1);  // []
    space.plain();
    if (!space.allocate()) return false;
    real *const q = space.data + q_at;
    real *const k = space.data + k_at;
    real *const v = space.data + v_at;
    real *const beta = space.data + beta_at;
    real *const d_out = space.data + d_out_at;
    real *const W_0 = space.data + W_0_at;
    real *const y = space.data + y_at;
    real *const d_W_1_0 = space.data + d_W_1_0_at;
    real *const d_y_1 = space.data + d_y_1_at;
    real *const h_ = space.data + h__at;
    real *const Rk = space.data + Rk_at;
    real *const p = space.data + p_at;
    real *const Rq = space.data + Rq_at;
    real *const p_1 = space.data + p_1_at;
    real *const Rv = space.data + Rv_at;
    real *const p_2 = space.data + p_2_at;
    real *const u = p;  // p is read no more by then
    real *const m = space.data + m_at;
    real *const e_ = space.data + e__at;
    real *const s = space.data + s_at;
    real *const kf = space.data + kf_at;
    real *const u_1 = p_1;  // p_1 is read no more by then
    real *const m_1 = space.data + m_1_at;
    real *const e_1 = space.data + e_1_at;
    real *const s_1 = space.data + s_1_at;
    real *const qf = space.data + qf_at;
    real *const rb = space.data + rb_at;
    real *const s_2 = space.data + s_2_at;
    real *const p_3 = space.data + p_3_at;
    real *const r_y_1 = space.data + r_y_1_at;
    real *const a = space.data + a_at;
    real *const u_W = space.data + u_W_at;
    real *const s_y_1 = space.data + s_y_1_at;
    real *const d_y_1_total = r_y_1;  // r_y_1 is read no more by then
    real *const d_r_y_1 = p_1;  // p_1 is read no more by then
    real *const d_u_W = p;  // p is read no more by then
    real *const d_s_y_1 = space.data + d_s_y_1_at;
    real *const d_qf = space.data + d_qf_at;
    real *const d_kf = space.data + d_kf_at;
    real *const d_a = space.data + d_a_at;
    real *const d_p_2 = space.data + d_p_2_at;
    real *const d_p_3 = space.data + d_p_3_at;
    real *const d_s_2 = space.data + d_s_2_at;
    real *const d_h = space.data + d_h_at;
    real *const a_1 = space.data + a_1_at;
    real *const d_s_1 = space.data + d_s_1_at;
    real *const d_e_1 = space.data + d_e_1_at;
    real *const d_u_1 = e_1;  // e_1 is read no more by then
    real *const d_p_1 = d_e_1;  // d_e_1 is read no more by then
    real *const a_2 = space.data + a_2_at;
    real *const d_s = space.data + d_s_at;
    real *const d_e = space.data + d_e_at;
    real *const d_u = e_;  // e_ is read no more by then
    real *const d_p = d_e;  // d_e is read no more by then
    real *const d_v = space.data + d_v_at;
    real *const d_Rv = space.data + d_Rv_at;
    real *const d_rb = space.data + d_rb_at;
    real *const d_q = space.data + d_q_at;
    real *const d_Rq = space.data + d_Rq_at;
    real *const d_k = space.data + d_k_at;
    real *const d_Rk = space.data + d_Rk_at;
    real *const d_beta = space.data + d_beta_at;
    fw::zero(d_Rq, row_D__D);
    fw::zero(d_Rk, row_D__D);
    fw::zero(d_Rv, row_D__D);
    fw::zero(d_rb, row_D);

    {
        fw::copy_in(Rk, call.tensor(5), n, h, n_D, n_D, 0);
        fw::copy_in(Rq, call.tensor(4), n, h, n_D, n_D, 0);
        fw::copy_in(Rv, call.tensor(6), n, h, n_D, n_D, 0);
        fw::copy_in(rb, call.tensor(7), n, h, 1, n_D, -1);
        
        
        if (call.tensor(13).data) fw::copy_in(d_W_1_0, call.tensor(13), n, h, n_D, n_D, 0);
        else fw::fill_in(d_W_1_0, real(0.0), n_D, n_D, 0);

        if (call.tensor(14).data) fw::copy_in(d_y_1, call.tensor(14), n, h, 1, n_D, -1);
        else fw::fill_in(d_y_1, real(0.0), 1, n_D, -1);

        for (size c0 = (T - 1) / TC * TC; c0 >= 0 && T > 0; c0 -= TC) {
            const size tc = T - c0 < TC ? T - c0 : TC;
            const fw::Rows q_rows = fw::rows_in(q, call, 0, n, h, c0, tc, row_D, 1, n_D);
            const fw::Rows k_rows = fw::rows_in(k, call, 1, n, h, c0, tc, row_D, 1, n_D);
            const fw::Rows v_rows = fw::rows_in(v, call, 2, n, h, c0, tc, row_D, 1, n_D);
            fw::tokens_in(beta, call, 3, n, h, c0, tc, 1, 1, 1, true);
            const fw::Rows d_out_rows = fw::rows_in(d_out, call, 12, n, h, c0, tc, row_D, 1, n_D);
            const fw::Rows d_q_rows = fw::tokens_at(d_q, call, 15, n, h, c0, row_D, 1, n_D);
            const fw::Rows d_k_rows = fw::tokens_at(d_k, call, 16, n, h, c0, row_D, 1, n_D);
            const fw::Rows d_v_rows = fw::tokens_at(d_v, call, 17, n, h, c0, row_D, 1, n_D);
            __builtin_memcpy(W_0, fw::checkpoint(call, 10, n, h, c0 / TC, TC), sizeof(real) * row_D__D);
            __builtin_memcpy(y, fw::checkpoint(call, 11, n, h, c0 / TC, TC), sizeof(real) * row_D);
            __builtin_memmove(d_y_1 + tc * row_D, d_y_1, sizeof(real) * row_D);
            fw::zero(d_h, tc * row_D);
            const fw::Ahead<0> q_ahead0(call, 0, n, h, c0 - TC, 0, 1 * (n_D), q);
            const fw::Ahead<0> k_ahead1(call, 1, n, h, c0 - TC, 0, 1 * (n_D), k);
            const fw::Ahead<0> v_ahead2(call, 2, n, h, c0 - TC, 0, 1 * (n_D), v);
            const fw::Ahead<0> beta_ahead3(call, 3, n, h, c0 - TC, 0, 1 * (1), beta);
            const fw::Ahead<0> d_out_ahead12(call, 12, n, h, c0 - TC, 0, 1 * (n_D), d_out);
            const fw::Ahead<1> d_q_ahead15(call, 15, n, h, c0, 0, 1 * (n_D), d_q);
            const fw::Ahead<1> d_k_ahead16(call, 16, n, h, c0, 0, 1 * (n_D), d_k);
            const fw::Ahead<1> d_v_ahead17(call, 17, n, h, c0, 0, 1 * (n_D), d_v);
            const fw::Ahead<1> d_beta_ahead18(call, 18, n, h, c0, 0, 1 * (1), d_beta);
            for (size t = 0; t < tc; ++t) {
                {
                    q_ahead0.ask(t);
                    k_ahead1.ask(t);
                    v_ahead2.ask(t);
                    beta_ahead3.ask(t);
                    d_out_ahead12.ask(t);
                    d_q_ahead15.ask(t);
                    d_k_ahead16.ask(t);
                    d_v_ahead17.ask(t);
                    d_beta_ahead18.ask(t);
                }

                // h[i] = tanh(y[i])
                for (size e = 0; e < n_D; e += fw::L) {
                    fw::store(h_ + t * row_D + e, fw::tail(e, n_D, fw::tanh(fw::load(y + t * row_D + e))));

                }

                fw::blocks<2>(n_D, [&](auto block, const size i0) {
                    constexpr int NV = block.value;
                    {
                        // p[i] = sum_j Rk[i, j] * h[j]
                        // p_1[i] = sum_j Rq[i, j] * h[j]
                        // p_2[i] = sum_j Rv[i, j] * h[j]
                        const size rows = n_D;
                        const real *const h_j_row = h_ + t * row_D;
                        const real *const Rk_ij_from = Rk;
                        const real *const Rq_ij_from = Rq;
                        const real *const Rv_ij_from = Rv;
                        fw::vec p_lane_sum[NV], p_1_lane_sum[NV], p_2_lane_sum[NV];
                        FW_UNROLL
                        for (int b = 0; b < NV; ++b) {
                            p_lane_sum[b] = fw::vec{};
                            p_1_lane_sum[b] = fw::vec{};
                            p_2_lane_sum[b] = fw::vec{};
                        }
                        const size fours = rows / 4 * 4;
                        for (size j = 0; j < fours; j += 4) {
                            FW_UNROLL
                            for (int step = 0; step < 4; ++step) {
                                const size at_row = j + step;
                                const fw::vec h_j = fw::splat(h_j_row[at_row]);
                                FW_UNROLL
                                for (int b = 0; b < NV; ++b) {
                                    const size at = ((i0 + b) * fw::column(rows) + at_row) * fw::L;
                                    const fw::vec Rk_ij = fw::load(Rk_ij_from + at);
                                    const fw::vec Rq_ij = fw::load(Rq_ij_from + at);
                                    const fw::vec Rv_ij = fw::load(Rv_ij_from + at);
                                    p_lane_sum[b] += Rk_ij * h_j;
                                    p_1_lane_sum[b] += Rq_ij * h_j;
                                    p_2_lane_sum[b] += Rv_ij * h_j;
                                }

                            }
                        }
                        for (size j = fours; j < rows; ++j) {
                            const size at_row = j;
                            const fw::vec h_j = fw::splat(h_j_row[at_row]);
                            FW_UNROLL
                            for (int b = 0; b < NV; ++b) {
                                const size at = ((i0 + b) * fw::column(rows) + at_row) * fw::L;
                                const fw::vec Rk_ij = fw::load(Rk_ij_from + at);
                                const fw::vec Rq_ij = fw::load(Rq_ij_from + at);
                                const fw::vec Rv_ij = fw::load(Rv_ij_from + at);
                                p_lane_sum[b] += Rk_ij * h_j;
                                p_1_lane_sum[b] += Rq_ij * h_j;
                                p_2_lane_sum[b] += Rv_ij * h_j;
                            }

                        }
                        FW_UNROLL
                        for (int b = 0; b < NV; ++b) {
                            real *const to = p + t * row_D + (i0 + b) * fw::L;
                            fw::store(to, p_lane_sum[b]);
                        }
                        FW_UNROLL
                        for (int b = 0; b < NV; ++b) {
                            real *const to = p_1 + t * row_D + (i0 + b) * fw::L;
                            fw::store(to, p_1_lane_sum[b]);
                        }
                        FW_UNROLL
                        for (int b = 0; b < NV; ++b) {
                            real *const to = p_2 + t * row_D + (i0 + b) * fw::L;
                            fw::store(to, p_2_lane_sum[b]);
                        }
                    }

                });


                // u[i] = k[i] + p[i]
                for (size e = 0; e < n_D; e += fw::L) {
                    fw::store(u + t * row_D + e, fw::tail(e, n_D, fw::load(k_rows.data + t * k_rows.step + e) + fw::load(p + t * row_D + e)));

                }

                // m = max_i u[i]
                {
                    fw::vec sum = fw::splat(real(-__builtin_inf()));
                    for (size e = 0; e < n_D; e += fw::L)
                        sum = fw::maximum(sum, fw::tail(e, n_D, fw::wide(fw::load(u + t * row_D + e)), real(-__builtin_inf())));
                    m[t] = fw::largest(sum);
                }

                // e[i] = exp(u[i] - stop_gradient(m))
                for (size e = 0; e < n_D; e += fw::L) {
                    fw::store(e_ + t * row_D + e, fw::tail(e, n_D, fw::exp(fw::load(u + t * row_D + e) - m[t])));

                }

                // s = sum_i e[i]
                {
                    fw::vec sum = fw::splat(real(0));
                    for (size e = 0; e < n_D; e += fw::L)
                        sum += fw::tail(e, n_D, fw::load(e_ + t * row_D + e));
                    s[t] = fw::sum(sum);
                }

                // kf[i] = e[i] / s
                for (size e = 0; e < n_D; e += fw::L) {
                    fw::store(kf + t * row_D + e, fw::tail(e, n_D, fw::load(e_ + t * row_D + e) / s[t]));

                }

                // u_1[i] = q[i] + p_1[i]
                for (size e = 0; e < n_D; e += fw::L) {
                    fw::store(u_1 + t * row_D + e, fw::tail(e, n_D, fw::load(q_rows.data + t * q_rows.step + e) + fw::load(p_1 + t * row_D + e)));

                }

                // m_1 = max_i u_1[i]
                {
                    fw::vec sum = fw::splat(real(-__builtin_inf()));
                    for (size e = 0; e < n_D; e += fw::L)
                        sum = fw::maximum(sum, fw::tail(e, n_D, fw::wide(fw::load(u_1 + t * row_D + e)), real(-__builtin_inf())));
                    m_1[t] = fw::largest(sum);
                }

                // e_1[i] = exp(u_1[i] - stop_gradient(m_1))
                for (size e = 0; e < n_D; e += fw::L) {
                    fw::store(e_1 + t * row_D + e, fw::tail(e, n_D, fw::exp(fw::load(u_1 + t * row_D + e) - m_1[t])));

                }

                // s_1 = sum_i e_1[i]
                {
                    fw::vec sum = fw::splat(real(0));
                    for (size e = 0; e < n_D; e += fw::L)
                        sum += fw::tail(e, n_D, fw::load(e_1 + t * row_D + e));
                    s_1[t] = fw::sum(sum);
                }

                // qf[i] = e_1[i] / s_1
                for (size e = 0; e < n_D; e += fw::L) {
                    fw::store(qf + t * row_D + e, fw::tail(e, n_D, fw::load(e_1 + t * row_D + e) / s_1[t]));

                }

                // s_2 = sum_i rb[i] * h[i]
                {
                    fw::vec sum = fw::splat(real(0));
                    for (size e = 0; e < n_D; e += fw::L)
                        sum += fw::tail(e, n_D, fw::load(rb + e) * fw::load(h_ + t * row_D + e));
                    s_2[t] = fw::sum(sum);
                }

                fw::blocks<2>(n_D, [&](auto block, const size i0) {
                    constexpr int NV = block.value;
                    {
                        // p_3[i] = sum_j W[i, j] * kf[j]
                        // r_y_1[i] = sum_j W[i, j] * qf[j]
                        const size rows = n_D;
                        const real *const kf_j_row = kf + t * row_D;
                        const real *const qf_j_row = qf + t * row_D;
                        const real *const W_ij_from = W_0 + t * row_D__D;
                        fw::vec p_3_lane_sum[NV], r_y_1_lane_sum[NV];
                        FW_UNROLL
                        for (int b = 0; b < NV; ++b) {
                            p_3_lane_sum[b] = fw::vec{};
                            r_y_1_lane_sum[b] = fw::vec{};
                        }
                        const size fours = rows / 4 * 4;
                        for (size j = 0; j < fours; j += 4) {
                            FW_UNROLL
                            for (int step = 0; step < 4; ++step) {
                                const size at_row = j + step;
                                const fw::vec kf_j = fw::splat(kf_j_row[at_row]);
                                const fw::vec qf_j = fw::splat(qf_j_row[at_row]);
                                FW_UNROLL
                                for (int b = 0; b < NV; ++b) {
                                    const size at = ((i0 + b) * fw::column(rows) + at_row) * fw::L;
                                    const fw::vec W_ij = fw::load(W_ij_from + at);
                                    p_3_lane_sum[b] += W_ij * kf_j;
                                    r_y_1_lane_sum[b] += W_ij * qf_j;
                                }

                            }
                        }
                        for (size j = fours; j < rows; ++j) {
                            const size at_row = j;
                            const fw::vec kf_j = fw::splat(kf_j_row[at_row]);
                            const fw::vec qf_j = fw::splat(qf_j_row[at_row]);
                            FW_UNROLL
                            for (int b = 0; b < NV; ++b) {
                                const size at = ((i0 + b) * fw::column(rows) + at_row) * fw::L;
                                const fw::vec W_ij = fw::load(W_ij_from + at);
                                p_3_lane_sum[b] += W_ij * kf_j;
                                r_y_1_lane_sum[b] += W_ij * qf_j;
                            }

                        }
                        FW_UNROLL
                        for (int b = 0; b < NV; ++b) {
                            real *const to = p_3 + t * row_D + (i0 + b) * fw::L;
                            fw::store(to, p_3_lane_sum[b]);
                        }
                        FW_UNROLL
                        for (int b = 0; b < NV; ++b) {
                            real *const to = r_y_1 + t * row_D + (i0 + b) * fw::L;
                            fw::store(to, r_y_1_lane_sum[b]);
                        }
                    }

                });


                // a = sigmoid(beta + s_2)
                {
                    a[t] = fw::sigmoid(beta[t] + s_2[t]);
                }

                // u_W[i] = a * (v[i] + p_2[i] - p_3[i])
                for (size e = 0; e < n_D; e += fw::L) {
                    fw::store(u_W + t * row_D + e, fw::tail(e, n_D, a[t] * (fw::load(v_rows.data + t * v_rows.step + e) + fw::load(p_2 + t * row_D + e) - fw::load(p_3 + t * row_D + e))));

                }

                fw::blocks<2>(n_D, [&](auto block, const size i0) {
                    constexpr int NV = block.value;
                    {
                        // W_1[i, j] = W[i, j] + u_W[i] * kf[j]
                        const size rows = n_D;
                        const real *const kf_j_row = kf + t * row_D;
                        const real *const W_ij_from = W_0 + t * row_D__D;
                        real *const W_1_ij_to = W_0 + (t + 1) * row_D__D;
                        fw::vec u_W_v[NV];
                        FW_UNROLL
                        for (int b = 0; b < NV; ++b) {
                            u_W_v[b] = fw::load(u_W + t * row_D + (i0 + b) * fw::L);
                        }
                        const size fours = rows / 4 * 4;
                        for (size j = 0; j < fours; j += 4) {
                            FW_UNROLL
                            for (int step = 0; step < 4; ++step) {
                                const size at_row = j + step;
                                const fw::vec kf_j = fw::splat(kf_j_row[at_row]);
                                FW_UNROLL
                                for (int b = 0; b < NV; ++b) {
                                    const size at = ((i0 + b) * fw::column(rows) + at_row) * fw::L;
                                    const fw::vec W_ij = fw::load(W_ij_from + at);
                                    const fw::vec W_1_ij = fw::wide(W_ij + u_W_v[b] * kf_j);
                                    fw::store(W_1_ij_to + at, W_1_ij);
                                }

                            }
                        }
                        for (size j = fours; j < rows; ++j) {
                            const size at_row = j;
                            const fw::vec kf_j = fw::splat(kf_j_row[at_row]);
                            FW_UNROLL
                            for (int b = 0; b < NV; ++b) {
                                const size at = ((i0 + b) * fw::column(rows) + at_row) * fw::L;
                                const fw::vec W_ij = fw::load(W_ij_from + at);
                                const fw::vec W_1_ij = fw::wide(W_ij + u_W_v[b] * kf_j);
                                fw::store(W_1_ij_to + at, W_1_ij);
                            }

                        }
                    }

                });


                // s_y_1 = sum_j qf[j] * kf[j]
                {
                    fw::vec sum = fw::splat(real(0));
                    for (size e = 0; e < n_D; e += fw::L)
                        sum += fw::tail(e, n_D, fw::load(qf + t * row_D + e) * fw::load(kf + t * row_D + e));
                    s_y_1[t] = fw::sum(sum);
                }

                // y_1[i] = r_y_1[i] + u_W[i] * s_y_1
                for (size e = 0; e < n_D; e += fw::L) {
                    fw::store(y + (t + 1) * row_D + e, fw::tail(e, n_D, fw::load(r_y_1 + t * row_D + e) + s_y_1[t] * fw::load(u_W + t * row_D + e)));

                }


            }



            for (size t = tc - 1; t >= 0; --t) {
                
                // d_y_1_total[a0] = d_y_1[a0] + d_out[a0]
                for (size e = 0; e < n_D; e += fw::L) {
                    fw::store(d_y_1_total + t * row_D + e, fw::tail(e, n_D, fw::load(d_y_1 + (t + 1) * row_D + e) + fw::load(d_out_rows.data + t * d_out_rows.step + e)));

                }

                // d_r_y_1[i] = d_y_1_total[i]
                for (size e = 0; e < n_D; e += fw::L) {
                    fw::store(d_r_y_1 + t * row_D + e, fw::tail(e, n_D, fw::load(d_y_1_total + t * row_D + e)));

                }

                // d_u_W[i] = d_y_1_total[i] * s_y_1
                for (size e = 0; e < n_D; e += fw::L) {
                    fw::store(d_u_W + t * row_D + e, fw::tail(e, n_D, s_y_1[t] * fw::load(d_y_1_total + t * row_D + e)));

                }

                // d_s_y_1 = sum_i d_y_1_total[i] * u_W[i]
                {
                    fw::vec sum = fw::splat(real(0));
                    for (size e = 0; e < n_D; e += fw::L)
                        sum += fw::tail(e, n_D, fw::load(d_y_1_total + t * row_D + e) * fw::load(u_W + t * row_D + e));
                    d_s_y_1[t] = fw::sum(sum);
                }

                // d_qf[j] = d_s_y_1 * kf[j]
                for (size e = 0; e < n_D; e += fw::L) {
                    fw::store(d_qf + t * row_D + e, fw::tail(e, n_D, d_s_y_1[t] * fw::load(kf + t * row_D + e)));

                }

                // d_kf[j] = d_s_y_1 * qf[j]
                for (size e = 0; e < n_D; e += fw::L) {
                    fw::store(d_kf + t * row_D + e, fw::tail(e, n_D, d_s_y_1[t] * fw::load(qf + t * row_D + e)));

                }

                fw::blocks<4>(n_D, [&](auto block, const size i0) {
                    constexpr int NV = block.value;
                    {
                        // d_qf[j] += sum_i d_r_y_1[i] * W[i, j]
                        // d_u_W[i] += sum_j d_W_1[i, j] * kf[j]
                        // d_kf[j] += sum_i d_W_1[i, j] * u_W[i]
                        const size rows = n_D;
                        const real *const kf_j_row = kf + t * row_D;
                        const real *const W_ij_from = W_0 + t * row_D__D;
                        const real *const d_W_1_ij_from = d_W_1_0;
                        real *const d_qf_row_sum_to = d_qf + t * row_D;
                        real *const d_kf_row_sum_to = d_kf + t * row_D;
                        fw::vec d_r_y_1_v[NV], u_W_v[NV], d_u_W_lane_sum[NV];
                        FW_UNROLL
                        for (int b = 0; b < NV; ++b) {
                            d_r_y_1_v[b] = fw::load(d_r_y_1 + t * row_D + (i0 + b) * fw::L);
                            u_W_v[b] = fw::load(u_W + t * row_D + (i0 + b) * fw::L);
                            d_u_W_lane_sum[b] = fw::vec{};
                        }
                        for (size j0 = 0; j0 < rows; j0 += fw::L) {
                            fw::vec d_qf_row_sum[fw::L], d_kf_row_sum[fw::L];
                            const size some = rows - j0 < fw::L ? rows - j0 : fw::L;
                            for (size r = 0; r < some; ++r) {
                                const size at_row = j0 + r;
                                const fw::vec kf_j = fw::splat(kf_j_row[at_row]);
                                d_qf_row_sum[r] = fw::vec{};
                                d_kf_row_sum[r] = fw::vec{};
                                FW_UNROLL
                                for (int b = 0; b < NV; ++b) {
                                    const size at = ((i0 + b) * fw::column(rows) + at_row) * fw::L;
                                    const fw::vec W_ij = fw::load(W_ij_from + at);
                                    const fw::vec d_W_1_ij = fw::load(d_W_1_ij_from + at);
                                    d_qf_row_sum[r] += d_r_y_1_v[b] * W_ij;
                                    d_u_W_lane_sum[b] += d_W_1_ij * kf_j;
                                    d_kf_row_sum[r] += d_W_1_ij * u_W_v[b];
                                }

                            }
                            for (size r = some; r < fw::L; ++r) {
                                d_qf_row_sum[r] = fw::vec{};
                                d_kf_row_sum[r] = fw::vec{};
                            }
                            fw::store(d_qf_row_sum_to + j0, fw::load(d_qf_row_sum_to + j0) + fw::sums(d_qf_row_sum));
                            fw::store(d_kf_row_sum_to + j0, fw::load(d_kf_row_sum_to + j0) + fw::sums(d_kf_row_sum));
                        }
                        FW_UNROLL
                        for (int b = 0; b < NV; ++b) {
                            real *const to = d_u_W + t * row_D + (i0 + b) * fw::L;
                            fw::store(to, fw::load(to) + d_u_W_lane_sum[b]);
                        }
                    }

                });


                // d_a = sum_i d_u_W[i] * (v[i] + p_2[i] - p_3[i])
                {
                    fw::vec sum = fw::splat(real(0));
                    for (size e = 0; e < n_D; e += fw::L)
                        sum += fw::tail(e, n_D, fw::load(d_u_W + t * row_D + e) * (fw::load(v_rows.data + t * v_rows.step + e) + fw::load(p_2 + t * row_D + e) - fw::load(p_3 + t * row_D + e)));
                    d_a[t] = fw::sum(sum);
                }

                // d_p_2[i] = d_u_W[i] * a
                for (size e = 0; e < n_D; e += fw::L) {
                    fw::store(d_p_2 + t * row_D + e, fw::tail(e, n_D, a[t] * fw::load(d_u_W + t * row_D + e)));

                }

                // d_p_3[i] = -d_u_W[i] * a
                for (size e = 0; e < n_D; e += fw::L) {
                    fw::store(d_p_3 + t * row_D + e, fw::tail(e, n_D, -(a[t] * fw::load(d_u_W + t * row_D + e))));

                }

                // d_s_2 = d_a * a * (1 - a)
                {
                    d_s_2[t] = d_a[t] * a[t] * (real(1.0) - a[t]);
                }

                fw::blocks<4>(n_D, [&](auto block, const size i0) {
                    constexpr int NV = block.value;
                    {
                        // d_W[i, j] = d_r_y_1[i] * qf[j] + d_W_1[i, j] + d_p_3[i] * kf[j]
                        // d_kf[j] += sum_i d_p_3[i] * W[i, j]
                        // d_h[j] += sum_i d_p_2[i] * Rv[i, j]
                        const size rows = n_D;
                        const real *const qf_j_row = qf + t * row_D;
                        const real *const kf_j_row = kf + t * row_D;
                        const real *const d_W_1_ij_from = d_W_1_0;
                        const real *const W_ij_from = W_0 + t * row_D__D;
                        const real *const Rv_ij_from = Rv;
                        real *const d_W_ij_to = d_W_1_0;
                        real *const d_kf_row_sum_to = d_kf + t * row_D;
                        real *const d_h_row_sum_to = d_h + t * row_D;
                        fw::vec d_r_y_1_v[NV], d_p_3_v[NV], d_p_2_v[NV];
                        FW_UNROLL
                        for (int b = 0; b < NV; ++b) {
                            d_r_y_1_v[b] = fw::load(d_r_y_1 + t * row_D + (i0 + b) * fw::L);
                            d_p_3_v[b] = fw::load(d_p_3 + t * row_D + (i0 + b) * fw::L);
                            d_p_2_v[b] = fw::load(d_p_2 + t * row_D + (i0 + b) * fw::L);
                        }
                        for (size j0 = 0; j0 < rows; j0 += fw::L) {
                            fw::vec d_kf_row_sum[fw::L], d_h_row_sum[fw::L];
                            const size some = rows - j0 < fw::L ? rows - j0 : fw::L;
                            for (size r = 0; r < some; ++r) {
                                const size at_row = j0 + r;
                                const fw::vec qf_j = fw::splat(qf_j_row[at_row]);
                                const fw::vec kf_j = fw::splat(kf_j_row[at_row]);
                                d_kf_row_sum[r] = fw::vec{};
                                d_h_row_sum[r] = fw::vec{};
                                FW_UNROLL
                                for (int b = 0; b < NV; ++b) {
                                    const size at = ((i0 + b) * fw::column(rows) + at_row) * fw::L;
                                    const fw::vec d_W_1_ij = fw::load(d_W_1_ij_from + at);
                                    const fw::vec W_ij = fw::load(W_ij_from + at);
                                    const fw::vec Rv_ij = fw::load(Rv_ij_from + at);
                                    const fw::vec d_W_ij = fw::wide(d_r_y_1_v[b] * qf_j + d_W_1_ij + d_p_3_v[b] * kf_j);
                                    fw::store(d_W_ij_to + at, d_W_ij);
                                    d_kf_row_sum[r] += d_p_3_v[b] * W_ij;
                                    d_h_row_sum[r] += d_p_2_v[b] * Rv_ij;
                                }

                            }
                            for (size r = some; r < fw::L; ++r) {
                                d_kf_row_sum[r] = fw::vec{};
                                d_h_row_sum[r] = fw::vec{};
                            }
                            fw::store(d_kf_row_sum_to + j0, fw::load(d_kf_row_sum_to + j0) + fw::sums(d_kf_row_sum));
                            fw::store(d_h_row_sum_to + j0, fw::load(d_h_row_sum_to + j0) + fw::sums(d_h_row_sum));
                        }
                    }

                });


                // d_h[i] += d_s_2 * rb[i]
                for (size e = 0; e < n_D; e += fw::L) {
                    fw::store(d_h + t * row_D + e, fw::load(d_h + t * row_D + e) + fw::tail(e, n_D, d_s_2[t] * fw::load(rb + e)));

                }

                // a_1 = sum_i d_qf[i] * qf[i]
                {
                    fw::vec sum = fw::splat(real(0));
                    for (size e = 0; e < n_D; e += fw::L)
                        sum += fw::tail(e, n_D, fw::load(d_qf + t * row_D + e) * fw::load(qf + t * row_D + e));
                    a_1[t] = fw::sum(sum);
                }

                // d_s_1 = -a_1 / s_1
                {
                    d_s_1[t] = -(a_1[t] / s_1[t]);
                }

                // d_e_1[i] = d_qf[i] / s_1 + d_s_1
                for (size e = 0; e < n_D; e += fw::L) {
                    fw::store(d_e_1 + t * row_D + e, fw::tail(e, n_D, fw::load(d_qf + t * row_D + e) / s_1[t] + d_s_1[t]));

                }

                // d_u_1[i] = d_e_1[i] * e_1[i]
                for (size e = 0; e < n_D; e += fw::L) {
                    fw::store(d_u_1 + t * row_D + e, fw::tail(e, n_D, fw::load(d_e_1 + t * row_D + e) * fw::load(e_1 + t * row_D + e)));

                }

                // d_p_1[i] = d_u_1[i]
                for (size e = 0; e < n_D; e += fw::L) {
                    fw::store(d_p_1 + t * row_D + e, fw::tail(e, n_D, fw::load(d_u_1 + t * row_D + e)));

                }

                fw::blocks<4>(n_D, [&](auto block, const size i0) {
                    constexpr int NV = block.value;
                    {
                        // d_h[j] += sum_i d_p_1[i] * Rq[i, j]
                        const size rows = n_D;
                        const real *const Rq_ij_from = Rq;
                        real *const d_h_row_sum_to = d_h + t * row_D;
                        fw::vec d_p_1_v[NV];
                        FW_UNROLL
                        for (int b = 0; b < NV; ++b) {
                            d_p_1_v[b] = fw::load(d_p_1 + t * row_D + (i0 + b) * fw::L);
                        }
                        for (size j0 = 0; j0 < rows; j0 += fw::L) {
                            fw::vec d_h_row_sum[fw::L];
                            const size some = rows - j0 < fw::L ? rows - j0 : fw::L;
                            for (size r = 0; r < some; ++r) {
                                const size at_row = j0 + r;
                                d_h_row_sum[r] = fw::vec{};
                                FW_UNROLL
                                for (int b = 0; b < NV; ++b) {
                                    const size at = ((i0 + b) * fw::column(rows) + at_row) * fw::L;
                                    const fw::vec Rq_ij = fw::load(Rq_ij_from + at);
                                    d_h_row_sum[r] += d_p_1_v[b] * Rq_ij;
                                }

                            }
                            for (size r = some; r < fw::L; ++r) {
                                d_h_row_sum[r] = fw::vec{};
                            }
                            fw::store(d_h_row_sum_to + j0, fw::load(d_h_row_sum_to + j0) + fw::sums(d_h_row_sum));
                        }
                    }

                });


                // a_2 = sum_i d_kf[i] * kf[i]
                {
                    fw::vec sum = fw::splat(real(0));
                    for (size e = 0; e < n_D; e += fw::L)
                        sum += fw::tail(e, n_D, fw::load(d_kf + t * row_D + e) * fw::load(kf + t * row_D + e));
                    a_2[t] = fw::sum(sum);
                }

                // d_s = -a_2 / s
                {
                    d_s[t] = -(a_2[t] / s[t]);
                }

                // d_e[i] = d_kf[i] / s + d_s
                for (size e = 0; e < n_D; e += fw::L) {
                    fw::store(d_e + t * row_D + e, fw::tail(e, n_D, fw::load(d_kf + t * row_D + e) / s[t] + d_s[t]));

                }

                // d_u[i] = d_e[i] * e[i]
                for (size e = 0; e < n_D; e += fw::L) {
                    fw::store(d_u + t * row_D + e, fw::tail(e, n_D, fw::load(d_e + t * row_D + e) * fw::load(e_ + t * row_D + e)));

                }

                // d_p[i] = d_u[i]
                for (size e = 0; e < n_D; e += fw::L) {
                    fw::store(d_p + t * row_D + e, fw::tail(e, n_D, fw::load(d_u + t * row_D + e)));

                }

                fw::blocks<4>(n_D, [&](auto block, const size i0) {
                    constexpr int NV = block.value;
                    {
                        // d_h[j] += sum_i d_p[i] * Rk[i, j]
                        const size rows = n_D;
                        const real *const Rk_ij_from = Rk;
                        real *const d_h_row_sum_to = d_h + t * row_D;
                        fw::vec d_p_v[NV];
                        FW_UNROLL
                        for (int b = 0; b < NV; ++b) {
                            d_p_v[b] = fw::load(d_p + t * row_D + (i0 + b) * fw::L);
                        }
                        for (size j0 = 0; j0 < rows; j0 += fw::L) {
                            fw::vec d_h_row_sum[fw::L];
                            const size some = rows - j0 < fw::L ? rows - j0 : fw::L;
                            for (size r = 0; r < some; ++r) {
                                const size at_row = j0 + r;
                                d_h_row_sum[r] = fw::vec{};
                                FW_UNROLL
                                for (int b = 0; b < NV; ++b) {
                                    const size at = ((i0 + b) * fw::column(rows) + at_row) * fw::L;
                                    const fw::vec Rk_ij = fw::load(Rk_ij_from + at);
                                    d_h_row_sum[r] += d_p_v[b] * Rk_ij;
                                }

                            }
                            for (size r = some; r < fw::L; ++r) {
                                d_h_row_sum[r] = fw::vec{};
                            }
                            fw::store(d_h_row_sum_to + j0, fw::load(d_h_row_sum_to + j0) + fw::sums(d_h_row_sum));
                        }
                    }

                });


                // d_y[i] = d_h[i] * (1 - square(h[i]))
                for (size e = 0; e < n_D; e += fw::L) {
                    fw::store(d_y_1 + t * row_D + e, fw::tail(e, n_D, fw::load(d_h + t * row_D + e) * (real(1.0) - fw::square(fw::load(h_ + t * row_D + e)))));

                }


            }



            if (wanted_1) {
                for (size t = 0; t < tc; ++t) {
                    // d_v[i] = d_u_W[i] * a
                    for (size e = 0; e < n_D; e += fw::L) {
                        fw::store(d_v_rows.data + t * d_v_rows.step + e, fw::tail(e, n_D, a[t] * fw::load(d_u_W + t * row_D + e)));

                    }

                    // d_Rv[i, j] += d_p_2[i] * h[j]
                    for (size j_ = 0; j_ < n_D; ++j_)
                    for (size e = 0; e < n_D; e += fw::L) {
                        fw::store(d_Rv + e * fw::column(n_D) + j_ * fw::L, fw::load(d_Rv + e * fw::column(n_D) + j_ * fw::L) + fw::tail(e, n_D, (h_ + t * row_D)[j_] * fw::load(d_p_2 + t * row_D + e)));

                    }

                    // d_rb[i] += d_s_2 * h[i]
                    for (size e = 0; e < n_D; e += fw::L) {
                        fw::store(d_rb + e, fw::load(d_rb + e) + fw::tail(e, n_D, d_s_2[t] * fw::load(h_ + t * row_D + e)));

                    }

                    // d_q[i] = d_u_1[i]
                    for (size e = 0; e < n_D; e += fw::L) {
                        fw::store(d_q_rows.data + t * d_q_rows.step + e, fw::tail(e, n_D, fw::load(d_u_1 + t * row_D + e)));

                    }

                    // d_Rq[i, j] += d_p_1[i] * h[j]
                    for (size j_ = 0; j_ < n_D; ++j_)
                    for (size e = 0; e < n_D; e += fw::L) {
                        fw::store(d_Rq + e * fw::column(n_D) + j_ * fw::L, fw::load(d_Rq + e * fw::column(n_D) + j_ * fw::L) + fw::tail(e, n_D, (h_ + t * row_D)[j_] * fw::load(d_p_1 + t * row_D + e)));

                    }

                    // d_k[i] = d_u[i]
                    for (size e = 0; e < n_D; e += fw::L) {
                        fw::store(d_k_rows.data + t * d_k_rows.step + e, fw::tail(e, n_D, fw::load(d_u + t * row_D + e)));

                    }

                    // d_Rk[i, j] += d_p[i] * h[j]
                    for (size j_ = 0; j_ < n_D; ++j_)
                    for (size e = 0; e < n_D; e += fw::L) {
                        fw::store(d_Rk + e * fw::column(n_D) + j_ * fw::L, fw::load(d_Rk + e * fw::column(n_D) + j_ * fw::L) + fw::tail(e, n_D, (h_ + t * row_D)[j_] * fw::load(d_p + t * row_D + e)));

                    }

                }
                for (size t = 0; t < tc; t += fw::L) {
                    // d_beta = d_a * a * (1 - a)
                    fw::store(d_beta + t, fw::wide(fw::load(d_a + t) * fw::load(a + t) * (real(1.0) - fw::load(a + t))));

                }

            }
            if (d_q_rows.data == d_q) fw::tokens_out(call, 15, d_q, n, h, c0, tc, row_D, 1, n_D, false);
            if (d_k_rows.data == d_k) fw::tokens_out(call, 16, d_k, n, h, c0, tc, row_D, 1, n_D, false);
            if (d_v_rows.data == d_v) fw::tokens_out(call, 17, d_v, n, h, c0, tc, row_D, 1, n_D, false);
            fw::tokens_out(call, 18, d_beta, n, h, c0, tc, 1, 1, 1, true);
        }
        fw::copy_out(call.tensor(23), n, h, d_W_1_0, n_D, n_D, 0);
        fw::copy_out(call.tensor(24), n, h, d_y_1, 1, n_D, -1);
    }

    fw::copy_out(call.tensor(19), n, h, d_Rq, n_D, n_D, 0);
    fw::copy_out(call.tensor(20), n, h, d_Rk, n_D, n_D, 0);
    fw::copy_out(call.tensor(21), n, h, d_Rv, n_D, n_D, 0);
    fw::copy_out(call.tensor(22), n, h, d_rb, 1, n_D, -1);
    return true;
}
#endif

}  // namespace

#ifndef FWGEN_NO_FORWARD
extern "C" long fwgen_forward(const long *args) {
    return fw::for_each_head(args, 1, forward_head);
}
#endif
#ifndef FWGEN_NO_BACKWARD
extern "C" long fwgen_backward(const long *args) {
    return fw::for_each_head(args, 1, backward_head);
}
#endif
