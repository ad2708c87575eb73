/* Contexts and kernels on a fake driver and a fake NVRTC: what is compiled how often, what the store is asked, what the
 * driver is told, and that every failure says what failed. */
#include "fake/gpu.h"

#include "runtime/clock.h"
#include "runtime/object.h"

#define THREADS 8

static fk_args small_args(const fk_problem *p) {
    static _Alignas(16) char memory[4][2 * 100 * 4 * 64 * 2];
    static float lse[2 * 4 * 100];
    fk_args a = FK_ARGS_INIT;
    a.batch = 2, a.num_heads_q = a.num_heads_kv = 4, a.seqlen_q = a.seqlen_k = 100;
    a.q = memory[0], a.k = memory[1], a.v = memory[2], a.o = memory[3], a.lse = lse;
    fk_args_layout(p, FK_BSHD, &a);
    return a;
}

/* ---- the good way ------------------------------------------------------------------------------------- */

static const char *builds_stores_and_launches(void) {
    const fk_problem p = parsed("fwd fp16 d64 causal");
    const fk_args a = small_args(&p);
    fk_context *context = open_context(NULL, FK_CACHE_NORMAL);
    fk_kernel *kernel, *again;
    fk_kernel_info info;
    fk_device_info runs, planned;
    int stream;
    EXPECT(context && !fk_context_is_emulator(context));
    EXPECT(fk_context_devices(context, &runs, &planned) == FK_OK);
    EXPECT(strcmp(runs.key, "a100") == 0 && strcmp(planned.key, "a100") == 0 && runs.ordinal == 0);
    EXPECT(fk_kernel_create(context, &p, &kernel) == FK_OK);
    EXPECT(fk_kernel_create(context, &p, &again) == FK_OK && again == kernel && compiles() == 1);
    EXPECT(fk_kernel_describe(kernel, &info) == FK_OK);
    EXPECT(!info.from_store && info.stored && strcmp(info.image.target, "sm_80") == 0 && info.image.registers == 168);
    EXPECT(info.image.smem_dynamic == info.plan.smem_bytes && info.image.threads == 32 * info.plan.warps);
    EXPECT(access(info.store_path, R_OK) == 0 && strlen(info.image.key) == 64 && *info.store_note);
    EXPECT(cuda("fake_cuda_loaded") == 1 && cuda("fake_cuda_smem_limit") == info.plan.smem_bytes);

    EXPECT(fk_execute(kernel, &a, NULL, 0, &stream) == FK_OK);
    EXPECT(cuda("fake_cuda_launches") == 1 && cuda("fake_cuda_threads") == info.image.threads);
    EXPECT(cuda("fake_cuda_smem") == info.image.smem_dynamic && cuda("fake_cuda_depth") == 0);
    EXPECT(*(void **)fake_variable("cuda.so", "fake_cuda_stream") == &stream);
    const fk_forward_params *params = fake_variable("cuda.so", "fake_cuda_params");
    EXPECT(params->q == a.q && params->lse == a.lse && params->seqlen_k == 100 && params->batch == 2);

    fk_context_destroy(context); /* kernels keep it alive */
    EXPECT(cuda("fake_cuda_loaded") == 1);
    EXPECT(fk_execute(kernel, &a, NULL, 0, NULL) == FK_OK);
    fk_kernel_destroy(kernel);
    fk_kernel_destroy(again);
    EXPECT(cuda("fake_cuda_loaded") == 0 && cuda("fake_cuda_retained") == 0 && cuda("fake_cuda_depth") == 0);

    context = open_context(NULL, FK_CACHE_NO_JIT); /* the next process, forbidden to compile */
    EXPECT(fk_kernel_create(context, &p, &kernel) == FK_OK && compiles() == 1);
    EXPECT(fk_kernel_describe(kernel, &info) == FK_OK && info.from_store && !info.stored);
    EXPECT(strcmp(info.store_note, "hit") == 0);
    const fk_problem other = parsed("fwd fp16 d64");
    EXPECT(fk_kernel_create(context, &other, &again) == FK_NO_JIT);
    EXPECT(strstr(fk_last_error(), "fwd fp16 d64") && strstr(fk_last_error(), "sm_80"));
    fk_kernel_destroy(kernel);
    fk_context_destroy(context);
    return NULL;
}

