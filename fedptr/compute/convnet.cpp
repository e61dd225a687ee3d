// The paper's ConvNet and its first and second derivatives, for one block of images on one core: see winograd.py.
//
// A 3×3 convolution is computed by Winograd's F(2×2, 3×3): every 2×2 tile of its output needs 16 products per pair of
// channels instead of 36, and these make 16 ordinary matrix products. A tile is also what the pooling averages, so
// activations are kept tile by tile, [image][tile][4][channel], and nothing between two products is ever taken apart.
// The first layer, with its few input channels, is one product with the 3×3 neighbourhoods. Images go through in groups
// that stay in the cache. A bias in front of a normalisation has no effect and no derivative: it is not read.
// Where a convolution's result has an odd number of rows or columns, the last tiles reach beyond it. What is outside is
// zero in u and in every derivative, and is no part of a mean; and the pooling leaves these tiles out.
//
//     V, U, M   factors, filters and results of the products            u, r   normalised activations; 1/σ
//     t         at the end (ut): the derivative along a direction a     s      the mean of u times the direction's z
//     d         at the front (du): the derivative of the result         P      tiles of all images
//
// ALONG: with the direction; the result is then ⟨∇loss, a⟩ instead of the loss. That is the adjoint of matching.py.
// A part of its work is the gradient's work on the same images: what the gradient leaves in `kept` is not done again.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

typedef int64_t I;

static const I GROUP = 3;  // images at a time

// Vectors of channels. Sums are over pixels, so longer vectors change no bit of them.
#if defined(__AVX512F__)
static const I LONG = 64;
#else
static const I LONG = 32;
#endif
template <class T, I BYTES> struct Row {
    typedef T vec __attribute__((vector_size(BYTES), aligned(alignof(T)), may_alias));
};
#define VEC typename Row<T, BYTES>::vec
#define LANES I(BYTES / sizeof(T))
#define EACH(c) for (I c = 0; c < C; c += LANES)
#define at(p) (*(VEC*)(p))

// Memory that is not cleared first.
template <class T> struct Room {
    T* p = nullptr;
    Room() {}
    explicit Room(I n) : p(static_cast<T*>(::operator new[](std::max(n, I(1)) * sizeof(T), std::align_val_t(64)))) {}
    Room(Room&& other) : p(other.p) { other.p = nullptr; }
    Room& operator=(Room&& other) { std::swap(p, other.p); return *this; }
    ~Room() { if (p) ::operator delete[](p, std::align_val_t(64)); }
    operator T*() const { return p; }
};

// The results of a convolution for one image and channel: H × W, in tiles of 2×2.
struct Grid {
    I H, W;
    I h() const { return (H + 1) / 2; }
    I w() const { return (W + 1) / 2; }
    I tiles() const { return h() * w(); }
    I pixels() const { return H * W; }
    Grid pooled() const { return {H / 2, W / 2}; }  // also what the next convolution gives
    bool odd() const { return H % 2 || W % 2; }
    bool has(I i, I j, I k) const { return 2 * i + k / 2 < H && 2 * j + k % 2 < W; }  // the k-th of tile (i, j)
};

// What the tiles of one image hold outside the grid becomes zero.
template <class T>
static void clear_outside(T* z, Grid grid, I C) {
    for (I i = 0; i < grid.h(); i++) for (I j = 0; j < grid.w(); j++) for (I k = 0; k < 4; k++)
        if (!grid.has(i, j, k)) memset(z + (4 * (i * grid.w() + j) + k) * C, 0, C * sizeof(T));
}

// One image's 2×2 outputs of all tiles from their 16 products.
template <class T, I BYTES>
static void products_to_tiles(const T* M, T* z, I tiles, I P, I C) {
    for (I i = 0; i < tiles; i++) EACH(c) {
        VEC m[4][2];
        for (int k = 0; k < 4; k++) {
            const T* row = M + 4 * k * P * C + i * C + c;
            VEC m0 = at(row), m1 = at(row + P * C), m2 = at(row + 2 * P * C), m3 = at(row + 3 * P * C);
            m[k][0] = m0 + m1 + m2;
            m[k][1] = m1 - m2 - m3;
        }
        T* out = z + 4 * i * C + c;
        for (int b = 0; b < 2; b++) {
            at(out + b * C) = m[0][b] + m[1][b] + m[2][b];
            at(out + (2 + b) * C) = m[1][b] - m[2][b] - m[3][b];
        }
    }
}

// The transpose: from the derivatives of one tile's outputs, those of its 16 products.
template <class T, I BYTES>
static inline void tile_to_products(const VEC z[4], T* M, I P, I C) {
    for (int k = 0; k < 4; k++) {
        VEC y[2];
        for (int b = 0; b < 2; b++)
            y[b] = k == 0 ? z[b] : k == 1 ? z[b] + z[2 + b] : k == 2 ? z[b] - z[2 + b] : -z[2 + b];
        T* row = M + 4 * k * P * C;
        at(row) = y[0];
        at(row + P * C) = y[0] + y[1];
        at(row + 2 * P * C) = y[0] - y[1];
        at(row + 3 * P * C) = -y[1];
    }
}

