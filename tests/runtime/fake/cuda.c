/* A libcuda of our own, for tests without a GPU: one "NVIDIA A100" (SM 80) or, with FAKE_CUDA_SM=90, "NVIDIA H100",
 * memory from malloc, launches that are only counted. FAKE_CUDA_FAIL=SYMBOL:RESULT makes that function fail;
 * -DNO_LIBRARY leaves out what drivers before 12.0 lack. A cubin is accepted if it begins with "image"; "image?" is
 * refused as made for another GPU. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int fake_cuda_launches, fake_cuda_loaded, fake_cuda_depth, fake_cuda_retained;
unsigned fake_cuda_grid, fake_cuda_threads, fake_cuda_smem, fake_cuda_smem_limit;
unsigned fake_cuda_grid_y, fake_cuda_grid_z;
void *fake_cuda_stream, *fake_cuda_current;
unsigned char fake_cuda_params[1024];

/* What a tensor map of this driver holds; tests read it. */
typedef struct fake_cuda_map {
    void *base;
    uint64_t dims[4], strides[3];
    unsigned box[4];
    int type;
} fake_cuda_map;

static int context_object, library_object;
char fake_cuda_launched[200]; /* the first entries, each with a space behind it */
static const char *const entries[] = {"fk_forward",      "fk_forward_values", "fk_backward_delta",
                                      "fk_backward",     "fk_backward_dq",    "fk_keep_mask",
                                      "fk_forward_rest", "fk_backward_rest",  "fk_align"};
enum { NUM_ENTRIES = sizeof entries / sizeof *entries };
static int is_h100(void) {
    return getenv("FAKE_CUDA_SM") != NULL;
}
#define PRIMARY ((void *)&context_object)

static int failing(const char *symbol) {
    const char *fail = getenv("FAKE_CUDA_FAIL");
    const size_t length = strlen(symbol);
    return fail && strncmp(fail, symbol, length) == 0 && fail[length] == ':' ? atoi(fail + length + 1) : 0;
}
#define MAY_FAIL                                                                                                       \
    do {                                                                                                               \
        const int result = failing(__func__);                                                                          \
        if (result) return result;                                                                                     \
    } while (0)
#define NEEDS_CONTEXT                                                                                                  \
    do {                                                                                                               \
        MAY_FAIL;                                                                                                      \
        if (fake_cuda_current != PRIMARY) return 201;                                                                  \
    } while (0)

