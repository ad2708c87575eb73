// Interval arithmetic over a tile: each function returns an interval that holds every value which its operator can give
// for operands in the given intervals. A predicate's interval tells what a tile is: hi == 0 empty, lo == 1 full.
// An interval lies within int; a result that could leave int may have wrapped, so it becomes iv_all().
struct Interval {
    i64 lo, hi;
};

#define IV_FN __device__ __forceinline__ Interval

IV_FN iv(i64 x) { return {x, x}; }
IV_FN iv_all() { return {-2147483647 - 1, 2147483647}; }
IV_FN iv_maybe() { return {0, 1}; }
IV_FN iv_fit(i64 lo, i64 hi) { return lo < -2147483647 - 1 || hi > 2147483647 ? iv_all() : Interval{lo, hi}; }

IV_FN iv_add(Interval a, Interval b) { return iv_fit(a.lo + b.lo, a.hi + b.hi); }
IV_FN iv_sub(Interval a, Interval b) { return iv_fit(a.lo - b.hi, a.hi - b.lo); }
IV_FN iv_neg(Interval a) { return iv_fit(-a.hi, -a.lo); }
// Of ints: in 32 bits, and by a literal without a division.
__device__ __forceinline__ i64 iv_quotient(i64 a, i64 b) { return b == -1 ? -a : int(a) / int(b); }
__device__ __forceinline__ i64 iv_rest(i64 a, i64 b) { return b == -1 ? 0 : int(a) % int(b); }
IV_FN iv_corners(i64 a, i64 b, i64 c, i64 d) { return iv_fit(min(min(a, b), min(c, d)), max(max(a, b), max(c, d))); }
IV_FN iv_mul(Interval a, Interval b) { return iv_corners(a.lo * b.lo, a.lo * b.hi, a.hi * b.lo, a.hi * b.hi); }

IV_FN iv_div(Interval a, Interval b) {
    if ((b.lo <= 0 && b.hi >= 0) || b.lo > b.hi) return iv_all(); // or of no tile
    if (b.lo == b.hi) {
        const i64 x = iv_quotient(a.lo, b.lo), y = iv_quotient(a.hi, b.lo);
        return iv_fit(min(x, y), max(x, y));
    }
    return iv_corners(iv_quotient(a.lo, b.lo), iv_quotient(a.lo, b.hi), iv_quotient(a.hi, b.lo), iv_quotient(a.hi, b.hi));
}

IV_FN iv_mod(Interval a, Interval b) {
    if ((b.lo <= 0 && b.hi >= 0) || b.lo > b.hi) return iv_all();
    if (b.lo == b.hi && iv_quotient(a.lo, b.lo) == iv_quotient(a.hi, b.lo))
        return {iv_rest(a.lo, b.lo), iv_rest(a.hi, b.lo)};  // one period: increasing
    const i64 most = max(-b.lo, b.hi) - 1;
    return {a.lo < 0 ? max(a.lo, -most) : 0, a.hi > 0 ? min(a.hi, most) : 0};
}

// By a run-time value b, |b| < 2^31, where inverse = min(floor(2^32 / |b|), 2^32 - 1), 0 of 0: without a division.
__device__ __forceinline__ unsigned int magnitude(int x) { return x < 0 ? -(unsigned int)x : (unsigned int)x; }
__device__ __forceinline__ unsigned int quotient_of(unsigned int a, int b, unsigned int inverse) {
    const unsigned int by = magnitude(b), q = __umulhi(a, inverse); // or one less
    return q + (a - q * by > by - 1u);
}
IV_FN iv_div_by(Interval a, Interval b, unsigned int inverse) {
    if (b.lo == 0) return iv_all();
    const i64 lo = quotient_of(magnitude((int)a.lo), (int)b.lo, inverse), hi = quotient_of(magnitude((int)a.hi), (int)b.lo, inverse);
    const i64 x = (a.lo ^ b.lo) < 0 ? -lo : lo, y = (a.hi ^ b.lo) < 0 ? -hi : hi;
    return iv_fit(min(x, y), max(x, y));
}
IV_FN iv_mod_by(Interval a, Interval b, unsigned int inverse) {
    if (b.lo == 0) return iv_all();
    const Interval q = iv_div_by(a, b, inverse);
    if (q.lo == q.hi) return {a.lo - q.lo * b.lo, a.hi - q.lo * b.lo}; // one period: increasing
    const i64 most = i64(magnitude((int)b.lo)) - 1;
    return {a.lo < 0 ? max(a.lo, -most) : 0, a.hi > 0 ? min(a.hi, most) : 0};
}