// One image with a border of zeros, so wide that tiles do not reach beyond it, into the factors of its tiles' products.
template <class T, I BYTES>
static void image_to_factors(const T* image, T* V, Grid grid, I P, I C) {
    const I W = 2 * grid.w();
    for (I i = 0; i < grid.h(); i++) for (I j = 0; j < grid.w(); j++) EACH(c) {
        const T* corner = image + (2 * i * (W + 2) + 2 * j) * C + c;
        VEC rows[4][4];
        for (int q = 0; q < 4; q++) {
            VEC d0 = at(corner + q * C), d1 = at(corner + (W + 2 + q) * C);
            VEC d2 = at(corner + (2 * (W + 2) + q) * C), d3 = at(corner + (3 * (W + 2) + q) * C);
            rows[0][q] = d0 - d2; rows[1][q] = d1 + d2; rows[2][q] = d2 - d1; rows[3][q] = d1 - d3;
        }
        T* out = V + (i * (W / 2) + j) * C + c;
        for (int k = 0; k < 4; k++) {
            VEC* d = rows[k];
            at(out + 4 * k * P * C) = d[0] - d[2];
            at(out + (4 * k + 1) * P * C) = d[1] + d[2];
            at(out + (4 * k + 2) * P * C) = d[2] - d[1];
            at(out + (4 * k + 3) * P * C) = d[1] - d[3];
        }
    }
}

// The transpose, added up in an image with a border.
template <class T, I BYTES>
static void factors_to_image(const T* V, T* image, Grid grid, I P, I C) {
    const I H = 2 * grid.h(), W = 2 * grid.w();
    memset(image, 0, (H + 2) * (W + 2) * C * sizeof(T));
    for (I i = 0; i < grid.h(); i++) for (I j = 0; j < grid.w(); j++) EACH(c) {
        const T* in = V + (i * (W / 2) + j) * C + c;
        VEC rows[4][4];
        for (int k = 0; k < 4; k++) {
            VEC v0 = at(in + 4 * k * P * C), v1 = at(in + (4 * k + 1) * P * C);
            VEC v2 = at(in + (4 * k + 2) * P * C), v3 = at(in + (4 * k + 3) * P * C);
            rows[k][0] = v0; rows[k][1] = v1 - v2 + v3; rows[k][2] = v1 + v2 - v0; rows[k][3] = -v3;
        }
        T* corner = image + (2 * i * (W + 2) + 2 * j) * C + c;
        for (int q = 0; q < 4; q++) {
            at(corner + q * C) += rows[0][q];
            at(corner + (W + 2 + q) * C) += rows[1][q] - rows[2][q] + rows[3][q];
            at(corner + (2 * (W + 2) + q) * C) += rows[1][q] + rows[2][q] - rows[0][q];
            at(corner + (3 * (W + 2) + q) * C) -= rows[3][q];
        }
    }
}

// norm → ReLU → pool of images whose convolution gave M (winograd) or is in u already; u, r (and ut, s) are left for
// the way back, or kept: from a way back before this one. The pooled images come out as factors of the next products, or
// plainly in `out` where that is the end. Sums over an image have two levels, rows first, which rounds less than one.
template <class T, I BYTES, bool ALONG, bool ODD>
static void forward(const T* M, const T* Mt, T* u, T* ut, T* r, T* s, const T* g, const T* b, const T* gt, const T* bt,
                    T* out, T* outt, I B, Grid grid, I C, bool winograd, bool factors, bool kept, double eps) {
    const I h = grid.h(), w = grid.w(), tiles = grid.tiles(), P = B * tiles;
    const Grid less = grid.pooled();
    const I next = B * less.tiles(), side = 2 * less.w() + 2;
    T inv = T(1) / T(grid.H * grid.W);
    std::vector<T> image((2 * less.h() + 2) * side * C), imaget(ALONG ? image.size() : 0);
    for (I n = 0; n < B; n++) {
        T *un = u + 4 * n * tiles * C, *utn = ALONG ? ut + 4 * n * tiles * C : nullptr, *rn = r + n * C;
        if (winograd && !kept) {
            products_to_tiles<T, BYTES>(M + n * tiles * C, un, tiles, P, C);
            if (ODD) clear_outside(un, grid, C);
        }
        if (winograd && ALONG) {
            products_to_tiles<T, BYTES>(Mt + n * tiles * C, utn, tiles, P, C);
            if (ODD) clear_outside(utn, grid, C);
        }
        EACH(c) {
            VEC m{}, mt{};
            if (!kept) {
                VEC sum{}, square{};
                for (I i = 0; i < h; i++) {
                    VEC row{};
                    for (I j = i * w; j < (i + 1) * w; j++) {
                        const T* z = un + 4 * j * C + c;
                        row += (at(z) + at(z + C)) + (at(z + 2 * C) + at(z + 3 * C));
                    }
                    sum += row;
                }
                m = sum * inv;
                for (I i = 0; i < h; i++) {
                    VEC row{};
                    for (I j = i * w; j < (i + 1) * w; j++) {
                        VEC q{};
                        for (int k = 0; k < 4; k++) {
                            if (ODD && !grid.has(i, j - i * w, k)) continue;
                            VEC d = at(un + (4 * j + k) * C + c) - m;
                            q += d * d;
                        }
                        row += q;
                    }
                    square += row;
                }
                for (I k = 0; k < LANES; k++) rn[c + k] = T(1) / std::sqrt(square[k] * inv + T(eps));
            }
            const VEC rc = at(rn + c), gc = at(g + c), bc = at(b + c);
            if (ALONG) {
                VEC sum{}, cross{};
                for (I i = 0; i < h; i++) {
                    VEC row{}, rowx{};
                    for (I j = i * w; j < (i + 1) * w; j++) {
                        VEC t{}, x{};
                        for (int k = 0; k < 4; k++) {
                            if (ODD && !grid.has(i, j - i * w, k)) continue;
                            I where = (4 * j + k) * C + c;
                            if (!kept) at(un + where) = (at(un + where) - m) * rc;
                            t += at(utn + where);
                            x += at(un + where) * at(utn + where);
                        }
                        row += t;
                        rowx += x;
                    }
                    sum += row; cross += rowx;
                }
                mt = sum * inv;
                at(s + n * C + c) = cross * inv;
            }
            for (I i = 0; i < h; i++) for (I j = 0; j < w; j++) {
                VEC p{}, pt{};
                for (int k = 0; k < 4; k++) {
                    if (ODD && !grid.has(i, j, k)) continue;
                    I where = (4 * (i * w + j) + k) * C + c;
                    VEC unit = ALONG ? at(un + where) : (at(un + where) - m) * rc, y = gc * unit + bc;
                    p += y <= 0 ? VEC{} : y;  // what is not a number stays one
                    if (ALONG) {
                        VEC t = rc * (at(utn + where) - mt - unit * at(s + n * C + c));
                        at(utn + where) = t;
                        VEC yt = gc * t + at(gt + c) * unit + at(bt + c);
                        pt += y <= 0 ? VEC{} : yt;
                    } else at(un + where) = unit;
                }
                if (ODD && !grid.has(i, j, 3)) continue;
                I where = factors ? ((i + 1) * side + j + 1) * C + c : 0, plain = (n * less.pixels() + i * less.W + j) * C + c;
                at(factors ? &image[where] : out + plain) = p * T(0.25);
                if (ALONG) at(factors ? &imaget[where] : outt + plain) = pt * T(0.25);
            }
        }
        if (factors) {
            image_to_factors<T, BYTES>(image.data(), out + n * less.tiles() * C, less, next, C);
            if (ALONG) image_to_factors<T, BYTES>(imaget.data(), outt + n * less.tiles() * C, less, next, C);
        }
    }
}

