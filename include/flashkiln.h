/* FlashKiln: exact attention kernels, generated for the GPU at hand.
 *
 * The way of the data (docs/design.md section 2):
 *
 *     fk_problem  --plan-->  CUDA text  --NVRTC-->  cubin  --store-->  fk_kernel  --fk_execute-->  O, lse
 *
 * A problem says *what* is computed and is fixed when a kernel is made. Sizes, strides and the softmax scale
 * are run-time values of fk_args. Everything up to fk_build works without a GPU, but for names such as "cuda:0".
 *
 * Conventions
 *   - Every call that can fail returns fk_status; outputs are written on FK_OK only.
 *   - fk_last_error() holds one sentence for the calling thread: field, value, limit.
 *   - Any call may return FK_BAD_ARGUMENT (a null pointer, a wrong struct_size) and FK_NO_MEMORY; other codes are named
 *     with each function.
 *   - Structs that start with struct_size are initialised by their FK_..._INIT macro; zero means default. struct_size
 *     tells a program that was compiled for another version: before 1.0, both must be of the same one.
 *   - Threads: every function may be called from any thread. Contexts and kernels may be shared between threads
 *     without locking, except that destroying a handle must not race with its use.
 *   - Strides are in elements, sizes in bytes, times in microseconds or milliseconds as named.
 *   - Options that are null are the defaults of their FK_..._INIT macro.
 */
#ifndef FLASHKILN_H
#define FLASHKILN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define FK_API __attribute__((visibility("default")))
#else
#define FK_API
#endif

#define FK_VERSION_MAJOR 0
#define FK_VERSION_MINOR 1
#define FK_VERSION_PATCH 0

/* ---- status ------------------------------------------------------------------------------------------- */

/** Status codes; the numbers never change. */
typedef enum fk_status {
    FK_OK = 0,
    FK_BAD_ARGUMENT = 10,    /**< a run-time argument: null or misaligned pointer, shape, stride, option */
    FK_BAD_PROBLEM = 20,     /**< the problem or its spelling is invalid */
    FK_UNSUPPORTED = 30,     /**< valid, but no plan or template covers it on that GPU */
    FK_NO_DEVICE = 40,       /**< no such GPU, or no usable driver on this machine */
    FK_NO_COMPILER = 50,     /**< NVRTC (or, for the emulator, a C++ compiler) cannot be found, or Lua */
    FK_COMPILE_FAILED = 60,  /**< the compiler refused the text; its log names template lines */
    FK_NO_JIT = 70,          /**< compiling is forbidden by the cache mode and no entry was found */
    FK_NO_MEMORY = 80,       /**< host or device allocation failed; nothing leaked */
    FK_IO = 90,              /**< a file or directory could not be read or written */
    FK_TEMPLATE_ERROR = 100, /**< a Lua template failed; the message holds file and line */
    FK_LAUNCH_FAILED = 110,  /**< the driver refused a load or launch, or the kernel faulted */
    FK_CHECK_FAILED = 120,   /**< the device refuses a stored kernel, and compiling it anew is forbidden */
    FK_INTERNAL = 900        /**< a bug in this library */
} fk_status;

/** Version of the loaded library: major * 10000 + minor * 100 + patch. */
FK_API int fk_version(void);
/** The enumerator's name, such as "FK_BAD_PROBLEM"; never null. Static storage. */
FK_API const char *fk_status_name(fk_status status);
/** One sentence about the calling thread's most recent failure; "" if none. Valid until its next failing call. */
FK_API const char *fk_last_error(void);
/** Frees memory returned by this library (texts, lists, images). Null is fine. */
FK_API void fk_free(void *memory);

/* An options structure of nothing but its size: every other field is 0, the default. */
#ifdef __cplusplus
#define FK_SIZED(type)                                                                                                 \
    [] {                                                                                                               \
        type value = type();                                                                                           \
        value.struct_size = sizeof(type);                                                                              \
        return value;                                                                                                  \
    }()
#else
#define FK_SIZED(type)                                                                                                 \
    { .struct_size = sizeof(type) }
#endif

/* ---- problem ------------------------------------------------------------------------------------------ */

/** FK_BACKWARD: dq, dk and dv from q, k, v, o, lse and dout; O and lse are those of the same problem's forward pass. */
typedef enum fk_op { FK_FORWARD = 0, FK_BACKWARD = 1 } fk_op;
/** FK_FP32: float32 q, k, v and o, multiplied as six products of bf16 parts (docs/precision.md): sm_80 and newer.
 * FK_E4M3: q, k and v of 8 bits (OCP's E4M3, largest finite value 448), o bf16: forward, head dims that are multiples
 * of 16 (docs/e4m3.md); k and v alone: fk_problem.kv_e4m3. */
typedef enum fk_dtype { FK_FP16 = 0, FK_BF16 = 1, FK_FP32 = 2, FK_E4M3 = 3 } fk_dtype;
/** Where the diagonal of causal-like masks sits when seqlen_q != seqlen_k. */
typedef enum fk_align { FK_BOTTOM_RIGHT = 0, FK_TOP_LEFT = 1 } fk_align;

#define FK_MAX_MASKS 4         /**< mask terms in one problem; they are combined with && */
#define FK_MAX_MASK_VALUES 8   /**< values of one mask term */
#define FK_MAX_SCORES 4        /**< score terms in one problem; each is applied to what the one before it made */
#define FK_MAX_SCORE_VALUES 4  /**< run-time values of one score term */
#define FK_MAX_ARRAYS 8        /**< arrays that the terms of one problem read */
#define FK_MAX_RANK 4          /**< dimensions of an array */
#define FK_MAX_EXPR 240        /**< bytes of one expression, with its terminating zero */
#define FK_MAX_SPELLING 4096   /**< bytes of any spelling, with its terminating zero */
#define FK_MAX_HEAD_DIM 576    /**< of head_dim */
#define FK_MAX_HEAD_DIM_V 512  /**< of fk_problem.head_dim_v */
#define FK_NARROW_HEAD_DIM 256 /**< above it head dims are multiples of 64, not of 8 */
#define FK_MAX_PAGE_ROWS 128   /**< of fk_problem.paged */
#define FK_MAX_SPLITS 128      /**< of fk_args.num_splits */
/** Of seqlens; but a launch of family "mma" takes at most 65,535 tiles of queries (backward, of keys, too), which are
 * 4,194,240 rows for block_m (block_n) 64, and backward seqlen_q x head_dim / 8 is below 2^31 - 256. */
#define FK_MAX_SEQLEN (1 << 30)

/** One mask: a named file of templates/mask with its run-time values, or (name empty) a predicate of the caller's. Or a
 * pattern over blocks, of templates/pattern or the caller's: value[0] and [1] are the rows and columns of its blocks,
 * the others the file's params; all of them belong to the kernel. docs/block-sparse.md */
typedef struct fk_mask {
    char name[32];          /**< "causal", "butterfly", ..., or a file of your own: docs/templates.md; "" with expr */
    char expr[FK_MAX_EXPR]; /**< predicate: true where query q sees key k, or with two values where block row i sees
                                 block column j; docs/expressions.md */
    int32_t num_values;
    int32_t value[FK_MAX_MASK_VALUES]; /**< in the order of the file's params; |value| <= FK_MAX_SEQLEN */
} fk_mask;

/** One score term, applied to s = softmax_scale * q.k before the masks: a named file of templates/score with its
 * run-time values, or (name empty) a float expression of the caller's over s and what masks may read. */
