/* The public header alone, as strict C99 and as C++: compiled, never run. Every INIT macro must initialise. */
#include "flashkiln.h"

size_t header_in_use(void);

size_t header_in_use(void) {
    const fk_problem problem = FK_PROBLEM_INIT;
    const fk_plan_options planning = FK_PLAN_OPTIONS_INIT;
    const fk_generate_options generating = FK_GENERATE_OPTIONS_INIT;
    const fk_context_options context = FK_CONTEXT_OPTIONS_INIT;
    const fk_args args = FK_ARGS_INIT;
    return problem.struct_size + planning.struct_size + generating.struct_size + context.struct_size + args.struct_size;
}
