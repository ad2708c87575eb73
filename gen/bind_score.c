/* Scores and arrays as templates see them (docs/templates.md). */
#include "bind.h"
#include "lua_api.h"
#include "lua_table.h"

#include <stdlib.h>
#include <string.h>

/* ---- texts, in one order: of printing and of pushing ---- */

static fk_status print(const fk_expr *e, fk_score_texts *out, fk_error *err) {
    char *text = NULL;
    const fk_status status = fk_expr_print(e, FK_EXPR_CUDA, &text, err);
    if (status == FK_OK) out->text[out->count++] = text;
    return status;
}

static fk_status print_term(const fk_score_term *term, fk_score_texts *out, fk_error *err) {
    fk_status status = print(term->value, out, err);
    if (status == FK_OK && term->ds) status = print(term->ds, out, err);
    for (int i = 0; i < term->num_reads && status == FK_OK; ++i) {
        const fk_score_read *read = &term->read[i];
        status = print(read->derivative, out, err);
        for (int d = 0; status == FK_OK && fk_expr_index(read->element, d); ++d)
            status = print(fk_expr_index(read->element, d), out, err);
    }
    return status;
}

fk_status fk_score_texts_create(const fk_problem_score *score, fk_score_texts *out, fk_error *err) {
    memset(out, 0, sizeof *out);
    fk_status status = FK_OK;
    for (int i = 0; i < score->num_terms && status == FK_OK; ++i)
        status = print_term(&score->term[i], out, err);
    for (int i = 0; i < score->num_sinks && status == FK_OK; ++i)
        status = print_term(&score->sink[i], out, err);
    if (status == FK_OK && score->num_terms) status = print(score->factor, out, err);
    if (status == FK_OK && score->num_terms) status = print(score->rest, out, err);
    for (int i = 0; i < score->num_bends && status == FK_OK; ++i)
        status = print(score->bend[i], out, err);
    if (status != FK_OK) fk_score_texts_free(out);
    return status;
}

void fk_score_texts_free(fk_score_texts *texts) {
    for (int i = 0; i < texts->count; ++i)
        free(texts->text[i]);
    texts->count = 0;
}

/* ---- tables ---- */

/* reads[i].uses_NAME[d]: does index d read the variable? */
static void push_index_uses(lua_State *L, const fk_score_read *read, const char *name, const char *field) {
    lua_newtable(L);
    for (int d = 0; fk_expr_index(read->element, d); ++d) {
        lua_pushboolean(L, fk_expr_uses(fk_expr_index(read->element, d), name));
        lua_seti(L, -2, d + 1);
    }
    lua_setfield(L, -2, field);
}

static void push_read(lua_State *L, const fk_problem_terms *terms, const fk_score_read *read, char *const **text) {
    lua_newtable(L);
    fk_bind_set_array(L, "array", &terms->arrays.decl[read->array]);
    fk_table_set_int(L, "slot", read->array);
    fk_table_set_bool(L, "once", terms->score.once >> read->array & 1);
    fk_table_set_text(L, "derivative", *(*text)++);
    lua_newtable(L);
    for (int d = 0; fk_expr_index(read->element, d); ++d) {
        lua_pushstring(L, *(*text)++);
        lua_seti(L, -2, d + 1);
    }
    lua_setfield(L, -2, "index");
    push_index_uses(L, read, "q", "uses_q");
    push_index_uses(L, read, "k", "uses_k");
    fk_lua_seal(L, "score.reads[i]", NULL);
}

static void push_terms(lua_State *L, const fk_problem_terms *terms, const fk_score_term *term, int count,
                       char *const **text) {
    static const char *const optional[] = {"ds", NULL};
    lua_newtable(L);
    for (int i = 0; i < count; ++i) {
        lua_newtable(L);
        fk_table_set_text(L, "value", *(*text)++);
        if (term[i].ds) { /* absent where it is 1 */
            const char *ds = *(*text)++;
            if (strcmp(ds, "1.0f") != 0) fk_table_set_text(L, "ds", ds);
        }
        lua_newtable(L);
        for (int j = 0; j < term[i].num_reads; ++j) {
            push_read(L, terms, &term[i].read[j], text);
            lua_seti(L, -2, j + 1);
        }
        lua_setfield(L, -2, "reads");
        fk_lua_seal(L, "score.terms[i]", optional);
        lua_seti(L, -2, i + 1);
    }
}

static bool uses(const fk_score_term *term, int count, const char *name) {
    for (int i = 0; i < count; ++i) {
        if (fk_expr_uses(term[i].value, name)) return true;
    }
    return false;
}

static bool reads_along(const fk_problem_terms *terms, int dim) {
    bool along = false;
    for (int i = 0; i < terms->score.num_terms; ++i)
        along = along || fk_array_list_reads_along(&terms->arrays, terms->score.term[i].value, dim);
    return along;
}

