// The rule sum, hash 2ebca171134ba88a13a3d6e6fac8f69b83b44e5580ddbc7cbbbe5bd9daea2f9c.
// Made by `fwgen compile sum`; compile again, do not edit.
//
//   phi_k[i] = elu(k[i]) + 1
//   phi_q[i] = elu(q[i]) + 1
//   W_1[i, j] = W[i, j] + v[i] * phi_k[j]
//   r_y[i] = sum_j W[i, j] * phi_q[j]
//   s_y = sum_j phi_q[j] * phi_k[j]
//   y[i] = r_y[i] + v[i] * s_y
//
// A call handles N sequences of H heads, in tasks of one head. A task walks its sequence in chunks of
// TC tokens; per chunk, statements that do not wait for the recurrence run for all tokens first.
// fwgen_forward: 1 sweep over the sequence.
// fwgen_backward: 2 sweeps over the sequence.

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

constexpr size TC = 32;  // tokens of a chunk

#ifndef FWGEN_NO_FORWARD
bool forward_head(const fw::Call &call, fw::Space &space, const size n, const size h) {
#ifdef FWGEN_SIZE_0
    constexpr size n_K = FWGEN_SIZE_0;
#else
    const size n_K = call.dims[0];
#endif
#ifdef FWGEN_SIZE_1
    constexpr size n_V = FWGEN_SIZE_1;
#else
    const size n_V = call.dims[1];
#endif
    const size row_K = fw::padded(n_K);
    const size row_V = fw::padded(n_V);
    const size row_V__K = fw::padded(n_V) * fw::column(n_K);
    const size T = call.length(n);
    const size C = call.longest < TC ? call.longest : TC;

    const size q_at = space.take((C + 1) * row_K);  // [K]
    const size k_at = space.take((C + 1) * row_K);  // [K]
    const size v_at = space.take((C + 1) * row_V);  // [V]
    const size W_0_at = space.take(row_V__K);  // [V, K]
    const size phi_k_at = space.take((C + 1) * row_K);  // [K]
    const size phi_q_at = space.take((C + 1) * row_K);  // [K]
    const size s_y_at = space.take(C + 1);  // []
    const size s_r_y_at = space.take(C + 1);  // []
    const size r_y_at = space.take((C + 1) * row_V);  // [V]
    const size y_at = space.take((C + 1) * row_V);  // [V]
    space.plain();
    if (!space.allocate()) return false;
    real *const q = space.data + q_at;
    real *const k = space.data + k_at;
    real *const v = space.data + v_at;
    real *const W_0 = space.data + W_0_at;
    real *const phi_k = space.data + phi_k_at;
    real *const phi_q = space.data + phi_q_at;
    real *const s_y = space.data + s_y_at;
    real *const s_r_y = space.data + s_r_y_at;
    real *const r_y = space.data + r_y_at;
    real *const y = space.data + y_at;

    {
        if (call.tensor(3).data) fw::copy_in(W_0, call.tensor(3), n, h, n_V, n_K, 0);
        else fw::fill_in(W_0, real(0.0), n_V, n_K, 0);

        for (size c0 = 0; c0 < T; c0 += TC) {
            const size tc = T - c0 < TC ? T - c0 : TC;
            const fw::Rows q_rows = fw::rows_in(q, call, 0, n, h, c0, tc, row_K, 1, n_K);
            const fw::Rows k_rows = fw::rows_in(k, call, 1, n, h, c0, tc, row_K, 1, n_K);
            const fw::Rows v_rows = fw::rows_in(v, call, 2, n, h, c0, tc, row_V, 1, n_V);
            const fw::Rows y_rows = fw::tokens_at(y, call, 4, n, h, c0, row_V, 1, n_V);
            const fw::Ahead<0> q_ahead0(call, 0, n, h, c0 + TC, 0, 1 * (n_K), q);
            const fw::Ahead<0> k_ahead1(call, 1, n, h, c0 + TC, 0, 1 * (n_K), k);
            const fw::Ahead<0> v_ahead2(call, 2, n, h, c0 + TC, 0, 1 * (n_V), v);
            const fw::Ahead<1> y_ahead4(call, 4, n, h, c0, 0, 1 * (n_V), y);
            for (size t = 0; t < tc; ++t) {
                // phi_k[i] = elu(k[i]) + 1
                for (size e = 0; e < n_K; e += fw::L) {
                    fw::store(phi_k + t * row_K + e, fw::tail(e, n_K, fw::elu(fw::load(k_rows.data + t * k_rows.step + e)) + real(1)));

                }

                // phi_q[i] = elu(q[i]) + 1
                for (size e = 0; e < n_K; e += fw::L) {
                    fw::store(phi_q + t * row_K + e, fw::tail(e, n_K, fw::elu(fw::load(q_rows.data + t * q_rows.step + e)) + real(1)));

                }

                // s_y = sum_j phi_q[j] * phi_k[j]
                {
                    fw::vec sum = fw::splat(real(0));
                    for (size e = 0; e < n_K; e += fw::L)
                        sum += fw::tail(e, n_K, fw::load(phi_q + t * row_K + e) * fw::load(phi_k + t * row_K + e));
                    s_y[t] = fw::sum(sum);
                }

            }

            for (size t = 1; t < tc; t += 2) {
                // s_r_y = sum_j phi_k_earlier[j] * phi_q[j]
                {
                    fw::vec sum = fw::splat(real(0));
                    for (size e = 0; e < n_K; e += fw::L)
                        sum += fw::tail(e, n_K, fw::load(phi_k + (t - 1) * row_K + e) * fw::load(phi_q + t * row_K + e));
                    s_r_y[t] = fw::sum(sum);
                }

            }

            fw::blocks<4>(n_V, [&](auto block, const size i0) {
                constexpr int NV = block.value;
                for (size tp = 0; tp + 1 < tc; tp += 2) {
                    fw::parts<NV, 2>(i0, [&](auto block, const size i0) {
                        constexpr int NV = block.value;
                        {
                            // r_y[i] = sum_j W[i, j] * phi_q[j] (token tp)
                            // r_y[i] = sum_j W[i, j] * phi_q[j] (token tp + 1)
                            // W_1[i, j] = W[i, j] + v_earlier[i] * phi_k_earlier[j] + v[i] * phi_k[j]
                            const size rows = n_K;
                            const real *const phi_q_0_j_row = phi_q + tp * row_K;
                            const real *const phi_q_1_j_row = phi_q + (tp + 1) * row_K;
                            const real *const phi_k_earlier_j_row = phi_k + tp * row_K;
                            const real *const phi_k_j_row = phi_k + (tp + 1) * row_K;
                            const real *const W_0_ij_from = W_0;
                            real *const W_1_ij_to = W_0;
                            fw::vec v_earlier_v[NV], v_v[NV], r_y_0_lane_sum[NV], r_y_1_lane_sum[NV];
                            FW_UNROLL
                            for (int b = 0; b < NV; ++b) {
                                v_earlier_v[b] = fw::load(v_rows.data + tp * v_rows.step + (i0 + b) * fw::L);
                                v_v[b] = fw::load(v_rows.data + (tp + 1) * v_rows.step + (i0 + b) * fw::L);
                                r_y_0_lane_sum[b] = fw::vec{};
                                r_y_1_lane_sum[b] = fw::vec{};
                            }
                            const size fours = rows / 4 * 4;
                            for (size j = 0; j < fours; j += 4) {
                                FW_UNROLL
                                for (int step = 0; step < 4; ++step) {
                                    const size at_row = j + step;
                                    const fw::vec phi_q_0_j = fw::splat(phi_q_0_j_row[at_row]);
                                    const fw::vec phi_q_1_j = fw::splat(phi_q_1_j_row[at_row]);
                                    const fw::vec phi_k_earlier_j = fw::splat(phi_k_earlier_j_row[at_row]);
                                    const fw::vec phi_k_j = fw::splat(phi_k_j_row[at_row]);
                                    FW_UNROLL
                                    for (int b = 0; b < NV; ++b) {
                                        const size at = ((i0 + b) * fw::column(rows) + at_row) * fw::L;
                                        const fw::vec W_0_ij = fw::load(W_0_ij_from + at);
                                        r_y_0_lane_sum[b] += W_0_ij * phi_q_0_j;
                                        r_y_1_lane_sum[b] += W_0_ij * phi_q_1_j;
                                        const fw::vec W_1_ij = fw::wide(W_0_ij + v_earlier_v[b] * phi_k_earlier_j + v_v[b] * phi_k_j);
                                        fw::store(W_1_ij_to + at, W_1_ij);
                                    }

                                }
                            }
                            for (size j = fours; j < rows; ++j) {
                                const size at_row = j;
                                const fw::vec phi_q_0_j = fw::splat(phi_q_0_j_row[at_row]);
                                const fw::vec phi_q_1_j = fw::splat(phi_q_1_j_row[at_row]);
                                const fw::vec phi_k_earlier_j = fw::splat(phi_k_earlier_j_row[at_row]);
                                const fw::vec phi_k_j = fw::splat(phi_k_j_row[at_row]);
                                FW_UNROLL
                                for (int b = 0; b < NV; ++b) {
                                    const size at = ((i0 + b) * fw::column(rows) + at_row) * fw::L;
                                    const fw::vec W_0_ij = fw::load(W_0_ij_from + at);
                                    r_y_0_lane_sum[b] += W_0_ij * phi_q_0_j;
                                    r_y_1_lane_sum[b] += W_0_ij * phi_q_1_j;
                                    const fw::vec W_1_ij = fw::wide(W_0_ij + v_earlier_v[b] * phi_k_earlier_j + v_v[b] * phi_k_j);
                                    fw::store(W_1_ij_to + at, W_1_ij);
                                }

                            }
                            FW_UNROLL
                            for (int b = 0; b < NV; ++b) {
                                real *const to = r_y + tp * row_V + (i0 + b) * fw::L;
                                fw::store(to, r_y_0_lane_sum[b]);
                            }
                            FW_UNROLL
                            for (int b = 0; b < NV; ++b) {
                                real *const to = r_y + (tp + 1) * row_V + (i0 + b) * fw::L;
                                fw::store(to, r_y_1_lane_sum[b]);
                            }
                        }

                    });


                    {
                        const size t = tp;
                        
                    }
                    {
                        const size t = tp + 1;
                        
                    }
                    if (i0 == 0) {
                        q_ahead0.ask(tp);
                        q_ahead0.ask(tp + 1);
                        k_ahead1.ask(tp);
                        k_ahead1.ask(tp + 1);
                        v_ahead2.ask(tp);
                        v_ahead2.ask(tp + 1);
                        y_ahead4.ask(tp);
                        y_ahead4.ask(tp + 1);
                    }

                }
                if (tc % 2) {
                    const size t = tc - 1;
                    if (i0 == 0) {
                        q_ahead0.ask(t);
                        k_ahead1.ask(t);
                        v_ahead2.ask(t);
                        y_ahead4.ask(t);
                    }

                    fw::parts<NV, 1>(i0, [&](auto block, const size i0) {
                        constexpr int NV = block.value;
                        {
                            // r_y[i] = sum_j W[i, j] * phi_q[j]
                            // W_1[i, j] = W[i, j] + v[i] * phi_k[j]
                            const size rows = n_K;
                            const real *const phi_q_j_row = phi_q + t * row_K;
                            const real *const phi_k_j_row = phi_k + t * row_K;
                            const real *const W_ij_from = W_0;
                            real *const W_1_ij_to = W_0;
                            fw::vec v_v[NV], r_y_lane_sum[NV];
                            FW_UNROLL
                            for (int b = 0; b < NV; ++b) {
                                v_v[b] = fw::load(v_rows.data + t * v_rows.step + (i0 + b) * fw::L);
                                r_y_lane_sum[b] = fw::vec{};
                            }
                            const size fours = rows / 4 * 4;
                            for (size j = 0; j < fours; j += 4) {
                                FW_UNROLL
                                for (int step = 0; step < 4; ++step) {
                                    const size at_row = j + step;
                                    const fw::vec phi_q_j = fw::splat(phi_q_j_row[at_row]);
                                    const fw::vec phi_k_j = fw::splat(phi_k_j_row[at_row]);
                                    FW_UNROLL
                                    for (int b = 0; b < NV; ++b) {
                                        const size at = ((i0 + b) * fw::column(rows) + at_row) * fw::L;
                                        const fw::vec W_ij = fw::load(W_ij_from + at);
                                        r_y_lane_sum[b] += W_ij * phi_q_j;
                                        const fw::vec W_1_ij = fw::wide(W_ij + v_v[b] * phi_k_j);
                                        fw::store(W_1_ij_to + at, W_1_ij);
                                    }

                                }
                            }
                            for (size j = fours; j < rows; ++j) {
                                const size at_row = j;
                                const fw::vec phi_q_j = fw::splat(phi_q_j_row[at_row]);
                                const fw::vec phi_k_j = fw::splat(phi_k_j_row[at_row]);
                                FW_UNROLL
                                for (int b = 0; b < NV; ++b) {
                                    const size at = ((i0 + b) * fw::column(rows) + at_row) * fw::L;
                                    const fw::vec W_ij = fw::load(W_ij_from + at);
                                    r_y_lane_sum[b] += W_ij * phi_q_j;
                                    const fw::vec W_1_ij = fw::wide(W_ij + v_v[b] * phi_k_j);
                                    fw::store(W_1_ij_to + at, W_1_ij);
                                }

                            }
                            FW_UNROLL
                            for (int b = 0; b < NV; ++b) {
                                real *const to = r_y + t * row_V + (i0 + b) * fw::L;
                                fw::store(to, r_y_lane_sum[b]);
                            }
                        }

                    });


                    
                }


            });


            for (size t = 1; t < tc; t += 2) {
                // r_y[i] += v_earlier[i] * s_r_y
                for (size e = 0; e < n_V; e += fw::L) {
                    fw::store(r_y + t * row_V + e, fw::load(r_y + t * row_V + e) + fw::tail(e, n_V, s_r_y[t] * fw::load(v_rows.data + (t - 1) * v_rows.step + e)));

                }

            }

            for (size t = 0; t < tc; ++t) {
                // y[i] = r_y[i] + v[i] * s_y
                for (size e = 0; e < n_V; e += fw::L) {
                    fw::store(y_rows.data + t * y_rows.step + e, fw::tail(e, n_V, fw::load(r_y + t * row_V + e) + s_y[t] * fw::load(v_rows.data + t * v_rows.step + e)));

                }

            }

            if (y_rows.data == y) fw::tokens_out(call, 4, y, n, h, c0, tc, row_V, 1, n_V, false);
        }
        fw::copy_out(call.tensor(5), n, h, W_0, n_V, n_K, 0);
    }

    return true;
}
#endif

