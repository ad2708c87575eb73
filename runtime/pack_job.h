/* The jobs of a pack that is being built: what is compiled (pack_build.c), and what becomes of it (pack_make.c). */
#ifndef FK_RUNTIME_PACK_JOB_H
#define FK_RUNTIME_PACK_JOB_H

#include "object.h"

/* One kernel for one GPU. */
typedef struct fk_pack_job {
    const char *asked;    /* the spelling as given */
    const char *spelling; /* of its record, fk_packs_spell's */
    const char *gpu;
    char target[16];
    char plan[FK_MAX_PLAN]; /* for some sizes; "": the best, for all */
} fk_pack_job;

typedef enum fk_pack_state {
    FK_PACK_WAITING,
    FK_PACK_RUNNING,
    FK_PACK_BUILT,
    FK_PACK_REUSED,
    FK_PACK_SKIPPED,
    FK_PACK_FAILED,
    FK_PACK_STATES
} fk_pack_state;

/* What a worker says of a job, in memory that all processes share. */
typedef struct fk_pack_slot {
    fk_pack_state state; /* atomic */
    fk_status status;
    pid_t pid;
    char text[500];
} fk_pack_slot;

typedef struct fk_pack_board {
    size_t next; /* atomic: the first job that nobody took */
    fk_pack_slot slot[];
} fk_pack_board;

typedef struct fk_pack_work {
    fk_pack_job *job;
    size_t count;
    fk_store *parts;
    const fk_generate_options *how;
    const fk_emu_options *emulator; /* null: for GPUs */
    bool skip_unsupported;
    char records[65]; /* SHA-256 of the user's tuning records, which plans follow; "": none is looked at */
    fk_pack_board *board;
    int lock; /* the builder's, on the folder of parts, which workers let go of; -1: none */
} fk_pack_work;

fk_pack_board *fk_pack_board_create(size_t count); /* null: no memory */
void fk_pack_board_free(fk_pack_board *board, size_t count);
/** The name of a job's part in the store of parts. */
void fk_pack_job_key(const fk_pack_work *work, const fk_pack_job *job, char key[65]);
/** Runs them all in `workers` processes, and returns when none is left. */
fk_status fk_pack_run_jobs(const fk_pack_work *work, int workers, fk_pack_report report, void *user,
                           fk_pack_progress *progress, fk_error *err);
/** The Ed25519 secret of a PEM file. */
fk_status fk_pack_read_secret(const char *path, uint8_t secret[32], fk_error *err);

#endif