/* Do scores grow or shrink with their place, as far as there are keys? */
static bool by_place(const fk_problem_score *score) {
    for (int i = 0; i < score->num_terms; ++i) {
        if (fk_expr_computes_with(score->term[i].value, "k")) return true;
    }
    return false;
}

/* May the maximum of some keys be far from 0 and mean nothing, as by an additive mask of -1e9 or of a float's least
 * number? Lines along the keys are taken for none, and float32 takes differences first. */
static bool strays_far(const fk_problem *p, const fk_problem_score *score) {
    return uses(score->term, score->num_terms, "k") && !score->along && p->dtype != FK_FP32;
}

/* Does the way back need the scores, or is it the same for all of them? */
bool fk_score_fused(const fk_problem_score *score) {
    for (int i = 0; i < score->num_terms; ++i) {
        const fk_score_term *term = &score->term[i];
        if (fk_expr_uses(term->ds, "s")) return true;
        for (int j = 0; j < term->num_reads; ++j) {
            if (fk_expr_uses(term->read[j].derivative, "s")) return true;
        }
    }
    return false;
}

/* Is some term's array given a gradient, which is then summed on the way back? */
static bool sums(const fk_problem_score *score) {
    for (int i = 0; i < score->num_terms; ++i) {
        if (score->term[i].num_reads) return true;
    }
    return false;
}

/* Does one of the terms, which are on the stack, change dS? */
static bool changes_ds(lua_State *L, int num_terms) {
    bool any = false;
    for (int i = 0; i < num_terms; ++i) {
        lua_geti(L, -1, i + 1);
        any = lua_getfield(L, -1, "ds") != LUA_TNIL || any;
        lua_pop(L, 2);
    }
    return any;
}

static void push_uses(lua_State *L, const fk_score_term *term, int count) {
    lua_newtable(L);
    for (int i = 0; i < FK_MASK_NUM_SYMBOLS; ++i)
        fk_table_set_bool(L, fk_mask_symbols[i].name, uses(term, count, fk_mask_symbols[i].name));
    fk_lua_seal(L, "score.uses", NULL);
}

void fk_bind_set_array(lua_State *L, const char *field, const fk_array_decl *array) {
    lua_pushfstring(L, "%s" FK_ARRAY_SUFFIX, array->name);
    lua_setfield(L, -2, field);
}

void fk_bind_set_reads_along(lua_State *L, bool q, bool k) {
    lua_newtable(L);
    fk_table_set_bool(L, "q", q);
    fk_table_set_bool(L, "k", k);
    fk_lua_seal(L, "reads_along", NULL);
    lua_setfield(L, -2, "reads_along");
}

void fk_bind_push_score(lua_State *L, const fk_problem *p, const fk_problem_terms *terms, const fk_score_texts *texts) {
    const fk_problem_score *score = &terms->score;
    char *const *text = texts->text;
    luaL_checkstack(L, 16, "score");
    lua_newtable(L);
    push_terms(L, terms, score->term, score->num_terms, &text);
    const bool changes = changes_ds(L, score->num_terms);
    lua_setfield(L, -2, "terms");
    push_terms(L, terms, score->sink, score->num_sinks, &text);
    lua_setfield(L, -2, "sinks");
    fk_table_set_text(L, "factor", score->num_terms ? *text++ : "1.0f");
    fk_table_set_text(L, "rest", score->num_terms ? *text++ : "s");
    fk_table_set_bool(L, "along", score->along);
    lua_newtable(L);
    for (int i = 0; i < score->num_bends; ++i) {
        lua_pushstring(L, *text++);
        lua_seti(L, -2, i + 1);
    }
    lua_setfield(L, -2, "bends");
    fk_bind_set_reads_along(L, reads_along(terms, FK_DIM_SEQLEN_Q), reads_along(terms, FK_DIM_SEQLEN_K));
    fk_table_set_bool(L, "by_place", by_place(score));
    fk_table_set_bool(L, "strays_far", strays_far(p, score));
    fk_table_set_bool(L, "derivatives_use_s", fk_score_fused(score));
    fk_table_set_bool(L, "goes_back", changes || sums(score));
    fk_table_set_bool(L, "sums", sums(score));
    fk_table_set_bool(L, "grads", score->grad != 0);
    push_uses(L, score->term, score->num_terms);
    lua_setfield(L, -2, "uses");
    push_uses(L, score->sink, score->num_sinks);
    lua_setfield(L, -2, "sink_uses");
    lua_newtable(L);
    for (int i = 0; i < score->num_params; ++i) {
        lua_newtable(L);
        fk_table_set_text(L, "name", score->param[i].name);
        fk_table_set_text(L, "type", score->param[i].is_float ? "float" : "int");
        fk_table_set_bool(L, "nonzero", score->param[i].nonzero);
        fk_table_set_bool(L, "in_terms", uses(score->term, score->num_terms, score->param[i].name));
        fk_table_set_bool(L, "in_sinks", uses(score->sink, score->num_sinks, score->param[i].name));
        fk_lua_seal(L, "score.params[i]", NULL);
        lua_seti(L, -2, i + 1);
    }
    lua_setfield(L, -2, "params");
    fk_lua_seal(L, "score", NULL);
}

