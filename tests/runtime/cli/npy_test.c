/* .npy files: what is written is read back to the bit; what is damaged is refused by field, value and limit. */
#include "runtime/cli/npy.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static char path[] = "/tmp/fk_npy_test_XXXXXX";

static int make_file(void **state) {
    (void)state;
    const int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}
static int remove_file(void **state) {
    (void)state;
    return unlink(path);
}

static void put(const void *bytes, size_t size) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

/* A version 1 file with that header text and `data` bytes of zeros behind it. */
static void put_npy(const char *header, size_t data) {
    char bytes[512] = "\x93NUMPY\x01";
    const size_t length = strlen(header);
    bytes[8] = (char)length;
    memcpy(bytes + 10, header, length);
    put(bytes, 10 + length + data);
}

static void refused(cli_exit code, const char *part1, const char *part2) {
    npy_array array = {0};
    char message[NPY_MESSAGE] = "";
    assert_int_equal(npy_read(path, 4, &array, message), code);
    if (!strstr(message, path) || !strstr(message, part1) || !strstr(message, part2))
        fail_msg("\"%s\" lacks the path, \"%s\" or \"%s\"", message, part1, part2);
    assert_null(array.data);
}

static void round_trip(void **state) {
    (void)state;
    static const npy_type types[] = {NPY_FP16, NPY_BITS, NPY_FP32};
    unsigned char data[2 * 3 * 1 * 8 * 4];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(7 * i);
    for (size_t i = 0; i < COUNT(types); i++) {
        const npy_array out = {types[i], 4, {2, 3, 1, 8}, 48, data};
        npy_array in = {0};
        char message[NPY_MESSAGE] = "";
        FILE *file = fopen(path, "wb");
        npy_write(file, &out);
        const long size = ftell(file);
        assert_int_equal(fclose(file), 0);
        assert_int_equal((size - 48 * (long)npy_type_size(types[i])) % 64, 0); /* the data is aligned */
        assert_int_equal(npy_read(path, 4, &in, message), CLI_OK);
        assert_int_equal(in.type, types[i]);
        assert_int_equal(in.count, 48);
        assert_memory_equal(in.shape, out.shape, sizeof in.shape);
        assert_memory_equal(in.data, data, 48 * npy_type_size(types[i]));
        npy_free(&in);
    }
}

static void headers_of_other_writers(void **state) {
    (void)state;
    static const char *const good[] = {
        "{'descr': '<f4', 'fortran_order': False, 'shape': (5, 6), }          \n",
        "{\"shape\":(5,6),\"fortran_order\":False,\"descr\":\"<f4\"}",
        "  { 'shape' : ( 5 , 6, ) ,\t'descr' : '<f4' , 'fortran_order' : False }\n",
    };
    for (size_t i = 0; i < COUNT(good); i++) {
        npy_array array = {0};
        char message[NPY_MESSAGE] = "";
        assert_int_equal(npy_parse_header(good[i], strlen(good[i]), &array, message), CLI_OK);
        assert_int_equal(array.type, NPY_FP32);
        assert_int_equal(array.rank, 2);
        assert_int_equal(array.shape[0], 5);
        assert_int_equal(array.shape[1], 6);
    }
}

/* Every prefix of a good header is refused, and none reads past its end (ASan sees to that). */
static void no_prefix_of_a_header_passes(void **state) {
    (void)state;
    static const char header[] = "{'descr': '<f2', 'fortran_order': False, 'shape': (1, 2, 3, 8)}";
    for (size_t n = 0; n < sizeof header - 1; n++) {
        char *copy = malloc(n ? n : 1), message[NPY_MESSAGE] = "";
        npy_array array = {0};
        assert_non_null(copy);
        memcpy(copy, header, n);
        assert_int_equal(npy_parse_header(copy, n, &array, message), CLI_BAD_INPUT);
        assert_true(message[0] != '\0');
        free(copy);
    }
}

