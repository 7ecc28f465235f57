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