// The way back: from the derivatives of `out` those of M (winograd) or of the convolution's tiles, and of g and b,
// which are added to dg and db. Those of the pooled images are put into `keep`; the direction's come from there if kept.
template <class T, I BYTES, bool ALONG, bool ODD>
static void backward(const T* dout, const T* doutt, const T* u, const T* ut, const T* r, const T* s, const T* g,
                     const T* b, const T* gt, T* dM, T* dMt, T* dg, T* db, T* keep, I B, Grid grid, I C,
                     bool winograd, bool factors, bool kept) {
    const I h = grid.h(), w = grid.w(), tiles = grid.tiles(), P = B * tiles;
    const Grid less = grid.pooled();
    const I next = B * less.tiles(), side = 2 * less.w() + 2;
    T inv = T(1) / T(grid.H * grid.W);
    std::vector<T> image((2 * less.h() + 2) * side * C), imaget(ALONG ? image.size() : 0);
    for (I n = 0; n < B; n++) {
        const T *un = u + 4 * n * tiles * C, *utn = ALONG ? ut + 4 * n * tiles * C : nullptr, *rn = r + n * C;
        if (factors) {
            factors_to_image<T, BYTES>(dout + n * less.tiles() * C, image.data(), less, next, C);
            if (ALONG && !kept) factors_to_image<T, BYTES>(doutt + n * less.tiles() * C, imaget.data(), less, next, C);
            for (I i = 0; keep && i < less.H; i++)
                memcpy(keep + (n * less.pixels() + i * less.W) * C, &image[((i + 1) * side + 1) * C],
                       less.W * C * sizeof(T));
        }
        auto pooled = [&](const T* plain, const std::vector<T>& image, bool bordered, I i, I j, I c) -> VEC {
            return at(bordered ? &image[((i + 1) * side + j + 1) * C + c]
                               : plain + (n * less.pixels() + i * less.W + j) * C + c);
        };
        const bool factorst = factors && !kept;
        EACH(c) {
            const VEC gc = at(g + c), bc = at(b + c), rc = at(rn + c);
            VEC y1{}, yu{}, t1{}, tu{}, tt{};
            for (I i = 0; i < less.H; i++) {
                VEC row1{}, rowu{}, rowt1{}, rowtu{}, rowtt{};
                for (I j = 0; j < less.W; j++) {
                    VEC ones{}, units{}, alongs{};
                    for (int k = 0; k < 4; k++) {
                        I where = (4 * (i * w + j) + k) * C + c;
                        VEC unit = at(un + where), open = gc * unit + bc <= 0 ? VEC{} : VEC{} + 1;
                        ones += open;
                        units += open * unit;
                        if (ALONG) alongs += open * at(utn + where);
                    }
                    VEC dp = pooled(dout, image, factors, i, j, c);
                    row1 += dp * ones;
                    rowu += dp * units;
                    if (ALONG) {
                        VEC dpt = pooled(doutt, imaget, factorst, i, j, c);
                        rowt1 += dpt * ones;
                        rowtu += dpt * units;
                        rowtt += dpt * alongs;
                    }
                }
                y1 += row1; yu += rowu;
                if (ALONG) { t1 += rowt1; tu += rowtu; tt += rowtt; }
            }
            const T quarter = T(0.25), share = quarter * inv;
            at(db + c) += quarter * y1;
            at(dg + c) += quarter * (ALONG ? yu + tt : yu);
            VEC rs{}, slope = gc, cross{};
            VEC one = gc * y1 * share, unitary = gc * yu * share;  // means of du and of du·u
            if (ALONG) {
                rs = rc * at(s + n * C + c);
                slope = at(gt + c) - rs * gc;
                cross = gc * tu * share;
                one += slope * t1 * share;
                unitary += slope * tu * share - cross * rs + gc * tt * share;
            }
            for (I i = 0; i < h; i++) for (I j = 0; j < w; j++) {
                VEC z[4], zt[4];
                const bool beyond = ODD && !grid.has(i, j, 3);
                VEC dy = beyond ? VEC{} : quarter * pooled(dout, image, factors, i, j, c), dyt{};
                if (ALONG && !beyond) dyt = quarter * pooled(doutt, imaget, factorst, i, j, c);
                for (int k = 0; k < 4; k++) {
                    if (ODD && !grid.has(i, j, k)) { z[k] = zt[k] = VEC{}; continue; }
                    I where = (4 * (i * w + j) + k) * C + c;
                    VEC unit = at(un + where);
                    auto shut = gc * unit + bc <= 0;
                    VEC du = gc * (shut ? VEC{} : dy);
                    if (ALONG) {
                        VEC d = shut ? VEC{} : dyt;
                        du += slope * d - cross * (at(utn + where) + rs * unit);
                        zt[k] = rc * (gc * d - gc * t1 * share - unit * cross);
                    }
                    z[k] = rc * (du - one - unit * unitary);
                }
                I tile = n * tiles + i * w + j;
                if (winograd) {
                    tile_to_products<T, BYTES>(z, dM + tile * C + c, P, C);
                    if (ALONG) tile_to_products<T, BYTES>(zt, dMt + tile * C + c, P, C);
                } else for (int k = 0; k < 4; k++) {
                    at(dM + (4 * tile + k) * C + c) = z[k];
                    if (ALONG) at(dMt + (4 * tile + k) * C + c) = zt[k];
                }
            }
        }
    }
}