typedef struct fk_score {
    char name[32];          /**< "softcap", "alibi", ...; "" when expr is given */
    char expr[FK_MAX_EXPR]; /**< the new score, such as "s - slope[h] * abs(q + diag - k)" */
    int32_t num_values;
    double value[FK_MAX_SCORE_VALUES]; /**< in the order of the file's params; ints as whole numbers */
} fk_score;

/** Elements of an array; all but FK_INT32 are floats to whoever reads them. */
typedef enum fk_element { FK_FLOAT32 = 0, FK_INT32 = 1, FK_FLOAT16 = 2, FK_BFLOAT16 = 3 } fk_element;
/** What a dimension of an array runs over. FK_DIM_ANY: its size is a run-time value, fk_array.size. */
typedef enum fk_dim {
    FK_DIM_ANY = 0,
    FK_DIM_BATCH = 1,
    FK_DIM_HEADS_Q = 2,
    FK_DIM_SEQLEN_Q = 3,
    FK_DIM_SEQLEN_K = 4
} fk_dim;

/** An array that masks and scores read as name[i][j]...; an index outside a dimension reads its nearest element. */
typedef struct fk_array_decl {
    char name[32];
    int32_t type;             /**< fk_element */
    int32_t rank;             /**< 1 to FK_MAX_RANK */
    int32_t dim[FK_MAX_RANK]; /**< fk_dim; 0 beyond rank */
    int32_t sorted; /**< 1: an int array that never decreases along its last dimension; tiles that it empties are
                         skipped. Data that do decrease give wrong results. */
} fk_array_decl;

/** What is asked. No pointers, so it may be copied, stored and compared after fk_problem_canonical. */
typedef struct fk_problem {
    size_t struct_size;
    int32_t op;            /**< fk_op */
    int32_t dtype;         /**< fk_dtype of q, k, v and o */
    int32_t head_dim;      /**< of q and k: 8 to 256, a multiple of 8; of 64 to 576 */
    int32_t head_dim_v;    /**< of v and o; 0 = head_dim. The same, to 512 */
    int32_t gqa;           /**< 1: num_heads_q is a multiple of num_heads_kv; 0: they are equal */
    int32_t align;         /**< fk_align */
    int32_t deterministic; /**< backward: 1 = gradients are bitwise equal from run to run; forward always is: 0 */
    int32_t grad;          /**< backward: bit i = the gradient of array i of fk_problem_arrays is asked for, too */
    int32_t dropout;       /**< 1: attention weights are dropped at random: fk_args.dropout_p; docs/dropout.md */
    int32_t packed;        /**< 1: sequences of different lengths lie one after another: fk_args.cu_seqlens_q, _k */
    int32_t seqused_k;     /**< 1: only the first fk_args.seqused_k[b] keys of sequence b are there */
    int32_t split; /**< forward: 1 = CTAs may share the keys of a query tile: fk_args.num_splits; for few queries */
    /** Forward: k and v lie in pages that fk_args.page_table names. 1: of any size; 8, 16, 32, 64 or 128: page_size is
     * a multiple of it, which lets sm_90 copy so many rows at a time (family "wgmma"). */
    int32_t paged;
    int32_t latent;  /**< forward: 1 = v is the first head_dim_v columns of k; fk_args.v, v_stride are not looked at */
    int32_t kv_e4m3; /**< forward, fp16 and bf16: 1 = k and v are of FK_E4M3, q and o of dtype: docs/e4m3.md */
    int32_t fast;    /**< forward: 1 = e4m3: weights are rounded in the logarithm, without an exponential: docs/e4m3.md;
                        bf16: queries are multiplied by the scale and rounded once more: docs/precision.md */
    int32_t num_masks, num_scores, num_arrays;
    fk_mask mask[FK_MAX_MASKS];
    fk_score score[FK_MAX_SCORES];
    fk_array_decl array[FK_MAX_ARRAYS]; /**< those that expressions of the caller's read and no named term declares; and
                                             those of 16 bits that take the place of a named term's floats */
} fk_problem;

#define FK_PROBLEM_INIT FK_SIZED(fk_problem)

/** Reads a one-line spelling, such as
 *      fwd bf16 d128 causal
 *      fwd fp16 d64 dv128 gqa window(1024,0) top-left
 *      fwd fp16 d64 keep="k <= q && (q - k) % 4 == 0"
 *      fwd bf16 d128 gqa causal paged(16)
 *      fwd bf16 kv_e4m3 d128 gqa causal split paged
 *      bwd bf16 d128 causal dropout deterministic
 *      bwd bf16 d128 bias causal grad=bias
 *      fwd bf16 d128 softcap(50) alibi causal
 *      fwd bf16 d64 array=slope:float[h] score="s + 0.1 * tanh(s) - abs(q - k) * slope[h]"
 *      fwd bf16 d128 array=bias:bf16[b][h][q][k] bias
 *  Words may come in any order after the op; they are canonicalised. Masks and scores are the built-in ones and the
 *  files of $FLASHKILN_TEMPLATE_DIR/mask and /score; here and below, where a function has no template_dir.
 *  @return FK_BAD_PROBLEM: of an error of syntax the message shows the spelling, or the expression in it, with a caret
 *          under the column, else it names the field; FK_TEMPLATE_ERROR, FK_IO: a term's file */
FK_API fk_status fk_problem_parse(const char *spelling, fk_problem *out);
/** Writes the canonical spelling: parse(spell(p)) == canonical(p). FK_MAX_SPELLING bytes always suffice.
 *  @return FK_BAD_ARGUMENT: `size` is too small; else as fk_problem_canonical */
FK_API fk_status fk_problem_spell(const fk_problem *problem, char *out, size_t size);
/** Checks every field and fills defaults; equal problems become equal bytes. `out` may be `problem`. Every function
 * that takes a problem does this itself.
 *  @return FK_BAD_PROBLEM: names the field; FK_TEMPLATE_ERROR, FK_IO: a mask's file */
FK_API fk_status fk_problem_canonical(const fk_problem *problem, fk_problem *out);
/** The arrays of a problem in the order of fk_args.array: the caller's own, then those of its score files, then those
 * of its mask files; arrays of one name are one array, of 16 bits where the caller's is. `out` has room for
 * FK_MAX_ARRAYS. */
FK_API fk_status fk_problem_arrays(const fk_problem *problem, fk_array_decl *out, size_t *count);
/** Rows and columns of the blocks of a problem's first pattern (docs/block-sparse.md); 0 and 0 without one. */
FK_API fk_status fk_problem_blocks(const fk_problem *problem, int32_t *rows, int32_t *columns);
/** Reads a file of spellings: NAME.lua, sandboxed Lua that returns an array of strings; any other name, text with one
 *  spelling a line, in which blank lines and lines that start with # are skipped. Each spelling is checked.
 *  `*spellings` holds `*count` strings and lies in one block: one fk_free frees all. At most 65,536 spellings.
 *  @return FK_IO: the file cannot be read; FK_BAD_PROBLEM: names file and entry; FK_TEMPLATE_ERROR: Lua's file and line
 */
FK_API fk_status fk_problem_list(const char *path, char ***spellings, size_t *count);

/* ---- devices ------------------------------------------------------------------------------------------ */

/** A GPU, from the built-in table or from a live one. Rates are per SM and clock. */
typedef struct fk_device_info {
    char name[64];   /**< "NVIDIA A100-SXM4-80GB" */
    char key[32];    /**< "a100", as given to --gpu; "" for a live GPU that the table does not know */
    int32_t ordinal; /**< CUDA ordinal; -1 when it is not on this machine */
    int32_t sm;      /**< 75, 80, 86, 89, 90, 100, 120 */
    int32_t num_sms;
    int32_t smem_per_block; /**< bytes a block may opt in to */
    int32_t smem_per_sm;
    int32_t smem_reserved; /**< bytes the driver keeps for itself in each block */
    int32_t registers_per_sm;
    int32_t threads_per_sm;
    int32_t blocks_per_sm;
    int64_t l2_bytes;
    double hbm_gbps;
    double clock_ghz;
    double mma_flops;  /**< dense 16-bit mma.sync FLOP with fp32 accumulation */
    double exp_rate;   /**< ex2 results */
    double issue_rate; /**< lanes issued: 32 x schedulers */
    double smem_rate;  /**< shared-memory bytes */
} fk_device_info;

