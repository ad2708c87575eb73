/* Bugs planted in kernels of family mma. */
#include "plant.h"

/* A kernel of each kind of main loop, whatever the planner prefers. With one stage the output overlays Q, and K only
 * where head_dim_v is larger: then every barrier counts. */
typedef struct variant {
    plan_wanted plan;
    int barriers, waits; /* in the text */
} variant;

static variant variants[] = {
    {{"fwd fp16 d32 causal", "a100", 2, 1, 0, 0}, 3, 2},          /* cp.async, double-buffered, Q in registers */
    {{"fwd bf16 d64 dv128 causal", "rtx3090", 1, 0, 0, 0}, 3, 1}, /* cp.async, K and V in turn */
    {{"fwd fp16 d32 dv128 causal", "t4", 1, 0, 0, 0}, 3, 0},      /* copies through registers */
};

static int emit(void **state) {
    return emit_plan(&((const variant *)*state)->plan);
}

static void test_untouched(void **state) {
    (void)state;
    expect("untouched", source.text, NULL);
}

/* Whether the reader finds the other thread's cp.async in flight or landed is up to the schedule. */
#define UNORDERED "race at smem_base() + |is in flight"

static void test_removed_barrier(void **state) {
    const variant *v = *state;
    assert_int_equal(plant_each("__syncthreads();", "", UNORDERED), v->barriers);
    assert_int_equal(plant_each("__syncwarp();", "", "with no __syncwarp between"), 1);
}

/* The last warp goes round a barrier of the main loop, and is a tile ahead of the others. */
static void test_skipped_barrier(void **state) {
    (void)state;
    assert_true(plant("__syncthreads();", 2, "if (threadIdx.x < threads - 32) __syncthreads();", UNORDERED));
}

/* Half of warp 1 waits at a second barrier, the other half for it in the next warp operation. */
static void test_deadlock(void **state) {
    (void)state;
    assert_true(plant("__syncthreads();", 2, "__syncthreads(); if (threadIdx.x / 16 == 3) __syncthreads();",
                      "; warp 1: lanes 0-15 wait in "));
}

/* The copy is read, or overwritten, before it has landed. */
static void test_removed_wait(void **state) {
    const variant *v = *state;
    assert_int_equal(plant_each("cp_async_wait<", "cp_async_wait<9 + ", "is in flight"), v->waits);
    if (v->waits) assert_true(plant("int IN_FLIGHT = 0", 0, "int IN_FLIGHT = 1", "is in flight"));
}

static void test_shared_bounds(void **state) {
    (void)state;
    assert_true(plant("smem = smem_base()", 0, "smem = smem_base() + stage_bytes", "are outside the block's"));
    assert_true(plant("smem = smem_base()", 0, "smem = smem_base() - 16", "are outside the block's"));
    assert_true(plant("smem = smem_base()", 0, "smem = smem_base() + 8", "is not 16-byte aligned"));
}

static void test_global_bounds(void **state) {
    (void)state;
    SKIP_UNDER_TSAN;
    assert_true(plant("copy_q.move(at.q_first", 0, "copy_q.move(1 + at.q_first", "past an allocation"));
    assert_true(plant("copy_k.move(n * block_n", 0, "copy_k.move(1 + n * block_n", "past an allocation"));
    assert_true(plant("copy_v.move(n * block_n", 0, "copy_v.move(n * block_n - 40", " an allocation of "));
    assert_true(plant("smem + smem_k, at.seqlen_k", 0, "smem + smem_k, 1 + at.seqlen_k", "past an allocation"));
    assert_true(plant("*out = p.o", 0, "*out = p.o + 8", "past an allocation"));
    assert_true(plant("row < num_rows && lane", 0, "lane", "past an allocation"));
    assert_true(plant("p.lse[", 0, "p.lse[1 + ", "past an allocation"));
}

int main(void) {
    static const struct {
        const char *name;
        void (*function)(void **state);
    } plants[] = {
        {"untouched", test_untouched},
        {"removed barrier", test_removed_barrier},
        {"skipped barrier", test_skipped_barrier},
        {"deadlock", test_deadlock},
        {"removed wait", test_removed_wait},
        {"shared bounds", test_shared_bounds},
        {"global bounds", test_global_bounds},
    };
    enum { NUM_VARIANTS = sizeof variants / sizeof *variants, NUM_PLANTS = sizeof plants / sizeof *plants };
    struct CMUnitTest tests[NUM_VARIANTS * NUM_PLANTS];
    for (size_t i = 0; i < NUM_VARIANTS * NUM_PLANTS; i++)
        tests[i] = (struct CMUnitTest){plants[i % NUM_PLANTS].name, plants[i % NUM_PLANTS].function, emit, discard,
                                       &variants[i / NUM_PLANTS]};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
