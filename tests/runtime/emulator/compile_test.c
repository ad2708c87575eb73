/* Compiling and loading: what the messages say, that nothing is left behind, and that images are not mixed up. */
#include "harness.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char *const entries[] = {"fk_kernel"};

static fk_status compile(const char *text, const fk_emu_options *options, fk_error *err) {
    void *bytes = NULL;
    size_t size = 0;
    double ms = 0;
    char compiler[96];
    const fk_status status = fk_emu_compile(text, entries, 1, options, &bytes, &size, &ms, compiler, err);
    free(bytes);
    return status;
}

static void test_error_names_the_template(void **state) {
    (void)state;
    fk_error err;
    assert_int_equal(compile(PROLOGUE KERNEL
                             "{\n#line 41 \"templates/kernel/forward_mma.cu\"\n    p.out[0] = nonsense;\n}\n",
                             NULL, &err),
                     FK_COMPILE_FAILED);
    assert_non_null(strstr(err.text, "templates/kernel/forward_mma.cu:41:"));
    assert_non_null(strstr(err.text, "nonsense"));
    assert_int_equal(compile(PROLOGUE "int other;\n", NULL, &err), FK_COMPILE_FAILED);
    assert_non_null(strstr(err.text, "fk_kernel"));
}

static void test_compiler_choice(void **state) {
    (void)state;
    fk_error err;
    setenv("FLASHKILN_CXX", "/nonexistent/c++", 1);
    assert_int_equal(compile(PROLOGUE KERNEL "{}", NULL, &err), FK_NO_COMPILER);
    assert_non_null(strstr(err.text, "FLASHKILN_CXX is '/nonexistent/c++'"));
    unsetenv("FLASHKILN_CXX");
    char *path = strdup(getenv("PATH"));
    setenv("PATH", "/nonexistent", 1);
    assert_int_equal(compile(PROLOGUE KERNEL "{}", NULL, &err), FK_NO_COMPILER);
    assert_non_null(strstr(err.text, "none of c++, g++, clang++ is in PATH"));
    setenv("PATH", path, 1);
    free(path);
    setenv("FLASHKILN_CXX", "/bin/false", 1);
    assert_int_equal(compile(PROLOGUE KERNEL "{}", NULL, &err), FK_COMPILE_FAILED);
    assert_non_null(strstr(err.text, "/bin/false ended with 1"));
    unsetenv("FLASHKILN_CXX");
}

static int count_entries(const char *path) {
    int count = 0;
    DIR *dir = opendir(path);
    assert_non_null(dir);
    for (const struct dirent *e; (e = readdir(dir));)
        count += e->d_name[0] != '.';
    closedir(dir);
    return count;
}

static void make_folder(const char *base, const char *name, long age, const char *const *names, int count) {
    const struct timespec then = {time(NULL) - age, 0}, both[2] = {then, then};
    char path[256], inside[512];
    snprintf(path, sizeof path, "%s/%s", base, name);
    assert_int_equal(mkdir(path, 0700), 0);
    for (int i = 0; i < count; ++i) {
        snprintf(inside, sizeof inside, "%s/%s", path, names[i]);
        const int file = open(inside, O_WRONLY | O_CREAT, 0600);
        assert_true(file >= 0 && close(file) == 0);
    }
    assert_int_equal(utimensat(AT_FDCWD, path, both, 0), 0);
}

/* The first test: the first compile of a process looks for them. */
static void test_what_killed_processes_left_is_removed(void **state) {
    (void)state;
    static const char *const names[] = {"kernel.cu", "abi.hpp", "log", "mine"};
    static const char *const kept[] = {"flashkiln-emu-fresh0", "flashkiln-emu-others/mine", "flashkiln-mine00/log"};
    char base[] = "/tmp/flashkiln-test-XXXXXX", path[256], command[256];
    fk_error err;
    assert_non_null(mkdtemp(base));
    make_folder(base, "flashkiln-emu-stale0", 3700, names, 3);
    make_folder(base, "flashkiln-emu-fresh0", 3500, names, 3);
    make_folder(base, "flashkiln-emu-others", 3700, names, 4);
    make_folder(base, "flashkiln-mine00", 3700, names, 4);
    setenv("TMPDIR", base, 1);
    assert_int_equal(compile(PROLOGUE KERNEL "{}", NULL, &err), FK_OK);
    unsetenv("TMPDIR");
    for (size_t i = 0; i < sizeof kept / sizeof *kept; ++i) {
        snprintf(path, sizeof path, "%s/%s", base, kept[i]);
        assert_int_equal(access(path, F_OK), 0);
    }
    assert_int_equal(count_entries(base), 3);
    snprintf(command, sizeof command, "rm -r '%s'", base);
    assert_int_equal(system(command), 0);
}