/* One image, three kernels, in order on one stream; nothing is launched with a workspace that is too small. */
static const char *backward_launches_three_kernels(void) {
    const fk_problem p = parsed("bwd fp16 d64 causal");
    static _Alignas(16) char more[4][2 * 100 * 4 * 64 * 2];
    fk_args a = small_args(&p);
    a.dout = more[0], a.dq = more[1], a.dk = more[2], a.dv = more[3];
    fk_context *context = open_context(NULL, FK_CACHE_NORMAL);
    fk_kernel *kernel;
    fk_kernel_info info;
    void *workspace = NULL;
    int stream;
    EXPECT(context && fk_kernel_create(context, &p, &kernel) == FK_OK && compiles() == 1);
    EXPECT(fk_kernel_describe(kernel, &info) == FK_OK && info.image.threads == 32 * info.plan.warps);
    EXPECT(cuda("fake_cuda_smem_limit") == info.plan.smem_bytes && info.image.smem_dynamic == info.plan.smem_bytes);
    const size_t bytes = fk_kernel_workspace(kernel, &a);
    EXPECT(bytes > 0 && bytes % 256 == 0 && posix_memalign(&workspace, 256, bytes) == 0);
    EXPECT(fk_execute(kernel, &a, workspace, bytes - 1, &stream) == FK_BAD_ARGUMENT);
    EXPECT(strstr(fk_last_error(), "workspace_bytes") && cuda("fake_cuda_launches") == 0);
    EXPECT(fk_execute(kernel, &a, workspace, bytes, &stream) == FK_OK);
    EXPECT(strcmp(fake_variable("cuda.so", "fake_cuda_launched"), "fk_backward_delta fk_backward fk_backward_dq ") ==
           0);
    EXPECT(*(void **)fake_variable("cuda.so", "fake_cuda_stream") == &stream && cuda("fake_cuda_depth") == 0);
    const fk_backward_params *params = fake_variable("cuda.so", "fake_cuda_params");
    EXPECT(params->q == a.q && params->dv == a.dv && params->delta == workspace);
    setenv("FAKE_CUDA_FAIL", "cuLaunchKernel:701", 1);
    EXPECT(fk_execute(kernel, &a, workspace, bytes, NULL) == FK_LAUNCH_FAILED && cuda("fake_cuda_launches") == 3);
    EXPECT(cuda("fake_cuda_depth") == 0);
    free(workspace);
    fk_kernel_destroy(kernel);
    fk_context_destroy(context);
    return NULL;
}

/* fp32 has no wgmma. Where drivers capture it, what follows the row statistics starts early. */
static const char *backward_starts_early(void) {
    const fk_problem p = parsed("bwd fp32 d32");
    static _Alignas(16) char more[4][2 * 100 * 4 * 32 * 4];
    fk_args a = small_args(&p);
    a.dout = more[0], a.dq = more[1], a.dk = more[2], a.dv = more[3];
    setenv("FAKE_CUDA_SM", "90", 1);
    const char *const versions[] = {"12020", "12030"}, *const early[] = {"", "fk_backward fk_backward_dq "};
    for (int i = 0; i < 2; i++) {
        fk_kernel *kernel;
        void *workspace = NULL;
        setenv("FAKE_CUDA_VERSION", versions[i], 1);
        fk_context *context = open_context(NULL, FK_CACHE_NORMAL);
        EXPECT(context && fk_kernel_create(context, &p, &kernel) == FK_OK);
        const size_t bytes = fk_kernel_workspace(kernel, &a);
        EXPECT(posix_memalign(&workspace, 256, bytes) == 0);
        EXPECT(fk_execute(kernel, &a, workspace, bytes, NULL) == FK_OK && cuda("fake_cuda_launches") == 3 * (i + 1));
        EXPECT(strcmp(fake_variable("cuda.so", "fake_cuda_early"), early[i]) == 0);
        const fk_backward_params *params = fake_variable("cuda.so", "fake_cuda_params");
        EXPECT((char *)params->claims >= (char *)params->dq_acc && (char *)params->claims < (char *)workspace + bytes);
        free(workspace);
        fk_kernel_destroy(kernel);
        fk_context_destroy(context);
    }
    return NULL;
}

