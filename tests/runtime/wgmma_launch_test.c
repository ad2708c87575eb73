/* Kernels of the wgmma family on a fake driver: the maps that a launch takes, where its block begins, and which plan is
 * taken where the compiler serialises wgmma. What the kernels compute is the emulator's to test. */
#include "fake/gpu.h"

#include "runtime/clock.h"
#include "runtime/object.h"

/* What the fake driver's maps hold. */
typedef struct map_facts {
    void *base;
    uint64_t dims[4], strides[3];
    unsigned box[4];
    int type;
} map_facts;

static fk_context *open_hopper(fk_cache_mode mode) {
    setenv("FAKE_CUDA_SM", "90", 1);
    return open_context(NULL, mode);
}

static fk_kernel *kernel_of(fk_context *context, const char *spelling) {
    fk_problem p = FK_PROBLEM_INIT;
    fk_kernel *kernel = NULL;
    if (!context || fk_problem_parse(spelling, &p) || fk_kernel_create(context, &p, &kernel))
        fprintf(stderr, "%s\n", fk_last_error());
    return kernel;
}

enum { ELEMENTS = 2 * 300 * 4 * 128 };
static _Alignas(256) char memory[4][ELEMENTS * 2], workspace[4096];

static fk_args some_args(const fk_kernel *kernel) {
    fk_args a = FK_ARGS_INIT;
    a.batch = 2, a.num_heads_q = 4, a.num_heads_kv = 2, a.seqlen_q = 100, a.seqlen_k = 300;
    a.q = memory[0], a.k = memory[1], a.v = memory[2], a.o = memory[3];
    fk_args_layout(&kernel->problem, FK_BSHD, &a);
    return a;
}

static bool same_map(const map_facts *m, const void *base, const uint64_t dims[4], const uint64_t strides[3],
                     int rows) {
    return m->base == base && memcmp(m->dims, dims, sizeof m->dims) == 0 &&
           memcmp(m->strides, strides, sizeof m->strides) == 0 && m->box[0] == (m->type == 0 ? 128 : 64) &&
           m->box[1] == (unsigned)rows && m->box[2] == 1 && m->box[3] == 1;
}

/* The maps of the last launch, and what stands behind them. */
typedef struct launched {
    map_facts q, k, v, o;
    fk_forward_params params;
} launched;
static launched last_launch(void) {
    const char *block = fake_variable("cuda.so", "fake_cuda_params");
    launched l;
    map_facts *const maps[FK_TENSOR_MAPS] = {&l.q, &l.k, &l.v, &l.o};
    for (int i = 0; i < FK_TENSOR_MAPS; i++)
        memcpy(maps[i], block + 128 * i, sizeof *maps[i]);
    memcpy(&l.params, block + 128 * FK_TENSOR_MAPS, offsetof(fk_forward_params, array));
    return l;
}

