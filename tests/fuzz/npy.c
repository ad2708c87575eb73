/* Headers of .npy files. */
#include "fuzz.h"

#include "runtime/cli/npy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char message[NPY_MESSAGE] = "", *text = fuzz_text(data, size);
    npy_array array = {.rank = 0};
    if (npy_parse_header(text, size, &array, message) == CLI_OK)
        MUST(array.rank >= 0 && array.rank <= NPY_MAX_RANK && npy_type_size(array.type) > 0);
    else
        MUST(message[0]);
    free(text);
    return 0;
}
