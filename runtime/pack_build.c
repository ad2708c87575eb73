/* Compiling for a pack. Work is done by processes, not threads: a compiler's front end serves one thread at a time, and
 * one that crashes takes its process with it, not the build. Each finished kernel goes to a store beside the pack,
 * which is what an interrupted build leaves, and the next one finds. Workers and the parent share one page of state for
 * each job; nothing else. */
#include "clock.h"
#include "compile.h"
#include "object.h"
#include "pack_job.h"

#include "cache/sha256.h"
#include "gen/embedded.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

void fk_pack_job_key(const fk_pack_work *work, const fk_pack_job *job, char key[65]) {
    fk_sha256 sha;
    fk_sha256_start(&sha);
    const char *const parts[] = {fk_embedded_digest, work->records, job->target, job->gpu, job->spelling};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        fk_sha256_add(&sha, parts[i], strlen(parts[i]) + 1);
    fk_sha256_finish_hex(&sha, key);
}

/* ---- one job, in a worker ------------------------------------------------------------------------------ */

/* The name of what would compile now; "" of the emulator's, which is known when it has. */
static fk_status compiler_of(const fk_pack_work *work, char name[96], fk_error *err) {
    name[0] = 0;
    return work->emulator ? FK_OK : fk_compiler_name(name, err);
}

/* Is the text, in the part's own plan, what it was? The files of template_dir may be others by now. */
static bool writes_the_same(const fk_pack_work *work, const fk_pack_job *job, const fk_problem *problem,
                            const fk_device_info *device, const fk_plan_info *plan, const char text_key[65]) {
    fk_source now;
    char key[65];
    if (fk_source_create(problem, device, plan, work->how->planning.template_dir, false, &now, NULL)) return false;
    fk_build_key(&now, job->target, work->emulator, key);
    fk_source_free(&now);
    return strcmp(key, text_key) == 0;
}

static bool find_part(const fk_pack_work *work, const fk_pack_job *job, const fk_problem *problem,
                      const fk_device_info *device, const char key[65], const char *compiler) {
    fk_entry entry;
    fk_source source;
    char text_key[65];
    if (!fk_store_get(work->parts, key, job->target, &entry, NULL, 0)) return false;
    const bool same = (!*compiler || strcmp(entry.compiler, compiler) == 0) && entry.text &&
                      fk_facts_read(entry.text, NULL, &source, text_key, NULL) == FK_OK &&
                      writes_the_same(work, job, problem, device, &source.plan, text_key);
    fk_entry_free(&entry);
    if (!same) fk_store_drop(work->parts, key, job->target);
    return same;
}

static fk_status store_part(const fk_pack_work *work, const fk_pack_job *job, const char key[65], fk_built *built,
                            fk_error *err) {
    char facts[FK_FACTS_BYTES], note[160];
    fk_entry entry = built->entry;
    fk_facts_write(&built->source, entry.key, facts);
    entry.text = facts;
    memcpy(entry.key, key, sizeof entry.key);
    snprintf(entry.spelling, sizeof entry.spelling, "%s", job->spelling);
    if (fk_store_put(work->parts, &entry, note, sizeof note) || strncmp(note, "present", 7) == 0) return FK_OK;
    return fk_fail(err, FK_IO, "%s cannot be written: %s", fk_store_dir(work->parts), note);
}

/* Where the compiler spills registers after all, the kernel for all sizes does as well. */
static fk_status check_sized(const fk_problem *problem, const fk_built *built, fk_error *err) {
    const fk_entry *e = &built->entry;
    if (fk_build_flaws(e->spill_bytes, e->serialized_wgmma) <= fk_minor_spill(problem, &built->source.plan))
        return FK_OK;
    return fk_fail(err, FK_UNSUPPORTED, "%d bytes of registers spill%s", e->spill_bytes,
                   e->serialized_wgmma ? ", wgmma are serialised" : "");
}

static fk_pack_state run_job(const fk_pack_work *work, const fk_pack_job *job, fk_error *err) {
    const bool sized = *job->plan != 0;
    fk_problem problem;
    fk_device_info device;
    fk_built built;
    fk_generate_options how = *work->how;
    char key[65], compiler[96];
    if (sized) how.planning.plan = job->plan;
    fk_pack_job_key(work, job, key);
    fk_status status = compiler_of(work, compiler, err);
    if (!status) status = fk_problem_read(job->asked, &problem, err);
    if (!status) status = fk_device_named(job->gpu, &device, err);
    if (!status && find_part(work, job, &problem, &device, key, compiler)) return FK_PACK_REUSED;
    if (!status) status = fk_build_offline(&problem, &device, &how, work->emulator, &built, err);
    if (!status) {
        if (sized) status = check_sized(&problem, &built, err);
        if (!status) status = store_part(work, job, key, &built, err);
        fk_built_free(&built);
    }
    return status == FK_OK                                                 ? FK_PACK_BUILT
           : status == FK_UNSUPPORTED && (work->skip_unsupported || sized) ? FK_PACK_SKIPPED
                                                                           : FK_PACK_FAILED;
}