/** Number of GPUs in the built-in table; it never changes while the program runs. */
FK_API size_t fk_device_table_size(void);
/** Entry `index` of the table; its ordinal is -1. @return FK_BAD_ARGUMENT: `index` is beyond the table */
FK_API fk_status fk_device_table(size_t index, fk_device_info *out);
/** Finds "a100", "rtx3090", ... in the table, or "cuda:N" among the GPUs present.
 *  @return FK_NO_DEVICE: unknown; the message lists the known keys. */
FK_API fk_status fk_device_find(const char *name, fk_device_info *out);
/** Number of usable CUDA GPUs on this machine; 0 without a driver. Opens libcuda on first use. */
FK_API int fk_device_present_count(void);

/* ---- plans and text (no GPU needed) ------------------------------------------------------------------- */

/** Sizes that a plan is modelled for; zero fields take the nominal 16,384 tokens and 2,048 hidden; with `split` one
 * query, and 4,096 keys for each of a batch of 32. Each is at most FK_MAX_SEQLEN. */
typedef struct fk_shape {
    int64_t batch, num_heads_q, num_heads_kv, seqlen_q, seqlen_k;
} fk_shape;

/** Whether one query of each head (decoding) is computed faster as so many queries of its kv head, which Hopper's
 * kernel for queries reads the keys for by TMA (docs/sequences.md). `problem`: with or without `split` and `causal`;
 * `shape`: seqlen_q 1, with batch and heads; seqlen_k does not matter. `out`, which may be null, is then what to ask
 * for: with num_heads_q / num_heads_kv queries of num_heads_kv heads, where q and o have the stride of their heads for
 * rows, and for heads so many times it; lse is as it was.
 * @return 1: it is; 0: it is not, cannot be, or `problem` or `shape` is not valid */
FK_API int fk_problem_heads_are_queries(const fk_problem *problem, const fk_device_info *device, const fk_shape *shape,
                                        fk_problem *out);

typedef enum fk_rule {
    FK_RULE_MODEL = 0, /**< enumerate legal tilings, rank by the cost model */
    FK_RULE_PAPER = 1  /**< algorithm 1 of FlashAttention (Dao et al. 2022): B_c = ceil(M / 4d), B_r = min(B_c, d) */
} fk_rule;

typedef struct fk_plan_options {
    size_t struct_size;
    int32_t rule; /**< fk_rule */
    fk_shape shape;
    /** A folder whose files stand before the built-in templates, as DIR/mask/causal.lua; null =
     * $FLASHKILN_TEMPLATE_DIR, which a word of your own needs to be known by. docs/templates.md */
    const char *template_dir;
    const char *plan;     /**< the plan to take, as fk_plan_spell writes it; null: the best */
    int32_t reproducible; /**< 1: the model alone chooses, as $FLASHKILN_TUNING=off; no tuning record is looked at */
} fk_plan_options;
#define FK_PLAN_OPTIONS_INIT                                                                                           \
    { sizeof(fk_plan_options), 0, {0, 0, 0, 0, 0}, NULL, NULL, 0 }

/** What a plan was chosen by: fk_plan_info.chosen. */
typedef enum fk_chosen {
    FK_CHOSEN_BY_RULE = 1,            /**< fk_rule */
    FK_CHOSEN_BY_CALLER = 2,          /**< fk_plan_options.plan */
    FK_CHOSEN_BY_RECORD = 3,          /**< a tuning record of what was timed; `reason` names it */
    FK_CHOSEN_BY_MODELLED_RECORD = 4, /**< a record of FK_RIGOR_MODEL: as by the rule, a plan that spills gives way */
    FK_CHOSEN_BY_SHIPPED_RECORD = 5   /**< as BY_RECORD, of one that came with the library: packs go before it */
} fk_chosen;

/** One way to tile a problem on a device. Times are modelled microseconds of the whole problem at `shape`. */
typedef struct fk_plan_info {
    char family[16]; /**< "mma" or "wgmma" */
    int32_t sm;      /**< the architecture whose primitives are emitted */
    int32_t block_m; /**< query rows of a CTA, B_r in the paper; backward: of a tile that CTAs walk over */
    int32_t block_n; /**< keys of a tile, B_c in the paper; backward: of a CTA, or of a cluster of two */
    int32_t warps;
    int32_t stages;      /**< KV buffers in shared memory; wgmma: V buffers, see k_stages; backward: Q and dO buffers */
    int32_t q_in_regs;   /**< 1: Q stays in registers; 0: it is re-read from shared memory */
    int32_t ctas_per_sm; /**< resident CTAs the register cap is set for */
    int32_t smem_bytes;  /**< dynamic shared memory of a CTA */
    int32_t registers;   /**< estimated registers of a thread */
    int32_t legal;       /**< 0: rejected, see reason */
    int32_t chosen;      /**< fk_chosen of the plan that fk_generate takes; else 0 */
    double tensor_us, exp_us, issue_us, smem_us, hbm_us; /**< floors of the model */
    double model_us;
    double hbm_bytes;  /**< predicted HBM traffic */
    char bound[16];    /**< which floor bounds: "tensor", "exp", "issue", "smem", "hbm", "l2" */
    char reason[160];  /**< why it was rejected, or by what it was chosen, or "" */
    double l2_us;      /**< one more floor: adds to dq's sum; arrays of an element a score; copies of odd rows */
    int32_t dq_kernel; /**< backward: 1 = dq comes from a kernel of its own, in a fixed order and without a sum in the
                            workspace; always so for deterministic problems of family mma */
    int32_t q_stages;  /**< wgmma: Q buffers in shared memory, 1 or 2; backward: buffers of dQ, 0 to 2; else 0 */
    int32_t k_stages;  /**< wgmma: buffers of K, backward of dS; mma: 1: fp32 lies in tiles as its parts; else 0 */
    int32_t turns;     /**< wgmma: 1: the warpgroups issue their products in turns; else 0 */
    int32_t overlap;   /**< wgmma: arrays of weights, 1 or 2: with two, one is made while the other is multiplied;
                          backward: 2: P is multiplied while dS is computed; else 0 */
    int32_t parts;     /**< 1: where SMs would be idle tiles come in parts: wgmma forward the last round's, of keys;
                          backward all, of the queries of their group */
    int32_t head_rows; /**< wgmma, backward: a CTA has all keys of a head, whose queries are at most so many, and sums
                          up their dq in shared memory: one kernel, nothing beside it; 0: a CTA has a tile of keys */
    double mma_flops;  /**< FLOP per SM and clock that tensor_us is taken at: the device's, or what wgmma reaches */
} fk_plan_info;

/** Lists all candidates, best first, rejected ones last. `*plans` is the caller's: fk_free.
 *  @param gpu  a key of the device table, or "cuda:N"
 *  @return FK_BAD_PROBLEM, FK_NO_DEVICE, FK_UNSUPPORTED (no legal plan: the message says why), FK_TEMPLATE_ERROR, FK_IO
 *          (template_dir) */
FK_API fk_status fk_plan_list(const fk_problem *problem, const char *gpu, const fk_plan_options *options,
                              fk_plan_info **plans, size_t *count);

