/* Bugs planted in the pipeline of persistent kernels: phases of mbarriers, stages in flight, products in flight. */
#include "plant.h"

/* One buffer of Q and two, one array of weights and two; packed, the last tile's values have a tail to clear; a mask
 * that is no bound, by which the first two tiles of queries visit all keys and the third none; lines along the keys. */
static const plan_wanted variants[] = {
    {"fwd fp16 d64 packed causal seqused_k", "h200", 2, 1, 2, 2},
    {"fwd bf16 d128 causal", "h200", 2, 0, 1, 1},
    {"fwd bf16 d64 keep=\"q < 256 && (q + k) % 3 != 0\"", "h200", 2, 1, 2, 2},
    {"fwd bf16 d64 score=\"s - 0.1 * abs(k - 128)\"", "h200", 2, 0, 1, 1},
};

static bool scans(void) {
    return strstr(source.text, "struct Scanner") != NULL;
}

static int emit(void **state) {
    return emit_plan(*state);
}

static void test_untouched(void **state) {
    (void)state;
    expect("untouched", source.text, NULL);
}

#define WAIT(bar, parity) "mbarrier_wait(smem + " bar ".index(), " parity ");"
#define ARRIVE(bar) "mbarrier_arrive(smem + " bar ".index());"
#define DURING_COPY "race at smem_base() + |is in flight|already has its "

/* A stage is given back before the product that reads it is done. */
static void test_early_release(void **state) {
    (void)state;
    static const char late[] = "wgmma_wait<1>(registers(s));\n        release_k();";
    static const char early[] = "release_k();\n        wgmma_wait<1>(registers(s));";
    assert_true(plant_each(late, early, DURING_COPY) >= 1);
}

/* The producer does not wait for room, or the consumers not for the copy. */
static void test_removed_wait(void **state) {
    (void)state;
    assert_int_equal(plant_each(WAIT("k_empty + 8 * k", "k.parity() ^ 1"), "", DURING_COPY), scans() ? 2 : 1);
    /* The producer of V, who has nothing else to wait for, may also fill all phases before anyone waits for the first.
     */
    assert_int_equal(plant_each(WAIT("v_empty + 8 * v", "v.parity() ^ 1"), "", DURING_COPY "|deadlock: "), 1);
    assert_int_equal(plant_each(WAIT("k_full + 8 * k", "k.parity()"), "", DURING_COPY), scans() ? 2 : 1);
    assert_int_equal(plant_each(WAIT("v_full + 8 * v", "v.parity()"), "", DURING_COPY), 1);
}

static void test_wrong_parity(void **state) {
    (void)state;
    assert_int_equal(plant_each(WAIT("k_empty + 8 * k", "k.parity() ^ 1"), WAIT("k_empty + 8 * k", "k.parity()"),
                                "deadlock: |" DURING_COPY),
                     scans() ? 2 : 1);
}

/* All lanes arrive where a warp should once; a warp does not; bytes are expected that do not come. */
static void test_arrivals(void **state) {
    (void)state;
    assert_int_equal(
        plant_each("if (leader) " ARRIVE("k_empty + 8 * k"), ARRIVE("k_empty + 8 * k"), DURING_COPY "|deadlock: "), 1);
    assert_int_equal(plant_each("if (leader) " ARRIVE("v_empty + 8 * v"), "", "at the mbarrier at smem_base() + "), 1);
    assert_int_equal(
        plant_each("expect_tx(bar, k_bytes)", "expect_tx(bar, k_bytes + 16)", "lacks 0 of 1 arrivals and 16 bytes"), 1);
}

/* The tail of V is cleared while its copy is in flight. */
static void test_tail(void **state) {
    (void)state;
    const int count = plant_each("mbarrier_wait(smem + tail_full, tail_parity);", "", DURING_COPY);
    assert_int_equal(count, kernel.problem.packed);
}

/* Who looks for tiles and who asks do not wait for each other, or write when the other reads; and who sends V follows
 * unseen. */
static void test_scanner(void **state) {
    (void)state;
    static const char turns[] = "race at smem_base() + |deadlock: ";
    assert_int_equal(plant("mbarrier_wait(smem + scan_told, scan_parity);", 0, "", turns), scans());
    assert_int_equal(plant("mbarrier_wait(smem + scan_asked, parity);", 0, "", turns), scans());
    assert_int_equal(plant("if (lane == 0) mbarrier_arrive(smem + scan_told);", 0, "", "deadlock: "), scans());
    assert_int_equal(plant("if (more) ask(row, scan.first);", 0, "ask(row, scan.first);", turns), scans());
    assert_int_equal(plant("if (threadIdx.x % 32 == 0) " ARRIVE("k_empty + 8 * k"), 0, "", "deadlock: "), scans());
}

/* A line is written while products read it, or read before it is written. */
static void test_line(void **state) {
    (void)state;
    const int lines = strstr(source.text, "struct Line {") ? 2 : 0;
    assert_int_equal(plant_each("named_barrier_sync(barrier, 128);", "", "race at smem_base() + "), lines);
}

static void test_products(void **state) {
    (void)state;
    assert_true(plant_each("wgmma_wait<1>(", "wgmma_wait<2>(", DURING_COPY "|while in flight") >= 1);
}

int main(void) {
    static const struct {
        const char *name;
        void (*function)(void **state);
    } plants[] = {
        {"untouched", test_untouched},
        {"early release", test_early_release},
        {"removed wait", test_removed_wait},
        {"wrong parity", test_wrong_parity},
        {"arrivals", test_arrivals},
        {"tail", test_tail},
        {"products", test_products},
        {"scanner", test_scanner},
        {"line", test_line},
    };
    enum { NUM_VARIANTS = sizeof variants / sizeof *variants, NUM_PLANTS = sizeof plants / sizeof *plants };
    struct CMUnitTest tests[NUM_VARIANTS * NUM_PLANTS];
    for (size_t i = 0; i < NUM_VARIANTS * NUM_PLANTS; i++)
        tests[i] = (struct CMUnitTest){plants[i % NUM_PLANTS].name, plants[i % NUM_PLANTS].function, emit, discard,
                                       (void *)(uintptr_t)&variants[i / NUM_PLANTS]};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