IV_FN iv_shl(Interval a, Interval n) {
    if (n.lo < 0 || n.hi > 31) return iv_all();
    return iv_fit(a.lo * (i64(1) << (a.lo < 0 ? n.hi : n.lo)), a.hi * (i64(1) << (a.hi < 0 ? n.lo : n.hi)));
}

IV_FN iv_shr(Interval a, Interval n) {
    if (n.lo < 0 || n.hi > 31) return iv_all();
    return {a.lo >> (a.lo < 0 ? n.lo : n.hi), a.hi >> (a.hi < 0 ? n.hi : n.lo)};
}
// a * b >> n, of a product of 64 bits.
IV_FN iv_mul_shr(Interval a, Interval b, int n) {
    const i64 w = a.lo * b.lo >> n, x = a.lo * b.hi >> n, y = a.hi * b.lo >> n, z = a.hi * b.hi >> n;
    return iv_corners(w, x, y, z);
}

IV_FN iv_min(Interval a, Interval b) { return {min(a.lo, b.lo), min(a.hi, b.hi)}; }
IV_FN iv_max(Interval a, Interval b) { return {max(a.lo, b.lo), max(a.hi, b.hi)}; }
IV_FN iv_abs(Interval a) { return a.lo >= 0 ? a : iv_fit(a.hi <= 0 ? -a.hi : 0, max(-a.lo, a.hi)); }

// Bits: an interval's numbers share the bits above the highest one in which its ends differ.
__device__ __forceinline__ unsigned int iv_open(Interval a) {
    const unsigned int differ = (unsigned int)a.lo ^ (unsigned int)a.hi;
    return differ ? 0xffffffffu >> __clz((int)differ) : 0;
}
__device__ __forceinline__ unsigned int iv_ones(Interval a) { return (unsigned int)a.lo & ~iv_open(a); }
__device__ __forceinline__ unsigned int iv_bits(Interval a) { return (unsigned int)a.lo | iv_open(a); }

// All numbers with every bit of `ones` and none outside `bits`. An open sign bit: the least has it, the largest not.
IV_FN iv_from_bits(unsigned int ones, unsigned int bits) {
    const unsigned int sign = 0x80000000u & bits & ~ones;
    return {(int)(ones | sign), (int)(bits & ~sign)};
}

IV_FN iv_and(Interval a, Interval b) {
    Interval r = iv_from_bits(iv_ones(a) & iv_ones(b), iv_bits(a) & iv_bits(b));
    if (a.lo >= 0) r.hi = min(r.hi, a.hi);
    if (b.lo >= 0) r.hi = min(r.hi, b.hi);
    return r;
}

IV_FN iv_or(Interval a, Interval b) {
    Interval r = iv_from_bits(iv_ones(a) | iv_ones(b), iv_bits(a) | iv_bits(b));
    if (a.lo >= 0 && b.lo >= 0) r.lo = max(r.lo, max(a.lo, b.lo));
    return r;
}

IV_FN iv_xor(Interval a, Interval b) {
    const unsigned int open = iv_open(a) | iv_open(b), ones = (unsigned int)a.lo ^ (unsigned int)b.lo;
    return iv_from_bits(ones & ~open, ones | open);
}

IV_FN iv_not(Interval a) { return {-1 - a.hi, -1 - a.lo}; }
IV_FN iv_popcount(Interval a) { return {__popc(iv_ones(a)), __popc(iv_bits(a))}; }