static const char *maps_stand_before_the_block(void) {
    fk_context *context = open_hopper(FK_CACHE_NORMAL);
    fk_kernel *kernel = kernel_of(context, "fwd bf16 d128 dv64 gqa");
    fk_kernel_info info;
    EXPECT(kernel && fk_kernel_describe(kernel, &info) == FK_OK && strcmp(info.image.target, "sm_90a") == 0);
    EXPECT(strcmp(info.plan.family, "wgmma") == 0 && info.image.serialized_wgmma == 0);
    fk_args a = some_args(kernel);
    const int block_m = info.plan.block_m, block_n = info.plan.block_n;
    const size_t bytes = fk_kernel_workspace(kernel, &a);
    EXPECT(bytes >= 16 + 8 * 4 && bytes <= sizeof workspace);
    EXPECT(fk_param_bytes(kernel) % 64 == 0 && fk_param_bytes(kernel) > 512 + offsetof(fk_forward_params, mask_value));
    EXPECT(fk_execute(kernel, &a, NULL, 0, NULL) == FK_BAD_ARGUMENT && strstr(fk_last_error(), "workspace is null"));
    EXPECT(fk_execute(kernel, &a, workspace, bytes, NULL) == FK_OK && cuda("fake_cuda_launches") == 1);
    launched l = last_launch();
    EXPECT(l.q.type == 9 && l.k.type == 9 && l.v.type == 9); /* CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 */
    EXPECT(same_map(&l.q, a.q, (uint64_t[]){128, 100, 4, 2}, (uint64_t[]){1024, 256, 102400}, block_m));
    EXPECT(same_map(&l.k, a.k, (uint64_t[]){128, 300, 2, 2}, (uint64_t[]){512, 256, 153600}, block_n));
    EXPECT(same_map(&l.v, a.v, (uint64_t[]){64, 300, 2, 2}, (uint64_t[]){256, 128, 76800}, block_n));
    EXPECT(same_map(&l.o, a.o, (uint64_t[]){64, 100, 4, 2}, (uint64_t[]){512, 128, 51200}, 16)); /* of a warp */
    EXPECT(l.params.q == a.q && l.params.seqlen_k == 300 && l.params.claims == (void *)workspace);
    const int tiles = (100 + block_m - 1) / block_m * 8;
    EXPECT(l.params.num_tiles == tiles && l.params.epoch != 0 && cuda("fake_cuda_grid") == tiles);
    EXPECT(cuda("fake_cuda_grid_y") == 1 && cuda("fake_cuda_threads") == 32 * info.plan.warps);
    const uint64_t epoch = l.params.epoch;

    a.batch = 1, a.num_heads_q = 4, a.seqlen_q = 1; /* strides of one entry are of no interest */
    a.q_stride[0] = 8, a.q_stride[1] = ((int64_t)1 << 45), a.k_stride[1] = 0; /* one key, 300 times */
    EXPECT(fk_execute(kernel, &a, workspace, bytes, NULL) == FK_OK);
    l = last_launch();
    EXPECT(same_map(&l.q, a.q, (uint64_t[]){128, 1, 4, 1}, (uint64_t[]){256, 256, 256}, block_m));
    EXPECT(same_map(&l.k, a.k, (uint64_t[]){128, 300, 2, 1}, (uint64_t[]){0, 256, 256}, block_n));
    EXPECT(l.params.epoch != epoch);
    fk_kernel_destroy(kernel);
    fk_context_destroy(context);
    return NULL;
}

/* Maps of bytes; v is read from the workspace, where a kernel of its own puts it first. */
static const char *e4m3_reads_values_from_the_workspace(void) {
    static _Alignas(256) char room[1 << 20];
    static const float one[4] = {1, 1, 1, 1};
    fk_context *context = open_hopper(FK_CACHE_NORMAL);
    fk_kernel *kernel = kernel_of(context, "fwd e4m3 d128 dv64 gqa");
    EXPECT(kernel && strcmp(kernel->info.plan.family, "wgmma") == 0 && kernel->num_launches == 2);
    fk_args a = some_args(kernel);
    a.k_descale = one, a.k_descale_stride[0] = 2, a.k_descale_stride[1] = 1;
    const size_t bytes = fk_kernel_workspace(kernel, &a);
    const int block_m = kernel->info.plan.block_m, block_n = kernel->info.plan.block_n;
    const uint64_t tiles = (uint64_t)((300 + block_n - 1) / block_n); /* of values: 64 columns, in rows of 128 bytes */
    EXPECT(bytes > 2 * 2 * tiles * 128 * 64 && bytes <= sizeof room);
    EXPECT(fk_execute(kernel, &a, room, bytes, NULL) == FK_OK && cuda("fake_cuda_launches") == 2);
    EXPECT(strcmp(fake_variable("cuda.so", "fake_cuda_launched"), "fk_forward_values fk_forward ") == 0);
    const launched l = last_launch();
    const char *values = room + bytes - 2 * 2 * tiles * 128 * 64;
    EXPECT(l.q.type == 0 && l.k.type == 0 && l.v.type == 0 && l.o.type == 9); /* UINT8, and BFLOAT16 of o */
    EXPECT(same_map(&l.q, a.q, (uint64_t[]){128, 100, 4, 2}, (uint64_t[]){512, 128, 51200}, block_m));
    EXPECT(same_map(&l.k, a.k, (uint64_t[]){128, 300, 2, 2}, (uint64_t[]){256, 128, 76800}, block_n));
    EXPECT(same_map(&l.v, values, (uint64_t[]){128, 64, tiles, 4}, (uint64_t[]){128, 8192, 8192 * tiles}, 64));
    EXPECT(same_map(&l.o, a.o, (uint64_t[]){64, 100, 4, 2}, (uint64_t[]){512, 128, 51200}, 16));
    EXPECT(l.params.values == values && l.params.value_tiles == (int)tiles && l.params.num_heads_kv == 2);
    EXPECT(l.params.k_descale == one && l.params.k_descale_batch_stride == 2 && !l.params.q_descale);
    fk_kernel_destroy(kernel);
    fk_context_destroy(context);
    return NULL;
}