static _Noreturn void work_off(const fk_pack_work *work) {
    fk_pack_board *board = work->board;
    for (;;) {
        const size_t i = __atomic_fetch_add(&board->next, 1, __ATOMIC_RELAXED);
        if (i >= work->count) _exit(0);
        fk_error err = {.status = FK_OK};
        fk_pack_slot *slot = &board->slot[i];
        slot->pid = getpid();
        __atomic_store_n(&slot->state, FK_PACK_RUNNING, __ATOMIC_RELEASE);
        const fk_pack_state state = run_job(work, &work->job[i], &err);
        if (state == FK_PACK_FAILED || state == FK_PACK_SKIPPED) {
            slot->status = err.status;
            snprintf(slot->text, sizeof slot->text, "%.*s", (int)sizeof slot->text - 1, err.text);
        }
        __atomic_store_n(&slot->state, state, __ATOMIC_RELEASE);
    }
}

/* ---- all of them, in the parent ------------------------------------------------------------------------ */

static void count_slots(const fk_pack_work *work, double begin, fk_pack_progress *out) {
    size_t count[FK_PACK_STATES] = {0};
    for (size_t i = 0; i < work->count; i++)
        count[__atomic_load_n(&work->board->slot[i].state, __ATOMIC_ACQUIRE)]++;
    *out = (fk_pack_progress){.total = work->count,
                              .built = count[FK_PACK_BUILT],
                              .reused = count[FK_PACK_REUSED],
                              .skipped = count[FK_PACK_SKIPPED],
                              .failed = count[FK_PACK_FAILED],
                              .seconds = (fk_now_ms() - begin) * 1e-3,
                              .seconds_left = -1};
    const size_t made = out->built + out->failed, left = count[FK_PACK_WAITING] + count[FK_PACK_RUNNING];
    if (made > 0) out->seconds_left = out->seconds / (double)made * (double)left;
}

/* A worker that died fails the job it had. */
static void bury(const fk_pack_work *work, pid_t pid, int how) {
    for (size_t i = 0; i < work->count; i++) {
        fk_pack_slot *slot = &work->board->slot[i];
        if (slot->pid != pid || slot->state != FK_PACK_RUNNING) continue;
        slot->status = FK_COMPILE_FAILED;
        snprintf(slot->text, sizeof slot->text, "the process that compiled it died of %s %d",
                 WIFSIGNALED(how) ? "signal" : "exit code", WIFSIGNALED(how) ? WTERMSIG(how) : WEXITSTATUS(how));
        __atomic_store_n(&slot->state, FK_PACK_FAILED, __ATOMIC_RELEASE);
    }
}

/* Forks one for pid[0]; 0: it could not. */
static bool start_worker(const fk_pack_work *work, pid_t *pid) {
    *pid = fk_compile_fork(work->parts);
    if (*pid == 0) {
        if (work->lock >= 0) close(work->lock); /* else a worker that is about to end would hold it for its builder */
        work_off(work);
    }
    if (*pid < 0) *pid = 0;
    return *pid > 0;
}

/* Takes leave of workers that ended, and puts others in the place of those that crashed: how many run. The caller's
 * other children are not asked for. */
static int count_running(const fk_pack_work *work, pid_t *pid, int workers) {
    int running = 0, how;
    for (int i = 0; i < workers; i++) {
        const pid_t ended = pid[i] ? waitpid(pid[i], &how, WNOHANG) : 0;
        if (ended < 0) how = 0; /* the caller's handler took its status */
        if (ended) {
            bury(work, pid[i], how);
            const bool crashed = !WIFEXITED(how) || WEXITSTATUS(how) != 0;
            if (!crashed || work->board->next >= work->count || !start_worker(work, &pid[i])) pid[i] = 0;
        }
        running += pid[i] != 0;
    }
    return running;
}

fk_status fk_pack_run_jobs(const fk_pack_work *work, int workers, fk_pack_report report, void *user,
                           fk_pack_progress *progress, fk_error *err) {
    const double begin = fk_now_ms();
    const int wanted = (size_t)workers < work->count ? workers : (int)work->count;
    int started = 0;
    pid_t *pid = calloc((size_t)wanted + 1, sizeof *pid);
    while (pid && started < wanted && start_worker(work, &pid[started]))
        started++;
    if (started == 0 && work->count) {
        free(pid);
        return fk_fail(err, FK_NO_MEMORY, "no process for compiling can be started");
    }
    for (int turn = 0; count_running(work, pid, started) > 0; turn++) {
        usleep(20000);
        if (report && turn % 10 == 0) {
            count_slots(work, begin, progress);
            report(progress, user);
        }
    }
    free(pid);
    count_slots(work, begin, progress);
    progress->seconds_left = 0;
    if (report) report(progress, user);
    return FK_OK;
}

fk_pack_board *fk_pack_board_create(size_t count) {
    void *board = mmap(NULL, sizeof(fk_pack_board) + count * sizeof(fk_pack_slot), PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return board == MAP_FAILED ? NULL : board;
}

void fk_pack_board_free(fk_pack_board *board, size_t count) {
    if (board) munmap(board, sizeof(fk_pack_board) + count * sizeof(fk_pack_slot));
}