static const char *plans_for_another_gpu(void) {
    const fk_problem p = parsed("fwd fp16 d64 causal");
    fk_context *context = open_context("t4", FK_CACHE_NORMAL);
    fk_kernel *kernel;
    fk_kernel_info info;
    EXPECT(context && fk_kernel_create(context, &p, &kernel) == FK_OK);
    EXPECT(fk_kernel_describe(kernel, &info) == FK_OK && strcmp(info.image.target, "compute_75") == 0);
    EXPECT(info.plan.sm == 75 && info.image.registers == 77); /* from the driver */
    fk_kernel_destroy(kernel);
    fk_context_destroy(context);
    fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
    options.plan_for = "h200";
    EXPECT(fk_context_create(&options, &context) == FK_UNSUPPORTED);
    EXPECT(strstr(fk_last_error(), "h200") && strstr(fk_last_error(), "sm_90a") && strstr(fk_last_error(), "sm_80"));
    EXPECT(cuda("fake_cuda_retained") == 0);
    return NULL;
}

static const char *memory_and_copies(void) {
    fk_context *context = open_context(NULL, FK_CACHE_OFF);
    char host[64] = "kiln", back[64] = "";
    void *memory = NULL;
    EXPECT(context && fk_device_malloc(context, sizeof host, &memory) == FK_OK);
    EXPECT(fk_copy_to_device(context, memory, host, sizeof host) == FK_OK);
    EXPECT(fk_copy_from_device(context, back, memory, sizeof host) == FK_OK && strcmp(back, "kiln") == 0);
    EXPECT(fk_copy_to_device(context, NULL, host, 8) == FK_BAD_ARGUMENT && strstr(fk_last_error(), "device is null"));
    EXPECT(fk_copy_from_device(context, NULL, memory, 8) == FK_BAD_ARGUMENT && strstr(fk_last_error(), "host is null"));
    fk_device_free(context, memory);
    EXPECT(fk_device_malloc(context, (size_t)1 << 41, &memory) == FK_NO_MEMORY);
    EXPECT(strstr(fk_last_error(), "2199023255552 bytes") && strstr(fk_last_error(), "CUDA_ERROR_OUT_OF_MEMORY"));
    EXPECT(fk_synchronize(context, NULL) == FK_OK);
    setenv("FAKE_CUDA_FAIL", "cuStreamSynchronize:700", 1);
    EXPECT(fk_synchronize(context, NULL) == FK_LAUNCH_FAILED && strstr(fk_last_error(), "700"));
    EXPECT(cuda("fake_cuda_depth") == 0);
    fk_context_destroy(context);
    return NULL;
}

/* ---- compiling once ----------------------------------------------------------------------------------- */

typedef struct asker {
    pthread_t thread;
    fk_context *context;
    fk_kernel *kernel;
    fk_status status;
} asker;

static void *ask(void *user) {
    asker *a = user;
    const fk_problem p = parsed("fwd bf16 d128 causal");
    a->status = fk_kernel_create(a->context, &p, &a->kernel);
    return NULL;
}

