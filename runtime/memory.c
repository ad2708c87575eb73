/* Memory of the context's device, for programs that have none of their own: device memory, or the emulator's. */
#include "object.h"

#include <stdio.h>
#include <string.h>

static fk_status cuda_malloc(const fk_context *context, size_t bytes, void **out, fk_error *err) {
    const fk_driver *d = context->driver;
    fk_cu_pointer memory = 0;
    char what[80];
    int pushed;
    int result = fk_driver_enter(d, context->primary, &pushed);
    if (!result) {
        result = d->memory_alloc(&memory, bytes ? bytes : 1);
        fk_driver_leave(d, pushed);
    }
    snprintf(what, sizeof what, "allocating %zu bytes on cuda:%d", bytes, context->runs.ordinal);
    *out = (void *)(uintptr_t)memory;
    return fk_driver_check(d, result, result == FK_CU_OUT_OF_MEMORY ? FK_NO_MEMORY : FK_LAUNCH_FAILED, what, err);
}

fk_status fk_device_malloc(fk_context *context, size_t bytes, void **out) {
    if (!context || !out) return fk_refuse(FK_BAD_ARGUMENT, "%s is null", context ? "out" : "context");
    fk_error err;
    void *memory = NULL;
    fk_status status =
        context->driver ? cuda_malloc(context, bytes, &memory, &err) : fk_emu_malloc(bytes, &memory, &err);
    if (status) return fk_report(&err);
    *out = memory;
    return FK_OK;
}

void fk_device_free(fk_context *context, void *memory) {
    int pushed;
    if (!context || !memory) return;
    if (!context->driver) {
        fk_emu_free(memory);
    } else if (fk_driver_enter(context->driver, context->primary, &pushed) == 0) {
        context->driver->memory_free((uintptr_t)memory);
        fk_driver_leave(context->driver, pushed);
    }
}

/* One of the two pointers is the device's. */
static fk_status copy(fk_context *context, void *to, const void *from, size_t bytes, bool to_device) {
    if (!context) return fk_refuse(FK_BAD_ARGUMENT, "context is null");
    if (bytes == 0) return FK_OK;
    if (!to || !from)
        return fk_refuse(FK_BAD_ARGUMENT, "%s is null, for a copy of %zu bytes",
                         (to == NULL) == to_device ? "device" : "host", bytes);
    const fk_driver *d = context->driver;
    if (!d) {
        memcpy(to, from, bytes);
        return FK_OK;
    }
    fk_error err;
    int pushed;
    int result = fk_driver_enter(d, context->primary, &pushed);
    if (!result) {
        result =
            to_device ? d->copy_to_device((uintptr_t)to, from, bytes) : d->copy_from_device(to, (uintptr_t)from, bytes);
        /* What comes from pageable memory may be on its way still, which another stream would overtake. */
        if (!result && to_device) result = d->stream_synchronize(NULL);
        fk_driver_leave(d, pushed);
    }
    return fk_driver_check(d, result, FK_LAUNCH_FAILED, to_device ? "copying to the device" : "copying from the device",
                           &err)
               ? fk_report(&err)
               : FK_OK;
}

fk_status fk_copy_to_device(fk_context *context, void *device, const void *host, size_t bytes) {
    return copy(context, device, host, bytes, true);
}

fk_status fk_copy_from_device(fk_context *context, void *host, const void *device, size_t bytes) {
    return copy(context, host, device, bytes, false);
}

fk_status fk_synchronize(fk_context *context, void *stream) {
    if (!context) return fk_refuse(FK_BAD_ARGUMENT, "context is null");
    const fk_driver *d = context->driver;
    if (!d) return FK_OK; /* a launch returns when it is done */
    fk_error err;
    int pushed;
    int result = fk_driver_enter(d, context->primary, &pushed);
    if (!result) {
        result = d->stream_synchronize(stream);
        fk_driver_leave(d, pushed);
    }
    return fk_driver_check(d, result, FK_LAUNCH_FAILED, "waiting for the stream", &err) ? fk_report(&err) : FK_OK;
}
