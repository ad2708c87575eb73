/* NVRTC by dlopen. The library is found once and kept. NVRTC is thread-safe, though its front end runs one thread at a
 * time, behind a lock that a fork must not inherit: compiling reads a lock of ours, which fk_compile_fork writes. Its
 * own disk cache is switched off: the store is the only cache, and compile_ms means compiling. */
#include "compile.h"
#include "clock.h"
#include "gen/lua_host.h"
#include "gen/term.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

/* X(member, parameters): nvrtc functions; a program is an opaque pointer, 0 is success. */
#define FK_NVRTC_FUNCTIONS(X)                                                                                          \
    X(Version, (int *major, int *minor))                                                                               \
    X(CreateProgram, (void **program, const char *text, const char *name, int num_headers, const char *const *headers, \
                      const char *const *names))                                                                       \
    X(DestroyProgram, (void **program))                                                                                \
    X(CompileProgram, (void *program, int num_options, const char *const *options))                                    \
    X(GetProgramLogSize, (void *program, size_t *size))                                                                \
    X(GetProgramLog, (void *program, char *log))                                                                       \
    X(GetCUBINSize, (void *program, size_t *size))                                                                     \
    X(GetCUBIN, (void *program, char *image))                                                                          \
    X(GetPTXSize, (void *program, size_t *size))                                                                       \
    X(GetPTX, (void *program, char *image))

typedef struct nvrtc {
#define MEMBER(name, params) int(*name) params;
    FK_NVRTC_FUNCTIONS(MEMBER)
#undef MEMBER
    int version; /* major * 100 + minor */
    char identity[96];
} nvrtc;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* Whoever forks comes before those who begin to compile, or would wait as long as anyone does. */
#ifdef PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP
static pthread_rwlock_t compiling = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
#else
static pthread_rwlock_t compiling = PTHREAD_RWLOCK_INITIALIZER;
#endif
static nvrtc table;
static const nvrtc *opened; /* &table once it is complete; written under `lock` */

/* ---- finding the library ------------------------------------------------------------------------------ */

/* The build-id note of the object loaded at `base`, as hex. NVRTC's version number alone does not name its bytes. */
typedef struct build_id {
    uintptr_t base;
    char hex[65];
} build_id;

static int find_build_id(struct dl_phdr_info *info, size_t size, void *user) {
    (void)size;
    build_id *id = user;
    if (info->dlpi_addr != id->base) return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_NOTE) continue;
        const char *note = (const char *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
        const char *end = note + info->dlpi_phdr[i].p_memsz;
        while (note + sizeof(ElfW(Nhdr)) <= end) {
            const ElfW(Nhdr) *header = (const void *)note;
            const char *name = note + sizeof *header;
            const unsigned char *data = (const unsigned char *)name + ((header->n_namesz + 3u) & ~3u);
            if (header->n_type == NT_GNU_BUILD_ID && header->n_namesz == 4 && memcmp(name, "GNU", 4) == 0) {
                size_t bytes = header->n_descsz < 32 ? header->n_descsz : 32;
                for (size_t j = 0; j < bytes; j++)
                    snprintf(id->hex + 2 * j, 3, "%02x", data[j]);
                return 1;
            }
            note = (const char *)data + ((header->n_descsz + 3u) & ~3u);
        }
    }
    return 1;
}

/* Looks in one place after another; `tried` lists them for the message. */
static void *find_library(char *tried, size_t size) {
    static const char *const names[] = {"libnvrtc.so.13", "libnvrtc.so.12"};
    const char *file = secure_getenv("FLASHKILN_NVRTC"), *folder = secure_getenv("FLASHKILN_CUDA_LIB");
    char beside[1024] = "", beside_cuda[1024] = "";
    Dl_info self;
    if (dladdr((void *)&table, &self) && self.dli_fname && strrchr(self.dli_fname, '/')) {
        int length = (int)(strrchr(self.dli_fname, '/') - self.dli_fname);
        snprintf(beside, sizeof beside, "%.*s", length, self.dli_fname);
        snprintf(beside_cuda, sizeof beside_cuda, "%.*s/cuda", length, self.dli_fname);
    }
    const char *const folders[] = {folder ? folder : "", beside, beside_cuda, NULL, "/usr/local/cuda/lib64"};
    void *library = NULL;
    if (file && *file) { /* named: nothing else will do */
        library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
        if (!library) snprintf(tried, size, "%s (from FLASHKILN_NVRTC)", dlerror());
        return library;
    }
    size_t used = 0;
    for (size_t i = 0; i < sizeof folders / sizeof *folders && !library; i++) {
        if (folders[i] && !*folders[i]) continue;
        for (size_t j = 0; j < sizeof names / sizeof *names && !library; j++) {
            char path[1100];
            snprintf(path, sizeof path, "%s%s%s", folders[i] ? folders[i] : "", folders[i] ? "/" : "", names[j]);
            library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
            if (!library && used < size)
                used += (size_t)snprintf(tried + used, size - used, "%s%s", used ? ", " : "", path);
        }
    }
    return library;
}

