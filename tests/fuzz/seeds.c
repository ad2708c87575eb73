/* Stands in for libFuzzer: the target gets each file of a folder, and each of its bytes changed. */
#include "fuzz.h"

#include <dirent.h>

int LLVMFuzzerInitialize(int *argc, char ***argv) __attribute__((weak));

static void try_file(const char *path) {
    static uint8_t bytes[1 << 16];
    FILE *file = fopen(path, "rb");
    MUST(file);
    const size_t size = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    LLVMFuzzerTestOneInput(bytes, size);
    for (size_t at = 0; at < size; ++at) {
        bytes[at] ^= (uint8_t)(1 << at % 8);
        LLVMFuzzerTestOneInput(bytes, size);
        bytes[at] ^= (uint8_t)(1 << at % 8);
        LLVMFuzzerTestOneInput(bytes, at);
    }
}

int main(int argc, char **argv) {
    int files = 0;
    DIR *folder = argc == 2 ? opendir(argv[1]) : NULL;
    if (!folder) return 2;
    if (LLVMFuzzerInitialize) LLVMFuzzerInitialize(&argc, &argv);
    for (const struct dirent *d; (d = readdir(folder));) {
        char path[4096];
        if (d->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", argv[1], d->d_name);
        try_file(path);
        ++files;
    }
    closedir(folder);
    printf("%d seeds\n", files);
    return files == 0;
}