// ---- matrix products -----------------------------------------------------------------------------------------------

#if defined(__AVX__)
#define REGISTER(v) __asm__("" : "+v"(v))  // load it once: compilers would rather read it from memory for each row
#else
#define REGISTER(v)
#endif

// R rows of a product, NV vectors wide: C (+)= A·B. Twelve sums are held in registers, or 24 of the longer ones.
template <class T, I BYTES, int R, int NV>
static inline void rows_times(const T* A, I step, I next, const T* B, I ldb, T* out, I ldo, I K, bool add) {
    typedef typename Row<T, BYTES>::vec V;
    const I n = BYTES / sizeof(T);
    V sum[R][NV];
    for (int i = 0; i < R; i++) for (int v = 0; v < NV; v++) sum[i][v] = add ? *(const V*)(out + i * ldo + v * n) : V{};
    for (I k = 0; k < K; k++) {
        V b[NV];
        for (int v = 0; v < NV; v++) { b[v] = *(const V*)(B + k * ldb + v * n); REGISTER(b[v]); }
        for (int i = 0; i < R; i++) {
            V a = A[i * step + k * next] - V{};
            for (int v = 0; v < NV; v++) sum[i][v] += a * b[v];
        }
    }
    for (int i = 0; i < R; i++) for (int v = 0; v < NV; v++) *(V*)(out + i * ldo + v * n) = sum[i][v];
}

template <class T, I BYTES, int R, int NV>
static inline I rows_while(I i, const T* A, I step, I next, const T* B, I ldb, T* out, I ldo, I rows, I K, bool add) {
    for (; i + R <= rows; i += R)
        rows_times<T, BYTES, R, NV>(A + i * step, step, next, B, ldb, out + i * ldo, ldo, K, add);
    return i;
}

// All rows of one panel. Long vectors have registers for twelve rows; as few rows wait for their own sums, all strips are
// about as high as each other.
template <class T, I BYTES, int NV>
static inline void panel_times(const T* A, I step, I next, const T* B, I ldb, T* out, I ldo, I rows, I K, bool add) {
    if (BYTES == 64) {
        static void (*const strips[])(const T*, I, I, const T*, I, T*, I, I, bool) = {
            rows_times<T, BYTES, 1, NV>, rows_times<T, BYTES, 2, NV>, rows_times<T, BYTES, 3, NV>,
            rows_times<T, BYTES, 4, NV>, rows_times<T, BYTES, 5, NV>, rows_times<T, BYTES, 6, NV>,
            rows_times<T, BYTES, 7, NV>, rows_times<T, BYTES, 8, NV>, rows_times<T, BYTES, 9, NV>,
            rows_times<T, BYTES, 10, NV>, rows_times<T, BYTES, 11, NV>, rows_times<T, BYTES, 12, NV>,
        };
        for (I i = 0, left = (rows + 11) / 12; left > 0; left--) {
            I some = (rows - i + left - 1) / left;
            strips[some - 1](A + i * step, step, next, B, ldb, out + i * ldo, ldo, K, add);
            i += some;
        }
        return;
    }
    I i = rows_while<T, BYTES, 6, NV>(0, A, step, next, B, ldb, out, ldo, rows, K, add);
    i = rows_while<T, BYTES, 4, NV>(i, A, step, next, B, ldb, out, ldo, rows, K, add);
    i = rows_while<T, BYTES, 2, NV>(i, A, step, next, B, ldb, out, ldo, rows, K, add);
    rows_while<T, BYTES, 1, NV>(i, A, step, next, B, ldb, out, ldo, rows, K, add);
}

template <class T, I BYTES, int NV>
static void panels(const T* A, I step, I next, const T* B, I ldb, I panel, T* out, I ldo, I rows, I K, I N, bool add) {
    const I width = NV * BYTES / sizeof(T);
    for (I c = 0; c < N; c += width, B += panel, out += width)
        panel_times<T, BYTES, NV>(A, step, next, B, ldb, out, ldo, rows, K, add);
}

// Columns that are computed at a time, a panel: two long vectors, or one, or a short one.
template <class T> static I panel_width(I N) {
    for (I n : {2 * LONG, LONG, I(64)}) if (N % (n / I(sizeof(T))) == 0) return n / sizeof(T);
    return 32 / sizeof(T);
}

