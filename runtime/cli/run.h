/* One call of `run`: what is asked, held and found. */
#ifndef FK_CLI_RUN_H
#define FK_CLI_RUN_H

#include "arrays.h"
#include "check.h"
#include "dropout.h"
#include "pages.h"
#include "sequences.h"
#include "tensors.h"

typedef struct run {
    /* what is asked */
    const char *path[NUM_TENSORS]; /* of inputs and results; null: not named */
    const char *device, *plan_for, *cache_dir, *packs;
    cli_planning planning;
    option_ints random;
    option_texts array, grad;
    const char *lengths[NUM_LENGTHS];
    dropout dropout;
    int layout, dtype, out_dtype;
    bool check, no_cache, json;
    int cache_mode; /* fk_cache_mode; -1: not given */
    int64_t repeat, num_splits, page_size;
    double softmax_scale, descale[3]; /* of q, k, v; below 0: not given, as num_splits */
    fk_problem problem;
    char spelling[FK_MAX_SPELLING];
    /* what is held */
    tensors host;
    arrays arrays;
    grads grads;
    sequences sequences;
    pages pages;
    fk_context *context;
    fk_kernel *kernel;
    float host_descale[3];
    void *device_data[NUM_TENSORS], *workspace, *device_descale;
    size_t workspace_bytes;
    /* what is found */
    fk_device_info runs, planned;
    fk_kernel_info info;
    double median_ms, tflops; /* NaN until timed */
    check result;             /* ratio is NaN until checked */
} run;

/* run_files.c: the files that it names. */
extern const char *const run_tensor_option[NUM_TENSORS];
bool run_is_input(int tensor);
cli_exit run_check_files(const run *r);
/** Takes the next of "A:B"; null is none. */
bool run_next_pack(const char **at, char path[4096]);

/* run_story.c: what a run tells. */
fk_status run_print_story(const run *r);
void run_print_timing(const run *r);
bool run_print_json(const run *r);

#endif
