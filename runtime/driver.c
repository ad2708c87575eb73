/* One table of driver functions, filled once under a lock and never changed after that. */
#include "driver.h"

#include "gen/generate.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static fk_driver table;
static const fk_driver *opened; /* &table once it is complete; written under `lock` */

static fk_status open_locked(fk_error *err) {
    const char *named = secure_getenv("FLASHKILN_LIBCUDA");
    const char *path = named && *named ? named : "libcuda.so.1";
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) return fk_fail(err, FK_NO_DEVICE, "no CUDA driver on this machine: %s", dlerror());
#define FK_CU_FIND(member, symbol, params)                                                                             \
    *(void **)&table.member = dlsym(library, #symbol);                                                                 \
    if (!table.member) {                                                                                               \
        dlclose(library);                                                                                              \
        return fk_fail(err, FK_NO_DEVICE, "%s has no %s: driver 525 (CUDA 12.0) or newer is needed", path, #symbol);   \
    }
    FK_CU_FUNCTIONS(FK_CU_FIND)
#undef FK_CU_FIND
    fk_status status = fk_driver_check(&table, table.init(0), FK_NO_DEVICE, "cuInit", err);
    if (status) {
        dlclose(library);
        return status;
    }
    __atomic_store_n(&opened, &table, __ATOMIC_RELEASE);
    return FK_OK;
}

fk_status fk_driver_open(const fk_driver **out, fk_error *err) {
    *out = __atomic_load_n(&opened, __ATOMIC_ACQUIRE);
    if (*out) return FK_OK;
    pthread_mutex_lock(&lock);
    fk_status status = opened ? FK_OK : open_locked(err);
    *out = opened;
    pthread_mutex_unlock(&lock);
    return status;
}

fk_status fk_driver_check(const fk_driver *driver, int result, fk_status status, const char *what, fk_error *err) {
    if (result == 0) return FK_OK;
    const char *name = NULL, *text = NULL;
    driver->error_name(result, &name);
    driver->error_string(result, &text);
    return fk_fail(err, status, "%s: %s (%d): %s", what, name ? name : "unknown CUDA error", result,
                   text ? text : "no explanation");
}

int fk_driver_enter(const fk_driver *driver, void *context, int *pushed) {
    void *current = NULL;
    *pushed = 0;
    int result = driver->context_get(&current);
    if (result || current == context) return result;
    result = driver->context_push(context);
    *pushed = result == 0;
    return result;
}

void fk_driver_leave(const fk_driver *driver, int pushed) {
    void *popped;
    if (pushed) driver->context_pop(&popped);
}

fk_status fk_driver_device(const fk_driver *driver, int ordinal, fk_device_info *out, fk_error *err) {
    int count = 0, device = 0, major = 0, minor = 0, l2 = 0, clock = 0, memory_clock = 0, bus = 0;
    fk_status status = fk_driver_check(driver, driver->device_count(&count), FK_NO_DEVICE,
                                       "counting CUDA GPUs (cuDeviceGetCount)", err);
    if (status) return status;
    if (ordinal < 0 || ordinal >= count)
        return fk_fail(err, FK_NO_DEVICE, "device cuda:%d: this machine has %d CUDA GPU%s, numbered from 0", ordinal,
                       count, count == 1 ? "" : "s");
    fk_device_info info = {.ordinal = ordinal};
    const struct {
        int attribute;
        int *value;
    } wanted[] = {
        {FK_CU_MAJOR, &major},
        {FK_CU_MINOR, &minor},
        {FK_CU_NUM_SMS, &info.num_sms},
        {FK_CU_SMEM_PER_BLOCK_OPTIN, &info.smem_per_block},
        {FK_CU_SMEM_PER_SM, &info.smem_per_sm},
        {FK_CU_SMEM_RESERVED, &info.smem_reserved},
        {FK_CU_REGISTERS_PER_SM, &info.registers_per_sm},
        {FK_CU_THREADS_PER_SM, &info.threads_per_sm},
        {FK_CU_BLOCKS_PER_SM, &info.blocks_per_sm},
        {FK_CU_L2_BYTES, &l2},
        {FK_CU_CLOCK_KHZ, &clock},
        {FK_CU_MEMORY_CLOCK_KHZ, &memory_clock},
        {FK_CU_MEMORY_BUS_BITS, &bus},
    };
    int result = driver->device_get(&device, ordinal);
    if (!result) result = driver->device_name(info.name, (int)sizeof info.name, device);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted && !result; i++)
        result = driver->device_attribute(wanted[i].value, wanted[i].attribute, device);
    status = fk_driver_check(driver, result, FK_NO_DEVICE, "reading the properties of a CUDA GPU", err);
    if (status) return status;

    info.sm = major * 10 + minor;
    info.l2_bytes = l2;
    info.clock_ghz = clock * 1e-6;
    info.hbm_gbps = 2.0 * memory_clock * 1e3 * (bus / 8) * 1e-9; /* two transfers a clock */
    fk_device_complete(&info);
    *out = info;
    return FK_OK;
}
