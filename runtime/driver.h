/* The CUDA driver, opened on first need. Nothing else in the library names a driver function or constant, and no CUDA
 * header is needed to build: the few functions used are declared here with the driver's stable C ABI (CUDA 12.0 on). */
#ifndef FK_RUNTIME_DRIVER_H
#define FK_RUNTIME_DRIVER_H

#include "gen/error.h"

typedef uint64_t fk_cu_pointer; /* CUdeviceptr */

/* CUresult */
enum {
    FK_CU_OUT_OF_MEMORY = 2,
    FK_CU_INVALID_IMAGE = 200,
    FK_CU_NO_BINARY_FOR_GPU = 209,
    FK_CU_INVALID_PTX = 218,
    FK_CU_JIT_COMPILER_MISSING = 221,
    FK_CU_UNSUPPORTED_PTX = 222,
    FK_CU_INVALID_SOURCE = 300,
    FK_CU_NOT_FOUND = 500
};

/* CUdevice_attribute */
enum {
    FK_CU_CLOCK_KHZ = 13,
    FK_CU_NUM_SMS = 16,
    FK_CU_MEMORY_CLOCK_KHZ = 36,
    FK_CU_MEMORY_BUS_BITS = 37,
    FK_CU_L2_BYTES = 38,
    FK_CU_THREADS_PER_SM = 39,
    FK_CU_MAJOR = 75,
    FK_CU_MINOR = 76,
    FK_CU_SMEM_PER_SM = 81,
    FK_CU_REGISTERS_PER_SM = 82,
    FK_CU_SMEM_PER_BLOCK_OPTIN = 97,
    FK_CU_BLOCKS_PER_SM = 106,
    FK_CU_SMEM_RESERVED = 111
};

/* CUfunction_attribute */
enum {
    FK_CU_FUNC_STATIC_SMEM = 1,
    FK_CU_FUNC_LOCAL_BYTES = 3,
    FK_CU_FUNC_REGISTERS = 4,
    FK_CU_FUNC_MAX_DYNAMIC_SMEM = 8
};

/* CUjit_option */
enum { FK_CU_JIT_ERROR_LOG = 5, FK_CU_JIT_ERROR_LOG_BYTES = 6, FK_CU_JIT_CACHE_MODE = 14 /* 0: none */ };

/* Of a stream, and of how a thread minds that others capture: CUstream_flags, CUstreamCaptureMode */
enum { FK_CU_STREAM_NON_BLOCKING = 1, FK_CU_CAPTURE_RELAXED = 2 };

/* Of a tensor map: CUtensorMapDataType, ...Swizzle, ...L2promotion, ...Interleave and ...FloatOOBfill */
enum {
    FK_CU_TENSOR_UINT8 = 0,
    FK_CU_TENSOR_FLOAT16 = 6,
    FK_CU_TENSOR_FLOAT32 = 7,
    FK_CU_TENSOR_BFLOAT16 = 9,
    FK_CU_SWIZZLE_128B = 3,
    FK_CU_L2_PROMOTION_128B = 2,
    FK_CU_INTERLEAVE_NONE = 0,
    FK_CU_FILL_ZEROS = 0
};

/* CUlaunchAttribute, CUlaunchConfig. The attribute's value is a union of 64 bytes. */
#define FK_CU_PROGRAMMATIC_SERIALIZATION 6 /* CUlaunchAttributeID */
typedef struct fk_cu_attribute {
    int id;
    _Alignas(8) union {
        int value;
        char room[64];
    };
} fk_cu_attribute;
typedef struct fk_cu_launch {
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, smem_bytes;
    void *stream;
    const fk_cu_attribute *attributes;
    unsigned num_attributes;
} fk_cu_launch;