/** Fills the zero fields of a shape as planning does. @return FK_BAD_PROBLEM; FK_BAD_ARGUMENT */
FK_API fk_status fk_shape_complete(const fk_problem *problem, fk_shape *shape);

#define FK_MAX_PLAN 96 /**< bytes of a plan's line, with its terminating zero */
/** Writes family and tile, such as "mma m128 n64 w4 s2 c2 r1"; FK_MAX_PLAN bytes suffice. docs/tuning.md
 *  @return FK_BAD_ARGUMENT: `size` is too small */
FK_API fk_status fk_plan_spell(const fk_plan_info *plan, char *out, size_t size);

/** How many (query tile, key tile) pairs of one head of one batch entry a plan never loads, masks element by element,
 * or computes without mask code. Their sum is ceil(seqlen_q / block_m) x ceil(seqlen_k / block_n). */
typedef struct fk_tile_counts {
    int64_t empty, partial, full;
} fk_tile_counts;
/** Counts the tiles of `options->shape` by the interval arithmetic that the kernel uses; of more than 2^20, in rows
 *  spread evenly. Of `plan` only block_m and block_n are read. A mask that reads h is counted for up to four heads, and
 *  the mean taken; of a table of bits (docs/block-sparse.md) a quarter is taken to be set. One that reads b or another
 *  array is judged for all batch entries and elements at once, so that its partial tiles are an upper bound.
 *  @return FK_BAD_PROBLEM, FK_TEMPLATE_ERROR, FK_IO (template_dir) */
FK_API fk_status fk_plan_tiles(const fk_problem *problem, const fk_plan_info *plan, const fk_plan_options *options,
                               fk_tile_counts *out);

/** fk_tile_map's entries. */
typedef enum fk_tile_state { FK_TILE_EMPTY = 0, FK_TILE_PARTIAL = 1, FK_TILE_FULL = 2 } fk_tile_state;
/** What fk_plan_tiles counts, tile by tile, for query head `head`: out[m * ceil(seqlen_k / block_n) + n] is an
 * fk_tile_state of queries from m * block_m and keys from n * block_n on. Any block_m and block_n will do, those of a
 * pattern's blocks for instance. `size`: of `out`.
 *  @return as fk_plan_tiles; FK_BAD_ARGUMENT: `size` is not that of the map, `head` is not below num_heads_q */
FK_API fk_status fk_plan_tile_map(const fk_problem *problem, const fk_plan_info *plan, const fk_plan_options *options,
                                  int64_t head, uint8_t *out, size_t size);

typedef struct fk_generate_options {
    size_t struct_size;
    const fk_plan_info *plan; /**< null = the best one */
    fk_plan_options planning; /**< used when plan is null; its template_dir always */
    int32_t standalone;       /**< 1: no #line directives */
} fk_generate_options;
#define FK_GENERATE_OPTIONS_INIT                                                                                       \
    { sizeof(fk_generate_options), NULL, FK_PLAN_OPTIONS_INIT, 0 }

/** Emits the CUDA source: self-contained, deterministic. `*text` is the caller's: fk_free.
 *  @param chosen  receives the plan used; may be null
 *  @return as fk_plan_list; FK_UNSUPPORTED: also a given plan that cannot be launched on that GPU */
FK_API fk_status fk_generate(const fk_problem *problem, const char *gpu, const fk_generate_options *options,
                             char **text, fk_plan_info *chosen);

/** Bytes of spill_bytes, stores and loads together, that are not worth another plan: 16 instructions of the thousand or
 * so in a loop. Measured: nothing, where the next plan takes a fifth longer (docs/performance-log.md). */
#define FK_MINOR_SPILL 64

/** Of an image of that plan: FK_MINOR_SPILL, or four times as many where most are in a warp that looks for tiles, which
 * has few registers, and time (a pattern's forward kernel on wgmma), or the next plan takes much longer (backward on
 * wgmma above head dim 256, and above 128 in parts or of packed groups). Of null: FK_MINOR_SPILL. */
FK_API int32_t fk_minor_spill(const fk_problem *problem, const fk_plan_info *plan);

/** What the compiler said of an image. */
typedef struct fk_image_info {
    char target[16]; /**< "sm_80" (cubin; of sm 90 "sm_90a"), "compute_75" (PTX), "emu" */
    /** Of a thread: registers, spill_bytes (0 on the emulator); of a block: shared memory and threads. */
    int32_t registers, spill_bytes, smem_static, smem_dynamic, threads;
    int32_t serialized_wgmma; /**< sm_90a: functions whose wgmma wait for one another: a fifth of the speed; else 0 */
    int64_t image_bytes;
    double compile_ms;
    char compiler[96]; /**< "NVRTC 13.0 ..." */
    char key[65];      /**< SHA-256 of text, flags and target, in hex: the name in the store */
} fk_image_info;

/** Generates and compiles one kernel; needs NVRTC, no GPU. Nothing is stored. `*image`, a cubin of info->image_bytes,
 * is the caller's: fk_free. Where the best plan spills more than fk_minor_spill, or has its wgmma serialised, the
 * next four are tried and the one with least of that is taken.
 *  @param info    may be null
 *  @param chosen  receives the plan used, for fk_generate; may be null
 *  @return as fk_generate; FK_NO_COMPILER, FK_COMPILE_FAILED */
FK_API fk_status fk_build(const fk_problem *problem, const char *gpu, const fk_generate_options *options, void **image,
                          fk_image_info *info, fk_plan_info *chosen);

/* ---- context ------------------------------------------------------------------------------------------ */

typedef enum fk_cache_mode {
    FK_CACHE_NORMAL = 0,    /**< read and write the store; a store that cannot be used is noted, and is no error */
    FK_CACHE_READ_ONLY = 1, /**< write nothing: what is not there is compiled each time */
    FK_CACHE_NO_JIT = 2,    /**< read only, and a miss is FK_NO_JIT, naming the spelling */
    FK_CACHE_OFF = 3,       /**< compile, and touch no file of a store */
    FK_CACHE_SEALED = 4     /**< packs alone: no store, no Lua, no compiler; a miss is FK_NO_JIT */
} fk_cache_mode;

typedef struct fk_context_options {
    size_t struct_size;
    const char *device;    /**< "cuda:0" (default), "emu", or "auto": the first GPU, else the emulator */
    const char *plan_for;  /**< null = the device itself (the emulator: "a100"); else a key: plan and emit for it */
    const char *cache_dir; /**< null = $FLASHKILN_CACHE_DIR, else $XDG_CACHE_HOME/flashkiln, else ~/.cache/flashkiln */
    int32_t cache_mode;    /**< fk_cache_mode; 0: by $FLASHKILN_CACHE_MODE: "read-only", "no-jit", "off", "sealed" */
    fk_plan_options planning; /**< of every kernel; the strings of all options are copied */
    /** Packs of compiled kernels, paths separated by colons; null = $FLASHKILN_PACK. They are asked in this order,
     * after the store and before compiling. One that cannot be used is noted at every miss, and is no error. */
    const char *packs;
    /** Who must have signed a pack: public keys of 64 hex digits, separated by commas; null = $FLASHKILN_PACK_KEYS.
     * Where none is named, a pack must belong to the user or root, and nobody else may be able to write to it. */
    const char *pack_keys;
} fk_context_options;
#define FK_CONTEXT_OPTIONS_INIT                                                                                        \
    { sizeof(fk_context_options), NULL, NULL, NULL, 0, FK_PLAN_OPTIONS_INIT, NULL, NULL }

typedef struct fk_context fk_context;
typedef struct fk_kernel fk_kernel;

