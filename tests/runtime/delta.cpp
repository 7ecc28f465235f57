// The delta rule by hand, plain loops, for the tests of the runtime: W += beta (v - W k) k^T, y = W q.
#include <cstdint>
#include <cstdlib>
#include <cstring>

using real = FWGEN_REAL;

// Specialised libraries trust their macros and not the array.
#ifdef FWGEN_SIZE_0
#define SIZE_0(a) FWGEN_SIZE_0
#else
#define SIZE_0(a) a[5]
#endif
#ifdef FWGEN_SIZE_1
#define SIZE_1(a) FWGEN_SIZE_1
#else
#define SIZE_1(a) a[6]
#endif

namespace {

struct Tensor {
    real *data;
    int64_t n, t, h, group;
    explicit Tensor(const int64_t *entry)
        : data(reinterpret_cast<real *>(entry[0])), n(entry[1]), t(entry[2]), h(entry[3]),
          group(entry[4]) {}
    real *at(int64_t row, int64_t token, int64_t head) const {
        return data + row * n + token * t + (head / (group ? group : 1)) * h;
    }
};

struct Call {
    int64_t N, H, T, K, V;
    const int64_t *bounds, *tensors;
    explicit Call(const int64_t *a)
        : N(a[0]), H(a[1]), T(a[2]), K(SIZE_0(a)), V(SIZE_1(a)),
          bounds(reinterpret_cast<const int64_t *>(a[3])), tensors(a + 7) {}
    Tensor tensor(int i) const { return Tensor(tensors + 5 * i); }
    int64_t row(int64_t n) const { return bounds ? 0 : n; }
    int64_t first(int64_t n) const { return bounds ? bounds[n] : 0; }
    int64_t last(int64_t n) const { return bounds ? bounds[n + 1] : T; }
};

}  // namespace

// q k v beta | W | y | W | error
extern "C" int fwgen_forward(const int64_t *args) {
    const Call c(args);
    const Tensor q = c.tensor(0), k = c.tensor(1), v = c.tensor(2), beta = c.tensor(3);
    const Tensor start = c.tensor(4), y = c.tensor(5), final = c.tensor(6), error = c.tensor(7);
    for (int64_t n = 0; n < c.N; n++)
        for (int64_t h = 0; h < c.H; h++) {
            real *W = static_cast<real *>(calloc(c.V * c.K, sizeof(real)));
            if (!W) return 1;
            if (start.data) memcpy(W, start.at(n, 0, h), c.V * c.K * sizeof(real));
            const int64_t r = c.row(n);
            for (int64_t t = c.first(n); t < c.last(n); t++) {
                const real *qt = q.at(r, t, h), *kt = k.at(r, t, h), *vt = v.at(r, t, h);
                for (int64_t i = 0; i < c.V; i++) {
                    real p = 0, out = 0;
                    for (int64_t j = 0; j < c.K; j++) p += W[i * c.K + j] * kt[j];
                    const real e = vt[i] - p, u = *beta.at(r, t, h) * e;
                    if (error.data) error.at(r, t, h)[i] = e;
                    for (int64_t j = 0; j < c.K; j++) {
                        W[i * c.K + j] += u * kt[j];
                        out += W[i * c.K + j] * qt[j];
                    }
                    y.at(r, t, h)[i] = out;
                }
            }
            if (final.data) memcpy(final.at(n, 0, h), W, c.V * c.K * sizeof(real));
            free(W);
        }
    return 0;
}

// q k v beta | W | error | dy | dW_final | dq dk dv dbeta | dW
extern "C" int fwgen_backward(const int64_t *args) {
    const Call c(args);
    const Tensor q = c.tensor(0), k = c.tensor(1), v = c.tensor(2), beta = c.tensor(3);
    const Tensor start = c.tensor(4), error = c.tensor(5), dy = c.tensor(6), dfinal = c.tensor(7);
    const Tensor dq = c.tensor(8), dk = c.tensor(9), dv = c.tensor(10), dbeta = c.tensor(11);
    const Tensor dstart = c.tensor(12);
    const int64_t size = c.V * c.K;
    for (int64_t n = 0; n < c.N; n++)
        for (int64_t h = 0; h < c.H; h++) {
            const int64_t a = c.first(n), count = c.last(n) - a, r = c.row(n);
            real *S = static_cast<real *>(calloc(size * (count + 1), sizeof(real)));
            real *G = static_cast<real *>(calloc(size, sizeof(real)));
            if (!S || !G) return 1;
            if (start.data) memcpy(S, start.at(n, 0, h), size * sizeof(real));
            if (dfinal.data) memcpy(G, dfinal.at(n, 0, h), size * sizeof(real));
            for (int64_t s = 0; s < count; s++) {
                const real *kt = k.at(r, a + s, h), *e = error.at(r, a + s, h);
                const real *W = S + s * size;
                real *next = S + (s + 1) * size;
                for (int64_t i = 0; i < c.V; i++)
                    for (int64_t j = 0; j < c.K; j++)
                        next[i * c.K + j] = W[i * c.K + j] + *beta.at(r, a + s, h) * e[i] * kt[j];
            }
            for (int64_t s = count - 1; s >= 0; s--) {
                const int64_t t = a + s;
                const real *qt = q.at(r, t, h), *kt = k.at(r, t, h), *e = error.at(r, t, h);
                const real b = *beta.at(r, t, h), *W = S + s * size, *next = W + size;
                real db = 0;
                for (int64_t j = 0; j < c.K; j++) {
                    if (dq.data) dq.at(r, t, h)[j] = 0;
                    if (dk.data) dk.at(r, t, h)[j] = 0;
                }
                for (int64_t i = 0; i < c.V; i++) {
                    const real g = dy.data ? dy.at(r, t, h)[i] : 0;
                    real *Gi = G + i * c.K, du = 0;
                    for (int64_t j = 0; j < c.K; j++) {
                        if (dq.data) dq.at(r, t, h)[j] += g * next[i * c.K + j];
                        Gi[j] += g * qt[j];
                        du += Gi[j] * kt[j];
                    }
                    db += du * e[i];
                    if (dv.data) dv.at(r, t, h)[i] = b * du;
                    for (int64_t j = 0; j < c.K; j++) {
                        if (dk.data)
                            dk.at(r, t, h)[j] += Gi[j] * b * e[i] - b * du * W[i * c.K + j];
                        Gi[j] -= b * du * kt[j];
                    }
                }
                if (dbeta.data) *dbeta.at(r, t, h) = db;
            }
            if (dstart.data) memcpy(dstart.at(n, 0, h), G, size * sizeof(real));
            free(S);
            free(G);
        }
    return 0;
}