template <class T>
static void product(const T* A, I step, I next, const T* B, I ldb, I panel, T* out, I ldo, I rows, I K, I N, bool add) {
    I bytes = panel_width<T>(N) * sizeof(T);
    (bytes == 2 * LONG ? panels<T, LONG, 2> : bytes == LONG ? panels<T, LONG, 1> : panels<T, 32, 1>)(
        A, step, next, B, ldb, panel, out, ldo, rows, K, N, add);
}

// A [rows × K] times a packed matrix.
template <class T>
static void times_packed(const T* A, const T* packed, T* out, I rows, I K, I N, bool add) {
    I width = panel_width<T>(N);
    product(A, K, I(1), packed, width, K * width, out, N, rows, K, N, add);
}

// out += Aᵀ·B, A [K × rows], B [K × N]; some rows of both at a time, which stay in the nearest cache.
template <class T>
static void transposed_times(const T* A, const T* B, T* out, I rows, I K, I N) {
    const I some = 64;
    for (I k = 0; k < K; k += some)
        product(A + k * rows, I(1), rows, B + k * N, N, panel_width<T>(N), out, N, rows, K - k < some ? K - k : some, N, true);
}

template <class T>
static void put(T* packed, I k, I c, I K, I N, T value) {
    I width = panel_width<T>(N);
    packed[(c / width) * K * width + k * width + c % width] = value;
}

// ---- the network ---------------------------------------------------------------------------------------------------

struct Shape {
    I depth, C, channels, H, W, pad, classes;
    Grid grid(I l) const { return {(H + 2 * pad - 2) >> l, (W + 2 * pad - 2) >> l}; }
    I tiles(I l) const { return grid(l).tiles(); }
    I pixels() const { return grid(depth).pixels(); }      // after the last pooling
    I K() const { return 9 * channels; }
    I wide() const { return (K() + 31) / 32 * 32; }        // of the first layer's columns when they are results
    I features() const { return pixels() * C; }
    template <class T> bool wide_channels() const { return C * sizeof(T) % LONG == 0; }
    I filter(I l) const { return l ? 16 * C * C : K() * C; }
    I packed(I l) const { return l ? 2 * filter(l) : filter(0) + C * wide(); }
    // where a layer's parameters are in the flat vector: weight, bias, g, b; and those of the linear layer
    I weight(I l) const { return l ? K() * C + 3 * C + (l - 1) * (9 * C * C + 3 * C) : 0; }
    I gain(I l) const { return weight(l) + (l ? 9 * C * C : K() * C) + C; }
    I linear() const { return gain(depth - 1) + 2 * C; }
    // numbers kept of an image: of every layer but the first its u and r, and the derivatives of what it was given
    I kept() const { I n = 0; for (I l = 1; l < depth; l++) n += (4 * tiles(l) + 1 + grid(l).pixels()) * C; return n; }
};

// Several 3×3 filters into their places in 16 packed matrices.
template <class T>
static void transform_filters(const T* weight, I step, T* out, I C, I count) {
    for (I lane = 0; lane < count; lane++) {
        const T* k = weight + lane * step;
        T rows[4][3];
        for (int q = 0; q < 3; q++) {
            T sum = (k[q] + k[6 + q]) / 2, mid = k[3 + q] / 2;
            rows[0][q] = k[q]; rows[1][q] = sum + mid; rows[2][q] = sum - mid; rows[3][q] = k[6 + q];
        }
        for (int p = 0; p < 4; p++) {
            T sum = (rows[p][0] + rows[p][2]) / 2, mid = rows[p][1] / 2;
            T* to = out + 4 * p * C * C + lane;
            to[0] = rows[p][0]; to[C * C] = sum + mid; to[2 * C * C] = sum - mid; to[3 * C * C] = rows[p][2];
        }
    }
}

// Filters as packed matrices: those that multiply on the way there, then those on the way back.
template <class T>
static void pack_all(const Shape& S, const T* params, T* out) {
    I C = S.C;
    for (I l = 0; l < S.depth; out += S.packed(l), l++) {
        const T* weight = params + S.weight(l);
        if (l == 0) {
            std::fill(out + S.filter(0), out + S.packed(0), T(0));
            for (I o = 0; o < C; o++) for (I k = 0; k < S.K(); k++) {
                put(out, k, o, S.K(), C, weight[o * S.K() + k]);
                put(out + S.filter(0), o, k, C, S.wide(), weight[o * S.K() + k]);
            }
            continue;
        }
        I width = panel_width<T>(C);
        for (I c = 0; c < C; c += width) for (I i = 0; i < C; i++) {
            I place = c * C + i * width;
            transform_filters(weight + (c * C + i) * 9, 9 * C, out + place, C, width);
            transform_filters(weight + (i * C + c) * 9, I(9), out + S.filter(l) + place, C, width);
        }
    }
}

// From the derivatives of the 16 matrices [input][output] those of the weights, added.
template <class T>
static void filters_back(const T* dU, T* dweight, I C) {
    for (I i = 0; i < C; i++) for (I o = 0; o < C; o++) {
        T rows[4][3];
        for (int p = 0; p < 4; p++) {
            T v[4];
            for (int q = 0; q < 4; q++) v[q] = dU[((4 * p + q) * C + i) * C + o];
            T plus = (v[1] + v[2]) / 2, minus = (v[1] - v[2]) / 2;
            rows[p][0] = v[0] + plus; rows[p][1] = minus; rows[p][2] = plus + v[3];
        }
        T* k = dweight + (o * C + i) * 9;
        for (int q = 0; q < 3; q++) {
            T plus = (rows[1][q] + rows[2][q]) / 2, minus = (rows[1][q] - rows[2][q]) / 2;
            k[q] += rows[0][q] + plus; k[3 + q] += minus; k[6 + q] += plus + rows[3][q];
        }
    }
}