/** Opens a device (its primary CUDA context) and a store; the caller's current CUDA context stays what it is. `*out` is
 *  the caller's: fk_context_destroy. On an H100 or H200 a small kernel measures L2, once in the process.
 *  @return FK_NO_DEVICE; FK_UNSUPPORTED: plan_for is newer than the device */
FK_API fk_status fk_context_create(const fk_context_options *options, fk_context **out);
/** Gives the handle up; null is fine. Kernels still held keep the device open and stay usable until they are destroyed.
 *  Work that was enqueued must be done: fk_synchronize. */
FK_API void fk_context_destroy(fk_context *context);
/** The device that runs, and the one that is planned for. Either output may be null. */
FK_API fk_status fk_context_devices(const fk_context *context, fk_device_info *runs, fk_device_info *planned);
/** 1 if `context` runs on the emulator: pointers in fk_args are then host pointers. */
FK_API int fk_context_is_emulator(const fk_context *context);
/** Adds one more pack, behind those of the options. Without a context it is checked, its spellings can be read from
 * then on. @return FK_IO; FK_CHECK_FAILED: damaged, not trusted, of another build, or a name means something else here
 *  (docs/packs.md); FK_TEMPLATE_ERROR: by a file that is none; FK_UNSUPPORTED: no OpenSSL for a signature */
FK_API fk_status fk_context_load_pack(fk_context *context, const char *path);

/** Where a context's kernels came from. */
typedef struct fk_context_counts {
    uint64_t table, store, pack, compiled; /**< fk_kernel_create: found in the context, in the store, in a pack; made */
    uint64_t store_misses, pack_misses;    /**< looked for there in vain */
    uint64_t failed;                       /**< fk_kernel_create or fk_kernel_create_for failed */
} fk_context_counts;
FK_API fk_status fk_context_count(const fk_context *context, fk_context_counts *out);

/* ---- kernels ------------------------------------------------------------------------------------------ */

/** Finds or builds the kernel of a problem: context's table, then store, packs and NVRTC. Compiling takes 0.1 to 1 s;
 *  a known problem takes under a microsecond. Threads and processes that ask for the same kernel at once compile once.
 *  The kernel is shared and counted: one destroy for each create. A failure is not remembered.
 *  @return as fk_build; FK_NO_JIT; FK_CHECK_FAILED; FK_LAUNCH_FAILED: the driver refuses the image */
FK_API fk_status fk_kernel_create(fk_context *context, const fk_problem *problem, fk_kernel **out);
/** The kernel whose plan a record of timings names for sizes like these (all five at least 1; docs/tuning.md). Else,
 * where no pack is loaded, one whose last tiles may come in parts of their keys, with smaller tiles for few queries,
 * where rounds of tiles are long and few, or, backward, whose tiles may all come in parts of the queries, where kv
 * heads are few; or the model's for short rows and few heads, where the plan for all sizes would take a twentieth
 * longer; or, backward, one with the other choice of turns, where rows are much longer or shorter than those that are
 * planned for. Or a pack's for such sizes (fk_pack_options.sized). Else that of fk_kernel_create. Of short rows
 * backward a kernel may serve at most fk_plan_info.head_rows queries; fk_execute refuses more. Compiled if need be.
 * @return as fk_kernel_create; FK_BAD_ARGUMENT */
FK_API fk_status fk_kernel_create_for(fk_context *context, const fk_problem *problem, const fk_shape *shape,
                                      fk_kernel **out);
/** The plan it takes, or a pack's; if that spills, another may follow. @return as fk_plan_list; FK_BAD_ARGUMENT */
FK_API fk_status fk_plan_for(fk_context *context, const fk_problem *problem, const fk_shape *shape, fk_plan_info *out);
/** Gives one handle up; null is fine. The code stays loaded until its context and all its kernels are destroyed. */
FK_API void fk_kernel_destroy(fk_kernel *kernel);

typedef struct fk_kernel_info {
    fk_plan_info plan;
    fk_image_info image;
    int32_t from_store, stored; /**< 1: of the store, 2: of a pack, 0: compiled here, and `stored` then or not */
    double lookup_ms;     /**< plan, text, key, and reading store and packs; of a sealed context, the pack alone */
    double load_ms;       /**< handing the image to the driver */
    char store_path[512]; /**< the entry's file; "" if the store is off, or the path longer; the pack's */
    char store_note[160]; /**< "hit", or the reason of the miss, and why the new image was not stored if it was not */
} fk_kernel_info;
/** How the kernel came to be. */
FK_API fk_status fk_kernel_describe(const fk_kernel *kernel, fk_kernel_info *out);

/** A declared array of one launch: a device pointer (host pointer on the emulator) to elements as declared, aligned to
 * their 4 or 2 bytes, and strides in elements, at least 0. A stride of 0 repeats one element along its dimension. */
typedef struct fk_array {
    const void *data;
    int64_t size[FK_MAX_RANK];   /**< of dimensions FK_DIM_ANY, 1 to 2^31 - 1; those of the others follow from args */
    int64_t stride[FK_MAX_RANK]; /**< that of the last dimension at most 2^29 - 1 */
} fk_array;

/** Where the gradient of a declared array goes: float32, aligned to 4 bytes, strides in elements, at least 0; sizes are
 * those of the array. A stride of 0 sums over its dimension: so a bias that is repeated over the batch has a gradient
 * of the bias's own shape. Every element within the sizes is overwritten, padding between them is not. */
typedef struct fk_array_grad {
    float *data;
    int64_t stride[FK_MAX_RANK];
} fk_array_grad;

/** Tensors and sizes of one launch. Unit stride along head_dim; strides in elements, of [batch, seqlen, head], 0 or
 *  more. q, o: [batch, seqlen_q, num_heads_q, .]; k, v: [batch, seqlen_k, num_heads_kv, .], of the problem's dtype (o
 * of e4m3: bf16; k, v with `kv_e4m3`: e4m3). Query head h reads kv head h / (num_heads_q / num_heads_kv). q, k, v, o:
 * device pointers (host pointers on the emulator), aligned to 16 bytes (k, v with `kv_e4m3`: 8), as strides are.
 * lse: float32 [batch, num_heads_q, seqlen_q], contiguous, natural log; may be null in the forward pass. The backward
 * pass reads o and lse, and writes dq, dk and dv. Limits: seqlens FK_MAX_SEQLEN, batch x num_heads_q 2^30, 2^60
 * elements between the ends of a tensor. Packed (docs/sequences.md): q, o: [total_q, num_heads_q, .]; k, v: [total_k,
 * num_heads_kv, .]; lse: [num_heads_q, total_q]; seqlens are the longest there may be, and batch strides are not looked
 * at. */