#ifndef FWGEN_NO_BACKWARD
bool backward_head(const fw::Call &call, fw::Space &space, const size n, const size h) {
#ifdef FWGEN_SIZE_0
    constexpr size n_K = FWGEN_SIZE_0;
#else
    const size n_K = call.dims[0];
#endif
#ifdef FWGEN_SIZE_1
    constexpr size n_V = FWGEN_SIZE_1;
#else
    const size n_V = call.dims[1];
#endif
    const size row_K = fw::padded(n_K);
    const size row_V = fw::padded(n_V);
    const size row_V__K = fw::padded(n_V) * fw::column(n_K);
    const size row_K__V = fw::padded(n_K) * fw::column(n_V);
    const size T = call.length(n);
    const size C = call.longest < TC ? call.longest : TC;
    // What nobody asked for is left out: whether there is a tensor for one of these gradients.
    const bool wanted_1 = call.tensor(7).data || call.tensor(8).data || call.tensor(9).data;  // k, v, the start of W
    const bool wanted_2 = call.tensor(7).data;  // k
    const bool wanted_3 = call.tensor(6).data;  // q

    const size q_at = space.take((C + 1) * row_K);  // [K]
    const size k_at = space.take((C + 1) * row_K);  // [K]
    const size v_at = space.take((C + 1) * row_V);  // [V]
    const size d_y_at = space.take((C + 1) * row_V);  // [V]
    const size d_W_1_0_at = space.take(row_V__K);  // [V, K]
    const size phi_k_at = space.take((C + 1) * row_K);  // [K]
    const size phi_q_at = space.take((C + 1) * row_K);  // [K]
    const size s_y_at = space.take(C + 1);  // []
    const size d_v_at = space.take((C + 1) * row_V);  // [V]
    const size d_phi_k_at = space.take((C + 1) * row_K);  // [K]
    const size d_k_at = space.take((C + 1) * row_K);  // [K]
    const size W_1_at = space.take(row_K__V);  // [V, K]
    const size s_d_phi_q_at = space.take(C + 1);  // []
    const size d_q_at = space.take((C + 1) * row_K);  // [K]
    space.plain();
    const size d_r_y_all_at = space.take((call.longest) * row_V);  // [V]
    const size d_s_y_all_at = space.take(call.longest);  // []
    if (!space.allocate()) return false;
    real *const q = space.data + q_at;
    real *const k = space.data + k_at;
    real *const v = space.data + v_at;
    real *const d_y = space.data + d_y_at;
    real *const d_W_1_0 = space.data + d_W_1_0_at;
    real *const phi_k = space.data + phi_k_at;
    real *const phi_q = space.data + phi_q_at;
    real *const s_y = space.data + s_y_at;
    real *const d_r_y_all = space.data + d_r_y_all_at;
    real *const d_v = space.data + d_v_at;
    real *const d_s_y_all = space.data + d_s_y_all_at;
    real *const d_phi_k = space.data + d_phi_k_at;
    real *const d_k = space.data + d_k_at;
    real *const W_1 = space.data + W_1_at;
    real *const d_phi_q = d_phi_k;  // d_phi_k is read no more by then
    real *const s_d_phi_q = space.data + s_d_phi_q_at;
    real *const d_q = space.data + d_q_at;

    {
        if (call.tensor(5).data) fw::copy_in(d_W_1_0, call.tensor(5), n, h, n_V, n_K, 0);
        else fw::fill_in(d_W_1_0, real(0.0), n_V, n_K, 0);

        for (size c0 = (T - 1) / TC * TC; c0 >= 0 && T > 0; c0 -= TC) {
            const size tc = T - c0 < TC ? T - c0 : TC;
            real *const d_r_y = d_r_y_all + c0 * row_V;
            real *const d_s_y = d_s_y_all + c0 * 1;
            const fw::Rows q_rows = fw::rows_in(q, call, 0, n, h, c0, tc, row_K, 1, n_K);
            const fw::Rows k_rows = fw::rows_in(k, call, 1, n, h, c0, tc, row_K, 1, n_K);
            const fw::Rows v_rows = fw::rows_in(v, call, 2, n, h, c0, tc, row_V, 1, n_V);
            const fw::Rows d_y_rows = fw::rows_in(d_y, call, 4, n, h, c0, tc, row_V, 1, n_V);
            const fw::Rows d_v_rows = fw::tokens_at(d_v, call, 8, n, h, c0, row_V, 1, n_V);
            const fw::Rows d_k_rows = fw::tokens_at(d_k, call, 7, n, h, c0, row_K, 1, n_K);
            const fw::Ahead<0> q_ahead0(call, 0, n, h, c0 - TC, 0, 1 * (n_K), q);
            const fw::Ahead<0> k_ahead1(call, 1, n, h, c0 - TC, 0, 1 * (n_K), k);
            const fw::Ahead<0> v_ahead2(call, 2, n, h, c0 - TC, 0, 1 * (n_V), v);
            const fw::Ahead<0> d_y_ahead4(call, 4, n, h, c0 - TC, 0, 1 * (n_V), d_y);
            const fw::Ahead<1> d_v_ahead8(call, 8, n, h, c0, -fw::SOON, 1 * (n_V), d_v);
            const fw::Ahead<1> d_k_ahead7(call, 7, n, h, c0, 0, 1 * (n_K), d_k);
            for (size t = 0; t < tc; ++t) {
                // phi_k[i] = elu(k[i]) + 1
                for (size e = 0; e < n_K; e += fw::L) {
                    fw::store(phi_k + t * row_K + e, fw::tail(e, n_K, fw::elu(fw::load(k_rows.data + t * k_rows.step + e)) + real(1)));

                }

                // phi_q[i] = elu(q[i]) + 1
                for (size e = 0; e < n_K; e += fw::L) {
                    fw::store(phi_q + t * row_K + e, fw::tail(e, n_K, fw::elu(fw::load(q_rows.data + t * q_rows.step + e)) + real(1)));

                }

                // s_y = sum_j phi_q[j] * phi_k[j]
                {
                    fw::vec sum = fw::splat(real(0));
                    for (size e = 0; e < n_K; e += fw::L)
                        sum += fw::tail(e, n_K, fw::load(phi_q + t * row_K + e) * fw::load(phi_k + t * row_K + e));
                    s_y[t] = fw::sum(sum);
                }

                // d_r_y[i] = d_y[i]
                for (size e = 0; e < n_V; e += fw::L) {
                    fw::store(d_r_y + t * row_V + e, fw::tail(e, n_V, fw::load(d_y_rows.data + t * d_y_rows.step + e)));

                }

                // d_v[i] = d_y[i] * s_y
                for (size e = 0; e < n_V; e += fw::L) {
                    fw::store(d_v_rows.data + t * d_v_rows.step + e, fw::tail(e, n_V, s_y[t] * fw::load(d_y_rows.data + t * d_y_rows.step + e)));

                }

                // d_s_y = sum_i d_y[i] * v[i]
                {
                    fw::vec sum = fw::splat(real(0));
                    for (size e = 0; e < n_V; e += fw::L)
                        sum += fw::tail(e, n_V, fw::load(d_y_rows.data + t * d_y_rows.step + e) * fw::load(v_rows.data + t * v_rows.step + e));
                    d_s_y[t] = fw::sum(sum);
                }

                // d_phi_k[j] = d_s_y * phi_q[j]
                for (size e = 0; e < n_K; e += fw::L) {
                    fw::store(d_phi_k + t * row_K + e, fw::tail(e, n_K, d_s_y[t] * fw::load(phi_q + t * row_K + e)));

                }

            }

            if (wanted_1) {
                fw::blocks<4>(n_V, [&](auto block, const size i0) {
                    constexpr int NV = block.value;
                    for (size t = tc - 1; t >= 0; --t) {
                        if (i0 == 0) {
                            q_ahead0.ask(t);
                            k_ahead1.ask(t);
                            v_ahead2.ask(t);
                            d_y_ahead4.ask(t);
                            d_v_ahead8.ask(t);
                            d_k_ahead7.ask(t);
                        }

                        {
                            // d_v[i] += sum_j d_W_1[i, j] * phi_k[j]
                            // d_phi_k[j] += sum_i d_W_1[i, j] * v[i]
                            // d_W[i, j] = d_r_y[i] * phi_q[j] + d_W_1[i, j]
                            const size rows = n_K;
                            const real *const phi_k_j_row = phi_k + t * row_K;
                            const real *const phi_q_j_row = phi_q + t * row_K;
                            const real *const d_W_1_ij_from = d_W_1_0;
                            real *const d_W_ij_to = d_W_1_0;
                            real *const d_phi_k_row_sum_to = d_phi_k + t * row_K;
                            fw::vec v_v[NV], d_r_y_v[NV], d_v_lane_sum[NV];
                            FW_UNROLL
                            for (int b = 0; b < NV; ++b) {
                                v_v[b] = fw::load(v_rows.data + t * v_rows.step + (i0 + b) * fw::L);
                                d_r_y_v[b] = fw::load(d_r_y + t * row_V + (i0 + b) * fw::L);
                                d_v_lane_sum[b] = fw::vec{};
                            }
                            for (size j0 = 0; j0 < rows; j0 += fw::L) {
                                fw::vec d_phi_k_row_sum[fw::L];
                                const size some = rows - j0 < fw::L ? rows - j0 : fw::L;
                                for (size r = 0; r < some; ++r) {
                                    const size at_row = j0 + r;
                                    const fw::vec phi_k_j = fw::splat(phi_k_j_row[at_row]);
                                    const fw::vec phi_q_j = fw::splat(phi_q_j_row[at_row]);
                                    d_phi_k_row_sum[r] = fw::vec{};
                                    FW_UNROLL
                                    for (int b = 0; b < NV; ++b) {
                                        const size at = ((i0 + b) * fw::column(rows) + at_row) * fw::L;
                                        const fw::vec d_W_1_ij = fw::load(d_W_1_ij_from + at);
                                        d_v_lane_sum[b] += d_W_1_ij * phi_k_j;
                                        d_phi_k_row_sum[r] += d_W_1_ij * v_v[b];
                                        const fw::vec d_W_ij = fw::wide(d_r_y_v[b] * phi_q_j + d_W_1_ij);
                                        fw::store(d_W_ij_to + at, d_W_ij);
                                    }

                                }
                                for (size r = some; r < fw::L; ++r) {
                                    d_phi_k_row_sum[r] = fw::vec{};
                                }
                                fw::store(d_phi_k_row_sum_to + j0, fw::load(d_phi_k_row_sum_to + j0) + fw::sums(d_phi_k_row_sum));
                            }
                            FW_UNROLL
                            for (int b = 0; b < NV; ++b) {
                                real *const to = d_v_rows.data + t * d_v_rows.step + (i0 + b) * fw::L;
                                fw::store(to, fw::load(to) + d_v_lane_sum[b]);
                            }
                        }



                    }

                });


            }
            if (wanted_2) {
                for (size t = 0; t < tc; ++t) {
                    // d_k[i] = d_phi_k[i] * select(k[i] <= 0, exp(k[i]), 1)
                    for (size e = 0; e < n_K; e += fw::L) {
                        fw::store(d_k_rows.data + t * d_k_rows.step + e, fw::tail(e, n_K, fw::load(d_phi_k + t * row_K + e) * fw::select((fw::load(k_rows.data + t * k_rows.step + e) <= real(0.0)), fw::exp(fw::load(k_rows.data + t * k_rows.step + e)), real(1.0))));

                    }

                }

            }
            if (d_v_rows.data == d_v) fw::tokens_out(call, 8, d_v, n, h, c0, tc, row_V, 1, n_V, false);
            if (d_k_rows.data == d_k) fw::tokens_out(call, 7, d_k, n, h, c0, tc, row_K, 1, n_K, false);
        }
        fw::copy_out(call.tensor(9), n, h, d_W_1_0, n_V, n_K, 0);
    }


    if (wanted_3) {
        if (call.tensor(3).data) fw::copy_in(W_1, call.tensor(3), n, h, n_V, n_K, 1);
        else fw::fill_in(W_1, real(0.0), n_V, n_K, 1);

        for (size c0 = 0; c0 < T; c0 += TC) {
            const size tc = T - c0 < TC ? T - c0 : TC;
            real *const d_s_y = d_s_y_all + c0 * 1;
            real *const d_r_y = d_r_y_all + c0 * row_V;
            const fw::Rows q_rows = fw::rows_in(q, call, 0, n, h, c0, tc, row_K, 1, n_K);
            const fw::Rows k_rows = fw::rows_in(k, call, 1, n, h, c0, tc, row_K, 1, n_K);
            const fw::Rows v_rows = fw::rows_in(v, call, 2, n, h, c0, tc, row_V, 1, n_V);
            const fw::Rows d_q_rows = fw::tokens_at(d_q, call, 6, n, h, c0, row_K, 1, n_K);
            const fw::Ahead<0> q_ahead0(call, 0, n, h, c0 + TC, 0, 1 * (n_K), q);
            const fw::Ahead<0> k_ahead1(call, 1, n, h, c0 + TC, 0, 1 * (n_K), k);
            const fw::Ahead<0> v_ahead2(call, 2, n, h, c0 + TC, 0, 1 * (n_V), v);
            const fw::Ahead<1> d_q_ahead6(call, 6, n, h, c0, 0, 1 * (n_K), d_q);
            for (size t = 0; t < tc; ++t) {
                for (size e = 0; e < n_K; e += fw::L) {
                    // phi_k[i] = elu(k[i]) + 1
                    fw::store(phi_k + t * row_K + e, fw::tail(e, n_K, fw::elu(fw::load(k_rows.data + t * k_rows.step + e)) + real(1)));

                    // d_phi_q[j] = d_s_y * phi_k[j]
                    fw::store(d_phi_q + t * row_K + e, fw::tail(e, n_K, d_s_y[t] * fw::load(phi_k + t * row_K + e)));

                }

            }

            for (size t = 1; t < tc; t += 2) {
                // s_d_phi_q = sum_j v_earlier[j] * d_r_y[j]
                {
                    fw::vec sum = fw::splat(real(0));
                    for (size e = 0; e < n_V; e += fw::L)
                        sum += fw::tail(e, n_V, fw::load(v_rows.data + (t - 1) * v_rows.step + e) * fw::load(d_r_y + t * row_V + e));
                    s_d_phi_q[t] = fw::sum(sum);
                }

            }

            fw::blocks<4>(n_K, [&](auto block, const size i0) {
                constexpr int NV = block.value;
                for (size tp = 0; tp + 1 < tc; tp += 2) {
                    fw::parts<NV, 2>(i0, [&](auto block, const size i0) {
                        constexpr int NV = block.value;
                        {
                            // d_phi_q[i] += sum_j d_r_y[j] * W[j, i] (token tp)
                            // d_phi_q[i] += sum_j W[i, j] * d_r_y[j] (token tp + 1)
                            // W_1[j, i] = W[j, i] + phi_k_earlier[i] * v_earlier[j] + v[j] * phi_k[i]
                            const size rows = n_V;
                            const real *const d_r_y_0_j_row = d_r_y + tp * row_V;
                            const real *const d_r_y_1_j_row = d_r_y + (tp + 1) * row_V;
                            const real *const v_earlier_j_row = v_rows.data + tp * v_rows.step;
                            const real *const v_j_row = v_rows.data + (tp + 1) * v_rows.step;
                            const real *const W_0_ij_from = W_1;
                            real *const W_1_ij_to = W_1;
                            fw::vec phi_k_earlier_v[NV], phi_k_v[NV], d_phi_q_0_lane_sum[NV], d_phi_q_1_lane_sum[NV];
                            FW_UNROLL
                            for (int b = 0; b < NV; ++b) {
                                phi_k_earlier_v[b] = fw::load(phi_k + tp * row_K + (i0 + b) * fw::L);
                                phi_k_v[b] = fw::load(phi_k + (tp + 1) * row_K + (i0 + b) * fw::L);
                                d_phi_q_0_lane_sum[b] = fw::vec{};
                                d_phi_q_1_lane_sum[b] = fw::vec{};
                            }
                            const size fours = rows / 4 * 4;
                            for (size j = 0; j < fours; j += 4) {
                                FW_UNROLL
                                for (int step = 0; step < 4; ++step) {
                                    const size at_row = j + step;
                                    const fw::vec d_r_y_0_j = fw::splat(d_r_y_0_j_row[at_row]);
                                    const fw::vec d_r_y_1_j = fw::splat(d_r_y_1_j_row[at_row]);
                                    const fw::vec v_earlier_j = fw::splat(v_earlier_j_row[at_row]);
                                    const fw::vec v_j = fw::splat(v_j_row[at_row]);
                                    FW_UNROLL
                                    for (int b = 0; b < NV; ++b) {
                                        const size at = ((i0 + b) * fw::column(rows) + at_row) * fw::L;
                                        const fw::vec W_0_ij = fw::load(W_0_ij_from + at);
                                        d_phi_q_0_lane_sum[b] += d_r_y_0_j * W_0_ij;
                                        d_phi_q_1_lane_sum[b] += W_0_ij * d_r_y_1_j;
                                        const fw::vec W_1_ij = fw::wide(W_0_ij + phi_k_earlier_v[b] * v_earlier_j + v_j * phi_k_v[b]);
                                        fw::store(W_1_ij_to + at, W_1_ij);
                                    }

                                }
                            }
                            for (size j = fours; j < rows; ++j) {
                                const size at_row = j;
                                const fw::vec d_r_y_0_j = fw::splat(d_r_y_0_j_row[at_row]);
                                const fw::vec d_r_y_1_j = fw::splat(d_r_y_1_j_row[at_row]);
                                const fw::vec v_earlier_j = fw::splat(v_earlier_j_row[at_row]);
                                const fw::vec v_j = fw::splat(v_j_row[at_row]);
                                FW_UNROLL
                                for (int b = 0; b < NV; ++b) {
                                    const size at = ((i0 + b) * fw::column(rows) + at_row) * fw::L;
                                    const fw::vec W_0_ij = fw::load(W_0_ij_from + at);
                                    d_phi_q_0_lane_sum[b] += d_r_y_0_j * W_0_ij;
                                    d_phi_q_1_lane_sum[b] += W_0_ij * d_r_y_1_j;
                                    const fw::vec W_1_ij = fw::wide(W_0_ij + phi_k_earlier_v[b] * v_earlier_j + v_j * phi_k_v[b]);
                                    fw::store(W_1_ij_to + at, W_1_ij);
                                }

                            }
                            FW_UNROLL
                            for (int b = 0; b < NV; ++b) {
                                real *const to = d_phi_q + tp * row_K + (i0 + b) * fw::L;
                                fw::store(to, fw::load(to) + d_phi_q_0_lane_sum[b]);
                            }
                            FW_UNROLL
                            for (int b = 0; b < NV; ++b) {
                                real *const to = d_phi_q + (tp + 1) * row_K + (i0 + b) * fw::L;
                                fw::store(to, fw::load(to) + d_phi_q_1_lane_sum[b]);
                            }
                        }

                    });


                    {
                        const size t = tp;
                        
                    }
                    {
                        const size t = tp + 1;
                        
                    }
                    if (i0 == 0) {
                        q_ahead0.ask(tp);
                        q_ahead0.ask(tp + 1);
                        k_ahead1.ask(tp);
                        k_ahead1.ask(tp + 1);
                        v_ahead2.ask(tp);
                        v_ahead2.ask(tp + 1);
                        d_q_ahead6.ask(tp);
                        d_q_ahead6.ask(tp + 1);
                    }

                }
                if (tc % 2) {
                    const size t = tc - 1;
                    if (i0 == 0) {
                        q_ahead0.ask(t);
                        k_ahead1.ask(t);
                        v_ahead2.ask(t);
                        d_q_ahead6.ask(t);
                    }

                    fw::parts<NV, 1>(i0, [&](auto block, const size i0) {
                        constexpr int NV = block.value;
                        {
                            // d_phi_q[i] += sum_j d_r_y[j] * W[j, i]
                            // W_1[j, i] = W[j, i] + v[j] * phi_k[i]
                            const size rows = n_V;
                            const real *const d_r_y_j_row = d_r_y + t * row_V;
                            const real *const v_j_row = v_rows.data + t * v_rows.step;
                            const real *const W_ij_from = W_1;
                            real *const W_1_ij_to = W_1;
                            fw::vec phi_k_v[NV], d_phi_q_lane_sum[NV];
                            FW_UNROLL
                            for (int b = 0; b < NV; ++b) {
                                phi_k_v[b] = fw::load(phi_k + t * row_K + (i0 + b) * fw::L);
                                d_phi_q_lane_sum[b] = fw::vec{};
                            }
                            const size fours = rows / 4 * 4;
                            for (size j = 0; j < fours; j += 4) {
                                FW_UNROLL
                                for (int step = 0; step < 4; ++step) {
                                    const size at_row = j + step;
                                    const fw::vec d_r_y_j = fw::splat(d_r_y_j_row[at_row]);
                                    const fw::vec v_j = fw::splat(v_j_row[at_row]);
                                    FW_UNROLL
                                    for (int b = 0; b < NV; ++b) {
                                        const size at = ((i0 + b) * fw::column(rows) + at_row) * fw::L;
                                        const fw::vec W_ij = fw::load(W_ij_from + at);
                                        d_phi_q_lane_sum[b] += d_r_y_j * W_ij;
                                        const fw::vec W_1_ij = fw::wide(W_ij + v_j * phi_k_v[b]);
                                        fw::store(W_1_ij_to + at, W_1_ij);
                                    }

                                }
                            }
                            for (size j = fours; j < rows; ++j) {
                                const size at_row = j;
                                const fw::vec d_r_y_j = fw::splat(d_r_y_j_row[at_row]);
                                const fw::vec v_j = fw::splat(v_j_row[at_row]);
                                FW_UNROLL
                                for (int b = 0; b < NV; ++b) {
                                    const size at = ((i0 + b) * fw::column(rows) + at_row) * fw::L;
                                    const fw::vec W_ij = fw::load(W_ij_from + at);
                                    d_phi_q_lane_sum[b] += d_r_y_j * W_ij;
                                    const fw::vec W_1_ij = fw::wide(W_ij + v_j * phi_k_v[b]);
                                    fw::store(W_1_ij_to + at, W_1_ij);
                                }

                            }
                            FW_UNROLL
                            for (int b = 0; b < NV; ++b) {
                                real *const to = d_phi_q + t * row_K + (i0 + b) * fw::L;
                                fw::store(to, fw::load(to) + d_phi_q_lane_sum[b]);
                            }
                        }

                    });


                    
                }


            });


            for (size t = 1; t < tc; t += 2) {
                // d_phi_q[i] += phi_k_earlier[i] * s_d_phi_q
                for (size e = 0; e < n_K; e += fw::L) {
                    fw::store(d_phi_q + t * row_K + e, fw::load(d_phi_q + t * row_K + e) + fw::tail(e, n_K, s_d_phi_q[t] * fw::load(phi_k + (t - 1) * row_K + e)));

                }

            }

            for (size t = 0; t < tc; ++t) {
                // d_q[i] = d_phi_q[i] * select(q[i] <= 0, exp(q[i]), 1)
                for (size e = 0; e < n_K; e += fw::L) {
                    fw::store(d_q_rows.data + t * d_q_rows.step + e, fw::tail(e, n_K, fw::load(d_phi_q + t * row_K + e) * fw::select((fw::load(q_rows.data + t * q_rows.step + e) <= real(0.0)), fw::exp(fw::load(q_rows.data + t * q_rows.step + e)), real(1.0))));

                }

            }

            if (d_q_rows.data == d_q) fw::tokens_out(call, 6, d_q, n, h, c0, tc, row_K, 1, n_K, false);
        }
    }

    return true;
}
#endif

}  // namespace

#ifndef FWGEN_NO_FORWARD
extern "C" long fwgen_forward(const long *args) {
    return fw::for_each_head(args, 2, forward_head);
}
#endif
#ifndef FWGEN_NO_BACKWARD
extern "C" long fwgen_backward(const long *args) {
    return fw::for_each_head(args, 2, backward_head);
}
#endif