// Every output pixel's 3×3 neighbourhood, tile by tile: [tile][4][channel × 9]. The image is [channel][row][column].
template <class T>
static void columns(const Shape& S, const T* x, T* col, T* bordered) {
    I side = S.W + 2 * S.pad, size = (S.H + 2 * S.pad) * side;
    std::fill(bordered, bordered + S.channels * size, T(0));
    for (I c = 0; c < S.channels; c++) for (I a = 0; a < S.H; a++)
        memcpy(bordered + c * size + (a + S.pad) * side + S.pad, x + (c * S.H + a) * S.W, S.W * sizeof(T));
    const Grid grid = S.grid(0);
    for (I i = 0; i < grid.h(); i++) for (I j = 0; j < grid.w(); j++) for (I k = 0; k < 4; k++) {
        if (!grid.has(i, j, k)) { std::fill(col, col + S.K(), T(0)); col += S.K(); continue; }
        const T* corner = bordered + (2 * i + k / 2) * side + 2 * j + k % 2;
        for (I c = 0; c < S.channels; c++, corner += size) for (I a = 0; a < 3; a++, col += 3) {
            memcpy(col, corner + a * side, 4 * sizeof(T));  // the fourth is written over
        }
    }
}

// The transpose.
template <class T>
static void fold(const Shape& S, const T* col, T* x, T* bordered) {
    I side = S.W + 2 * S.pad, size = (S.H + 2 * S.pad) * side;
    std::fill(bordered, bordered + S.channels * size, T(0));
    const Grid grid = S.grid(0);
    for (I i = 0; i < grid.h(); i++) for (I j = 0; j < grid.w(); j++) for (I k = 0; k < 4; k++, col += S.wide()) {
        if (!grid.has(i, j, k)) continue;
        T* corner = bordered + (2 * i + k / 2) * side + 2 * j + k % 2;
        const T* from = col;
        for (I c = 0; c < S.channels; c++, corner += size) for (I a = 0; a < 3; a++, from += 3) {
            corner[a * side] += from[0]; corner[a * side + 1] += from[1]; corner[a * side + 2] += from[2];
        }
    }
    for (I c = 0; c < S.channels; c++) for (I a = 0; a < S.H; a++)
        memcpy(x + (c * S.H + a) * S.W, bordered + c * size + (a + S.pad) * side + S.pad, S.W * sizeof(T));
}

template <class T, I BYTES = 32> static T dot(const T* a, const T* b, I n) {
    VEC sum{};
    for (I i = 0; i < n; i += LANES) sum += at(a + i) * at(b + i);
    T s = 0;
    for (I i = 0; i < LANES; i++) s += sum[i];
    return s;
}

template <class T, I BYTES = 32> static void add_times(T* a, T k, const T* b, I n) {
    for (I i = 0; i < n; i += LANES) at(a + i) += k * at(b + i);
}

// One image's features [pixel][channel] in the order of the linear layer's weights [channel][pixel], and back.
template <class T> static void turn(const T* in, T* out, I rows, I columns) {
    for (I i = 0; i < rows; i++) for (I j = 0; j < columns; j++) out[j * rows + i] = in[i * columns + j];
}