typedef struct fk_args {
    size_t struct_size;
    int64_t batch, num_heads_q, num_heads_kv, seqlen_q, seqlen_k;
    const void *q, *k, *v;
    void *o;
    float *lse;
    int64_t q_stride[3], k_stride[3], v_stride[3], o_stride[3];
    float softmax_scale; /**< 0 = 1 / sqrt(head_dim); finite, >= 0 */
    const void *dout;    /**< backward: gradient of o; the shapes of gradients are those of what they belong to */
    void *dq, *dk, *dv;
    const float *dlse; /**< gradient of lse, of its shape; may be null: 0 */
    int64_t dout_stride[3], dq_stride[3], dk_stride[3], dv_stride[3];
    fk_array array[FK_MAX_ARRAYS]; /**< in the order of fk_problem_arrays; the rest is not looked at */
    fk_array_grad
        array_grad[FK_MAX_ARRAYS]; /**< likewise; those whose bits are set in the problem's `grad` are written */
    /** Problems with `dropout`: the share of attention weights dropped, 0 <= p < 1, as realised a multiple of 1/256
     *  (docs/dropout.md); what is kept is scaled by 1 / (1 - p as realised). lse is that without dropout. Else 0. */
    double dropout_p;
    /** The mask is a function of these, p, batch, query head, query and key alone; the backward pass needs the same. */
    uint64_t dropout_seed, dropout_offset;
    /** {seed, offset} in device memory (host memory on the emulator), read by the kernel in place of the two above, so
     *  that the replays of a captured graph can differ; null: the two above. Aligned to 8 bytes. */
    const uint64_t *dropout_state;
    /** Packed: where sequences begin; device pointers (host pointers on the emulator) to batch + 1 numbers that never
     *  decrease, from at least 0 to at most total_q and total_k, by at most seqlen_q and seqlen_k. Sequence b has
     * queries cu_seqlens_q[b] to cu_seqlens_q[b + 1] - 1, and keys likewise, or none. On a GPU this is trusted. */
    const int32_t *cu_seqlens_q, *cu_seqlens_k;
    int64_t total_q, total_k; /**< packed: rows of q and of k, up to 2^31 - 1; not looked at otherwise */
    /** Packed: 1 = rows of no sequence, before the first one and behind the last, get zeros, and -inf in lse, by one
     * launch more (2 us); 0: they are left as they are. */
    int32_t clear_rest;
    /** batch numbers; one outside 0 to the sequence's length counts as that end. As the lists above and the table
     * below, not looked at where the problem lacks the word. */
    const int32_t *seqused_k;
    /** Problems with `split`: 1 to FK_MAX_SPLITS shares of each row's keys; 0: as many as take the
     * shortest time (docs/sequences.md). Results differ between numbers of splits in rounding alone. */
    int32_t num_splits;
    /** Problems with `paged`: k and v are [num_pages, page_size, num_heads_kv, .], stride[0] is from page to page, and
     * key j of batch entry b is row j % page_size of page page_table[b * page_table_stride + j / page_size]. The table
     * is on the device (host on the emulator); its entries beyond the last page with keys are not read. page_size: 1 to
     * FK_MAX_SEQLEN, a multiple of fk_problem.paged; num_pages: 1 to 2^31 - 1, every entry read must be below it, and
     * at least 0. */
    const int32_t *page_table;
    int64_t page_table_stride, page_size, num_pages;
    /** Problems of e4m3, q's only with that dtype: float32 on the device (host on the emulator), aligned to 4 bytes,
     * one for each batch entry (packed: sequence) and kv head, strides in elements, 0 or more: q counts for q_descale q
     * of the query heads that read that kv head, k for k_descale k, v for v_descale v. Null: 1. Else null. */
    const float *q_descale, *k_descale, *v_descale;
    int64_t q_descale_stride[2], k_descale_stride[2], v_descale_stride[2]; /**< batch, kv head */
    /** A number on the device (host on the emulator), or null. If it is not condition_value when the stream comes to
     * the launch, nothing is computed nor written: of two launches the device chooses one by what it has found out
     * before, in a captured graph as well. */
    const int32_t *condition;
    int32_t condition_value;
} fk_args;
#define FK_ARGS_INIT FK_SIZED(fk_args)

typedef enum fk_layout { FK_BSHD = 0, FK_BHSD = 1 } fk_layout;
/** Fills the four stride triples of contiguous tensors from the sizes already in `args`; pointers are not looked at.
 *  @return FK_BAD_PROBLEM */
FK_API fk_status fk_args_layout(const fk_problem *problem, fk_layout layout, fk_args *args);

/** Bytes of device workspace that fk_execute needs (256-byte aligned) for these sizes; 0 for sizes that it refuses, and
 * mostly for forward kernels without `split` of family "mma". Fewer heads or queries may need more. About, of "wgmma":
 * 4 for each tile of queries of each head; of e4m3 the values once more, of kv_e4m3 both in 16 bits; of patterns with
 * rows that see all of more than 8,192 keys, and with fk_plan_info.parts, 4 for each element of o and lse of those
 * rows, or of the last round's tiles, times the parts. `split`: the same of all, times the splits, or 0 where there is
 * one. Backward: 8 for each row of queries, and 4 for each element of q (docs/backward.md says when), with
 * fk_plan_info.parts 4 for each element of k and v, times the parts, where heads are so few that there are any, and
 * with `deterministic` 80 for each element of an array's gradient that several pairs of query and key add to. On Hopper
 * an array of queries by keys once more, if its strides and address in args->array say that TMA cannot read it and a
 * copy pays; without that much fk_execute does without the copy. */
FK_API size_t fk_kernel_workspace(const fk_kernel *kernel, const fk_args *args);

/** Enqueues the kernel on `stream` (a CUstream or cudaStream_t; null = the legacy default stream).
 *  No allocation, compilation, file access or synchronisation: capture-safe. Any thread. What `args` points to must
 *  live until the stream has passed; `args` itself need not. From first to last element, what is written must not
 *  overlap what is read, nor each other. On the emulator it returns when the result is there, and `stream` is not used.
 *  A fault of the kernel shows at fk_synchronize (on the emulator, here). o = softmax(mask(softmax_scale * q k^T)) v.
 *  Source: FlashAttention-2 (Dao 2023, arXiv 2307.08691), algorithms 1 and 2. A row that sees no key: o = 0,
 *  lse = -inf, gradients 0.
 *  @param workspace  of fk_kernel_workspace bytes; may be null if that is 0. It may hold anything, and is the launch's
 *                    alone until the stream has passed
 *  @return FK_BAD_ARGUMENT names field, value and limit; FK_LAUNCH_FAILED */
FK_API fk_status fk_execute(const fk_kernel *kernel, const fk_args *args, void *workspace, size_t workspace_bytes,
                            void *stream);

/** Debugging of problems with `dropout`: which weights the kernel keeps, 1 or 0, as its warps find it in their
 * operands, for every pair whether a mask shows it or not. Of `args` the sizes and the dropout fields are read;
 * `stream` as in fk_execute.
 *  @param out  device memory (host memory on the emulator): [batch, num_heads_q, seqlen_q, seqlen_k], contiguous
 *  @return as fk_execute */
FK_API fk_status fk_keep_mask(const fk_kernel *kernel, const fk_args *args, uint8_t *out, void *stream);

/** In what form blocks are given. */
typedef enum fk_block_format {
    FK_BLOCK_BOOLS = 0, /**< data: bytes [tables, rows, columns], 0: hidden; width: from row to row, 0: columns */
    FK_BLOCK_BSR =
        1, /**< data: int32 [rows + 1], row r lists the columns indices[data[r]] .. indices[data[r + 1] - 1] */
    FK_BLOCK_LISTS = 2, /**< data: int32 [tables, rows], entries of indices [tables, rows, width], which are columns:
                           kv_num_blocks and kv_indices of FlexAttention's BlockMask */
    FK_BLOCK_FP32 = 3,  /**< data: floats [tables, rows, columns], -inf: hidden; width: from row to row in elements */
    FK_BLOCK_FP16 = 4,
    FK_BLOCK_BF16 = 5
} fk_block_format;
/** Which blocks are shown; all pointers are the device's (of the emulator: the host's), aligned to an element. */
typedef struct fk_blocks {
    size_t struct_size;
    int32_t format; /**< fk_block_format */
    int64_t tables; /**< one for each batch entry and head, or 1 */
    int64_t rows, columns, width;
    const void *data;
    const int32_t *indices;
    int32_t *others; /**< floats: becomes 1 if one is not 0 or -inf (bits may be anything then), else stays; or null */
} fk_blocks;
#define FK_BLOCKS_INIT FK_SIZED(fk_blocks)
/** Packs blocks to what the mask block_bits reads (docs/block-sparse.md), or bools or floats of pairs, as blocks of
 * one, to what the mask bits does: int32 [tables, rows, ceil(columns / 32)]. `kernel` is any of a problem with one of
 * these masks. Enqueues on `stream` as fk_execute does, without a look from the host: capture-safe. */