bool fk_score_reads_pairs(const fk_problem_terms *terms, int i) {
    const fk_array_decl *array = &terms->arrays.decl[i];
    for (int d = 0; d + 1 < array->rank; ++d)
        if (array->dim[d] == FK_DIM_SEQLEN_K) return false; /* elements of neighbouring keys do not lie side by side */
    return uses(terms->score.term, terms->score.num_terms, array->name) && !terms->arrays.clamp[i] &&
           array->dim[array->rank - 1] == FK_DIM_SEQLEN_K;
}

bool fk_tile_stages(const fk_problem *p, const fk_tile *tile) {
    if (!tile->wgmma) return false;
    if (!tile->walks_q) return fk_tile_teams(tile) == 1 && fk_tile_cluster(p, tile) == 1 && p->dtype != FK_E4M3;
    /* what lies behind a packed sequence's queries need not be finite */
    return !p->packed && tile->block_m == 64 && tile->block_n == 128 && tile->k_stages == 2 &&
           fk_tile_cluster(p, tile) == 1;
}

int fk_score_staged(const fk_problem_terms *terms, bool backward) {
    if (backward && fk_score_fused(&terms->score)) return 0; /* it is read twice */
    for (int i = 0; i < terms->arrays.count; ++i) {
        const fk_array_decl *array = &terms->arrays.decl[i];
        int of_dim[FK_DIM_SEQLEN_K + 1] = {0}, most = 0;
        for (int d = 0; d < array->rank; ++d)
            if (++of_dim[array->dim[d]] > most) most = of_dim[array->dim[d]];
        if (fk_score_reads_pairs(terms, i) && of_dim[FK_DIM_SEQLEN_Q] && most == 1) return i + 1;
    }
    return 0;
}

/* The device function that makes a value of an element's bits (templates/primitive/convert.cu). */
static const char *value_of(const fk_array_decl *array) {
    static const char *const values[] = {"__uint_as_float", "int", "lower_fp16", "lower_bf16"}; /* by fk_element */
    return values[array->type];
}

void fk_bind_push_arrays(lua_State *L, const fk_problem *p, const fk_problem_terms *terms, int staged) {
    const fk_array_list *arrays = &terms->arrays;
    luaL_checkstack(L, 8, "arrays");
    lua_newtable(L);
    for (int i = 0; i < arrays->count; ++i) {
        const fk_array_decl *array = &arrays->decl[i];
        char declared[FK_ARRAY_TYPE_SIZE];
        fk_array_write_type(array, declared);
        lua_newtable(L);
        fk_bind_set_array(L, "name", array);
        fk_table_set_text(L, "declared", declared);
        fk_table_set_text(L, "type", fk_array_is_float(array) ? "float" : "int");
        fk_table_set_text(L, "element", fk_array_element_name(array));
        fk_table_set_int(L, "bytes", fk_array_element_bytes(array));
        fk_table_set_text(L, "value", value_of(array));
        fk_table_set_int(L, "rank", array->rank);
        fk_table_set_bool(L, "sorted", array->sorted);
        const fk_expr *residual = terms->mask.split_k.residual;
        const bool query_row = fk_array_list_reads_row(arrays, residual, i, FK_DIM_SEQLEN_Q);
        const bool key_row = fk_array_list_reads_row(arrays, residual, i, FK_DIM_SEQLEN_K);
        fk_table_set_bool(L, "staged", i + 1 == staged);
        fk_table_set_bool(L, "staged_grad", i + 1 == staged && fk_stages_grad(p, terms->score.grad, staged));
        fk_table_set_bool(L, "key_pairs", i + 1 != staged && fk_score_reads_pairs(terms, i));
        fk_table_set_text(L, "mask_row", query_row ? "q" : key_row ? "k" : "");
        fk_table_set_bool(L, "grad", terms->score.grad >> i & 1);
        lua_newtable(L);
        for (int d = 0; d < array->rank; ++d) {
            lua_pushboolean(L, arrays->clamp[i] >> d & 1);
            lua_seti(L, -2, d + 1);
        }
        lua_setfield(L, -2, "clamp");
        fk_lua_seal(L, "arrays[i]", NULL);
        lua_seti(L, -2, i + 1);
    }
}
