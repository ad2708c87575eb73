/* gen: the CUDA source of a problem's kernel. */
#include "cli.h"
#include "output.h"

#include <string.h>

static cli_exit gen_main(const cli_verb *verb, int argc, char **argv) {
    const char *gpu = "a100", *path = NULL;
    cli_planning planning = CLI_PLANNING_INIT;
    bool standalone = false;
    const option options[] = {
        cli_gpu_option(&gpu),
        option_text("-o", "FILE", &path, "write to FILE instead of standard output"),
        option_flag("--standalone", &standalone, "no #line directives"),
        cli_shape_option(&planning),
        cli_rule_option(&planning),
        cli_plan_option(&planning),
        cli_reproducible_option(&planning),
        cli_template_option(&planning),
    };
    fk_problem problem = FK_PROBLEM_INIT;
    char spelling[FK_MAX_SPELLING], smem[CLI_QUANTITY], *text = NULL;
    cli_exit code = CLI_OK;
    if (!cli_begin(verb, options, sizeof options / sizeof options[0], &argc, argv, &code)) return code;
    code = cli_use_planning(&planning);
    if (code == CLI_OK) code = cli_problem(argv, argc, &problem, spelling);
    if (code != CLI_OK) return code;

    fk_generate_options how = FK_GENERATE_OPTIONS_INIT;
    how.planning = cli_plan_options(&planning);
    how.standalone = standalone;
    fk_plan_info plan;
    const fk_status status = fk_generate(&problem, gpu, &how, &text, &plan);
    if (status != FK_OK) return cli_fail_status(status);
    if (path) {
        code = output_write(path, text, strlen(text));
        if (code == CLI_OK)
            fprintf(stderr, "%s: %s for %s, block_m %d, block_n %d, %d stage%s, %s of shared memory\n", path, spelling,
                    gpu, plan.block_m, plan.block_n, plan.stages, plan.stages == 1 ? "" : "s",
                    cli_bytes(plan.smem_bytes, smem));
    } else {
        fputs(text, stdout);
    }
    fk_free(text);
    return code;
}

const cli_verb verb_gen = {"gen", "SPELLING [--gpu KEY] [-o FILE]", "the CUDA source of a kernel",
                           "Without --gpu: a100.\n", gen_main};