FK_API fk_status fk_pack_blocks(const fk_kernel *kernel, const fk_blocks *blocks, int32_t *bits, void *stream);

/* ---- memory of the context's device, for programs that have none of their own ------------------------- */

/** 256-byte aligned on a GPU; on the emulator 16-byte aligned host memory of NaNs. Free it before the context goes.
 *  @return FK_NO_MEMORY; FK_LAUNCH_FAILED: a fault of an earlier launch */
FK_API fk_status fk_device_malloc(fk_context *context, size_t bytes, void **out);
/** Null is fine. */
FK_API void fk_device_free(fk_context *context, void *memory);
/** Copies `bytes` and returns when they are there; ordered behind the legacy default stream, so that work on a stream
 *  that does not wait for that one must be waited for. @return FK_LAUNCH_FAILED: also a fault of an earlier launch */
FK_API fk_status fk_copy_to_device(fk_context *context, void *device, const void *host, size_t bytes);
FK_API fk_status fk_copy_from_device(fk_context *context, void *host, const void *device, size_t bytes);
/** Waits for `stream` (null = the legacy default stream). @return FK_LAUNCH_FAILED: a fault of an earlier launch */
FK_API fk_status fk_synchronize(fk_context *context, void *stream);

/* ---- reference ---------------------------------------------------------------------------------------- */

typedef enum fk_reference_kind {
    FK_REFERENCE_F64 = 0,  /**< everything in float64 */
    FK_REFERENCE_EAGER = 1 /**< as an eager framework does it in the problem's dtype: S rounded, softmax in float32,
                                P rounded, O = PV accumulated in float32 and rounded */
} fk_reference_kind;

/** Attention on the CPU by the definition, O(N^2) time, on all cores. args hold host pointers, aligned to an element,
 * and any strides from 0; args->o and args->lse are not used. o: contiguous [batch, num_heads_q, seqlen_q, head_dim_v];
 * lse: [batch, num_heads_q, seqlen_q], natural log; packed: [num_heads_q, total_q, ...], of which rows of no sequence
 * are left as they are. Either may be null. Masks are those that fk_problem_parse knows, whatever template_dir the
 * kernel had. A row that sees no key: o = 0, lse = -inf.
 *  @return FK_BAD_PROBLEM; FK_BAD_ARGUMENT as fk_execute */
FK_API fk_status fk_reference(const fk_problem *problem, const fk_args *args, fk_reference_kind kind, double *o,
                              double *lse);
/** The gradients of args->dout (and args->dlse), likewise: dq, dk and dv are contiguous [batch, heads, seqlen, dim],
 * packed [heads, total, dim]; any may be null. EAGER rounds P, dP, dS and the results, and sums in float32. F64 takes
 * rowsum(dout * o) from args->o if that is not null, as kernels do: then its result lacks the error that rounding o
 * brings. args->lse is not read. */
FK_API fk_status fk_reference_backward(const fk_problem *problem, const fk_args *args, fk_reference_kind kind,
                                       double *dq, double *dk, double *dv);
/** The gradients of declared arrays that the problem's `grad` asks for, likewise. grad[i] has the strides of
 * args->array_grad[i], whose data is not looked at; null leaves array i out. EAGER rounds dS and sums in float64.
 *  @return as fk_reference_backward */
FK_API fk_status fk_reference_arrays(const fk_problem *problem, const fk_args *args, fk_reference_kind kind,
                                     double *const grad[FK_MAX_ARRAYS]);

/** The mask of fk_keep_mask by its definition (docs/dropout.md), about 1 ns an element; args->dropout_state is the
 * host's.
 *  @return FK_BAD_PROBLEM; FK_BAD_ARGUMENT */
FK_API fk_status fk_reference_keep_mask(const fk_problem *problem, const fk_args *args, uint8_t *out);

/* ---- tuning: docs/tuning.md --------------------------------------------------------------------------- */

/** How a plan's time is known. A tuning record gives way only to one of higher rigor, or one that is faster by more
 * than the noise of both. */
typedef enum fk_rigor {
    FK_RIGOR_MODEL = 0,   /**< modelled, with what the compiler says of registers */
    FK_RIGOR_MEASURE = 1, /**< the plans that the model ranks first, timed */
    FK_RIGOR_PATIENT = 2  /**< all legal plans, each timed as long as the fastest */
} fk_rigor;

typedef struct fk_tune_options {
    size_t struct_size;
    fk_shape shape;   /**< that is timed; zero fields as in fk_plan_options */
    int32_t rigor;    /**< FK_RIGOR_MEASURE or FK_RIGOR_PATIENT; fk_tune_modelled does not look at it */
    int32_t jobs;     /**< plans compiled at a time in processes of their own; 0: one per core; -1: in this process */
    double budget_ms; /**< wall time; 0: 60,000. The model's choice is timed even if that takes longer */
    int32_t dry_run;  /**< 1: no record is written */
    int32_t resume;   /**< fk_tune: 1: no trials where as rigorous a search of this shape has left records here */
    int32_t compile_only; /**< fk_tune: 1: plans are compiled into the store, where a search will find them */
} fk_tune_options;
#define FK_TUNE_OPTIONS_INIT                                                                                           \
    { sizeof(fk_tune_options), {0, 0, 0, 0, 0}, FK_RIGOR_MEASURE, 0, 0, 0, 0, 0 }

typedef enum fk_trial_state {
    FK_TRIAL_WAITING = 0,
    FK_TRIAL_TIMED = 1,    /**< in the running, or beaten */
    FK_TRIAL_REJECTED = 2, /**< wrong, or not to be run: `reason` */
    FK_TRIAL_SKIPPED = 3   /**< the budget ended before its turn, or it was to be compiled only */
} fk_trial_state;

/** One plan of a search. */
typedef struct fk_trial {
    fk_plan_info plan;
    int32_t state;   /**< fk_trial_state */
    int32_t samples; /**< timings; each of one or more launches */
    double us;       /**< their median; FK_RIGOR_MODEL: modelled */
    double spread;   /**< their median deviation from it, as a share of it */
    double error;    /**< largest error against float64, as a share of what is allowed */
    int32_t registers, spill_bytes, serialized_wgmma; /**< as compiled; registers -1: not known */
    double compile_ms;
    char reason[160];
} fk_trial;

typedef struct fk_tune_progress {
    const fk_trial *trials; /**< in the model's order */
    size_t count, num_alive, num_rejected;
    const fk_trial *best; /**< null: none is timed */
    double elapsed_ms, budget_ms;
} fk_tune_progress;
/** Called a few times a second; nonzero ends the search with what is known. */
typedef int (*fk_tune_watch)(void *user, const fk_tune_progress *progress);

/** Finds the fastest plan of a problem on the context's device, and appends a record of each timed plan to the
 *  directory of its store. Each plan is compiled, compared with fk_reference on small inputs, and only then timed, in
 *  turns with the others. Kernels that exist keep their plans; those created later take what was found. On the
 *  emulator wall time is measured: it says nothing of any GPU, and its records count on the emulator alone.
 *  @param watch   may be null
 *  @param trials  fastest first, then rejected and skipped ones; the caller's: fk_free. Null if `resume` spares the
 * search
 *  @return as fk_kernel_create; FK_UNSUPPORTED: the context plans for another GPU than it runs on; FK_CHECK_FAILED: no
 *          plan passed; FK_IO: no records, nor with compile_only images, can be written; FK_NO_JIT: no compiling */