/* In boxes of 64 keys, where the strides of 16 bytes are others. */
static const char *staged_halves(void) {
    static _Alignas(16) uint16_t bias[4 * 100 * 304];
    fk_context *context = open_hopper(FK_CACHE_NORMAL);
    fk_kernel *kernel = kernel_of(context, "fwd bf16 d128 array=bias:bf16[b][h][q][k] bias");
    EXPECT(kernel && kernel->staged == 1);
    fk_args a = some_args(kernel);
    a.num_heads_kv = 4;
    EXPECT(fk_args_layout(&kernel->problem, FK_BSHD, &a) == FK_OK);
    for (int64_t row_stride = 300; row_stride <= 304; row_stride += 4) {
        map_facts map;
        a.array[0] = (fk_array){.data = bias, .stride = {0, 100 * 304, row_stride, 1}};
        EXPECT(fk_execute(kernel, &a, workspace, sizeof workspace, NULL) == FK_OK);
        memcpy(&map, fake_variable("cuda.so", "fake_cuda_params"), sizeof map);
        EXPECT(map.base == (row_stride == 304 ? bias : NULL));
        if (!map.base) continue;
        EXPECT(map.type == 9 && map.box[0] == 64 && map.box[1] == 64); /* CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 */
        EXPECT(memcmp(map.strides, (uint64_t[]){608, 60800, 608}, sizeof map.strides) == 0);
    }
    fk_kernel_destroy(kernel);
    fk_context_destroy(context);
    return NULL;
}

