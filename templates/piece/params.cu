@ if #arrays > 0 then
struct Array {
    const void *data;
    void *copy;    // whose rows have copy_pitch elements: what copies read, or null
    i64 stride[4]; // in elements; the last one of an array fits an int
    int size[4];
    int boxed, copy_pitch; // boxed: by TMA
};

@ end
@ if score.grads then
struct ArrayGrad {
    float *data;
    u64 *exact; // deterministic sums; null where there are none
    i64 stride[4];
    int size[4]; // 1 where the stride is 0
    int once, clear;
    int boxed, unused; // boxed: by TMA
};

@ end
@ if plan.family == "wgmma" then
struct alignas(64) TensorMap {
    u8 bytes[128];
};

@ end
@ if walk == "k" then
// Of two sides of L2 one bit for each SM.
struct Sides {
    u32 of_sm[8];
};

@ end
struct Params {
@ for _, field in ipairs(params) do
    $(field.type) $(field.name);
@ end
};

// Whether this launch is to do nothing, as its condition does not hold.
__device__ __forceinline__ bool is_off(const Params &p) { return p.condition && *p.condition != p.condition_value; }