FK_API fk_status fk_tune(fk_context *context, const fk_problem *problem, const fk_tune_options *options,
                         fk_tune_watch watch, void *user, fk_trial **trials, size_t *count);
/** The same for a GPU that need not be there, with FK_RIGOR_MODEL: nothing is run; NVRTC is needed. The plan that the
 *  model ranks first is taken, unless it spills or serialises its wgmma: then the next. `dir`: of the store, as in
 * fk_context_options. */
FK_API fk_status fk_tune_modelled(const fk_problem *problem, const char *gpu, const fk_tune_options *options,
                                  const char *dir, fk_trial **trials, size_t *count);
/** Appends those records of a file to the directory's that would count there. Lines that are no records are refused,
 *  and counted; outputs may be null. @return FK_IO */
FK_API fk_status fk_tuning_import(const char *dir, const char *path, size_t *taken, size_t *refused);
/** Writes the record that counts for each problem, bucket of shapes and GPU of the directory. @return FK_IO */
FK_API fk_status fk_tuning_export(const char *dir, const char *path, size_t *written);

/* ---- packs: kernels that ship (docs/packs.md) ---------------------------------------------------------- */

typedef struct fk_pack_options {
    size_t struct_size;
    int32_t jobs;             /**< fk_pack_build: processes that compile; 0: one for each core */
    int32_t emulate;          /**< fk_pack_build: 1: images for the emulator, planned for the GPUs named */
    int32_t skip_unsupported; /**< fk_pack_build: 1: what a GPU cannot run is left out, and is no failure */
    int32_t sized; /**< fk_pack_build: 1: beside each kernel for all sizes those that fk_kernel_create_for takes for
                        short rows, for few heads, and where rounds of tiles are long and few; docs/packs.md */
    const char *template_dir; /**< fk_pack_build: as in fk_plan_options */
    const char *key_file;     /**< an Ed25519 secret key in PEM to sign with; null: not signed */
} fk_pack_options;
#define FK_PACK_OPTIONS_INIT FK_SIZED(fk_pack_options)

/** Counts of kernels. seconds_left: -1 while it is not known. */
typedef struct fk_pack_progress {
    size_t total, built, reused, skipped, failed; /**< reused: compiled by an earlier call that was cut short */
    double seconds, seconds_left;
} fk_pack_progress;
typedef void (*fk_pack_report)(const fk_pack_progress *progress, void *user);

/** Compiles every spelling for every GPU and writes one pack, without a GPU. Equal input, own tuning records (as
 * fk_build takes them) and compiler give equal bytes. What is compiled is kept in `path`.parts until the pack is
 * written, so that a call that was cut short goes on where it was. It forks: call it from a process of one thread.
 *  @param report  called some times a second, from this thread; may be null
 *  @param result  the last report; may be null
 *  @return as fk_build, of the first kernel that failed; then no pack is written. FK_IO; FK_UNSUPPORTED: key_file */
FK_API fk_status fk_pack_build(const char *path, const char *const *spellings, size_t count, const char *const *gpus,
                               size_t num_gpus, const fk_pack_options *options, fk_pack_report report, void *user,
                               fk_pack_progress *result);

typedef struct fk_pack_entry {
    char spelling[FK_MAX_SPELLING]; /**< of what the kernel serves: with * for each run-time value */
    char target[16], gpu[16];
    char key[65];    /**< of its text, as in the store */
    char digest[65]; /**< SHA-256 of the record */
    char compiler[96];
    int32_t min_driver; /**< the least CUDA version that the driver must support, 13000; 0: none is needed */
    int32_t registers, spill_bytes, smem_dynamic;
    int64_t bytes;
    int32_t valid;
    char problem[160]; /**< what is wrong with it, or "" */
} fk_pack_entry;
typedef struct fk_pack_info {
    int64_t file_bytes;
    char generator[65], version[16]; /**< the sources that made it, and their version */
    int32_t usable;                  /**< 1: by this build of the library */
    char signer[65];                 /**< public key, or "" */
    char signature[256]; /**< "ok", or what is wrong with it, by FLASHKILN_PACK_KEYS where set; else "" without one */
} fk_pack_info;
/** Reads a pack whole. `*entries` (may be null) is the caller's: fk_free. @return FK_IO: no pack, or damaged */
FK_API fk_status fk_pack_list(const char *path, fk_pack_info *info, fk_pack_entry **entries, size_t *count);
/** The image of entry `index` of fk_pack_list, of its image_bytes; fk_free. @return FK_IO; FK_BAD_ARGUMENT */
FK_API fk_status fk_pack_extract(const char *path, size_t index, void **image, size_t *bytes);
/** Writes the kernels of packs of one build to one pack; of equal ones those of the first. One pack and a key_file:
 * signs it; `path` may be a pack that is read. @return FK_IO; FK_BAD_ARGUMENT: builds, or what names mean, differ */
FK_API fk_status fk_pack_merge(const char *path, const char *const *packs, size_t count,
                               const fk_pack_options *options);
/** The entry that serves `problem` on that GPU: its index, or -1. @return FK_IO; FK_BAD_PROBLEM; FK_NO_DEVICE */
FK_API fk_status fk_pack_lookup(const char *path, const fk_problem *problem, const char *gpu, int64_t *index);

/* ---- store -------------------------------------------------------------------------------------------- */

typedef struct fk_cache_entry {
    char key[65];
    char spelling[FK_MAX_SPELLING];
    char target[16];
    char compiler[96];
    int32_t registers, spill_bytes, smem_dynamic;
    int64_t file_bytes;
    int64_t age_seconds; /**< since last use, as known to the hour */
    int32_t valid;       /**< fk_cache_list: header sane; fk_cache_verify: checksum and architecture too */
    char problem[160];   /**< what is wrong with it, or "" */
} fk_cache_entry;

/** The directory that `dir` stands for, absolute; null as in fk_context_options. It need not exist.
 *  @return FK_IO: there is none; FK_BAD_ARGUMENT: `size` is too small */
FK_API fk_status fk_cache_path(const char *dir, char *out, size_t size);
/** Lists entries, most recently used first. `*entries` is the caller's: fk_free. No directory: no entries.
 *  @return FK_IO: the directory, or one in it, cannot be read, or is not trusted */
FK_API fk_status fk_cache_list(const char *dir, fk_cache_entry **entries, size_t *count);
/** As fk_cache_list, after reading each entry whole. */
FK_API fk_status fk_cache_verify(const char *dir, fk_cache_entry **entries, size_t *count);
/** Removes invalid entries and stale temporaries, then the least recently used until `max_bytes` hold; -1 = no cap,
 *  0 = everything. Outputs may be null. @return as fk_cache_list; FK_IO: of files that it could not remove */
FK_API fk_status fk_cache_prune(const char *dir, int64_t max_bytes, size_t *removed, int64_t *removed_bytes);

typedef struct fk_finding {
    char name[16];    /**< what was looked at: "directory", "entries", "packs", "lua", ... */
    int32_t state;    /**< 0: as it should be; 1: it works, but see `detail`; 2: it does not */
    char detail[480]; /**< what was found, and what to do */
} fk_finding;
/** Looks at all that decides where kernels come from here: the store, packs, the libraries that are opened on need, and
 *  the environment. Changes nothing. `*findings` is the caller's: fk_free. */
FK_API fk_status fk_cache_doctor(const char *dir, fk_finding **findings, size_t *count);

#ifdef __cplusplus
}
#endif
#endif