/* Of a bias tiles are copied where keys lie beside each other and other strides are of 16 bytes. */
static const char *staged_array_comes_first(void) {
    static _Alignas(16) float bias[4 * 100 * 300];
    fk_context *context = open_hopper(FK_CACHE_NORMAL);
    fk_kernel *kernel = kernel_of(context, "fwd bf16 d128 bias");
    EXPECT(kernel && kernel->staged == 1);
    fk_args a = some_args(kernel);
    a.num_heads_kv = 4;
    EXPECT(fk_args_layout(&kernel->problem, FK_BSHD, &a) == FK_OK);
    a.array[0] = (fk_array){.data = bias, .stride = {0, 100 * 300, 300, 1}};
    const struct {
        int64_t row_stride;
        const float *data;
        bool boxed;
    } cases[] = {{300, bias, true}, {300, bias + 1, false}, {299, bias, false}, {0, bias, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        map_facts map, q;
        fk_array_param array[FK_MAX_ARRAYS];
        a.array[0].data = cases[i].data, a.array[0].stride[2] = cases[i].row_stride;
        EXPECT(fk_execute(kernel, &a, workspace, sizeof workspace, NULL) == FK_OK);
        const char *block = fake_variable("cuda.so", "fake_cuda_params");
        memcpy(&map, block, sizeof map);
        memcpy(&q, block + 128, sizeof q);
        fk_arrays_fill(&kernel->arrays, &a, array);
        EXPECT(q.base == a.q && array[0].data == cases[i].data && array[0].boxed == cases[i].boxed);
        EXPECT(map.base == (cases[i].boxed ? bias : NULL));
        if (!cases[i].boxed) continue;
        EXPECT(map.type == 7 && map.box[0] == 32 && map.box[1] == 64); /* CU_TENSOR_MAP_DATA_TYPE_FLOAT32 */
        EXPECT(memcmp(map.dims, (uint64_t[]){300, 100, 4, 1}, sizeof map.dims) == 0);
        EXPECT(memcmp(map.strides, (uint64_t[]){1200, 120000, 1200}, sizeof map.strides) == 0);
    }
    fk_kernel_destroy(kernel);
    fk_context_destroy(context);
    return NULL;
}

/* What a launch costs on the host, but for what a real driver adds. */
static const char *host_cost(void) {
    enum { ROUNDS = 20000 };
    fk_context *context = open_hopper(FK_CACHE_NORMAL);
    fk_kernel *kernel = kernel_of(context, "fwd bf16 d128");
    EXPECT(kernel);
    fk_args a = some_args(kernel);
    a.num_heads_kv = 4;
    EXPECT(fk_args_layout(&kernel->problem, FK_BSHD, &a) == FK_OK);
    const double begin = fk_now_ms();
    for (int i = 0; i < ROUNDS; i++)
        EXPECT(fk_execute(kernel, &a, workspace, sizeof workspace, NULL) == FK_OK);
    const double ns = 1e6 * (fk_now_ms() - begin) / ROUNDS;
    printf("fk_execute with tensor maps, on a driver that does nothing: %.0f ns\n", ns);
    EXPECT(ns < 20000);
    fk_kernel_destroy(kernel);
    fk_context_destroy(context);
    return NULL;
}

static const char *packed_maps_have_one_batch(void) {
    static const int32_t cu[4] = {0, 100, 100, 170};
    fk_context *context = open_hopper(FK_CACHE_NORMAL);
    fk_kernel *kernel = kernel_of(context, "fwd fp16 d64 packed");
    EXPECT(kernel);
    fk_args a = some_args(kernel);
    a.batch = 3, a.num_heads_kv = 4, a.total_q = 170, a.total_k = 200, a.cu_seqlens_q = a.cu_seqlens_k = cu;
    EXPECT(fk_args_layout(&kernel->problem, FK_BHSD, &a) == FK_OK);
    EXPECT(fk_execute(kernel, &a, workspace, sizeof workspace, NULL) == FK_OK);
    const launched l = last_launch();
    EXPECT(l.q.type == 6); /* CU_TENSOR_MAP_DATA_TYPE_FLOAT16 */
    EXPECT(
        same_map(&l.q, a.q, (uint64_t[]){64, 170, 4, 1}, (uint64_t[]){128, 170 * 128, 128}, kernel->info.plan.block_m));
    EXPECT(
        same_map(&l.v, a.v, (uint64_t[]){64, 200, 4, 1}, (uint64_t[]){128, 200 * 128, 128}, kernel->info.plan.block_n));
    fk_kernel_destroy(kernel);
    fk_context_destroy(context);
    return NULL;
}

static const char *maps_that_cannot_be_made(void) {
    fk_context *context = open_hopper(FK_CACHE_NORMAL);
    fk_kernel *kernel = kernel_of(context, "fwd bf16 d128 dv64 gqa");
    EXPECT(kernel);
    fk_args a = some_args(kernel);
    setenv("FAKE_CUDA_FAIL", "cuTensorMapEncodeTiled:1", 1);
    EXPECT(fk_execute(kernel, &a, workspace, sizeof workspace, NULL) == FK_LAUNCH_FAILED);
    EXPECT(strstr(fk_last_error(), "tensor map of q at 0x") && strstr(fk_last_error(), "heads 4, batch 2"));
    EXPECT(strstr(fk_last_error(), "q_stride[1] 1024") && strstr(fk_last_error(), "CUDA_ERROR_FAKE (1)"));
    EXPECT(cuda("fake_cuda_launches") == 0 && cuda("fake_cuda_depth") == 0);
    unsetenv("FAKE_CUDA_FAIL");
    a.k = (void *)((uintptr_t)1 << 60), a.k_stride[0] = (int64_t)1 << 39;
    EXPECT(fk_execute(kernel, &a, workspace, sizeof workspace, NULL) == FK_BAD_ARGUMENT);
    EXPECT(strstr(fk_last_error(), "k_stride[0] (batch) is 549755813888 for 2 entries; "));
    EXPECT(strstr(fk_last_error(), "less than 2^39 elements") && cuda("fake_cuda_depth") == 0);
    a.k_stride[0] -= 8;
    EXPECT(fk_execute(kernel, &a, workspace, sizeof workspace, NULL) == FK_OK);
    fk_kernel_destroy(kernel);
    fk_context_destroy(context);
    return NULL;
}

static const char *keep_mask_needs_no_maps(void) {
    fk_context *context = open_hopper(FK_CACHE_NORMAL);
    fk_kernel *kernel = kernel_of(context, "fwd bf16 d64 dropout");
    static uint8_t mask[2 * 4 * 100 * 300];
    EXPECT(kernel && strcmp(kernel->info.plan.family, "wgmma") == 0);
    fk_args a = some_args(kernel);
    a.num_heads_kv = 4, a.dropout_p = 0.5;
    EXPECT(fk_keep_mask(kernel, &a, mask, NULL) == FK_OK && cuda("fake_cuda_launches") == 1);
    EXPECT(strcmp(fake_variable("cuda.so", "fake_cuda_launched"), "fk_keep_mask ") == 0);
    const launched l = last_launch();
    EXPECT(!l.q.base && !l.v.dims[0] && l.params.keep_mask == mask && l.params.seqlen_q == 100);
    const int tiles = (100 + kernel->info.plan.block_m - 1) / kernel->info.plan.block_m;
    EXPECT(cuda("fake_cuda_grid") == tiles && cuda("fake_cuda_grid_y") == 8);
    fk_kernel_destroy(kernel);
    fk_context_destroy(context);
    return NULL;
}

static const char *serialized_plans_are_replaced(void) {
    fk_context *context = open_hopper(FK_CACHE_NORMAL);
    fk_kernel_info info;
    setenv("FAKE_NVRTC_SERIALIZED", "1", 1);
    fk_kernel *kernel = kernel_of(context, "fwd bf16 d128 causal");
    EXPECT(kernel && fk_kernel_describe(kernel, &info) == FK_OK && compiles() == 2);
    EXPECT(info.image.serialized_wgmma == 0);
    EXPECT(strstr(info.store_note, "spills 0 bytes, its wgmma are serialised: took plan 2 of 2"));
    fk_kernel_destroy(kernel);
    fk_context_destroy(context);
    context = open_hopper(FK_CACHE_NO_JIT); /* what the store keeps leads to the same plan */
    kernel = kernel_of(context, "fwd bf16 d128 causal");
    EXPECT(kernel && fk_kernel_describe(kernel, &info) == FK_OK && compiles() == 2 && info.from_store);
    EXPECT(info.image.serialized_wgmma == 0 && strstr(info.store_note, "took plan 2 of 2"));
    fk_kernel_destroy(kernel);
    fk_context_destroy(context);
    context = open_hopper(FK_CACHE_NORMAL);
    setenv("FAKE_NVRTC_SERIALIZED", "100", 1); /* no plan is better: the best one stays */
    kernel = kernel_of(context, "fwd bf16 d64 causal");
    EXPECT(kernel && fk_kernel_describe(kernel, &info) == FK_OK && info.image.serialized_wgmma == 1);
    EXPECT(compiles() == 2 + 5 && strstr(info.store_note, "took plan 1 of 5 tried"));
    fk_kernel_destroy(kernel);
    fk_context_destroy(context);
    return NULL;
}

static void all(void **state) {
    (void)state;
    fake_build("cuda", "", "cuda.so");
    fake_build("nvrtc", "", "nvrtc.so");
    fake_run(maps_stand_before_the_block);
    fake_run(packed_maps_have_one_batch);
    fake_run(staged_array_comes_first);
    fake_run(staged_halves);
    fake_run(e4m3_reads_values_from_the_workspace);
    fake_run(host_cost);
    fake_run(maps_that_cannot_be_made);
    fake_run(keep_mask_needs_no_maps);
    fake_run(serialized_plans_are_replaced);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(all)};
    return cmocka_run_group_tests(tests, fake_start, fake_stop);
}