static const char *threads_compile_once(void) {
    asker askers[THREADS];
    fk_context *contexts[2] = {open_context(NULL, FK_CACHE_NORMAL), open_context(NULL, FK_CACHE_NORMAL)};
    setenv("FAKE_NVRTC", "slow", 1);
    for (int i = 0; i < THREADS; i++) { /* two tables over one store: the store's lock saves the second compile */
        askers[i] = (asker){.context = contexts[i % 2]};
        EXPECT(pthread_create(&askers[i].thread, NULL, ask, &askers[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++)
        EXPECT(pthread_join(askers[i].thread, NULL) == 0);
    for (int i = 0; i < THREADS; i++)
        EXPECT(askers[i].status == FK_OK && askers[i].kernel == askers[i % 2].kernel);
    EXPECT(compiles() == 1);
    for (int i = 0; i < THREADS; i++)
        fk_kernel_destroy(askers[i].kernel);
    fk_context_destroy(contexts[0]);
    fk_context_destroy(contexts[1]);
    return NULL;
}

static const char *spilling_plans_are_replaced(void) {
    const fk_problem p = parsed("fwd fp16 d128 causal");
    fk_context *context = open_context(NULL, FK_CACHE_NORMAL);
    fk_kernel *kernel;
    fk_kernel_info info;
    setenv("FAKE_NVRTC_SPILL", "48", 1); /* every plan */
    EXPECT(context && fk_kernel_create(context, &p, &kernel) == FK_OK);
    EXPECT(fk_kernel_describe(kernel, &info) == FK_OK && info.image.spill_bytes == 96 && compiles() == 5);
    EXPECT(strstr(info.store_note, "spills 96 bytes: took plan 1 of 5"));
    fk_kernel_destroy(kernel);
    fk_context_destroy(context);
    return NULL;
}

/* Where a kernel for some sizes spills, that for all stands in, if it can be had. */
static const char *what_spills_stays_where_nothing_stands_in(void) {
    const fk_problem p = parsed("bwd bf16 d64");
    const fk_shape few = {1, 4, 4, 64, 64};
    unsetenv("FLASHKILN_TUNING"); /* off: there are no kernels for some sizes */
    setenv("FAKE_CUDA_SM", "90", 1);
    fk_context *context = open_context(NULL, FK_CACHE_NORMAL);
    fk_kernel *kernel, *again;
    fk_kernel_info info;
    setenv("FAKE_NVRTC_SPILL", "2500", 1);
    setenv("FAKE_NVRTC", "refuse", 1);
    setenv("FAKE_NVRTC_GOOD", "1", 1);
    if (fk_kernel_create_for(context, &p, &few, &kernel)) return fk_last_error();
    EXPECT(compiles() == 2);
    EXPECT(fk_kernel_describe(kernel, &info) == FK_OK && info.plan.head_rows > 0 && info.image.spill_bytes == 5000);
    EXPECT(fk_kernel_create_for(context, &p, &few, &again) == FK_OK && again == kernel && compiles() == 2);
    fk_kernel_destroy(again);
    fk_kernel_destroy(kernel);
    fk_context_destroy(context);
    unsetenv("FAKE_NVRTC_GOOD");
    context = open_context(NULL, FK_CACHE_NORMAL);
    unsetenv("FAKE_NVRTC");
    unsetenv("FAKE_NVRTC_SPILL");
    EXPECT(context && fk_kernel_create_for(context, &p, &few, &kernel) == FK_OK);
    EXPECT(fk_kernel_describe(kernel, &info) == FK_OK && info.plan.head_rows == 0 && info.image.spill_bytes == 0);
    fk_kernel_destroy(kernel);
    fk_context_destroy(context);
    return NULL;
}

/* fk_build takes the same turn, and says which plan it ended with, so that fk_generate can give its text. */
static const char *build_names_the_plan_it_took(void) {
    const fk_problem p = parsed("fwd fp16 d128 causal");
    fk_plan_info *plans, chosen;
    fk_image_info image, again;
    size_t count;
    void *bytes, *same;
    fake_use("FLASHKILN_NVRTC", "nvrtc.so");
    setenv("FAKE_NVRTC_SPILL", "48", 1);
    setenv("FAKE_NVRTC_SPILLS", "2", 1);
    EXPECT(fk_plan_list(&p, "a100", NULL, &plans, &count) == FK_OK && count > 3 && plans[2].legal);
    EXPECT(fk_build(&p, "a100", NULL, &bytes, &image, &chosen) == FK_OK && compiles() == 3 && image.spill_bytes == 0);
    EXPECT(chosen.block_m == plans[2].block_m && chosen.block_n == plans[2].block_n && chosen.warps == plans[2].warps &&
           chosen.stages == plans[2].stages && chosen.q_in_regs == plans[2].q_in_regs &&
           chosen.ctas_per_sm == plans[2].ctas_per_sm);
    fk_generate_options options = FK_GENERATE_OPTIONS_INIT;
    options.plan = &chosen; /* a plan that is given is built, whatever it spills */
    EXPECT(fk_build(&p, "a100", &options, &same, &again, NULL) == FK_OK && strcmp(image.key, again.key) == 0);
    fk_free(plans);
    fk_free(bytes);
    fk_free(same);
    return NULL;
}

/* ---- failures ----------------------------------------------------------------------------------------- */

static const char *refused_text_names_the_template(void) {
    const fk_problem p = parsed("fwd fp16 d64 causal");
    fk_context *context = open_context(NULL, FK_CACHE_NORMAL);
    fk_kernel *kernel = NULL;
    setenv("FAKE_NVRTC", "refuse", 1);
    EXPECT(context && fk_kernel_create(context, &p, &kernel) == FK_COMPILE_FAILED && !kernel);
    EXPECT(strstr(fk_last_error(), "templates/kernel/forward_mma.cu(12): error"));
    unsetenv("FAKE_NVRTC"); /* the failure is not remembered */
    EXPECT(fk_kernel_create(context, &p, &kernel) == FK_OK);
    fk_kernel_destroy(kernel);
    fk_context_destroy(context);
    return NULL;
}

static const char *rejected_images_are_told_from_broken_contexts(void) {
    const fk_problem p = parsed("fwd fp16 d64 causal");
    fk_context *context = open_context(NULL, FK_CACHE_NORMAL);
    fk_kernel *kernel;
    fk_kernel_info info;
    setenv("FAKE_CUDA_FAIL", "cuLibraryLoadData:209", 1);
    EXPECT(context && fk_kernel_create(context, &p, &kernel) == FK_LAUNCH_FAILED && compiles() == 1);
    EXPECT(strstr(fk_last_error(), "CUDA_ERROR_NO_BINARY_FOR_GPU") && strstr(fk_last_error(), "fwd fp16 d64 causal"));
    EXPECT(fk_kernel_create(context, &p, &kernel) == FK_LAUNCH_FAILED &&
           compiles() == 2);                              /* stored, refused, rebuilt */
    setenv("FAKE_CUDA_FAIL", "cuLibraryLoadData:700", 1); /* says nothing of the image: no rebuild */
    EXPECT(fk_kernel_create(context, &p, &kernel) == FK_LAUNCH_FAILED && compiles() == 2);
    unsetenv("FAKE_CUDA_FAIL");
    EXPECT(fk_kernel_create(context, &p, &kernel) == FK_OK && compiles() == 2);
    EXPECT(fk_kernel_describe(kernel, &info) == FK_OK && info.from_store);
    EXPECT(cuda("fake_cuda_depth") == 0);
    fk_kernel_destroy(kernel);
    fk_context_destroy(context);
    return NULL;
}

/* An entry that this driver refuses and another compiler's image would not: rebuilt once, and replaced in the store;
 * where compiling is forbidden, it stays and is the error. */
static const char *refused_entry_is_replaced(void) {
    const fk_problem p = parsed("fwd fp16 d64 causal");
    fk_kernel *kernel;
    fk_kernel_info info;
    for (int i = 0; i < 3; i++) {
        fk_context *context = open_context(NULL, i == 1 ? FK_CACHE_NO_JIT : FK_CACHE_NORMAL);
        if (i == 1) {
            setenv("FAKE_CUDA_REFUSE", "old", 1);
            EXPECT(context && fk_kernel_create(context, &p, &kernel) == FK_CHECK_FAILED && compiles() == 1);
            EXPECT(strstr(fk_last_error(), "the driver refuses the sm_80 image of \"fwd fp16 d64 causal\""));
            fk_context_destroy(context);
            context = open_context(NULL, FK_CACHE_NORMAL);
        }
        setenv("FAKE_NVRTC", i == 0 ? "old" : "", 1);
        setenv("FAKE_CUDA_REFUSE", i == 0 ? "new" : "old", 1);
        EXPECT(context && fk_kernel_create(context, &p, &kernel) == FK_OK &&
               fk_kernel_describe(kernel, &info) == FK_OK);
        EXPECT(compiles() == (i == 0 ? 1 : 2) && info.from_store == (i == 2));
        EXPECT(i != 1 || (strncmp(info.store_note, "rejected: ", 10) == 0 && strstr(info.store_note, "sm_80")));
        fk_kernel_destroy(kernel);
        fk_context_destroy(context);
    }
    return NULL;
}

static const char *failures_are_reported(void) {
    static const char *const fatal[] = {"cuDevicePrimaryCtxRetain:2", "cuDeviceGetAttribute:1", "cuDeviceGet:101"};
    const fk_problem p = parsed("fwd fp16 d64 causal");
    const fk_args a = small_args(&p);
    fk_context *context = open_context(NULL, FK_CACHE_OFF);
    fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
    fk_kernel *kernel;
    EXPECT(context && fk_kernel_create(context, &p, &kernel) == FK_OK);
    setenv("FAKE_CUDA_FAIL", "cuLaunchKernel:701", 1);
    EXPECT(fk_execute(kernel, &a, NULL, 0, NULL) == FK_LAUNCH_FAILED);
    EXPECT(strstr(fk_last_error(), "701") && cuda("fake_cuda_depth") == 0);
    fk_kernel_destroy(kernel);
    fk_context_destroy(context);
    for (size_t i = 0; i < sizeof fatal / sizeof *fatal; i++) {
        setenv("FAKE_CUDA_FAIL", fatal[i], 1);
        EXPECT(fk_context_create(&options, &context) == FK_NO_DEVICE);
    }
    unsetenv("FAKE_CUDA_FAIL");
    options.device = "gpu";
    EXPECT(fk_context_create(&options, &context) == FK_NO_DEVICE && strstr(fk_last_error(), "\"gpu\""));
    options.device = "cuda:3";
    EXPECT(fk_context_create(&options, &context) == FK_NO_DEVICE && strstr(fk_last_error(), "cuda:3"));
    options.device = NULL, options.plan_for = "a1000";
    EXPECT(fk_context_create(&options, &context) == FK_NO_DEVICE && strstr(fk_last_error(), "a1000"));
    options.plan_for = NULL, options.cache_mode = 17;
    EXPECT(fk_context_create(&options, &context) == FK_BAD_ARGUMENT && strstr(fk_last_error(), "17"));
    options.struct_size = 5;
    EXPECT(fk_context_create(&options, &context) == FK_BAD_ARGUMENT && strstr(fk_last_error(), "struct_size is 5"));
    EXPECT(fk_context_create(NULL, NULL) == FK_BAD_ARGUMENT);
    EXPECT(cuda("fake_cuda_retained") == 0);
    setenv("FAKE_CUDA_NONE", "1", 1);
    EXPECT(fk_context_create(NULL, &context) == FK_NO_DEVICE && strstr(fk_last_error(), "0 CUDA GPUs"));
    return NULL;
}

static const char *auto_takes_what_there_is(void) {
    fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
    fk_context *context = open_context(NULL, FK_CACHE_OFF);
    fk_device_info planned;
    fk_context_destroy(context);
    options.device = "auto", options.cache_mode = FK_CACHE_OFF;
    EXPECT(fk_context_create(&options, &context) == FK_OK && !fk_context_is_emulator(context));
    fk_context_destroy(context);
    setenv("FAKE_CUDA_NONE", "1", 1);
    EXPECT(fk_context_create(&options, &context) == FK_OK && fk_context_is_emulator(context));
    EXPECT(fk_context_devices(context, NULL, &planned) == FK_OK && strcmp(planned.key, "a100") == 0);
    fk_context_destroy(context);
    return NULL;
}

/* ---- cost --------------------------------------------------------------------------------------------- */

static const char *host_cost(void) {
    enum { ROUNDS = 50000 };
    const fk_problem p = parsed("fwd fp16 d64 causal");
    const fk_args a = small_args(&p);
    fk_context *context = open_context(NULL, FK_CACHE_OFF);
    fk_kernel *kernel;
    EXPECT(context && fk_kernel_create(context, &p, &kernel) == FK_OK);
    double begin = fk_now_ms();
    for (int i = 0; i < ROUNDS; i++) {
        EXPECT(fk_kernel_create(context, &p, &kernel) == FK_OK);
        fk_kernel_destroy(kernel);
    }
    const double create_ns = 1e6 * (fk_now_ms() - begin) / ROUNDS;
    begin = fk_now_ms();
    for (int i = 0; i < ROUNDS; i++)
        EXPECT(fk_execute(kernel, &a, NULL, 0, NULL) == FK_OK);
    const double execute_ns = 1e6 * (fk_now_ms() - begin) / ROUNDS;
    printf("fk_kernel_create of a known problem: %.0f ns; fk_execute on a driver that does nothing: %.0f ns\n",
           create_ns, execute_ns);
    EXPECT(create_ns < 20000 && execute_ns < 20000);
    fk_kernel_destroy(kernel);
    fk_context_destroy(context);
    return NULL;
}

static void all(void **state) {
    (void)state;
    fake_build("cuda", "", "cuda.so");
    fake_build("nvrtc", "", "nvrtc.so");
    fake_run(builds_stores_and_launches);
    fake_run(backward_launches_three_kernels);
    fake_run(backward_starts_early);
    fake_run(plans_for_another_gpu);
    fake_run(memory_and_copies);
    fake_run(threads_compile_once);
    fake_run(spilling_plans_are_replaced);
    fake_run(what_spills_stays_where_nothing_stands_in);
    fake_run(build_names_the_plan_it_took);
    fake_run(refused_text_names_the_template);
    fake_run(rejected_images_are_told_from_broken_contexts);
    fake_run(refused_entry_is_replaced);
    fake_run(failures_are_reported);
    fake_run(auto_takes_what_there_is);
    fake_run(host_cost);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(all)};
    return cmocka_run_group_tests(tests, fake_start, fake_stop);
}