// A group of images on the way there and back.
template <class T, bool ALONG> struct Group {
    const Shape& S;
    const T *params, *packed, *a, *packed_a;
    std::vector<Room<T>> own_u, own_r, ut, s, V, Vt, dU;  // of every layer; V[depth] are the features
    Room<T> M, Mt, dV, dVt, col, bordered;
    std::vector<T*> u, r, kept;  // in own memory, or in what the gradient keeps for the adjoint

    Group(const Shape& S, const T* params, const T* packed, const T* a, const T* packed_a, I G, bool back)
        : S(S), params(params), packed(packed), a(a), packed_a(packed_a), u(S.depth), r(S.depth), kept(S.depth) {
        I most = back ? 4 * G * S.tiles(0) * S.C : 0, pooled = G * S.features();
        for (I l = 0; l < S.depth; l++) {
            I n = 4 * G * S.tiles(l) * S.C;
            own_u.emplace_back(n); own_r.emplace_back(G * S.C);
            u[l] = own_u[l]; r[l] = own_r[l];
            V.emplace_back(l ? 4 * n : 4 * G * S.tiles(0) * S.K() + 1);
            if (ALONG) { ut.emplace_back(n); s.emplace_back(G * S.C); Vt.emplace_back(l ? 4 * n : 0); }
            else { ut.emplace_back(); s.emplace_back(); Vt.emplace_back(); }
            if (l) { most = std::max(most, 4 * n); pooled = std::max(pooled, 4 * n); }
            if (back) { dU.emplace_back(S.filter(l)); std::fill(dU[l] + 0, dU[l] + S.filter(l), T(0)); }
        }
        V.emplace_back(G * S.features());
        M = Room<T>(most);
        if (back) dV = Room<T>(pooled);
        if (ALONG) {
            Vt.emplace_back(G * S.features());
            Mt = Room<T>(most); dVt = Room<T>(pooled); col = Room<T>(4 * S.tiles(0) * S.wide());
        } else Vt.emplace_back();
        bordered = Room<T>(S.channels * (S.H + 2 * S.pad) * (S.W + 2 * S.pad) + 1);
    }

    void keep(T* memory, I B) {
        for (I l = 1; memory && l < S.depth; l++) {
            u[l] = memory; memory += B * 4 * S.tiles(l) * S.C;
            r[l] = memory; memory += B * S.C;
            kept[l] = memory; memory += B * S.grid(l).pixels() * S.C;
        }
    }

    const T* filters(const T* of, I l) const { for (I k = 0; k < l; k++) of += S.packed(k); return of; }

    bool known(I l) const { return ALONG && l < S.depth && kept[l]; }

    void there(const T* x, I B) {
        I C = S.C;
        for (I n = 0; n < B; n++)
            columns(S, x + n * S.channels * S.H * S.W, V[0] + n * 4 * S.tiles(0) * S.K(), bordered.p);
        for (I l = 0; l < S.depth; l++) {
            I P = B * S.tiles(l), last = l == S.depth - 1;
            const T *U = filters(packed, l), *Ua = ALONG ? filters(packed_a, l) : nullptr;
            if (l == 0) {
                times_packed(V[0].p, U, u[0], 4 * P, S.K(), C, false);
                if (ALONG) times_packed(V[0].p, Ua, ut[0].p, 4 * P, S.K(), C, false);
            } else for (I k = 0; k < 16; k++) {
                I from = k * P * C;
                if (!known(l)) times_packed(V[l] + from, U + k * C * C, M + from, P, C, C, false);
                if (ALONG) {
                    times_packed(Vt[l] + from, U + k * C * C, Mt + from, P, C, C, false);
                    times_packed(V[l] + from, Ua + k * C * C, Mt + from, P, C, C, true);
                }
            }
            const T *g = params + S.gain(l), *ga = ALONG ? a + S.gain(l) : nullptr;
            (S.grid(l).odd() ? S.wide_channels<T>() ? forward<T, LONG, ALONG, true> : forward<T, 32, ALONG, true>
                             : S.wide_channels<T>() ? forward<T, LONG, ALONG, false> : forward<T, 32, ALONG, false>)(
                M.p, Mt.p, u[l], ut[l].p, r[l], s[l].p, g, g + C, ga, ALONG ? ga + C : nullptr, V[l + 1].p,
                Vt[l + 1].p, B, S.grid(l), C, l > 0, !last, known(l), 1e-5);
        }
    }

    // From the derivatives of the features, in dV (and dVt); the gradient is added to g, except that the filters' is only
    // collected, if it is wanted at all; that of the images is put into dx.
    void back(I B, T* g, T* dx, bool by_filters) {
        I C = S.C;
        for (I l = S.depth - 1; l >= 0; l--) {
            I P = B * S.tiles(l), last = l == S.depth - 1;
            const T *gain = params + S.gain(l), *ga = ALONG ? a + S.gain(l) : nullptr;
            const T *U = filters(packed, l) + S.filter(l), *Ua = ALONG ? filters(packed_a, l) + S.filter(l) : nullptr;
            T* dgain = g + S.gain(l);
            bool done = known(l + 1);
            (S.grid(l).odd() ? S.wide_channels<T>() ? backward<T, LONG, ALONG, true> : backward<T, 32, ALONG, true>
                             : S.wide_channels<T>() ? backward<T, LONG, ALONG, false> : backward<T, 32, ALONG, false>)(
                dV.p, done ? kept[l + 1] : dVt.p, u[l], ut[l].p, r[l], s[l].p, gain, gain + C, ga, M.p, Mt.p, dgain,
                dgain + C, ALONG || last ? nullptr : kept[l + 1], B, S.grid(l), C, l > 0, !last, done);
            if (l == 0) {
                if (by_filters) transposed_times(V[0].p, M.p, dU[0].p, S.K(), 4 * P, C);
                if (!dx) continue;
                I wide = S.wide(), pixels = 4 * S.tiles(0);
                for (I n = 0; n < B; n++) {
                    times_packed(M + n * pixels * C, U, col.p, pixels, C, wide, false);
                    if (ALONG) times_packed(Mt + n * pixels * C, Ua, col.p, pixels, C, wide, true);
                    fold(S, col.p, dx + n * S.channels * S.H * S.W, bordered.p);
                }
            } else for (I k = 0; k < 16; k++) {
                I from = k * P * C;
                if (by_filters) transposed_times(V[l] + from, M + from, dU[l] + k * C * C, C, P, C);
                times_packed(M + from, U + k * C * C, dV + from, P, C, C, false);
                if (ALONG) {
                    if (by_filters) transposed_times(Vt[l] + from, Mt + from, dU[l] + k * C * C, C, P, C);
                    times_packed(Mt + from, Ua + k * C * C, dV + from, P, C, C, true);
                    if (!known(l)) times_packed(Mt + from, U + k * C * C, dVt + from, P, C, C, false);
                }
            }
        }
    }

    void end(T* g) {
        for (I l = 1; l < S.depth; l++) filters_back(dU[l].p, g + S.weight(l), S.C);
        for (I o = 0; o < S.C; o++) for (I k = 0; k < S.K(); k++) g[o * S.K() + k] += dU[0][k * S.C + o];
    }
};

// One image's logits, and their derivatives along a.
template <class T, bool ALONG>
static void linear(const Shape& S, const T* params, const T* a, const T* f, const T* ft, T* logits, T* along) {
    I n = S.features(), K = S.classes;
    const T *W = params + S.linear(), *A = ALONG ? a + S.linear() : nullptr;
    for (I k = 0; k < K; k++) {
        logits[k] = dot(W + k * n, f, n) + W[K * n + k];
        if (ALONG) along[k] = dot(W + k * n, ft, n) + dot(A + k * n, f, n) + A[K * n + k];
    }
}