/* X(member, exported symbol, parameters). Handles are opaque pointers; results are CUresult, 0 = success. */
#define FK_CU_FUNCTIONS(X)                                                                                             \
    X(init, cuInit, (unsigned flags))                                                                                  \
    X(version, cuDriverGetVersion, (int *version))                                                                     \
    X(error_name, cuGetErrorName, (int result, const char **name))                                                     \
    X(error_string, cuGetErrorString, (int result, const char **text))                                                 \
    X(device_count, cuDeviceGetCount, (int *count))                                                                    \
    X(device_get, cuDeviceGet, (int *device, int ordinal))                                                             \
    X(device_name, cuDeviceGetName, (char *name, int size, int device))                                                \
    X(device_attribute, cuDeviceGetAttribute, (int *value, int attribute, int device))                                 \
    X(primary_retain, cuDevicePrimaryCtxRetain, (void **context, int device))                                          \
    X(primary_release, cuDevicePrimaryCtxRelease_v2, (int device))                                                     \
    X(context_get, cuCtxGetCurrent, (void **context))                                                                  \
    X(context_push, cuCtxPushCurrent_v2, (void *context))                                                              \
    X(context_pop, cuCtxPopCurrent_v2, (void **context))                                                               \
    X(library_load, cuLibraryLoadData,                                                                                 \
      (void **library, const void *image, int *jit_options, void **jit_values, unsigned num_jit, int *options,         \
       void **values, unsigned num_options))                                                                           \
    X(library_unload, cuLibraryUnload, (void *library))                                                                \
    X(library_kernel, cuLibraryGetKernel, (void **kernel, void *library, const char *name))                            \
    X(kernel_function, cuKernelGetFunction, (void **function, void *kernel))                                           \
    X(function_get, cuFuncGetAttribute, (int *value, int attribute, void *function))                                   \
    X(function_set, cuFuncSetAttribute, (void *function, int attribute, int value))                                    \
    X(launch, cuLaunchKernel,                                                                                          \
      (void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,          \
       unsigned block_z, unsigned smem_bytes, void *stream, void **params, void **extra))                              \
    X(launch_with, cuLaunchKernelEx, (const fk_cu_launch *launch, void *function, void **params, void **extra))        \
    X(tensor_map_encode, cuTensorMapEncodeTiled,                                                                       \
      (void *map, int type, unsigned rank, void *base, const uint64_t *dims, const uint64_t *strides,                  \
       const unsigned *box, const unsigned *element_strides, int interleave, int swizzle, int l2_promotion, int fill)) \
    X(event_create, cuEventCreate, (void **event, unsigned flags))                                                     \
    X(event_destroy, cuEventDestroy_v2, (void *event))                                                                 \
    X(event_record, cuEventRecord, (void *event, void *stream))                                                        \
    X(event_synchronize, cuEventSynchronize, (void *event))                                                            \
    X(event_elapsed, cuEventElapsedTime, (float *ms, void *from, void *to))                                            \
    X(stream_create, cuStreamCreate, (void **stream, unsigned flags))                                                  \
    X(stream_destroy, cuStreamDestroy_v2, (void *stream))                                                              \
    X(stream_synchronize, cuStreamSynchronize, (void *stream))                                                         \
    X(capture_mode, cuThreadExchangeStreamCaptureMode, (int *mode))                                                    \
    X(memory_alloc, cuMemAlloc_v2, (fk_cu_pointer * memory, size_t bytes))                                             \
    X(memory_free, cuMemFree_v2, (fk_cu_pointer memory))                                                               \
    X(copy_to_device, cuMemcpyHtoD_v2, (fk_cu_pointer device, const void *host, size_t bytes))                         \
    X(copy_from_device, cuMemcpyDtoH_v2, (void *host, fk_cu_pointer device, size_t bytes))                             \
    X(copy_from_device_async, cuMemcpyDtoHAsync_v2, (void *host, fk_cu_pointer device, size_t bytes, void *stream))

typedef struct fk_driver {
#define FK_CU_MEMBER(member, symbol, params) int(*member) params;
    FK_CU_FUNCTIONS(FK_CU_MEMBER)
#undef FK_CU_MEMBER
} fk_driver;

/** Opens libcuda ($FLASHKILN_LIBCUDA, else libcuda.so.1) and initialises it, once; a failure is tried again on the next
 *  call. Thread-safe. @return FK_NO_DEVICE */
fk_status fk_driver_open(const fk_driver **out, fk_error *err);

/** FK_OK for result 0; else fails with `status` and "what: CUDA_ERROR_X (number): explanation". */
fk_status fk_driver_check(const fk_driver *driver, int result, fk_status status, const char *what, fk_error *err);

/** Makes `context` current if it is not; `*pushed` tells fk_driver_leave to undo it. */
int fk_driver_enter(const fk_driver *driver, void *context, int *pushed);
void fk_driver_leave(const fk_driver *driver, int pushed);

/** The record of GPU `ordinal`, sizes from the driver, rates from the table. */
fk_status fk_driver_device(const fk_driver *driver, int ordinal, fk_device_info *out, fk_error *err);

#endif