int cuInit(unsigned flags) {
    MAY_FAIL;
    return flags ? 1 : 0;
}
int cuDriverGetVersion(int *version) { /* FAKE_CUDA_VERSION; else as new as need be */
    const char *said = getenv("FAKE_CUDA_VERSION");
    MAY_FAIL;
    *version = said ? atoi(said) : 13000;
    return 0;
}
int cuGetErrorName(int result, const char **name) {
    *name = result == 2     ? "CUDA_ERROR_OUT_OF_MEMORY"
            : result == 209 ? "CUDA_ERROR_NO_BINARY_FOR_GPU"
                            : "CUDA_ERROR_FAKE";
    return 0;
}
int cuGetErrorString(int result, const char **text) {
    *text = result == 2 ? "out of memory" : "a fake explanation";
    return 0;
}
int cuDeviceGetCount(int *count) {
    MAY_FAIL;
    *count = getenv("FAKE_CUDA_NONE") ? 0 : 1;
    return 0;
}
int cuDeviceGet(int *device, int ordinal) {
    MAY_FAIL;
    *device = 40 + ordinal;
    return ordinal == 0 ? 0 : 101;
}
int cuDeviceGetName(char *name, int size, int device) {
    (void)device;
    snprintf(name, (size_t)size, is_h100() ? "NVIDIA H100 80GB HBM3" : "NVIDIA A100-SXM4-80GB");
    return 0;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    static const int known[][2] = {{13, 1410000}, {16, 108}, {36, 1593000}, {37, 5120},   {38, 41943040},
                                   {39, 2048},    {75, 8},   {76, 0},       {81, 167936}, {82, 65536},
                                   {97, 166912},  {106, 32}, {111, 1024}};
    static const int h100[][2] = {{16, 132}, {75, 9}, {81, 233472}, {97, 232448}};
    MAY_FAIL;
    if (attribute == 97 && getenv("FAKE_CUDA_SMEM")) { /* what a block may have of shared memory */
        *value = atoi(getenv("FAKE_CUDA_SMEM"));
        return 0;
    }
    for (size_t i = 0; i < sizeof h100 / sizeof *h100 && is_h100(); i++)
        if (h100[i][0] == attribute) {
            *value = h100[i][1];
            return 0;
        }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i][0] == attribute && device == 40) {
            *value = known[i][1];
            return 0;
        }
    return 1;
}
int cuDevicePrimaryCtxRetain(void **context, int device) {
    MAY_FAIL;
    (void)device;
    fake_cuda_retained++;
    *context = PRIMARY;
    return 0;
}
int cuDevicePrimaryCtxRelease_v2(int device) {
    (void)device;
    fake_cuda_retained--;
    return 0;
}
int cuCtxGetCurrent(void **context) {
    MAY_FAIL;
    *context = fake_cuda_current;
    return 0;
}
int cuCtxPushCurrent_v2(void *context) {
    fake_cuda_depth++;
    fake_cuda_current = context;
    return 0;
}
int cuCtxPopCurrent_v2(void **context) {
    fake_cuda_depth--;
    *context = fake_cuda_current;
    fake_cuda_current = NULL;
    return 0;
}
#ifndef NO_LIBRARY
int cuLibraryLoadData(void **library, const void *image, int *jit_options, void **jit_values, unsigned num_jit,
                      int *options, void **values, unsigned num_options) {
    (void)jit_options, (void)jit_values, (void)num_jit, (void)options, (void)values, (void)num_options;
    NEEDS_CONTEXT;
    if (memcmp(image, "\177ELF", 4) != 0 && memcmp(image, ".target", 7) != 0) return 200;
    const char *refuse = getenv("FAKE_CUDA_REFUSE"),
               *text = *(const char *)image == 127 ? (const char *)image + 64 : image;
    if (refuse && strstr(text, refuse)) return 209;
    fake_cuda_loaded++;
    *library = &library_object;
    return 0;
}
#endif
int cuLibraryUnload(void *library) {
    fake_cuda_loaded--;
    return library == &library_object ? 0 : 400;
}
int cuLibraryGetKernel(void **kernel, void *library, const char *name) {
    MAY_FAIL;
    for (int i = 0; i < NUM_ENTRIES && library == &library_object; i++)
        if (strcmp(name, entries[i]) == 0) {
            *kernel = (void *)&entries[i];
            return 0;
        }
    return 500;
}
int cuKernelGetFunction(void **function, void *kernel) {
    NEEDS_CONTEXT;
    *function = kernel;
    return 0;
}
int cuFuncGetAttribute(int *value, int attribute, void *function) {
    (void)function;
    *value = attribute == 4 ? 77 : 0;
    return 0;
}
int cuFuncSetAttribute(void *function, int attribute, int value) {
    (void)function;
    if (attribute != 8) return 1;
    if (value > 0) fake_cuda_smem_limit = (unsigned)value;
    return 0;
}
int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned smem_bytes, void *stream, void **params, void **extra) {
    NEEDS_CONTEXT;
    const char *const *entry = function;
    if (entry < entries || entry >= entries + NUM_ENTRIES || block_y != 1 || block_z != 1 || extra) return 1;
    if (strlen(fake_cuda_launched) + strlen(*entry) + 2 <= sizeof fake_cuda_launched)
        strcat(strcat(fake_cuda_launched, *entry), " ");
    fake_cuda_launches++;
    fake_cuda_grid = grid_x, fake_cuda_grid_y = grid_y, fake_cuda_grid_z = grid_z;
    fake_cuda_threads = block_x;
    fake_cuda_smem = smem_bytes;
    fake_cuda_stream = stream;
    memcpy(fake_cuda_params, params[0], sizeof fake_cuda_params);
    return 0;
}
/* CUlaunchConfig with one CUlaunchAttribute: that the kernel may start before the one before has ended. */
typedef struct fake_cuda_config {
    unsigned grid[3], block[3], smem_bytes;
    void *stream;
    const struct { int id, pad, value, rest[15]; } * attributes;
    unsigned num_attributes;
} fake_cuda_config;
char fake_cuda_early[200]; /* the entries launched so, each with a space behind it */
int cuLaunchKernelEx(const fake_cuda_config *config, void *function, void **params, void **extra) {
    MAY_FAIL;
    if (config->num_attributes != 1 || config->attributes->id != 6 || config->attributes->value != 1) return 1;
    const int result =
        cuLaunchKernel(function, config->grid[0], config->grid[1], config->grid[2], config->block[0], config->block[1],
                       config->block[2], config->smem_bytes, config->stream, params, extra);
    const char *entry = result ? "" : *(const char *const *)function;
    if (strlen(fake_cuda_early) + strlen(entry) + 2 <= sizeof fake_cuda_early)
        strcat(strcat(fake_cuda_early, entry), " ");
    return result;
}
int cuTensorMapEncodeTiled(void *map, int type, unsigned rank, void *base, const uint64_t *dims,
                           const uint64_t *strides, const unsigned *box, const unsigned *element_strides,
                           int interleave, int swizzle, int l2_promotion, int fill) {
    NEEDS_CONTEXT;
    if ((uintptr_t)map % 64 || rank != 4 || interleave || swizzle != 3 || l2_promotion != 2 || fill) return 1;
    for (unsigned i = 0; i < rank; i++)
        if (!dims[i] || !box[i] || box[i] > 256 || element_strides[i] != 1 || (i && strides[i - 1] % 16)) return 1;
    memset(map, 0, 128);
    fake_cuda_map facts = {base, {0}, {0}, {0}, type};
    memcpy(facts.dims, dims, sizeof facts.dims);
    memcpy(facts.strides, strides, sizeof facts.strides);
    memcpy(facts.box, box, sizeof facts.box);
    memcpy(map, &facts, sizeof facts);
    return 0;
}
int cuStreamCreate(void **stream, unsigned flags) {
    NEEDS_CONTEXT;
    *stream = &library_object;
    return flags == 1 ? 0 : 1;
}
int cuStreamDestroy_v2(void *stream) {
    return stream == &library_object ? 0 : 400;
}
int cuThreadExchangeStreamCaptureMode(int *mode) {
    static int now; /* global */
    const int before = now;
    now = *mode, *mode = before;
    return 0;
}
int cuStreamSynchronize(void *stream) {
    (void)stream;
    NEEDS_CONTEXT;
    return 0;
}
/* Events hold when they were recorded, in launches: each takes fake_cuda_launch_ms. */
float fake_cuda_launch_ms = 0.5f;
int cuEventCreate(void **event, unsigned flags) {
    NEEDS_CONTEXT;
    *event = flags ? NULL : calloc(1, sizeof(int));
    return *event ? 0 : 2;
}
int cuEventDestroy_v2(void *event) {
    free(event);
    return 0;
}
int cuEventRecord(void *event, void *stream) {
    (void)stream;
    NEEDS_CONTEXT;
    *(int *)event = fake_cuda_launches;
    return 0;
}
int cuEventSynchronize(void *event) {
    (void)event;
    NEEDS_CONTEXT;
    return 0;
}
int cuEventElapsedTime(float *ms, void *from, void *to) {
    NEEDS_CONTEXT;
    *ms = (float)(*(int *)to - *(int *)from) * fake_cuda_launch_ms;
    return 0;
}
int cuMemAlloc_v2(uint64_t *memory, size_t bytes) {
    NEEDS_CONTEXT;
    if (bytes > (size_t)1 << 40) return 2;
    *memory = (uintptr_t)malloc(bytes);
    return 0;
}
int cuMemFree_v2(uint64_t memory) {
    NEEDS_CONTEXT;
    free((void *)(uintptr_t)memory);
    return 0;
}
int cuMemcpyHtoD_v2(uint64_t device, const void *host, size_t bytes) {
    NEEDS_CONTEXT;
    memcpy((void *)(uintptr_t)device, host, bytes);
    return 0;
}
int cuMemcpyDtoH_v2(void *host, uint64_t device, size_t bytes) {
    NEEDS_CONTEXT;
    memcpy(host, (const void *)(uintptr_t)device, bytes);
    return 0;
}
int cuMemcpyDtoHAsync_v2(void *host, uint64_t device, size_t bytes, void *stream) {
    (void)stream;
    return cuMemcpyDtoH_v2(host, device, bytes);
}
