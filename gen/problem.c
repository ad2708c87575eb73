/* A canonical problem has every default filled, every byte determined, and means something: its masks parse. */
#include "problem.h"

#include "problem_mask.h"

#include <stdlib.h>
#include <string.h>

fk_status fk_problem_check_head_dim(const char *field, int64_t value, fk_error *err) {
    if (value >= 8 && value <= FK_MAX_HEAD_DIM && value % 8 == 0) return FK_OK;
    return fk_fail(err, FK_BAD_PROBLEM, "%s is %lld: must be a multiple of 8 from 8 to %d", field, (long long)value,
                   FK_MAX_HEAD_DIM);
}

static fk_status check_choice(const char *field, int32_t value, const char *choices, fk_error *err) {
    if (value == 0 || value == 1) return FK_OK;
    return fk_fail(err, FK_BAD_PROBLEM, "%s is %d: must be %s", field, value, choices);
}

static fk_status check_fields(const fk_problem *in, fk_error *err) {
    if (in->struct_size != sizeof *in) {
        return fk_fail(err, FK_BAD_ARGUMENT, "fk_problem.struct_size is %zu: must be %zu, as FK_PROBLEM_INIT sets it",
                       in->struct_size, sizeof *in);
    }
    if (in->op != FK_FORWARD) return fk_fail(err, FK_BAD_PROBLEM, "op is %d: must be 0 (forward)", in->op);
    fk_status status = check_choice("dtype", in->dtype, "0 (fp16) or 1 (bf16)", err);
    if (status == FK_OK) status = check_choice("gqa", in->gqa, "0 or 1", err);
    if (status == FK_OK) status = check_choice("align", in->align, "0 (bottom-right) or 1 (top-left)", err);
    if (status == FK_OK) status = fk_problem_check_head_dim("head_dim", in->head_dim, err);
    if (status == FK_OK && in->head_dim_v) status = fk_problem_check_head_dim("head_dim_v", in->head_dim_v, err);
    if (status == FK_OK && (in->num_masks < 0 || in->num_masks > FK_MAX_MASKS)) {
        status = fk_fail(err, FK_BAD_PROBLEM, "num_masks is %d: must be from 0 to %d", in->num_masks, FK_MAX_MASKS);
    }
    return status;
}

/* Values of a named mask against its file. */
static fk_status canonical_values(const fk_mask *in, fk_lua *lua, fk_mask *out, fk_error *err) {
    fk_mask_file file;
    fk_status status = fk_mask_file_load(lua, in->name, &file, err);
    if (status != FK_OK) return status;
    if (in->num_values != file.num_params) {
        char params[FK_MAX_MASK_VALUES * 34] = "";
        for (int i = 0; i < file.num_params; ++i)
            strcat(strcat(params, i ? "," : ""), file.param[i]);
        return fk_fail(err, FK_BAD_PROBLEM, "mask %s has %d values: must be %d (%s)", in->name, in->num_values,
                       file.num_params, file.num_params ? params : "none");
    }
    for (int i = 0; i < in->num_values; ++i) {
        if (in->value[i] < -FK_MAX_SEQLEN || in->value[i] > FK_MAX_SEQLEN) {
            return fk_fail(err, FK_BAD_PROBLEM, "%s of mask %s is %d: must be from %d to %d", file.param[i], in->name,
                           in->value[i], -FK_MAX_SEQLEN, FK_MAX_SEQLEN);
        }
        out->value[i] = in->value[i];
    }
    out->num_values = in->num_values;
    memcpy(out->name, in->name, strlen(in->name));
    return FK_OK;
}

/* A predicate printed back: equal expressions become equal bytes. */
static fk_status canonical_expr(const fk_mask *in, fk_mask *out, fk_error *err) {
    if (in->num_values != 0) {
        return fk_fail(err, FK_BAD_PROBLEM, "num_values of a keep mask is %d: must be 0", in->num_values);
    }
    fk_expr_pool *pool = fk_expr_pool_create();
    if (!pool) return fk_fail(err, FK_NO_MEMORY, "no memory for an expression");
    const fk_expr *keep;
    char *text = NULL;
    fk_status status = fk_mask_parse(pool, in->expr, NULL, &keep, err);
    if (status == FK_OK) status = fk_expr_print(keep, FK_EXPR_C, &text, err);
    if (status == FK_OK && strlen(text) >= sizeof out->expr) {
        status = fk_fail(err, FK_BAD_PROBLEM, "keep is %zu bytes long in canonical form: must be below %zu",
                         strlen(text), sizeof out->expr);
    }
    if (status == FK_OK) memcpy(out->expr, text, strlen(text));
    free(text);
    fk_expr_pool_destroy(pool);
    return status;
}

static fk_status canonical_mask(const fk_mask *in, fk_lua **lua, fk_mask *out, fk_error *err) {
    if (!memchr(in->name, 0, sizeof in->name) || !memchr(in->expr, 0, sizeof in->expr)) {
        return fk_fail(err, FK_BAD_PROBLEM, "name (%zu bytes) and expr (%zu) of a mask must end with a zero",
                       sizeof in->name, sizeof in->expr);
    }
    if (in->num_values < 0 || in->num_values > FK_MAX_MASK_VALUES) {
        return fk_fail(err, FK_BAD_PROBLEM, "num_values is %d: must be from 0 to %d", in->num_values,
                       FK_MAX_MASK_VALUES);
    }
    if (!in->name[0] == !in->expr[0]) {
        return fk_fail(err, FK_BAD_PROBLEM, "a mask has %s: must have one of them",
                       in->name[0] ? "both name and expr" : "neither name nor expr");
    }
    if (in->expr[0]) return canonical_expr(in, out, err);
    const fk_status status = *lua ? FK_OK : fk_lua_open(NULL, NULL, lua, err);
    return status == FK_OK ? canonical_values(in, *lua, out, err) : status;
}

fk_status fk_problem_check(const fk_problem *in, fk_problem *out, int *bad_mask, fk_error *err) {
    *bad_mask = -1;
    fk_status status = check_fields(in, err);
    if (status != FK_OK) return status;
    fk_problem p;
    memset(&p, 0, sizeof p); /* padding too: problems are compared as bytes */
    p.struct_size = sizeof p;
    p.op = in->op;
    p.dtype = in->dtype;
    p.head_dim = in->head_dim;
    p.head_dim_v = in->head_dim_v ? in->head_dim_v : in->head_dim;
    p.gqa = in->gqa;
    p.align = in->align;
    p.num_masks = in->num_masks;
    fk_lua *lua = NULL;
    for (int i = 0; i < in->num_masks && status == FK_OK; ++i) {
        status = canonical_mask(&in->mask[i], &lua, &p.mask[i], err);
        if (status != FK_OK) *bad_mask = i;
    }
    fk_lua_close(lua);
    if (status == FK_OK) memcpy(out, &p, sizeof p);
    return status;
}

fk_status fk_problem_normalise(const fk_problem *in, fk_problem *out, fk_error *err) {
    int bad_mask;
    if (!in || !out) return fk_fail(err, FK_BAD_ARGUMENT, "%s is null", in ? "out" : "problem");
    return fk_problem_check(in, out, &bad_mask, err);
}
