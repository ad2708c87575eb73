/* Random page tables, with garbage where nothing may be read. */
#ifndef FK_TESTS_RANDOM_PAGES_H
#define FK_TESTS_RANDOM_PAGES_H

#include "random_draw.h"

/** Draws pages for the sequences of `out`, whose lengths are drawn: the paging of args, out->table and out->page_rows.
 * Pages are in no order, some belong to two sequences, some to none. */
void draw_pages(rng *r, drawn *out);
/** What page sizes are a multiple of: a value of fk_problem.paged. */
int32_t draw_page_rows(uint64_t seed);
/** From the first to the last entry of the page table. */
int64_t table_entries(const drawn *d);

#endif