/* NVRTC loads libnvrtc-builtins by its bare name; where it lies in a folder of its own beside NVRTC (a PyPI package),
 * that name must be known before. Elsewhere the loader finds it, so a failure here means nothing. */
static void load_builtins(const char *library_path, int major, int minor) {
    const char *slash = strrchr(library_path, '/');
    char path[1100];
    if (!slash) return;
    snprintf(path, sizeof path, "%.*s/libnvrtc-builtins.so.%d.%d", (int)(slash - library_path), library_path, major,
             minor);
    (void)dlopen(path, RTLD_LAZY | RTLD_GLOBAL);
}

static fk_status open_locked(fk_error *err) {
    char tried[1600] = "";
    void *library = find_library(tried, sizeof tried);
    if (!library)
        return fk_fail(err, FK_NO_COMPILER,
                       "NVRTC (libnvrtc.so.13 or .12) was not found; set FLASHKILN_NVRTC to the file or "
                       "FLASHKILN_CUDA_LIB to its folder; tried: %s",
                       tried);
#define FIND(name, params)                                                                                             \
    *(void **)&table.name = dlsym(library, "nvrtc" #name);                                                             \
    if (!table.name) {                                                                                                 \
        dlclose(library);                                                                                              \
        return fk_fail(err, FK_NO_COMPILER, "NVRTC has no function %s: version 12.0 or newer is needed",               \
                       "nvrtc" #name);                                                                                 \
    }
    FK_NVRTC_FUNCTIONS(FIND)
#undef FIND
    int major = 0, minor = 0;
    Dl_info where;
    build_id id = {0, ""};
    table.Version(&major, &minor);
    table.version = major * 100 + minor;
    if (dladdr(*(void **)&table.Version, &where)) {
        id.base = (uintptr_t)where.dli_fbase;
        dl_iterate_phdr(find_build_id, &id);
        load_builtins(where.dli_fname, major, minor);
    }
    snprintf(table.identity, sizeof table.identity, "NVRTC %d.%d (build %s)", major, minor,
             *id.hex ? id.hex : "unknown");
    __atomic_store_n(&opened, &table, __ATOMIC_RELEASE);
    return FK_OK;
}

static fk_status open_nvrtc(const nvrtc **out, fk_error *err) {
    *out = __atomic_load_n(&opened, __ATOMIC_ACQUIRE);
    if (*out) return FK_OK;
    pthread_mutex_lock(&lock);
    fk_status status = opened ? FK_OK : open_locked(err);
    *out = opened;
    pthread_mutex_unlock(&lock);
    return status;
}

/* ---- compiling ---------------------------------------------------------------------------------------- */

/* The number that stands directly before `phrase` in the line; -1 if the line has no such phrase. */
static int32_t number_before(const char *line, size_t length, const char *phrase) {
    const char *at = memmem(line, length, phrase, strlen(phrase));
    if (!at) return -1;
    while (at > line && at[-1] >= '0' && at[-1] <= '9')
        at--;
    return (int32_t)strtol(at, NULL, 10);
}

static bool contains(const char *line, size_t length, const char *word) {
    return memmem(line, length, word, strlen(word)) != NULL;
}

static int32_t larger(int32_t a, int32_t b) {
    return a > b ? a : b;
}

/* ptxas -v, one group per function:
 *     ptxas info : Function properties for fk_forward
 *     ptxas      .     0 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads
 *     ptxas info : Used 168 registers, used 1 barriers, 1024 bytes smem, 400 bytes cmem[0]
 * Spills of functions that were not inlined count too. Where wgmma cannot overlap, it says so once for a function:
 *     ptxas info : (C7511) Potential Performance Loss: wgmma.mma_async instructions are serialized due to ... */
static void read_resources(const char *log, fk_image *out) {
    out->registers = out->spill_bytes = out->smem_static = out->stack_bytes = 0;
    while (*log) {
        const size_t length = strcspn(log, "\n");
        out->stack_bytes = larger(out->stack_bytes, number_before(log, length, " bytes stack frame"));
        out->registers = larger(out->registers, number_before(log, length, " registers"));
        out->smem_static = larger(out->smem_static, number_before(log, length, " bytes smem"));
        out->spill_bytes += larger(0, number_before(log, length, " bytes spill stores"));
        out->spill_bytes += larger(0, number_before(log, length, " bytes spill loads"));
        out->serialized_wgmma += contains(log, length, "wgmma") && contains(log, length, "serialized");
        log += length + (log[length] == '\n');
    }
}

static fk_status take_image(const nvrtc *n, void *program, bool cubin, fk_image *out, fk_error *err) {
    size_t size = 0;
    int result = cubin ? n->GetCUBINSize(program, &size) : n->GetPTXSize(program, &size);
    if (result || size == 0) return fk_fail(err, FK_COMPILE_FAILED, "NVRTC gave no image (error %d)", result);
    out->bytes = malloc(size);
    if (!out->bytes) return fk_fail(err, FK_NO_MEMORY, "no memory for an image of %zu bytes", size);
    result = cubin ? n->GetCUBIN(program, out->bytes) : n->GetPTX(program, out->bytes);
    if (result) return fk_fail(err, FK_COMPILE_FAILED, "NVRTC gave no image (error %d)", result);
    out->size = size;
    return FK_OK;
}

fk_status fk_compile(const char *text, const char *entry, const char *target, fk_image *out, fk_error *err) {
    const nvrtc *n;
    fk_status status = open_nvrtc(&n, err);
    if (status) return status;

    const bool cubin = strncmp(target, "sm_", 3) == 0;
    char arch[64], name[80];
    snprintf(arch, sizeof arch, "--gpu-architecture=%s", target);
    snprintf(name, sizeof name, "%s.cu", entry);
    const char *options[8] = {arch, FK_COMPILE_FLAGS, "--no-source-include"};
    int num_options = 4;
    if (cubin) options[num_options++] = "--ptxas-options=-v";
    if (n->version >= 1204)
        options[num_options++] = "--minimal"; /* no declarations of CUDA's runtime; the same image */
    if (n->version >= 1209) options[num_options++] = "--no-cache"; /* older ones have no cache and no such option */

    fk_image image = {.registers = -1, .spill_bytes = -1, .smem_static = -1, .stack_bytes = -1};
    void *program = NULL;
    char *log = NULL;
    size_t log_size = 0;
    const double begin = fk_now_ms();
    pthread_rwlock_rdlock(&compiling);
    int result = n->CreateProgram(&program, text, name, 0, NULL, NULL);
    if (result) {
        status = fk_fail(err, FK_COMPILE_FAILED, "NVRTC made no program (error %d)", result);
        goto done;
    }
    result = n->CompileProgram(program, num_options, options);
    image.compile_ms = fk_now_ms() - begin;
    if (n->GetProgramLogSize(program, &log_size) == 0 && (log = calloc(1, log_size + 1)))
        n->GetProgramLog(program, log);
    if (result) {
        status = fk_fail(err, FK_COMPILE_FAILED, "%s refused %s for %s (error %d): %.1500s", n->identity, entry, target,
                         result, log && *log ? log : "no log");
        goto done;
    }
    if (cubin && log) read_resources(log, &image);
    snprintf(image.compiler, sizeof image.compiler, "%s", n->identity);
    status = take_image(n, program, cubin, &image, err);
done:
    if (program) n->DestroyProgram(&program);
    pthread_rwlock_unlock(&compiling);
    free(log);
    if (status)
        free(image.bytes);
    else
        *out = image;
    return status;
}

pid_t fk_compile_fork(fk_store *store) {
    const pid_t parent = getpid();
    fk_lua_library(NULL); /* opened once, behind a lock; if it cannot be, children fail as the parent does */
    pthread_rwlock_wrlock(&compiling);
    pthread_mutex_lock(&lock);
    fk_terms_hold();
    fk_store_hold(store);
    const pid_t pid = fork();
    fk_store_release(store);
    fk_terms_release();
    if (pid == 0) { /* made anew: the one who could unlock them is a thread of the parent's */
        compiling = (pthread_rwlock_t)PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
        lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(1); /* which died before the call */
        return 0;
    }
    pthread_mutex_unlock(&lock);
    pthread_rwlock_unlock(&compiling);
    return pid;
}

fk_status fk_compiler_name(char out[96], fk_error *err) {
    const nvrtc *n;
    const fk_status status = open_nvrtc(&n, err);
    if (!status) memcpy(out, n->identity, sizeof n->identity);
    return status;
}