static void test_nothing_is_left_behind(void **state) {
    (void)state;
    char path[] = "/tmp/flashkiln-test-XXXXXX";
    fk_error err;
    assert_non_null(mkdtemp(path));
    setenv("TMPDIR", path, 1);
    assert_int_equal(compile(PROLOGUE KERNEL "{}", NULL, &err), FK_OK);
    assert_int_equal(compile(PROLOGUE "nonsense", NULL, &err), FK_COMPILE_FAILED);
    assert_int_equal(count_entries(path), 0);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(compile(PROLOGUE KERNEL "{}", NULL, &err), FK_IO);
    assert_non_null(strstr(err.text, path));
    unsetenv("TMPDIR");
}

static void test_bad_images(void **state) {
    (void)state;
    void *bytes = NULL;
    size_t size = 0;
    double ms = 0;
    char compiler[96] = "";
    fk_emu_image *image = NULL;
    fk_error err;
    assert_int_equal(fk_emu_load("not an image", 12, &image, &err), FK_CHECK_FAILED);
    assert_int_equal(fk_emu_load("", 0, &image, &err), FK_CHECK_FAILED);
    assert_int_equal(fk_emu_compile(PROLOGUE KERNEL "{}", entries, 1, NULL, &bytes, &size, &ms, compiler, &err), FK_OK);
    assert_true(ms > 0.0);
    assert_true(strstr(compiler, "GCC") || strstr(compiler, "lang"));
    assert_int_equal(fk_emu_load(bytes, size / 2, &image, &err), FK_CHECK_FAILED);
    assert_non_null(strstr(err.text, "cut short"));
    unsigned char *image_bytes = bytes;
    image_bytes[size / 2] ^= 4;
    assert_int_equal(fk_emu_load(bytes, size, &image, &err), FK_CHECK_FAILED);
    assert_non_null(strstr(err.text, "damaged"));
    image_bytes[size / 2] ^= 4;
    image_bytes[size - 16] ^= 1; /* the hash of the headers */
    assert_int_equal(fk_emu_load(bytes, size, &image, &err), FK_CHECK_FAILED);
    assert_non_null(strstr(err.text, "another version"));
    image_bytes[size - 16] ^= 1;
    assert_null(image);
    assert_int_equal(fk_emu_load(bytes, size, &image, &err), FK_OK);
    fk_emu_unload(image);
    free(bytes);
}

/* Images that are loaded at the same time keep their own code. */
static void test_many_images(void **state) {
    (void)state;
    enum { COUNT = 4 };
    fk_emu_image *images[COUNT];
    uint32_t *out = device_words(32);
    for (int i = 0; i < COUNT; ++i) {
        char body[64];
        snprintf(body, sizeof body, "p.out[threadIdx.x] = %d;", i);
        images[i] = load_body(body);
    }
    for (int i = COUNT - 1; i >= 0; --i) {
        const params p = {out, NULL, 0};
        fk_error err;
        assert_int_equal(fk_emu_launch(images[i], &p, sizeof p, 1, 32, 0, NULL, &err), FK_OK);
        assert_int_equal(out[31], i);
        fk_emu_unload(images[i]);
    }
    fk_emu_free(out);
}

