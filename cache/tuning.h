/* Tuning records: one JSON object a line, one line for each plan that was timed (cache/FORMAT.md). A record is advice:
 * a plan that it names is taken only if the planner finds it legal, so that none can make a kernel wrong. */
#ifndef FK_CACHE_TUNING_H
#define FK_CACHE_TUNING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "flashkiln.h"
#include "gen/error.h"

struct fk_vfs;

/* ---- buckets.c: which shapes share a record ------------------------------------------------------------ */

enum { FK_BUCKET_AXES = 3, FK_BUCKET_EDGES = 32, FK_BUCKET_TEXT = 48 };

/** seqlen_q, seqlen_k, and heads: batch x num_heads_q. A size belongs to the edge that is nearest by ratio. */
typedef struct fk_buckets {
    double edge[FK_BUCKET_AXES][FK_BUCKET_EDGES];
    int count[FK_BUCKET_AXES];
} fk_buckets;
typedef struct fk_bucket {
    int index[FK_BUCKET_AXES];
} fk_bucket;

/** Reads cache/tuned/buckets.json. */
bool fk_buckets_read(const char *text, size_t size, fk_buckets *out);
/** Of a shape without zeros. */
fk_bucket fk_bucket_of(const fk_buckets *buckets, const fk_shape *shape);
bool fk_bucket_equal(const fk_bucket *a, const fk_bucket *b);
/** "q4096 k4096 h64" */
void fk_bucket_spell(const fk_buckets *buckets, const fk_bucket *bucket, char out[FK_BUCKET_TEXT]);

/* ---- tuning.c: records and which of them counts --------------------------------------------------------- */

typedef struct fk_tuning_record {
    char problem[FK_MAX_SPELLING]; /* canonical */
    fk_shape shape;                /* as timed, or modelled: no zeros */
    char plan[FK_MAX_PLAN];        /* as fk_plan_spell writes it */
    char device[96];               /* the GPU's name; FK_TUNING_EMULATOR before it: timed on the emulator */
    int32_t sm, num_sms;
    double clock_ghz, hbm_gbps; /* of the device, as its driver gives them */
    char generator[17];         /* digest of the sources that its kernel is made of */
    char compiler[96];
    int32_t registers, spill_bytes; /* as compiled; -1: not known */
    int32_t rigor;                  /* fk_rigor; FK_RIGOR_MODEL: `us` is modelled, and nothing was timed */
    int32_t samples;
    double us, spread; /* median; and the median deviation from it, as a share of it */
    double error;      /* largest error against float64, as a share of what is allowed */
    int64_t unix_time;
} fk_tuning_record;

#define FK_TUNING_EMULATOR "emulator of "
enum { FK_TUNING_LINE_MAX = 3 * FK_MAX_SPELLING };

/** Writes one line with its newline; 0: a field cannot be written. */
size_t fk_tuning_write(const fk_tuning_record *record, const fk_buckets *buckets, char out[FK_TUNING_LINE_MAX]);
/** Reads one line; false: it is none of ours, or damaged. */
bool fk_tuning_read(const char *line, size_t size, fk_tuning_record *out);

/* How near a record's GPU is to the one asked about. */
typedef enum fk_tuning_level {
    FK_TUNING_EXACT = 0,  /* same name and number of SMs */
    FK_TUNING_SAME_SM,    /* same architecture, of another size */
    FK_TUNING_SAME_MAJOR, /* sm_86 for sm_80 */
    FK_TUNING_UNRELATED
} fk_tuning_level;

/** Whether a record was made with the sources at hand. */
typedef bool fk_tuning_is_fresh(const fk_tuning_record *record);

typedef struct fk_tuning_query {
    const char *problem;
    const fk_device_info *device;
    bool emulated; /* records of its emulator count */
    fk_tuning_is_fresh *is_fresh;
    const fk_buckets *buckets;
    fk_bucket bucket;
    bool (*accepts)(void *user, const char *plan); /* null: any */
    void *user;
} fk_tuning_query;

typedef struct fk_tuning_answer {
    bool found;
    fk_tuning_level level;
    double distance; /* in size, of another GPU */
    int source;
    size_t num_records, num_bad; /* lines that name the problem, and of these those that are no records */
    fk_tuning_record record;
} fk_tuning_answer;

/** Folds the lines of `text` into `answer`, which starts as zeros. Of two records that fit the query, the nearer GPU's
 *  counts, then a timed one before a modelled one, a fresh one, one of the lower `source`, the one of higher
 *  rigor, and else the earlier, unless the later is faster by more than the noise of both. Of those that
 *  are not fresh only what was timed counts, and only from source 0: the user's own. */
void fk_tuning_scan(const char *text, size_t size, int source, const fk_tuning_query *query, fk_tuning_answer *answer);
/** Whether a fresh record of that very GPU and shape is as rigorous. */
bool fk_tuning_has(const char *text, size_t size, const fk_tuning_query *query, const fk_shape *shape, int32_t rigor);
/** Whether `b` replaces `a`, both of one problem, bucket, GPU and source. */
bool fk_tuning_replaces(const fk_tuning_record *a, const fk_tuning_record *b, fk_tuning_is_fresh *is_fresh);
/** Share of a time that two records do not tell apart. */
double fk_tuning_noise(const fk_tuning_record *a, const fk_tuning_record *b);

/* ---- tuning_file.c: files of records in a cache directory ----------------------------------------------- */

/** A growing text; `resize` of the vfs, so that tests can fail it. */
typedef struct fk_tuning_text {
    char *bytes; /* malloc'ed */
    size_t size;
} fk_tuning_text;

/** Reads a file of records. @return FK_IO, FK_NO_MEMORY */
fk_status fk_tuning_load(const struct fk_vfs *vfs, const char *path, fk_tuning_text *out, fk_error *err);
/** The records of the directory `dir` (null: as fk_store_open), file after file; none if there is no directory.
 *  @param all  what is not trusted, or cannot be read, is FK_IO; else it is left out, as it is no advice
 *  @return FK_NO_MEMORY, FK_IO */
fk_status fk_tuning_load_dir(const struct fk_vfs *vfs, const char *dir, bool all, fk_tuning_text *out, fk_error *err);
/** Appends whole lines to the file of `device` in the directory, in one write, so that writers at once do not mix. With
 *  no lines it only says whether it could (the file is made). @return FK_IO, FK_NO_MEMORY */
fk_status fk_tuning_append(const struct fk_vfs *vfs, const char *dir, const char *device, const char *lines,
                           size_t size, fk_error *err);

#endif
