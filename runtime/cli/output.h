/* An output file appears under its name only when it is complete: it is written beside it and renamed. */
#ifndef FK_CLI_OUTPUT_H
#define FK_CLI_OUTPUT_H

#include "cli.h"

#include <stdio.h>

typedef struct output {
    const char *path; /* must outlive the output */
    char *temporary;  /* NULL when `path` is a pipe or device, which is written directly */
    FILE *file;
} output;

/** A file that a verb writes, or reads where `option` is null. */
typedef struct named_file {
    const char *option, *path;
} named_file;
/** Refuses what would be written over what is read, or twice; null paths are passed over. */
cli_exit output_check(const char *verb, const named_file *files, int count);

/** Tells, before the work is done, whether it could be written; null is fine. Pipes and devices are not opened. */
cli_exit output_try(const char *path);
/** Zero `out` first if output_discard may meet it unopened. On failure the reason is on stderr. */
cli_exit output_open(output *out, const char *path);
/** Brings everything to the disk without publishing it, so that several files can appear together. */
cli_exit output_finish(output *out);
/** Completes the file under its name; on failure nothing is left. */
cli_exit output_commit(output *out);
/** Removes what was written, if it was not committed. */
void output_discard(output *out);

/** The folder `path`, made if need be (`made`), before what is to lie there. */
cli_exit output_folder(const char *path, bool *made);
/** Opens, writes and commits. */
cli_exit output_write(const char *path, const void *bytes, size_t size);

#endif