/* Only a library built with AddressSanitizer can load kernels that are; others say so instead of failing to load. */
static void test_sanitize(void **state) {
    (void)state;
    const fk_emu_options options = {.sanitize = true};
    const char *text = PROLOGUE KERNEL "{ p.out[threadIdx.x] = threadIdx.x; __syncthreads(); }";
    void *bytes = NULL;
    size_t size = 0;
    double ms = 0;
    char compiler[96];
    fk_error err;
    const fk_status status = fk_emu_compile(text, entries, 1, &options, &bytes, &size, &ms, compiler, &err);
#ifdef __SANITIZE_ADDRESS__
    fk_emu_image *image = NULL;
    uint32_t *out = device_words(128);
    const params p = {out, NULL, 0};
    assert_int_equal(status, FK_OK);
    assert_int_equal(fk_emu_load(bytes, size, &image, &err), FK_OK);
    assert_int_equal(fk_emu_launch(image, &p, sizeof p, 2, 128, 0, &strict, &err), FK_OK);
    assert_int_equal(out[127], 127);
    fk_emu_unload(image);
    fk_emu_free(out);
#else
    assert_int_equal(status, FK_UNSUPPORTED);
    assert_non_null(strstr(err.text, "AddressSanitizer"));
#endif
    free(bytes);
}

static char *read_text(const char *path) {
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    char *text = calloc(1, 1 << 20);
    assert_true(fread(text, 1, (1 << 20) - 1, f) > 0);
    fclose(f);
    return text;
}

static void test_memory(void **state) {
    (void)state;
    static const size_t sizes[] = {0, 1, 16, 4095, 4096, 4097, 1 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
        void *memory = NULL;
        fk_error err;
        assert_int_equal(fk_emu_malloc(sizes[i], &memory, &err), FK_OK);
        assert_int_equal((uintptr_t)memory % 16, 0);
        for (size_t j = 0; j < sizes[i]; ++j)
            assert_int_equal(((unsigned char *)memory)[j], 0xff);
        fk_emu_free(memory);
    }
    void *memory = NULL;
    fk_error err;
    assert_int_equal(fk_emu_malloc(SIZE_MAX - 5, &memory, &err), FK_NO_MEMORY);
    char *overcommit = read_text("/proc/sys/vm/overcommit_memory");
    if (*overcommit != '1') /* else the system promises all that is asked for */
        assert_int_equal(fk_emu_malloc((size_t)1 << 45, &memory, &err), FK_NO_MEMORY);
    free(overcommit);
    assert_null(memory);
    fk_emu_free(NULL);
}

/* The name before the parenthesis that follows `at`. */
static void function_name(const char *at, char name[64]) {
    const char *end = strchr(at, '('), *start = end;
    while (start > at && (start[-1] == '_' || isalnum((unsigned char)start[-1])))
        --start;
    snprintf(name, 64, "%.*s", (int)(end - start), start);
}

/* Every primitive has a second body: what templates/primitive defines, device.hpp defines under the same name. */
static void test_primitives_are_complete(void **state) {
    (void)state;
    char *header = read_text(FK_SOURCE_DIR "/runtime/emulator/device.hpp");
    char *hopper = read_text(FK_SOURCE_DIR "/runtime/emulator/hopper_device.hpp");
    int checked = 0;
    DIR *dir = opendir(FK_SOURCE_DIR "/templates/primitive");
    assert_non_null(dir);
    for (const struct dirent *e; (e = readdir(dir));) {
        const size_t n = strlen(e->d_name);
        if (n < 3 || strcmp(e->d_name + n - 3, ".cu") != 0) continue;
        char path[1024];
        snprintf(path, sizeof path, "%s/%s", FK_SOURCE_DIR "/templates/primitive", e->d_name);
        char *text = read_text(path);
        for (const char *at = text; (at = strstr(at, "__device__")); ++at) {
            char name[64], needle[80];
            function_name(at, name);
            snprintf(needle, sizeof needle, " %s(", name);
            if (!strstr(header, needle) && !strstr(hopper, needle))
                fail_msg("%s defines %s, the emulator's headers do not", e->d_name, name);
            ++checked;
        }
        free(text);
    }
    closedir(dir);
    free(header);
    free(hopper);
    assert_in_range(checked, 10, 1000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_killed_processes_left_is_removed),
        cmocka_unit_test(test_error_names_the_template),
        cmocka_unit_test(test_compiler_choice),
        cmocka_unit_test(test_nothing_is_left_behind),
        cmocka_unit_test(test_bad_images),

        cmocka_unit_test(test_many_images),
        cmocka_unit_test(test_sanitize),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_primitives_are_complete),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