// The gradient of Σ q·loss, or with a direction its product with a and the derivatives of that; g must be zero.
// `kept`, if there is one, is filled by the gradient and used by the adjoint of the same images and parameters.
// `df_more` are derivatives of a further loss by the features, where there is one. Labels are numbers of classes in `y`, or
// a number for every class in `soft`, by which `dy` then holds the derivatives of the product, if it is wanted.
template <class T, bool ALONG>
static int derive(const Shape& S, const T* params, const T* packed, const T* a, const T* packed_a, const T* x,
                  const int64_t* y, const T* soft, const T* q, I B, T* kept, const T* df_more, T* g, T* value, T* dx, T* dy,
                  bool by_filters) {
    I n = S.features(), K = S.classes, pixels = S.pixels(), image = S.channels * S.H * S.W;
    for (I i = 0; i < B && !soft; i++) if (y[i] < 0 || y[i] >= K) return 1;
    Group<T, ALONG> group(S, params, packed, a, packed_a, std::min(B, GROUP), true);
    const T *W = params + S.linear(), *A = ALONG ? a + S.linear() : nullptr;
    T* dW = g + S.linear();
    Room<T> f(n), ft(n), df(n), dft(n), share(K), along(K);
    double total = 0;
    for (I first = 0; first < B; first += GROUP) {
        I some = std::min(GROUP, B - first);
        group.keep(kept ? kept + first * S.kept() : nullptr, some);
        group.there(x + first * image, some);
        for (I i = 0; i < some; i++) {
            T weight = q[first + i], sum = 0, mean = 0;
            const T* row = soft ? soft + (first + i) * K : nullptr;
            I label = soft ? -1 : y[first + i];
            turn(group.V[S.depth] + i * n, f.p, pixels, S.C);
            if (ALONG) turn(group.Vt[S.depth] + i * n, ft.p, pixels, S.C);
            linear<T, ALONG>(S, params, a, f, ft, share, along);
            T highest = *std::max_element(share.p, share.p + K), mass = soft ? 0 : 1, right = soft ? 0 : share[label];
            T slope = ALONG && !soft ? along[label] : 0;
            for (I k = 0; k < K && soft; k++) {
                mass += row[k];
                right += row[k] * share[k];
                if (ALONG) slope += row[k] * along[k];
            }
            for (I k = 0; k < K; k++) sum += share[k] = std::exp(share[k] - highest);
            for (I k = 0; k < K; k++) { share[k] /= sum; if (ALONG) mean += share[k] * along[k]; }
            total += double(weight) * (ALONG ? mass * mean - slope : mass * (std::log(sum) + highest) - right);
            std::fill(df.p, df + n, T(0));
            if (ALONG) std::fill(dft.p, dft + n, T(0));
            for (I k = 0; k < K; k++) {
                T direct = weight * (mass * share[k] - (soft ? row[k] : T(k == label)));
                T d = ALONG ? weight * mass * share[k] * (along[k] - mean) : direct;
                if (dy) dy[(first + i) * K + k] = weight * (mean - along[k]);
                dW[K * n + k] += d;
                add_times(dW + k * n, d, f.p, n);
                add_times(df.p, d, W + k * n, n);
                if (ALONG) {
                    add_times(dW + k * n, direct, ft.p, n);
                    add_times(df.p, direct, A + k * n, n);
                    add_times(dft.p, direct, W + k * n, n);
                }
            }
            if (df_more) add_times(df.p, T(1), df_more + (first + i) * n, n);
            turn(df.p, group.dV + i * n, S.C, pixels);
            if (ALONG) turn(dft.p, group.dVt + i * n, S.C, pixels);
        }
        group.back(some, g, dx ? dx + first * image : nullptr, by_filters);
    }
    if (by_filters) group.end(g);
    *value = total;
    return 0;
}

extern "C" {
I packed_size(const Shape* S) {
    I n = 0;
    for (I l = 0; l < S->depth; l++) n += S->packed(l);
    return n;
}

void pack(const Shape* S, const REAL* params, REAL* out) { pack_all(*S, params, out); }

I kept_size(const Shape* S) { return S->kept(); }

int gradient(const Shape* S, const REAL* params, const REAL* packed, const REAL* x, const int64_t* y, const REAL* soft,
             const REAL* q, I B, REAL* kept, const REAL* df_more, REAL* g, REAL* loss) {
    return derive<REAL, false>(*S, params, packed, nullptr, nullptr, x, y, soft, q, B, kept, df_more, g, loss, nullptr,
                               nullptr, true);
}

int adjoint(const Shape* S, const REAL* params, const REAL* packed, const REAL* a, const REAL* packed_a, const REAL* x,
            const int64_t* y, const REAL* soft, const REAL* q, I B, REAL* kept, REAL* g, REAL* slope, REAL* dx, REAL* dy,
            I by_filters) {
    return derive<REAL, true>(*S, params, packed, a, packed_a, x, y, soft, q, B, kept, nullptr, g, slope, dx, dy,
                              by_filters);
}

// What the linear layer is given, and gives; each where it is wanted.
void predict(const Shape* S, const REAL* params, const REAL* packed, const REAL* x, I B, REAL* features, REAL* logits) {
    I n = S->features(), image = S->channels * S->H * S->W;
    Group<REAL, false> group(*S, params, packed, nullptr, nullptr, std::min(B, GROUP), false);
    Room<REAL> own(n);
    for (I first = 0; first < B; first += GROUP) {
        I some = std::min(GROUP, B - first);
        group.there(x + first * image, some);
        for (I i = 0; i < some; i++) {
            REAL* f = features ? features + (first + i) * n : own.p;
            turn(group.V[S->depth] + i * n, f, S->pixels(), S->C);
            if (logits) linear<REAL, false>(*S, params, nullptr, f, nullptr, logits + (first + i) * S->classes, nullptr);
        }
    }
}
}