// A function of seeds and places that looks random; the same on the CPU.
__device__ __forceinline__ unsigned int mix_bits(unsigned int x) {
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}
__device__ __forceinline__ int hash_of(int x, int y) {
    return (int)(mix_bits(mix_bits((unsigned int)x + 0x9e3779b9u) + (unsigned int)y) >> 1);
}
IV_FN iv_hash(Interval a, Interval b) {
    return a.lo == a.hi && b.lo == b.hi ? iv(hash_of((int)a.lo, (int)b.lo)) : Interval{0, 2147483647};
}

// Bit n % 32 of a word; over an interval, those bits of it that are known. (Of no tiles an interval is empty.)
__device__ __forceinline__ bool bit_of(int word, int n) { return (unsigned int)word >> (n & 31) & 1; }
IV_FN iv_bit(Interval word, Interval n) {
    const unsigned int by = (unsigned int)n.lo & 31;
    const unsigned int run = n.hi - n.lo < 31 ? (2u << (int)max(n.hi - n.lo, i64(0))) - 1 : 0xffffffffu;
    const unsigned int asked = by ? run << by | run >> (32 - by) : run;
    return {(iv_ones(word) & asked) == asked, (iv_bits(word) & asked) != 0};
}

// Truth: [0, 0] never, [1, 1] always, [0, 1] sometimes.
IV_FN iv_lt(Interval a, Interval b) { return {a.hi < b.lo, a.lo < b.hi}; }
IV_FN iv_le(Interval a, Interval b) { return {a.hi <= b.lo, a.lo <= b.hi}; }
IV_FN iv_gt(Interval a, Interval b) { return iv_lt(b, a); }
IV_FN iv_ge(Interval a, Interval b) { return iv_le(b, a); }
IV_FN iv_lnot(Interval a) { return {1 - a.hi, 1 - a.lo}; }
IV_FN iv_land(Interval a, Interval b) { return {a.lo & b.lo, a.hi & b.hi}; }
IV_FN iv_lor(Interval a, Interval b) { return {a.lo | b.lo, a.hi | b.hi}; }
IV_FN iv_eq(Interval a, Interval b) {
    return {a.lo == a.hi && b.lo == b.hi && a.lo == b.lo, a.lo <= b.hi && b.lo <= a.hi};
}
IV_FN iv_ne(Interval a, Interval b) { return iv_lnot(iv_eq(a, b)); }
IV_FN iv_select(Interval c, Interval a, Interval b) {
    return c.lo == 1 ? a : c.hi == 0 ? b : Interval{min(a.lo, b.lo), max(a.hi, b.hi)};
}

#undef IV_FN

// What C leaves open in a predicate on elements: x / 0, x % 0 and shifts outside 0..31 give 0, as on the CPU.
__device__ __forceinline__ int div_or_0(int a, int b) { return b == 0 ? 0 : b == -1 ? (int)-(unsigned int)a : a / b; }
__device__ __forceinline__ int mod_or_0(int a, int b) { return b == 0 || b == -1 ? 0 : a % b; }
__device__ __forceinline__ int div_by(int a, int b, unsigned int inverse) {
    const unsigned int q = quotient_of(magnitude(a), b, inverse);
    return (int)((a ^ b) < 0 ? -q : q);
}
__device__ __forceinline__ int mod_by(int a, int b, unsigned int inverse) { // without a branch, which each element would have
    const unsigned int by = magnitude(b), x = magnitude(a), most = x - __umulhi(x, inverse) * by, rest = min(most, most - by);
    return (int)(b == 0 ? 0 : a < 0 ? -rest : rest);
}
__device__ __forceinline__ int shl_or_0(int a, int n) { return n < 0 || n > 31 ? 0 : (int)((unsigned int)a << n); }
__device__ __forceinline__ int shr_or_0(int a, int n) { return n < 0 || n > 31 ? 0 : a >> n; }
__device__ __forceinline__ int fit_int(i64 x) { return int(min(max(x, i64(-2147483647 - 1)), i64(2147483647))); } // of a bound, which compares as x does
__device__ __forceinline__ int mul_shr(int a, int b, int n) { return (int)((i64)a * b >> n); } // a * b >> n, of a product of 64 bits