static void bad_headers(void **state) {
    (void)state;
    static const struct {
        const char *header, *part1, *part2;
    } cases[] = {
        {"{'descr': '<f8', 'fortran_order': False, 'shape': (1, 1, 1, 8)}", "<f8",
         "<f2, <f4, <u2 (bfloat16 bits), <i4 or |u1"},
        {"{'descr': '>f2', 'fortran_order': False, 'shape': (1, 1, 1, 8)}", ">f2", "dtype"},
        {"{'descr': [('x', '<f2')], 'fortran_order': False, 'shape': (1,)}", "descr", "structured"},
        {"{'descr': '<f2', 'fortran_order': True, 'shape': (1, 1, 1, 8)}", "fortran_order", "C order"},
        {"{'descr': '<f2', 'fortran_order': False, 'shape': (1, 1, 8)}", "3 axes", "4"},
        {"{'descr': '<f2', 'fortran_order': False, 'shape': (1, 1, 1, 1, 8)}", "shape is (1, 1, 1, 1, 8);",
         "at most 4"},
        {"{'descr': '<f2', 'fortran_order': False, 'shape': (1, -1, 1, 8)}", "shape is (1, -1, 1, 8);", "at most 4"},
        {"{'descr': '<f2', 'fortran_order': False, 'shape': (99999999999999999999, 1, 1, 8)}", "shape", "at most 4"},
        {"{'descr': '<f2', 'fortran_order': False, 'shape': (4294967296, 4294967296, 1, 8)}", "4294967296", "2^60"},
        {"{'descr': '<f2', 'fortran_order': False, 'shape': (1, 0, 1, 8)}", "shape[1] is 0", "at least 1"},
        {"{'descr': '<f2', 'fortran_order': False}", "lacks", "shape"},
        {"{'descr': '<f2', 'shape': (1, 1, 1, 8)}", "lacks", "fortran_order"},
        {"{'fortran_order': False, 'shape': (1, 1, 1, 8)}", "lacks", "descr"},
        {"{'descr': '<f2', 'order': 1}", "order", "fortran_order"},
        {"['descr']", "header", "dict"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        put_npy(cases[i].header, 16);
        refused(CLI_BAD_INPUT, cases[i].part1, cases[i].part2);
    }
}

static void sizes_are_exact(void **state) {
    (void)state;
    static const char header[] = "{'descr': '<f2', 'fortran_order': False, 'shape': (1, 1, 1, 8)}";
    put_npy(header, 15);
    refused(CLI_BAD_INPUT, "truncated", "needs 16 bytes");
    put_npy(header, 17);
    refused(CLI_BAD_INPUT, "trailing", "17");
    put("\x93NUMPY\x01\x00\xff\x00{", 11);
    refused(CLI_BAD_INPUT, "ends within", "255");
    put("\x93NUMPY\x04\x00\x00\x00", 10);
    refused(CLI_BAD_INPUT, "version is 4", "1 to 3");
    put("\x93NUMPY\x02\x00\xff\xff\xff\xff", 12);
    refused(CLI_BAD_INPUT, "4294967295", "65536");
    put("PK\x03\x04 a zip file", 15);
    refused(CLI_BAD_INPUT, "no .npy", "NUMPY");
    put("", 0);
    refused(CLI_BAD_INPUT, "no .npy", "NUMPY");
}

static void files_that_are_not_there(void **state) {
    (void)state;
    npy_array array = {0};
    char message[NPY_MESSAGE] = "";
    assert_int_equal(npy_read("/tmp/fk/no/such.npy", 4, &array, message), CLI_IO);
    assert_non_null(strstr(message, "/tmp/fk/no/such.npy"));
    assert_int_equal(npy_read("/tmp", 4, &array, message), CLI_IO);
    assert_null(array.data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),
        cmocka_unit_test(headers_of_other_writers),
        cmocka_unit_test(no_prefix_of_a_header_passes),
        cmocka_unit_test(bad_headers),
        cmocka_unit_test(sizes_are_exact),
        cmocka_unit_test(files_that_are_not_there),
    };
    return cmocka_run_group_tests(tests, make_file, remove_file);
}
